"""`predict_membership` of trees with several responses, or classes."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax
from scipy.stats import norm, poisson

from moment_init import estimate, fit_em, predict_membership
from moment_init.responses.result import JointFit
from tests.joint_mixtures import simulate_joint

pytestmark = pytest.mark.filterwarnings("ignore:The search did not converge")  # short on purpose

fit_any: Any = fit_em


@cache
def mixed() -> tuple[pd.DataFrame, pd.DataFrame, JointFit]:
    """A gaussian response beside counts, with offsets, and a fit of them."""
    rng = np.random.default_rng(3)
    X = pd.DataFrame(rng.standard_normal((80, 2)), columns=["age", "income"])
    y = pd.DataFrame({"spent": rng.standard_normal(80), "visits": rng.poisson(2.0, 80)})
    start = (np.ones((2, 2, 2)), np.zeros((2, 2)), [0.5, 0.5], np.ones((2, 2)))
    fit = fit_any(X, y, 2, family=["gaussian", "poisson"], init=start, max_iter=3)
    return X, y, fit


@cache
def classes() -> tuple[Any, Any, JointFit]:
    """Labels that are not sorted as text as they are as numbers."""
    data = simulate_joint("categorical", 300, 2, [0.6, 0.4], 2, np.random.default_rng(4), scale=3.0)
    labels = np.array([2, 10, 100])[np.unique(data.y, return_inverse=True)[1]]
    fit = fit_any(data.X, labels, 2, family="categorical", init="random", n_starts=2, random_seed=1)
    return data.X, labels, fit


def at(fit: JointFit, tree: Any, draw: int) -> JointFit:
    """The fit with the parameters of a draw."""
    there = tree["posterior"].to_dataset().isel(chain=0, draw=draw)
    return replace(
        fit,
        coefficients=there["coefficient"].to_numpy(),
        biases=there["bias"].to_numpy(),
        weights=there["weight"].to_numpy(),
        dispersion=there["dispersion"].to_numpy() if "dispersion" in there else None,
    )


def test_immense_rows_belong_to_the_nearer_component() -> None:
    fit = mixed()[2]
    there = replace(
        fit, coefficients=np.array([[[1.0, 0.0], [3.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])
    )
    X = np.array([[1e199, 0.0], [1e199, 0.0]])
    rows = np.array([[1.2e199, 1.0], [2.9e199, 1.0]])
    assert_array_equal(there.predict_membership(X, rows), np.eye(2))
    assert np.isfinite(there.score(X, rows))
    tree = there.to_datatree(draws=2, random_seed=1)
    coefficient: Any = tree["posterior"]["coefficient"]
    coefficient[...] = there.coefficients
    assert_array_equal(predict_membership(tree, X, rows, average=True), np.eye(2))


def test_rows_whose_predictors_overflow_are_refused() -> None:
    X, y, fit = mixed()
    message = "`X` must have rows whose linear predictors are below"
    steep = replace(fit, coefficients=np.full_like(fit.coefficients, 1e9))
    for use in (
        lambda: steep.predict(1e300 * X),
        lambda: steep.predict_membership(1e300 * X, y),
        lambda: steep.log_densities(1e300 * X, y),
        lambda: predict_membership(fit.to_datatree(draws=2, random_seed=1), 1e307 * X, y),
    ):
        with pytest.raises(ValueError, match=message):
            use()


@pytest.mark.parametrize("make", [mixed, classes])
def test_each_draw_is_a_fit(make: Any) -> None:
    X, y, fit = make()
    tree = fit.to_datatree(draws=5, random_seed=1)
    found = predict_membership(tree, X, y)
    assert found.dims == ("chain", "draw", "obs", "component")
    assert found.name == "membership"
    for draw in range(5):
        expected = at(fit, tree, draw).predict_membership(X, y)
        assert_allclose(found[0, draw], expected, rtol=1e-10, atol=1e-14)
    mean = predict_membership(tree, X, y, average=True)
    assert_allclose(mean, found.mean(("chain", "draw")), rtol=1e-12)
    few = predict_membership(tree, X, y, draws=2)
    assert_array_equal(few, found.isel(draw=[0, 2]))


def test_offsets_and_the_density_by_hand() -> None:
    X, y, fit = mixed()
    tree = fit.to_datatree(draws=1, random_seed=1)
    offset = np.column_stack([np.linspace(-1, 1, 80), np.linspace(1, -1, 80)])
    there = at(fit, tree, 0)
    eta = np.einsum("nd,dja->nja", X.to_numpy(), there.coefficients) + there.biases
    eta += offset[:, None, :]
    assert there.dispersion is not None
    joint = np.log(there.weights) + norm.logpdf(
        y["spent"].to_numpy()[:, None], eta[..., 0], there.dispersion[:, 0]
    )
    joint += poisson.logpmf(y["visits"].to_numpy()[:, None], np.exp(eta[..., 1]))
    # columns of frames are matched by name, those of arrays stand in the order of the fit
    for responses in (y[["visits", "spent"]], y.to_numpy()):
        found = predict_membership(tree, X[["income", "age"]], responses, offset=offset)
        assert_allclose(found[0, 0], softmax(joint, axis=1), rtol=1e-9)


def stored(fit: JointFit, X: Any, y: Any) -> xr.DataTree:
    """A tree with its rows, as `sample` returns it."""
    tree = fit.to_datatree(X, y, draws=3, random_seed=1)
    inputs = xr.DataArray(np.asarray(X), dims=("obs", "feature"))
    named = inputs.assign_coords(feature=list(fit.feature_names))
    return tree.assign({"constant_data": xr.DataTree(xr.Dataset({"X": named}))})


@pytest.mark.parametrize("make", [mixed, classes])
def test_rows_of_the_tree(make: Any) -> None:
    X, y, fit = make()
    tree = stored(fit, X, y)
    found = predict_membership(tree)
    assert_array_equal(found, predict_membership(tree, X, y))
    assert_array_equal(found["obs"], np.arange(len(X)))
    with pytest.raises(ValueError, match="got only offset"):
        predict_membership(tree, offset=np.zeros(len(X)))


def test_classes_of_an_estimate() -> None:
    """Its tree has directions without the dim `response`, and names its reference."""
    data = simulate_joint(
        "categorical", 4_000, 3, [0.6, 0.4], 2, np.random.default_rng(5), scale=3.0, is_tied=True
    )
    found: Any = estimate(data.X, data.y, 2, family="categorical", random_seed=1)
    shares = predict_membership(found.to_datatree(), data.X, data.y, average=True)
    fit = fit_any(data.X, data.y, 2, family="categorical", init=found, max_iter=0)
    assert_allclose(shares, fit.responsibilities, rtol=1e-6, atol=1e-9)


def test_links_of_the_tree() -> None:
    """A family that is the tree's has the tree's link, unless another is given."""
    rng = np.random.default_rng(6)
    X, y = rng.standard_normal((60, 2)), rng.integers(2, size=(60, 2))
    start = (rng.standard_normal((2, 2, 2)), np.zeros((2, 2)), [0.5, 0.5])
    fit = fit_any(X, y, 2, family="bernoulli", link="probit", init=start, max_iter=0)
    tree = fit.to_datatree(draws=1, random_seed=1)
    there = at(fit, tree, 0)
    eta = np.einsum("nd,dja->nja", X, there.coefficients) + there.biases

    def expected(means: Any) -> Any:
        shares = np.where(y[:, None, :] == 1, means, 1.0 - means).prod(axis=2) * there.weights
        return shares / shares.sum(axis=1, keepdims=True)

    own: list[dict[str, Any]] = [{}, {"family": "bernoulli"}, {"family": ["bernoulli"] * 2}]
    for options in own:
        found = predict_membership(tree, X, y, **options)
        assert_allclose(found[0, 0], expected(norm.cdf(eta)), rtol=1e-8)
    for family in (None, "bernoulli"):
        found = predict_membership(tree, X, y, family=family, link="logit")
        assert_allclose(found[0, 0], expected(1.0 / (1.0 + np.exp(-eta))), rtol=1e-8)
    X, labels, fit = classes()
    with pytest.raises(ValueError, match="`link` must be left out of `predict_membership`"):
        predict_membership(fit.to_datatree(draws=1, random_seed=1), X, labels, link="probit")


def test_what_is_refused() -> None:
    X, y, fit = mixed()
    tree = fit.to_datatree(draws=2, random_seed=1)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"groups": np.arange(80)}, "`groups` must be left out of `predict_membership`"),
        ({"gating": X}, "`gating` must be left out of `predict_membership`"),
        ({"y": None}, "`X` and `y` must be given together"),
        ({"y": y[["spent"]]}, r"`y` must have the responses of the fit; missing are \['visits'\]"),
        ({"family": ["gaussian"]}, "`family` must be one family, or one for each of the 2"),
        ({"y": -y}, "`y`, response 'visits'"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            predict_membership(tree, **{"X": X, "y": y, **options})
    bare = xr.DataTree.from_dict({"posterior": tree["posterior"].to_dataset()})
    with pytest.raises(ValueError, match="`family` must be given for a tree whose group"):
        predict_membership(bare, X, y)
    given: Any = ["gaussian", "poisson"]
    assert_array_equal(predict_membership(bare, X, y, family=given), predict_membership(tree, X, y))
    posterior = bare["posterior"].to_dataset().copy(deep=True)
    posterior["bias"][0, 1, 0, 0] = np.nan
    broken = xr.DataTree.from_dict({"posterior": posterior})
    with pytest.raises(ValueError, match="`tree` must have finite draws; got 1 of 2"):
        predict_membership(broken, X, y, family=given)
    X, labels, fit = classes()
    tree = fit.to_datatree(draws=2, random_seed=1)
    with pytest.raises(ValueError, match=r"labels among \['2', '10', '100'\]; got .*'7'"):
        predict_membership(tree, X, np.where(labels == 2, 7, labels))
    del tree["moment_init"].attrs["reference_class"]
    with pytest.raises(ValueError, match="'reference_class'"):
        predict_membership(tree, X, labels)
