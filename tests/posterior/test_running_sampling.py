"""What `sample` asks of PyMC: start, jitter, seeds. The sampler itself is a stand-in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pytensor.configdefaults import config

from moment_init import sample
from moment_init.posterior import running
from tests.bayesian_models import COMPILE, FakeSampler, fitted
from tests.em_fits import Fitted

DRAWS, CHAINS = 4, 2


@pytest.fixture(autouse=True)
def _without_c_compiler() -> Iterator[None]:
    with config.change_flags(cxx=""):
        yield


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSampler:
    sampler = FakeSampler()
    monkeypatch.setattr(pm, "sample", sampler)
    return sampler


def sampled(start: Fitted, **arguments: Any) -> Any:
    fit = start.fit
    given: dict[str, Any] = {"draws": DRAWS, "chains": CHAINS, "random_seed": 5, "init": fit}
    given |= start.block
    return sample(
        start.X, start.y, fit.n_components, family=fit.family, link=fit.link, **(given | arguments)
    )


@pytest.fixture(scope="module")
def start() -> Fitted:
    return fitted("poisson", "log", "plain")


# --- arguments -----------------------------------------------------------------------------------


def test_arguments_are_passed(start: Fitted, fake: FakeSampler) -> None:
    sampled(start, tune=7, target_accept=0.9, cores=1)
    (call,) = fake.calls
    assert call["draws"] == DRAWS
    assert call["chains"] == CHAINS
    assert call["tune"] == 7
    assert call["target_accept"] == 0.9
    assert call["cores"] == 1
    names = ["coefficient", "bias", "weight", "standardised_scale", "tilt", "standardised_bias"]
    assert call["var_names"] == names


@pytest.mark.parametrize(
    ("arguments", "tune"),
    [
        ({}, 500),  # the posterior is skewed
        ({"tune": 7}, 7),
        ({"nuts_sampler": "pymc"}, None),
        ({"nuts": {"store_mass_matrix": True}}, None),
        ({"compile_kwargs": {"cache": True}}, None),
    ],
)
def test_warm_up_is_short_in_whitened_coordinates_only(
    start: Fitted, fake: FakeSampler, arguments: dict[str, Any], tune: int | None
) -> None:
    sampled(start, **arguments)
    assert fake.calls[0].get("tune") == tune


def test_fixed_directions_are_projected_once(start: Fitted, fake: FakeSampler) -> None:
    sampled(start, directions="fixed")
    assert "projection" in fake.calls[0]["model"].named_vars


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({}, "nutpie"),
        ({"nuts_sampler": "nutpie"}, "nutpie"),
        ({"nuts_sampler": "pymc"}, "pymc"),
        ({"nuts_sampler": "numpyro"}, "jax"),
        ({"nuts_sampler": "blackjax"}, "jax"),
        # PyMC takes its own sampler for these.
        ({"callback": print}, "pymc"),
        ({"compile_kwargs": COMPILE}, "pymc"),
    ],
)
def test_jitter_is_off_in_every_sampler(
    start: Fitted, fake: FakeSampler, arguments: dict[str, Any], key: str
) -> None:
    sampled(start, **arguments)
    (call,) = fake.calls
    jitter = {
        "nutpie": call.get("compile_kwargs", {}).get("jitter_rvs"),
        "jax": call.get("nuts", {}).get("jitter"),
        "pymc": call.get("init"),
    }
    expected = {"nutpie": set(), "jax": False, "pymc": "adapt_diag"}
    assert jitter == {name: expected[name] if name == key else None for name in jitter}


def test_jitter_without_nutpie(
    start: Fitted, fake: FakeSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "find_spec", lambda name: None)
    sampled(start)
    assert fake.calls[0]["init"] == "adapt_diag"


def test_what_the_user_gives_wins(start: Fitted, fake: FakeSampler) -> None:
    own = np.array([0.5, 0.6])
    sampled(
        start,
        initvals={"standardised_scale": own},
        compile_kwargs={"jitter_rvs": {"all"}, "cache": True},
    )
    sampled(start, nuts_sampler="numpyro", nuts={"jitter": True, "max_treedepth": 8})
    first, second = fake.calls
    assert_array_equal(first["initvals"]["standardised_scale"], own)
    assert set(first["initvals"]) == {"weight", "standardised_scale", "tilt", "standardised_bias"}
    assert first["compile_kwargs"] == {"jitter_rvs": {"all"}, "cache": True}
    assert second["nuts"] == {"jitter": True, "max_treedepth": 8}


def test_initial_values_by_chain_are_refused(start: Fitted, fake: FakeSampler) -> None:
    with pytest.raises(TypeError, match=r"`initvals` must be a dict of values by variable.*list"):
        sampled(start, initvals=[{}, {}, None])
    with pytest.raises(ValueError, match=r"`initvals` must name free variables .*got slope"):
        sampled(start, initvals={"slope": 1.0, "weight": [0.5, 0.5]})
    assert not fake.calls


# --- starts --------------------------------------------------------------------------------------


def drawn_starts(call: Any, number: int) -> dict[str, Any]:
    """Starts that chains would draw."""
    names = list(call["initvals"])
    variables = [call["initvals"][name] for name in names]
    values = pm.draw(variables, number, random_seed=1, mode=COMPILE["mode"])
    return dict(zip(names, values, strict=True))


def test_chains_start_apart_around_the_mode(start: Fitted, fake: FakeSampler) -> None:
    """All variables of a start come from one draw, and the draws differ."""
    sampled(start)
    call = fake.calls[0]
    drawn = drawn_starts(call, 50)
    assert set(drawn) == {variable.name for variable in call["model"].free_RVs}
    assert_allclose(drawn["weight"].sum(axis=1), 1.0, rtol=1e-12)
    assert np.all(drawn["standardised_bias"].std(axis=0) > 0)
    first = {
        row[0]: bias for row, bias in zip(drawn["weight"], drawn["standardised_bias"], strict=True)
    }
    assert 5 < len(first) <= 40
    for row, bias in zip(drawn["weight"], drawn["standardised_bias"], strict=True):
        assert_array_equal(first[row[0]], bias)


def test_arrays_without_a_dispersion_start_near_the_mode(fake: FakeSampler) -> None:
    """Deviations that PyMC would start at the median of their prior, far from those of the fit."""
    start = fitted("gaussian", "identity", "plain")
    fit = start.fit
    sampled(start)
    sampled(start, init=(fit.coefficients, fit.biases, fit.weights))
    first, second = (drawn_starts(call, 100)["standardised_dispersion"] for call in fake.calls)
    assert_allclose(np.log(second).mean(axis=0), np.log(first).mean(axis=0), atol=0.1)


# --- seeds and stores ----------------------------------------------------------------------------


def test_same_seed_same_result(start: Fitted, fake: FakeSampler) -> None:
    first, second, third = (sampled(start, random_seed=seed) for seed in (5, 5, 6))
    for group in ("posterior", "posterior_predictive", "log_likelihood"):
        assert first[group].to_dataset().identical(second[group].to_dataset())
        assert not first[group].to_dataset().equals(third[group].to_dataset())


def test_generator_is_taken_as_seed(start: Fitted, fake: FakeSampler) -> None:
    seeds = [sampled(start, random_seed=np.random.default_rng(1)) for _ in range(2)]
    assert seeds[0]["posterior"].to_dataset().equals(seeds[1]["posterior"].to_dataset())
    assert fake.calls[0]["random_seed"] == fake.calls[1]["random_seed"]


def test_store_is_refused_where_something_is(
    start: Fitted, fake: FakeSampler, tmp_path: Path
) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(FileExistsError, match="`store` must be a new or empty folder"):
        sampled(start, store=tmp_path)
    with pytest.raises(FileExistsError, match="is a file"):
        sampled(start, store=tmp_path / "something")
    assert not fake.calls


def test_store_gets_the_arguments_and_the_header(
    start: Fitted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: dict[str, Any] = {}

    def note(path: Any, function: Any, arguments: Any, *, header: Any, variables: Any) -> Any:
        calls.update(path=path, function=function, header=header, variables=variables)
        return FakeSampler()(**arguments)

    monkeypatch.setattr(running, "sample_into_store", note)
    tree = sampled(start, store=tmp_path / "draws")
    assert calls["path"] == tmp_path / "draws"
    assert calls["function"] is pm.sample
    assert set(calls["header"].children) == {"observed_data", "constant_data", "moment_init"}
    assert calls["variables"][:5] == ["coefficient", "direction", "scale", "bias", "weight"]
    assert "log_likelihood" in tree.children
