"""`fit_em` of Dask inputs gives what it gives of arrays; what belongs to rows stays lazy."""

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from moment_init import EMFit, fit_em, select_components, simulate_mixture

N_OBS = 60_000
"""More than twice what a search sees, so that it ends with a climb on all rows."""

POISSON = simulate_mixture(N_OBS, 2, 2, family="poisson", scales=0.5, random_seed=3)
WEIGHTS = np.random.default_rng(4).integers(3, size=N_OBS).astype(float)


def _assert_same(found: EMFit, expected: EMFit) -> None:
    for name in ("coefficients", "biases", "weights", "dispersion", "gate", "covariance"):
        first, second = getattr(found, name), getattr(expected, name)
        assert (first is None) == (second is None)
        if second is not None:
            # sums are added in another order
            assert_allclose(first, second, rtol=1e-10, atol=1e-10 * np.nanmax(np.abs(second)))
    for name in ("log_likelihood", "n_obs", "n_units", "n_parameters"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-10)
    assert found.entropy == pytest.approx(expected.entropy, rel=1e-10)
    shares: Any = found.responsibilities
    assert isinstance(shares, da.Array)
    assert shares.shape == expected.responsibilities.shape
    assert_allclose(shares.compute(), expected.responsibilities, atol=1e-10)
    assert found.status is expected.status
    # how many starts a search runs may hang on rounding; what it finds does not
    first, second = (repr(fit).split("best log-likelihood")[0] for fit in (found, expected))
    assert first == second


def _lazy(values: Any) -> Any:
    return da.from_array(values, chunks=(25_000, *values.shape[1:]))


@pytest.mark.usefixtures("little_held")
def test_a_search_on_a_sample_then_all_rows() -> None:
    expected = fit_em(POISSON.X, POISSON.y, 2, family="poisson", random_seed=1)
    found = fit_em(_lazy(POISSON.X), _lazy(POISSON.y), 2, family="poisson", random_seed=1)
    _assert_same(found, expected)


@pytest.mark.usefixtures("nothing_whole")
def test_a_gate_and_weights_some_of_them_zero() -> None:
    covariate = np.random.default_rng(5).normal(size=N_OBS)
    frame = pd.DataFrame(POISSON.X, columns=["a", "b"])
    frame = frame.assign(y=POISSON.y, w=WEIGHTS, g=covariate)
    lazy = dd.from_pandas(frame, npartitions=4)
    options: dict[str, Any] = {"family": "poisson", "random_seed": 1}
    expected = fit_em(
        frame[["a", "b"]], frame["y"], 2, gating=frame["g"], sample_weight=WEIGHTS, **options
    )
    found = fit_em(
        lazy[["a", "b"]], lazy["y"], 2, gating=lazy["g"], sample_weight=lazy["w"], **options
    )
    _assert_same(found, expected)
    assert found.gate_names == ("g",)
    by_array = fit_em(
        lazy[["a", "b"]], lazy["y"], 2, gating=covariate, sample_weight=lazy["w"], **options
    )
    assert by_array.gate_names == ("g0",)
    assert_allclose(by_array.coefficients, expected.coefficients, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("nothing_whole")
@pytest.mark.filterwarnings("ignore::moment_init.checks.ConvergenceWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"init": (POISSON.coefficients, POISSON.biases, POISSON.weights)},
        {"fixed_directions": POISSON.directions},
        {"max_iter": 0},
    ],
)
def test_given_starts_and_held_directions(options: dict[str, Any]) -> None:
    both: dict[str, Any] = {"family": "poisson", "random_seed": 1, **options}
    both["sample_weight"] = 1.0 + WEIGHTS
    expected = fit_em(POISSON.X, POISSON.y, 2, **both)
    _assert_same(fit_em(_lazy(POISSON.X), POISSON.y, 2, **both), expected)


@pytest.mark.usefixtures("nothing_whole")
@pytest.mark.filterwarnings("ignore::moment_init.checks.ConvergenceWarning")
@pytest.mark.parametrize("init", ["tensor", "random"])
def test_starts_on_a_sample(init: Any) -> None:
    both: dict[str, Any] = {"family": "poisson", "random_seed": 1, "init": init, "n_starts": 2}
    expected = fit_em(POISSON.X, POISSON.y, 2, **both)
    _assert_same(fit_em(_lazy(POISSON.X), POISSON.y, 2, **both), expected)


@pytest.mark.usefixtures("nothing_whole")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_gaussian_gate_and_priors() -> None:
    rng = np.random.default_rng(7)
    gating = rng.normal(size=(N_OBS, 2)) + POISSON.labels[:, None]
    offset = 0.1 * rng.normal(size=N_OBS)
    start = (POISSON.coefficients, POISSON.biases, POISSON.weights)
    both: dict[str, Any] = {
        "family": "poisson",
        "gate": "gaussian",
        "init": start,
        "priors": "default",
    }
    expected = fit_em(POISSON.X, POISSON.y, 2, gating=gating, offset=offset, **both)
    found = fit_em(
        _lazy(POISSON.X), POISSON.y, 2, gating=_lazy(gating), offset=_lazy(offset), **both
    )
    _assert_same(found, expected)
    assert found.gate_covariances is not None
    assert expected.gate_covariances is not None
    assert_allclose(found.gate_covariances, expected.gate_covariances, rtol=1e-10)


