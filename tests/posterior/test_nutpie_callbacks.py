"""Models compiled for nutpie: the layout of point and table, who compiles what, and the results."""

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from pymc.initial_point import make_initial_point_fn
from pytensor.compile.sharedvalue import shared as shared_variable
from pytensor.configdefaults import config
from pytensor.raise_op import Assert

from moment_init.models.mixture_glm import mixture_glm
from moment_init.posterior.mode import LogPosterior, PosteriorMode
from moment_init.posterior.nutpie_callbacks import DataTable, FlatPoint
from moment_init.posterior.sampling import sample
from tests.bayesian_models import N_OBS, FakeSampler, fitted

compile_pymc = pytest.importorskip("nutpie.compile_pymc")
nutpie_compiling = pytest.importorskip("moment_init.posterior.nutpie_callbacks")

FACTORY = "_compile_pymc_model_numba"
SHAPES = ((2,), (), (3, 2), (1, 2, 2))


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Stand for nutpie's function and for ours: both say who they are."""
    monkeypatch.setattr(compile_pymc, FACTORY, lambda **options: "nutpie")
    monkeypatch.setattr(nutpie_compiling, "compile_model", lambda *arguments: "ours")
    yield lambda **options: getattr(compile_pymc, FACTORY)(**options)
    assert nutpie_compiling._modes == nutpie_compiling._originals == []


def stand_in() -> Any:
    """Stand for the mode of a model."""
    return SimpleNamespace(log_posterior=SimpleNamespace(model=SimpleNamespace()))


def asked_for(mode: Any, **options: Any) -> dict[str, Any]:
    return {
        "model": mode.log_posterior.model,
        "pymc_initial_point_fn": None,
        "var_names": None,
        **options,
    }


def test_arrays_are_stored_one_after_another(rng: np.random.Generator) -> None:
    point = FlatPoint(SHAPES, start=3)
    assert point.offsets == [3, 5, 6, 12, 16]
    arrays = [rng.standard_normal(shape) for shape in SHAPES]
    into = np.zeros(point.end)
    names: dict[str, Any] = {f"out_{k}": array for k, array in enumerate(arrays)}
    exec("def store(into):\n" + point.stores("into"), names)
    names["store"](into)
    np.testing.assert_array_equal(into[3:], np.concatenate([array.ravel() for array in arrays]))
    assert not into[:3].any()


def test_arrays_are_read_where_they_were_stored() -> None:
    """The addresses are eight bytes times the offsets."""
    reads = FlatPoint(((2,), (3, 2))).reads()
    seen = [
        eval(
            read, {"carray": lambda *given: given, "at": lambda at: at, "start": 1000, "double": 8}
        )
        for read in reads
    ]
    assert seen == [(1000, (2,), 8), (1016, (3, 2), 8)]


def test_table_is_the_one_that_nutpie_makes(rng: np.random.Generator) -> None:
    """Reads of the second and the last array, from nutpie's own record of three."""
    values = [rng.standard_normal(shape) for shape in ((4,), (2, 5), (3, 1, 2))]
    shared = tuple(shared_variable(value) for value in values)
    keys = {variable: uuid4().hex for variable in shared}
    data = {keys[variable]: value for variable, value in zip(shared, values, strict=True)}
    words = compile_pymc.make_user_data(keys, data).reshape(1).view(np.uint64)
    table = DataTable(shared)
    assert table.n_words == words.size
    names = {"table": words.tolist(), "carray": lambda *given: given, "at": lambda at: at}
    dtypes = {"dtype_0": "first", "dtype_1": "second"}
    reads = [eval(read, names | dtypes) for read in table.reads([shared[2], shared[1]])]
    assert reads == [
        (values[2].ctypes.data, (3, 1, 2), "first"),
        (values[1].ctypes.data, (2, 5), "second"),
    ]


def test_only_the_given_model_is_compiled_otherwise(factory: Any) -> None:
    own, other = stand_in(), stand_in()
    with nutpie_compiling.compiling_once(own):
        assert factory(**asked_for(own)) == "ours"
        assert factory(**asked_for(other)) == "nutpie"
    assert factory(**asked_for(own)) == "nutpie"


