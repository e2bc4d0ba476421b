"""`estimate` of Dask inputs gives what it gives of arrays, whatever the blocks."""

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from moment_init import MomentEstimate, estimate, simulate_mixture
from moment_init.scores import Gaussian, StudentT

pytestmark = pytest.mark.filterwarnings("ignore::moment_init.checks.WeakSignalWarning")

N_OBS = 130_000
"""So many that moments are those of every second row, and the likelihood climbs by Le Cam's steps
on every sixteenth, every fourth, and all."""

GAUSSIAN = simulate_mixture(N_OBS, 3, 2, family="gaussian", scales=1.0, random_seed=2)
WEIGHTS = np.random.default_rng(3).integers(3, size=N_OBS).astype(float)


def _assert_same(found: MomentEstimate, expected: MomentEstimate) -> None:
    """Equal to 1e-10, relative to a thousandth where values are about zero."""
    for name in ("coefficients", "biases", "weights", "dispersion", "standard_errors"):
        first, second = getattr(found, name), getattr(expected, name)
        assert (first is None) == (second is None)
        if second is not None:
            assert_allclose(first, second, rtol=1e-10, atol=1e-11)
    assert found.log_likelihood == (
        None if expected.log_likelihood is None else pytest.approx(expected.log_likelihood)
    )
    assert found.status is expected.status
    assert found.warnings == expected.warnings
    assert found.feature_names == expected.feature_names


def _lazy(values: Any, chunk: int = 50_000) -> Any:
    return da.from_array(values, chunks=(chunk, *values.shape[1:]))


@pytest.mark.usefixtures("little_held")
@pytest.mark.parametrize("chunk", [130_000, 33_333, 4_000])
def test_blocks_of_any_size(chunk: int) -> None:
    expected = estimate(GAUSSIAN.X, GAUSSIAN.y, 2, family="gaussian", random_seed=1)
    X, y = _lazy(GAUSSIAN.X, chunk), _lazy(GAUSSIAN.y, 7_001)
    _assert_same(estimate(X, y, 2, family="gaussian", random_seed=1), expected)


@pytest.mark.usefixtures("nothing_whole")
def test_weights_offsets_and_unknown_sizes() -> None:
    offset = np.random.default_rng(4).normal(size=N_OBS)
    frame = pd.DataFrame(GAUSSIAN.X, columns=["a", "b", "c"])
    frame = frame.assign(y=GAUSSIAN.y + offset, w=WEIGHTS, o=offset)
    lazy = dd.from_pandas(frame, npartitions=5)
    options: dict[str, Any] = {"family": "gaussian", "random_seed": 1}
    expected = estimate(
        frame[["a", "b", "c"]], frame["y"], 2, sample_weight=WEIGHTS, offset=offset, **options
    )
    found = estimate(
        lazy[["a", "b", "c"]],
        lazy["y"],
        2,
        sample_weight=lazy["w"],
        offset=lazy["o"],
        **options,
    )
    _assert_same(found, expected)


@pytest.mark.usefixtures("nothing_whole")
def test_trials_and_discrete_columns() -> None:
    data = simulate_mixture(N_OBS, 3, 2, family="binomial", n_trials=4, scales=1.5, random_seed=5)
    X = np.column_stack([data.X, np.random.default_rng(6).integers(2, size=N_OBS)])
    X = X.astype(np.float32)
    trials = np.full(N_OBS, 4)
    options: dict[str, Any] = {"family": "binomial", "random_seed": 1}
    expected = estimate(X, data.y, 2, n_trials=trials, **options)
    _assert_same(estimate(_lazy(X), data.y, 2, n_trials=_lazy(trials), **options), expected)
    _assert_same(estimate(_lazy(X), _lazy(data.y), 2, n_trials=4, **options), expected)