@pytest.mark.usefixtures("nothing_whole")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("init", ["search", "tensor"])
def test_several_responses(init: Any) -> None:
    rng = np.random.default_rng(8)
    mean = POISSON.X @ POISSON.coefficients[:, POISSON.labels].T.mean(axis=0)
    y = np.column_stack([POISSON.y, 3.0 + mean + POISSON.labels + rng.normal(size=N_OBS)])
    frame = pd.DataFrame(POISSON.X, columns=["a", "b"]).assign(count=y[:, 0], value=y[:, 1])
    lazy = dd.from_pandas(frame, npartitions=4)
    names, responses = ["a", "b"], ["count", "value"]
    both: dict[str, Any] = {"family": ["poisson", "gaussian"], "random_seed": 1, "init": init}
    expected = fit_em(frame[names], frame[responses], 2, **both)
    found = fit_em(lazy[names], lazy[responses], 2, **both)
    assert found.response_names == ("count", "value")
    _assert_same(found, expected)


@pytest.mark.usefixtures("nothing_whole")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_classes() -> None:
    rng = np.random.default_rng(9)
    logits = np.column_stack([np.zeros(N_OBS), POISSON.X @ [2.0, 0.5], POISSON.X @ [-1.0, 1.0]])
    logits[POISSON.labels == 1] *= -1.0
    labels = np.array(["low", "middle", "top"])[
        np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    ]
    frame = pd.DataFrame(POISSON.X, columns=["a", "b"]).assign(label=labels)
    lazy = dd.from_pandas(frame, npartitions=4)
    both: dict[str, Any] = {"family": "categorical", "random_seed": 1}
    start = (np.ones((2, 2, 2)) * [1.0, -1.0], np.zeros((2, 2)), [0.5, 0.5])
    expected = fit_em(frame[["a", "b"]], frame["label"], 2, init=start, **both)
    found = fit_em(lazy[["a", "b"]], lazy["label"], 2, init=start, **both)
    assert found.classes is not None
    assert found.classes.tolist() == ["low", "middle", "top"]
    _assert_same(found, expected)


@pytest.mark.usefixtures("nothing_whole")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("is_large", [False, True])
def test_groups_in_one_block_each(is_large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of three rows that are not sorted, some of them without weight.

    With a smaller sample for the search, its optima are first refined on every fifth group.
    """
    if is_large:
        monkeypatch.setattr("moment_init.em.search.SEARCH_UNITS", 1_000)
        monkeypatch.setattr("moment_init.em.search.HELD_FACTOR", 2)
    rng = np.random.default_rng(10)
    labels = rng.choice(2, size=N_OBS // 3)
    groups = np.concatenate(
        [rng.permutation(np.repeat(np.arange(5_000), 3)) + 5_000 * k for k in range(4)]
    )
    component = labels[groups]
    eta = (POISSON.X @ POISSON.coefficients + POISSON.biases)[np.arange(N_OBS), component]
    y = rng.poisson(np.exp(np.minimum(eta, 5.0))).astype(float)
    weights = (groups % 7 > 0).astype(float)
    both: dict[str, Any] = {"family": "poisson", "random_seed": 1}
    rows: dict[str, Any] = {"groups": groups, "sample_weight": weights}
    expected = fit_em(POISSON.X, y, 2, **rows, **both)
    in_blocks = {name: da.from_array(values, chunks=15_000) for name, values in rows.items()}
    X = da.from_array(POISSON.X, chunks=(15_000, 2))
    _assert_same(fit_em(X, y, 2, **in_blocks, **both), expected)
    with pytest.raises(ValueError, match=r"must have all rows of a group in one block .* 2 blocks"):
        fit_em(_lazy(POISSON.X), y, 2, groups=groups, **both)


@pytest.mark.usefixtures("nothing_whole")
def test_an_identity_link_is_standardised() -> None:
    data = simulate_mixture(N_OBS, 2, 2, family="gaussian", scales=1.0, random_seed=6)
    expected = fit_em(data.X, 5.0 + 3.0 * data.y, 2, family="gaussian", random_seed=1)
    found = fit_em(_lazy(data.X), _lazy(5.0 + 3.0 * data.y), 2, family="gaussian", random_seed=1)
    _assert_same(found, expected)


@pytest.mark.usefixtures("nothing_whole")
def test_the_number_of_components() -> None:
    lazy = _lazy(POISSON.X)
    options: dict[str, Any] = {"family": "poisson", "random_seed": 1}
    expected = select_components(POISSON.X, POISSON.y, [1, 2], **options)
    found = select_components(lazy, POISSON.y, [1, 2], **options)
    assert found.chosen == expected.chosen == 2
    _assert_same(found.fit, expected.fit)
    with pytest.raises(ValueError, match="`criterion` must not be 'cv' for a Dask input"):
        select_components(lazy, POISSON.y, [1, 2], criterion="cv", **options)


@pytest.mark.usefixtures("little_held")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init": np.full((N_OBS, 2), 0.5)}, "`init` must not be responsibilities for a Dask"),
        ({"gating": POISSON.X[:100]}, r"`gating` must have one row for each of `X` \(60000\)"),
        ({"gating": np.full(N_OBS, np.nan)}, "Block 0, .*: `gating` must be finite"),
    ],
)
def test_what_needs_all_rows_raises(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_em(_lazy(POISSON.X), _lazy(POISSON.y), 2, family="poisson", **options)