def test_contexts_of_two_models_overlap(factory: Any) -> None:
    """As two threads do it: the first to begin is the first to end."""
    first, second = stand_in(), stand_in()
    contexts = [nutpie_compiling.compiling_once(mode) for mode in (first, second)]
    for context in contexts:
        context.__enter__()
    contexts[0].__exit__(None, None, None)
    assert factory(**asked_for(first)) == "nutpie"
    assert factory(**asked_for(second)) == "ours"
    contexts[1].__exit__(None, None, None)
    assert factory(**asked_for(second)) == "nutpie"


def test_options_of_numba_are_left_to_nutpie(factory: Any) -> None:
    mode = stand_in()
    with nutpie_compiling.compiling_once(mode):
        assert factory(**asked_for(mode, fastmath=True)) == "nutpie"


def test_nutpie_is_put_back_after_an_error(factory: Any) -> None:
    mode = stand_in()
    with pytest.raises(KeyError, match="gone"), nutpie_compiling.compiling_once(mode):
        raise KeyError("gone")
    assert factory(**asked_for(mode)) == "nutpie"


def test_unknown_nutpie_compiles_as_ever(factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nutpie_compiling, "_FIELDS", frozenset({"another"}))
    mode = stand_in()
    with nutpie_compiling.compiling_once(mode):
        assert factory(**asked_for(mode)) == "nutpie"


@pytest.mark.parametrize(("sampler", "is_ours"), [("nutpie", True), ("pymc", False)])
def test_sampling_compiles_once_with_nutpie_only(
    monkeypatch: pytest.MonkeyPatch, sampler: str, is_ours: bool
) -> None:
    """While PyMC samples, nutpie's function is replaced; not before, and not after."""
    before = getattr(compile_pymc, FACTORY)
    seen = []

    class Watching(FakeSampler):
        def __call__(self, **arguments: Any) -> xr.DataTree:
            seen.append(getattr(compile_pymc, FACTORY) is nutpie_compiling._choose)
            return super().__call__(**arguments)

    start = fitted("bernoulli", "logit", "plain", with_extras=False)
    monkeypatch.setattr(pm, "sample", Watching())
    with config.change_flags(cxx=""):
        sample(
            start.X,
            start.y,
            start.fit.n_components,
            init=start.fit,
            draws=2,
            chains=1,
            nuts_sampler=sampler,
            random_seed=1,
        )
    assert seen == [is_ours]
    assert getattr(compile_pymc, FACTORY) is before


def plain_mode(model: pm.Model) -> PosteriorMode:
    """A mode whose coordinates are the unconstrained values themselves."""
    log_posterior = LogPosterior(model)
    n_values = len(log_posterior.start)
    return PosteriorMode(log_posterior, np.zeros(n_values), np.eye(n_values), 0.0, True)