@pytest.mark.usefixtures("nothing_whole")
@pytest.mark.parametrize("kind", ["several", "classes"])
def test_several_responses_and_classes(kind: str) -> None:
    """Weights, an offset and a response with trials; labels of three classes."""
    data = simulate_mixture(60_000, 3, 2, family="gaussian", scales=1.5, random_seed=8)
    rng, weights = np.random.default_rng(9), WEIGHTS[:60_000]
    means = (data.X @ data.coefficients + data.biases)[np.arange(60_000), data.labels]
    frame = pd.DataFrame(data.X, columns=["a", "b", "c"]).assign(w=weights)
    rest: dict[str, Any] = {}
    if kind == "several":
        chances = 1.0 / (1.0 + np.exp(-means))
        frame = frame.assign(value=5.0 + 3.0 * data.y, wins=rng.binomial(4, chances), o=weights)
        responses: Any = ["value", "wins"]
        options: dict[str, Any] = {"family": ["gaussian", "binomial"], "n_trials": 4}
        rest["offset"] = "o"
    else:
        logits = means[:, None] * [0.0, 1.0, -1.0] + rng.gumbel(size=(60_000, 3))
        frame = frame.assign(label=np.array(["low", "middle", "top"])[logits.argmax(axis=1)])
        responses, options = "label", {"family": "categorical"}
    lazy = dd.from_pandas(frame, npartitions=4)

    def run(table: Any) -> MomentEstimate:
        columns = {name: table[column] for name, column in rest.items()}
        X, y = table[["a", "b", "c"]], table[responses]
        return estimate(X, y, 2, sample_weight=table["w"], random_seed=1, **columns, **options)

    expected = run(frame)
    assert expected.coefficients is not None
    assert expected.coefficients.shape == (2, 3, 2)
    _assert_same(run(lazy), expected)


@pytest.mark.usefixtures("little_held")
@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_moments_alone_use_all_rows(family: str) -> None:
    data = simulate_mixture(90_000, 3, 2, family=family, scales=0.7, random_seed=7)
    weights = WEIGHTS[:90_000]
    options: dict[str, Any] = {"family": family, "polish": False, "input_model": "gaussian"}
    expected = estimate(data.X, data.y, 2, sample_weight=weights, random_seed=1, **options)
    found = estimate(
        _lazy(data.X, 17_000), data.y, 2, sample_weight=weights, random_seed=1, **options
    )
    _assert_same(found, expected)


@pytest.mark.usefixtures("nothing_whole")
def test_a_density_that_is_given_or_fitted() -> None:
    X, y = _lazy(GAUSSIAN.X), _lazy(GAUSSIAN.y)
    options: dict[str, Any] = {"family": "gaussian", "random_seed": 1}
    for model in (Gaussian(), StudentT().fit(GAUSSIAN.X[:5_000])):
        expected = estimate(GAUSSIAN.X, GAUSSIAN.y, 2, input_model=model, **options)
        _assert_same(estimate(X, y, 2, input_model=model, **options), expected)
    with pytest.raises(ValueError, match="`input_model` must be fitted"):
        estimate(X, y, 2, input_model=StudentT(), **options)
    with pytest.raises(ValueError, match="`input_model` must be 'auto', 'gaussian'"):
        estimate(X, y, 2, input_model="student", **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("little_held")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "power"}, "`method` must be 'stacked' for a Dask input"),
        ({"X_unlabelled": GAUSSIAN.X}, "`X_unlabelled` must be None for a Dask input"),
        ({"known_scales": 1.0, "known_biases": 0.0}, "`known_scales` and `known_biases` must be"),
        ({"offset": GAUSSIAN.y, "polish": False}, "`polish` must be True with `offset`"),
        (
            {"input_model": StudentT().fit(GAUSSIAN.X[:5_000]), "polish": False},
            "`input_model` must be 'gaussian'",
        ),
    ],
)
def test_what_needs_all_rows_raises(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate(_lazy(GAUSSIAN.X), _lazy(GAUSSIAN.y), 2, family="gaussian", **options)


def test_features_of_a_dask_input_raise() -> None:
    with pytest.raises(TypeError, match=r"`phi` must be None for a Dask input"):
        estimate(_lazy(GAUSSIAN.X), GAUSSIAN.y, 2, family="gaussian", phi=np.tanh)


@pytest.mark.usefixtures("nothing_whole")
def test_discrete_columns_alone_identify_nothing() -> None:
    X = (GAUSSIAN.X > 0.0).astype(float)
    with pytest.raises(ValueError, match="must have a continuous column"):
        estimate(_lazy(X), GAUSSIAN.y, 2, family="gaussian")
