"""Arguments of `compare` that are refused before anything is run."""

from typing import Any

import numpy as np
import pytest

from moment_init import compare, simulate_mixture

DATA = simulate_mixture(60, 2, 2, random_seed=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_starts": 0}, "`n_starts` must be a whole number, 1 or more; got 0"),
        ({"n_starts": 2.0}, r"`n_starts` must be a whole number, 1 or more; got 2\.0"),
        ({"draws": 0}, "`draws` must be a whole number, 1 or more; got 0"),
        ({"chains": True}, "`chains` must be a whole number, 1 or more; got True"),
        ({"tune": -1}, "`tune` must be a whole number, 0 or more; got -1"),
        ({"n_jobs": 0}, "`n_jobs` must be a whole number other than 0"),
        ({"held_out": 1.0}, r"`held_out` must be a share .* got 1\.0"),
        ({"held_out": -0.1}, "`held_out` must be a share"),
        ({"held_out": "some"}, "`held_out` must be a share .* got 'some'"),
        ({"held_out": True}, "`held_out` must be a share .* got True"),
        ({"held_out": np.nan}, "`held_out` must be a share .* got nan"),
        ({"directions": "any"}, "`directions` must be one of 'anchored', 'fixed', 'free'"),
        ({"n_components": 0}, "`n_components` must be between 1"),
        ({"n_components": 100}, "`n_components` must be between 1"),
        ({"truth": {"weights": [1.0]}}, "`truth` must be a MixtureData or a mapping"),
        ({"groups": ["a"]}, "`groups` must have shape"),
        ({"family": "cauchy"}, "family"),
        ({"gating": np.zeros(3)}, "`gating`"),
        ({"random_seed": "x"}, "`random_seed` must be"),
    ],
)
def test_wrong_values_are_refused(arguments: dict[str, Any], message: str) -> None:
    number = arguments.pop("n_components", 2)
    with pytest.raises(ValueError, match=message):
        compare(DATA.X, DATA.y, number, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"include_default_nuts": "yes"}, "`include_default_nuts` must be True or False"),
        ({"priors": [1]}, "`priors` must be a mapping of names to priors, or None; got list"),
        (
            {"init": "random"},
            "all arguments of `pymc.sample` except those it sets itself; got init",
        ),
        ({"model": 1, "trace": 2}, "got model, trace"),
        ({"n_components": 2.0}, "`n_components` must be an integer"),
        ({"truth": 3}, "`truth` must be a MixtureData or a mapping"),
    ],
)
def test_wrong_types_are_refused(arguments: dict[str, Any], message: str) -> None:
    number = arguments.pop("n_components", 2)
    with pytest.raises(TypeError, match=message):
        compare(DATA.X, DATA.y, number, **arguments)