def evaluate(compiled: Any, point: np.ndarray[Any, Any]) -> tuple[int, int, Any, Any, Any]:
    """Codes, value, gradient and stored variables, by calls of the two callbacks."""
    doubles, word = ctypes.POINTER(ctypes.c_double), ctypes.c_uint64
    value, gradient = np.zeros(1), np.zeros(compiled.n_dim)
    stored = np.zeros(compiled.n_expanded)
    at, into, to, out = (a.ctypes.data_as(doubles) for a in (point, gradient, value, stored))
    table = compiled.user_data.ctypes.data
    kinds: tuple[Any, ...] = (word, doubles, doubles, doubles, ctypes.c_void_p)
    logp = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(compiled.compiled_logp_func.address)
    code = logp(compiled.n_dim, at, into, to, table)
    kinds = (word, word, doubles, doubles, ctypes.c_void_p)
    expand = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(compiled.compiled_expand_func.address)
    return (
        code,
        expand(compiled.n_dim, compiled.n_expanded, at, out, table),
        value,
        gradient,
        stored,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "link", "directions"),
    [("bernoulli", "logit", "anchored"), ("gaussian", "identity", "free")],
)
def test_callbacks_are_those_of_nutpie(
    family: str, link: str, directions: Any, rng: np.random.Generator
) -> None:
    """Sums are taken in another order: they agree to rounding, gradients to that of their terms."""
    # A row's part of a gradient is at most some hundred here; parts cancel near the fit.
    rounding = 100.0 * np.finfo(np.float64).eps * N_OBS
    start = fitted(family, link, "plain", with_extras=False)
    given: dict[str, Any] = {"family": family, "init": start.fit, "directions": directions}
    model = mixture_glm(start.X, start.y, start.fit.n_components, **given)
    initial = make_initial_point_fn(model=model, jitter_rvs=set(), return_transformed=True)
    ours = nutpie_compiling.compile_model(plain_mode(model), initial)
    own = compile_pymc._compile_pymc_model_numba(model, pymc_initial_point_fn=initial)
    assert list(ours.shapes.items()) == list(own.shapes.items())
    assert (ours.dims, ours.reparameterized_names) == (own.dims, own.reparameterized_names)
    assert ours.shape_info[1] == own.shape_info[1]
    begin = ours.initial_point_func(1)
    np.testing.assert_array_equal(begin, own.initial_point_func(1))
    for size in (0.0, 0.1, 0.3):
        point = begin + size * rng.standard_normal(begin.size)
        found, expected = evaluate(ours, point), evaluate(own, point)
        assert found[:2] == expected[:2] == (0, 0)
        np.testing.assert_allclose(found[2], expected[2], rtol=1e-12)
        np.testing.assert_allclose(found[3], expected[3], rtol=1e-10, atol=rounding)
        np.testing.assert_allclose(found[4], expected[4], rtol=1e-12, atol=1e-13)
    # in other coordinates: v = centre + L z, with the gradient L' g
    root, centre = rng.standard_normal((begin.size, begin.size)), rng.standard_normal(begin.size)
    mode = replace(plain_mode(model), point=centre, root=root)
    whitened = nutpie_compiling.compile_model(mode, initial)
    np.testing.assert_allclose(
        centre + root @ whitened.initial_point_func(1), begin, rtol=1e-9, atol=1e-12
    )
    step = np.linalg.solve(root, point - centre)
    found, expected = evaluate(whitened, step), evaluate(own, point)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-9)
    np.testing.assert_allclose(found[3], expected[3] @ root, rtol=1e-6, atol=1e6 * rounding)
    np.testing.assert_allclose(found[4], expected[4], rtol=1e-8, atol=1e-8)
    begin[0] = np.nan
    assert evaluate(ours, begin)[0] == evaluate(own, begin)[0] == 3
    again = nutpie_compiling.compile_model(plain_mode(model), initial)
    assert again.compiled_logp_func.cache_hits == again.compiled_expand_func.cache_hits == 1


@pytest.mark.slow
def test_error_within_a_graph_is_a_code(capfd: pytest.CaptureFixture[str]) -> None:
    """A scalar that must be positive, with nothing to store: one point on either side."""
    with pm.Model() as model:
        level = pm.Normal("level")
        pm.Potential("checked", Assert("must be positive")(level, pt.gt(level, 0.0)))
    initial = make_initial_point_fn(model=model, jitter_rvs=set(), return_transformed=True)
    compiled = nutpie_compiling.compile_model(plain_mode(model), initial)
    code, _, value, gradient, stored = evaluate(compiled, np.array([2.0]))
    assert (code, gradient, stored) == (0, [-1.0], [2.0])
    np.testing.assert_allclose(value, 2.0 - 2.0 - 0.5 * np.log(2.0 * np.pi), rtol=1e-14)
    assert evaluate(compiled, np.array([-2.0]))[0] == 1
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_one_operation_with_several_numbers_of_inputs() -> None:
    """PyTensor's cache gives vectors of two and of three scalars one name."""
    with pm.Model() as model:
        first, second = pm.Normal("first"), pm.Normal("second")
        pm.Deterministic("pair", pt.stack([first, second]))
        pm.Deterministic("triple", pt.stack([second, first, second]))
    initial = make_initial_point_fn(model=model, jitter_rvs=set(), return_transformed=True)
    compiled = nutpie_compiling.compile_model(plain_mode(model), initial)
    code, also, _, gradient, stored = evaluate(compiled, np.array([1.0, 2.0]))
    assert (code, also) == (0, 0)
    np.testing.assert_array_equal(gradient, [-1.0, -2.0])
    np.testing.assert_array_equal(stored, [1.0, 2.0, 1.0, 2.0, 2.0, 1.0, 2.0])


@pytest.mark.slow
def test_same_draws_with_and_without_a_store(tmp_path: Path) -> None:
    start = fitted("bernoulli", "logit", "plain", with_extras=False)
    posteriors = [
        sample(
            start.X,
            start.y,
            start.fit.n_components,
            init=start.fit,
            draws=50,
            tune=50,
            chains=2,
            store=store,
            progressbar=False,
            random_seed=1,
        )["posterior"].to_dataset()
        for store in (None, tmp_path / "store", None)
    ]
    for other in posteriors[1:]:
        xr.testing.assert_equal(posteriors[0], other)
