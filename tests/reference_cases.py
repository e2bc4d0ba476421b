"""Small public calls whose results are kept in `tests/data/reference.json`.

Each case is a function without arguments that returns named numbers, arrays or words. Only public
names are imported, and the rows are drawn here, so that the cases outlive any move of modules.
"""

import warnings
from collections.abc import Callable
from typing import Any

import dask.array
import numpy as np
import pandas as pd
import pymc as pm
from numpy.typing import NDArray

from moment_init import (
    ConvergenceWarning,
    MixtureGLMClassifier,
    MixtureGLMRegressor,
    WeakSignalWarning,
    align_components,
    angles_in_degrees,
    estimate,
    fit_em,
    initial_values,
    match_components,
    predict_membership,
    sample,
    select_components,
    simulate_mixture,
)
from moment_init.models import mixture_glm, mixture_of_experts
from moment_init.scores import (
    RBM,
    Gaussian,
    GaussianMixture,
    Independent,
    InputModel,
    LogDensity,
    ScoreMatching,
    StudentT,
    Transformed,
    stein_check,
)

FloatArray = NDArray[np.float64]
Record = dict[str, Any]
"""Results of a case by name: floats, integers, booleans, words, or arrays of these."""

CASES: dict[str, Callable[[], Record]] = {}

TOLERANCES = {"estimate_under_rbm": 1e-2, "density_independent": 1e-3}
"""Relative tolerances of cases that fit a density whose optimum is flat.

Rounding errors in the inputs move them by 1e-4 and 1e-5; all other results by less than 2e-7.
"""


def case(function: Callable[[], Record]) -> Callable[[], Record]:
    """Add a function to the cases under its own name."""
    CASES[function.__name__] = function
    return function


# --- Rows

COEFFICIENTS = np.array([[1.2, -0.5], [0.2, 1.0], [-0.4, 0.8]])  # (n_features, n_components)
BIASES = np.array([0.5, -0.4])
WEIGHTS = np.array([0.65, 0.35])
DIRECTIONS = COEFFICIENTS / np.linalg.norm(COEFFICIENTS, axis=0)
N_TRIALS = 12

RESPONSES: dict[str, Callable[[np.random.Generator, FloatArray], Any]] = {
    "bernoulli": lambda rng, eta: rng.random(eta.size) < 1 / (1 + np.exp(-2.5 * eta)),
    "binomial": lambda rng, eta: rng.binomial(N_TRIALS, 1 / (1 + np.exp(-2 * eta))),
    "poisson": lambda rng, eta: rng.poisson(np.exp(0.8 + eta)),
    "negative_binomial": lambda rng, eta: rng.poisson(
        np.exp(1 + eta) * rng.gamma(5, 0.2, eta.size)
    ),
    "gaussian": lambda rng, eta: eta + rng.normal(0, 0.4, eta.size),
    "gamma": lambda rng, eta: np.exp(eta) * rng.gamma(6, 1 / 6, eta.size),
}
"""Draws of the response of each family, given linear predictors."""


def draw_inputs(n_obs: int, seed: int = 7) -> FloatArray:
    """Standard normal inputs, (n_obs, n_features)."""
    return np.random.default_rng(seed).standard_normal((n_obs, 3))


def draw_responses(
    family: str, X: FloatArray, labels: NDArray[np.int64] | None = None, seed: int = 11
) -> FloatArray:
    """Responses of a mixture with the parameters above, (n_obs,)."""
    rng = np.random.default_rng(seed)
    if labels is None:
        labels = draw_labels(len(X))
    predictors = (X * COEFFICIENTS.T[labels]).sum(axis=1) + BIASES[labels]
    return np.asarray(RESPONSES[family](rng, predictors), dtype=float)


def draw_labels(n_units: int, seed: int = 13) -> NDArray[np.int64]:
    """Components of rows or groups, (n_units,)."""
    uniform = np.random.default_rng(seed).random(n_units)
    return np.asarray(uniform > WEIGHTS[0], dtype=np.int64)


def draw_rows(family: str, n_obs: int = 400) -> tuple[FloatArray, FloatArray]:
    """Inputs and responses of one family."""
    X = draw_inputs(n_obs)
    return X, draw_responses(family, X)


# --- Records

ESTIMATE_NAMES = ("directions", "scales", "biases", "weights", "dispersion", "standard_errors")
FIT_NAMES = ("coefficients", "biases", "weights", "dispersion")
GATE_NAMES = ("gate", "gate_biases", "gate_means", "gate_covariances")


def record_estimate(result: Any) -> Record:
    """Parameters of a moment estimate; components come by weight, or are ordered by direction."""
    record: Record = {
        "status": str(result.status),
        "n_warnings": len(result.warnings),
        "log_likelihood": result.log_likelihood,
    }
    if result.weights is None:
        order = np.argsort(result.directions[0])
        record["directions"] = result.directions[:, order]
        record["moment_coefficients"] = result.moment_coefficients[order]
    else:
        has_axis = result.biases is not None and result.biases.ndim == 2
        record |= {
            name: _responses_last(result, name, has_axis=has_axis) for name in ESTIMATE_NAMES
        }
    return {name: value for name, value in record.items() if value is not None}


def record_fit(fit: Any) -> Record:
    """Likelihood, parameters and standard errors of a fit; components come by weight."""
    record: Record = {
        "status": str(fit.status),
        "n_warnings": len(fit.warnings),
        "n_bounds": len(fit.bounds),
        "converged": fit.converged,
        "log_likelihood": fit.log_likelihood,
        "n_parameters": fit.n_parameters,
        "bic": fit.bic,
        "icl": fit.icl,
    }
    has_axis = fit.biases.ndim == 2
    record |= {name: _responses_last(fit, name, has_axis=has_axis) for name in FIT_NAMES}
    record |= {name: getattr(fit, name, None) for name in GATE_NAMES}
    errors = fit.standard_errors
    for name in FIT_NAMES + GATE_NAMES:
        record[f"error_of_{name}"] = _responses_last(errors, name, has_axis=has_axis)
    return {name: value for name, value in record.items() if value is not None}


def _responses_last(values: Any, name: str, *, has_axis: bool) -> Any:
    """Read an array; the axis of several responses or classes comes last in the references."""
    array: Any = getattr(values, name, None)
    has_responses = name in ("coefficients", "scales", "biases", "dispersion")
    return np.moveaxis(array, 0, -1) if has_axis and has_responses and array is not None else array


def record_search(fit: Any) -> Record:
    """A fit, the bounds it lies on, and the kinds of starts in the order in which they ran."""
    kinds = [start.origin.split()[0] for start in fit.starts]
    return record_fit(fit) | {
        "bounds": ", ".join(fit.bounds),
        "kinds_of_starts": kinds,
        "is_sampled": [start.is_sampled for start in fit.starts],
        "reached_best": fit.reached_best,
    }


def fit_to_maximum(X: Any, y: Any, n_components: int = 2, **options: Any) -> Any:
    """Call `fit_em` with a tolerance at which the end does not depend on the way to it.

    At the default, parameters may stop 1e-3 standard errors before the maximum.
    """
    options = {"random_seed": 1, "tolerance": 1e-12, "progressbar": False} | options
    return fit_em(X, y, n_components, **options)


def estimate_quietly(X: Any, y: Any, n_components: Any = 2, **options: Any) -> Any:
    """Call `estimate`; a doubt about so few rows is in the status."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)
        return estimate(X, y, n_components, **{"random_seed": 1} | options)


# --- Maximum likelihood: families


@case
def fit_bernoulli_logit() -> Record:
    return record_fit(fit_to_maximum(*draw_rows("bernoulli", 600), family="bernoulli"))


@case
def fit_bernoulli_probit() -> Record:
    X, y = draw_rows("bernoulli", 600)
    return record_fit(fit_to_maximum(X, y, family="bernoulli", link="probit"))


@case
def fit_binomial() -> Record:
    X, y = draw_rows("binomial")
    return record_fit(fit_to_maximum(X, y, family="binomial", n_trials=N_TRIALS))


@case
def fit_poisson() -> Record:
    return record_fit(fit_to_maximum(*draw_rows("poisson"), family="poisson"))


@case
def fit_negative_binomial() -> Record:
    X, y = draw_rows("negative_binomial", 600)
    return record_fit(fit_to_maximum(X, y, family="negative_binomial"))


@case
def fit_gaussian() -> Record:
    X, y = draw_rows("gaussian")
    fit = fit_to_maximum(X, y, family="gaussian")
    return record_fit(fit) | {
        "mean": fit.predict(X[:4]),
        "component_means": fit.predict(X[:4], kind="components"),
        "membership": fit.predict_membership(X[:4], y[:4]),
        "score": fit.score(X, y),
    }


@case
def fit_gamma() -> Record:
    return record_fit(fit_to_maximum(*draw_rows("gamma"), family="gamma"))


@case
def fit_one_component() -> Record:
    return record_fit(fit_to_maximum(*draw_rows("poisson"), 1, family="poisson"))


@case
def fit_three_components() -> Record:
    X, y = draw_rows("gaussian", 600)
    far = np.arange(600) % 5 == 0
    y = np.where(far, 3 - 2 * X[:, 0] - X[:, 2] + (y - y.mean()) / 5, y)
    return record_fit(fit_to_maximum(X, y, 3, family="gaussian"))


@case
def fit_categorical() -> Record:
    X = draw_inputs(600)
    labels = draw_labels(600)
    rng = np.random.default_rng(3)
    towards = 3 * (X * COEFFICIENTS.T[labels]).sum(axis=1)
    away = 3 * (X * COEFFICIENTS.T[1 - labels]).sum(axis=1)
    utility = np.column_stack([np.zeros(600), towards, away]) + rng.gumbel(size=(600, 3))
    y = np.array(["bus", "car", "train"])[utility.argmax(axis=1)]
    fit = fit_to_maximum(X, y, family="categorical")
    return record_fit(fit) | {"outcomes": fit.outcome_names, "probabilities": fit.predict(X[:3])}


# --- Maximum likelihood: many rows, bounds, rare components


@case
def fit_many_rows() -> Record:
    """So many that a sample of them is searched before the climb on all."""
    return record_search(fit_to_maximum(*draw_rows("poisson", 50_000), family="poisson"))


@case
def fit_many_binary_rows() -> Record:
    return record_search(fit_to_maximum(*draw_rows("bernoulli", 50_000), family="bernoulli"))


@case
def fit_collapsing_dispersion() -> Record:
    """The rows of one component lie on a plane, and each row comes twice.

    A search would look for an interior maximum, however low it is.
    """
    X, y = draw_rows("gaussian", 200)
    plane = X @ COEFFICIENTS[:, 1] + BIASES[1]
    y = np.where(draw_labels(200) == 1, plane, y)
    options: dict[str, Any] = {"family": "gaussian", "init": "random", "n_starts": 5}
    return record_search(fit_to_maximum(X.repeat(2, axis=0), y.repeat(2), **options))


@case
def fit_smallest_dispersion_ratio() -> Record:
    X, y = draw_rows("gaussian")
    return record_search(fit_to_maximum(X, y, family="gaussian", min_dispersion_ratio=0.95))


@case
def fit_separated_rows() -> Record:
    """The sign of one column decides the responses of one component."""
    X, y = draw_rows("bernoulli", 600)
    y = np.where(draw_labels(600) == 0, X[:, 0] > 0, y)
    return record_search(fit_to_maximum(X, y, family="bernoulli"))


def draw_rare(family: str, scale: float) -> tuple[FloatArray, FloatArray]:
    """Inputs and responses of 1000 rows; two of three components have 6 and 4 % of them."""
    X = draw_inputs(1000)
    rng = np.random.default_rng(37)
    labels = rng.choice(3, len(X), p=[0.9, 0.06, 0.04])
    coefficients = scale * np.array([[1.2, -0.5, 0.5], [0.2, 1.0, -1.2], [-0.4, 0.8, 0.5]])
    predictors = (X * coefficients.T[labels]).sum(axis=1) + np.array([0.5, -0.5, 1.0])[labels]
    return X, np.asarray(RESPONSES[family](rng, predictors), dtype=float)


@case
def fit_rare_poisson() -> Record:
    """Most of the runs that converge miss the best maximum."""
    return record_search(fit_to_maximum(*draw_rare("poisson", 1.0), 3, family="poisson"))


@case
def fit_rare_gaussian() -> Record:
    """Only a perturbation of another maximum reaches the best one."""
    return record_search(fit_to_maximum(*draw_rare("gaussian", 0.5), 3, family="gaussian"))


# --- Maximum likelihood: gates, groups, restrictions, weights


def draw_gated() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Inputs, gaussian responses and one gating covariate of 500 rows."""
    rng = np.random.default_rng(5)
    gating = rng.standard_normal(500)
    labels = (rng.random(500) < 1 / (1 + np.exp(1 - 1.5 * gating))).astype(np.int64)
    X = draw_inputs(500)
    return X, draw_responses("gaussian", X, labels), gating


@case
def fit_softmax_gate() -> Record:
    X, y, gating = draw_gated()
    fit = fit_to_maximum(X, y, family="gaussian", gating=gating)
    return record_fit(fit) | {"mean": fit.predict(X[:4], gating=gating[:4])}


@case
def fit_gaussian_gate() -> Record:
    X, y, gating = draw_gated()
    fit = fit_to_maximum(X, y, family="gaussian", gating=gating, gate="gaussian")
    return record_fit(fit) | {"mean": fit.predict(X[:4], gating=gating[:4])}


def draw_grouped() -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
    """Inputs, poisson responses and groups of four rows that share their component."""
    X = draw_inputs(400)
    groups = np.arange(400) // 4
    return X, draw_responses("poisson", X, draw_labels(100)[groups]), groups


@case
def fit_groups() -> Record:
    X, y, groups = draw_grouped()
    fit = fit_to_maximum(X, y, family="poisson", groups=groups)
    members = fit.predict_membership(X[:8], y[:8], groups=groups[:8])
    return record_fit(fit) | {"membership": members}


@case
def fit_groups_with_gate() -> Record:
    X, y, groups = draw_grouped()
    gating = np.random.default_rng(17).standard_normal(100)[groups] + draw_labels(100)[groups]
    return record_fit(fit_to_maximum(X, y, family="poisson", groups=groups, gating=gating))


@case
def fit_shared_column() -> Record:
    return record_fit(fit_to_maximum(*draw_rows("gaussian"), family="gaussian", shared=2))


@case
def fit_shared_bias() -> Record:
    X, y = draw_rows("poisson")
    return record_fit(fit_to_maximum(X, y, family="poisson", shared="bias"))


@case
def fit_shared_dispersion() -> Record:
    X, y = draw_rows("gaussian")
    return record_fit(fit_to_maximum(X, y, family="gaussian", shared="dispersion"))


@case
def fit_offset_and_sample_weight() -> Record:
    X, y = draw_rows("poisson")
    rng = np.random.default_rng(19)
    offset = rng.uniform(-0.3, 0.3, len(y))
    sample_weight = rng.integers(1, 4, len(y))
    fit = fit_to_maximum(X, y, family="poisson", offset=offset, sample_weight=sample_weight)
    return record_fit(fit) | {"mean": fit.predict(X[:4], offset=offset[:4])}


@case
def fit_fixed_weights() -> Record:
    X, y = draw_rows("gaussian")
    return record_fit(fit_to_maximum(X, y, family="gaussian", fixed_weights=[0.6, 0.4]))


@case
def fit_fixed_directions() -> Record:
    X, y = draw_rows("poisson")
    return record_fit(fit_to_maximum(X, y, family="poisson", fixed_directions=DIRECTIONS))


# --- Maximum likelihood: kinds of input and of starts


def draw_pair() -> tuple[FloatArray, FloatArray]:
    """Inputs and two gaussian responses that share component and directions."""
    X, y = draw_rows("gaussian")
    second = draw_responses("gaussian", X, seed=23)
    return X, np.column_stack([y, 0.5 - 0.7 * second])


@case
def fit_two_responses() -> Record:
    X, Y = draw_pair()
    fit = fit_to_maximum(X, Y, family="gaussian")
    return record_fit(fit) | {
        "mean": fit.predict(X[:3]),
        "membership": fit.predict_membership(X[:3], Y[:3]),
    }


@case
def fit_two_families() -> Record:
    X, y = draw_rows("gaussian")
    Y = np.column_stack([y, draw_responses("poisson", X)])
    return record_fit(fit_to_maximum(X, Y, family=["gaussian", "poisson"]))


@case
def fit_formula() -> Record:
    X, y = draw_rows("poisson")
    frame = pd.DataFrame(X, columns=["age", "income", "size"])
    frame["kind"] = np.where(np.arange(len(y)) % 3 == 0, "new", "old")
    frame["years"] = np.linspace(0.8, 1.2, len(y))
    frame["visits"] = y
    fit = fit_to_maximum(
        "visits ~ age + income + center(size) + kind | income", frame, offset="np.log(years)"
    )
    return record_fit(fit) | {
        "family": fit.family,
        "feature_names": fit.feature_names,
        "gate_names": fit.gate_names,
        "mean": fit.predict(frame.iloc[:4]),
    }


@case
def fit_random_starts() -> Record:
    X, y = draw_rows("gaussian")
    fit = fit_to_maximum(X, y, family="gaussian", init="random", n_starts=3)
    return record_fit(fit) | {"n_starts": len(fit.starts)}


@case
def fit_random_coefficients() -> Record:
    options: dict[str, Any] = {"init": "random", "n_starts": 3, "random_start": "coefficients"}
    return record_fit(fit_to_maximum(*draw_rows("poisson"), family="poisson", **options))


@case
def fit_from_arrays() -> Record:
    X, y = draw_rows("gaussian")
    start = (COEFFICIENTS, BIASES, WEIGHTS, np.array([0.5, 0.5]))
    return record_fit(fit_to_maximum(X, y, family="gaussian", init=start))


@case
def evaluate_arrays() -> Record:
    """Without iterations: the likelihood at the start itself."""
    X, y = draw_rows("poisson")
    start = (COEFFICIENTS, BIASES, WEIGHTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fit = fit_to_maximum(X, y, family="poisson", init=start, max_iter=0)
    return record_fit(fit)


@case
def fit_from_responsibilities() -> Record:
    X, y = draw_rows("gaussian")
    start = 0.1 + 0.8 * np.eye(2)[draw_labels(len(y))]
    return record_fit(fit_to_maximum(X, y, family="gaussian", init=start))


@case
def fit_dask() -> Record:
    X, y = draw_rows("poisson")
    blocks = dask.array.from_array(X, chunks=(150, 3)), dask.array.from_array(y, chunks=150)
    return record_fit(fit_to_maximum(*blocks, family="poisson"))


@case
def select_by_bic() -> Record:
    X, y = draw_rows("gaussian")
    choice = select_components(X, y, [1, 2], family="gaussian", random_seed=1, tolerance=1e-12)
    return {"chosen": choice.chosen} | record_table(choice.table)


@case
def select_by_cross_validation() -> Record:
    X, y = draw_rows("poisson", 300)
    choice = select_components(
        X, y, [1, 2], family="poisson", criterion="cv", n_folds=2, random_seed=1, tolerance=1e-12
    )
    return {"chosen": choice.chosen} | record_table(choice.table)


def record_table(table: pd.DataFrame) -> Record:
    """Numeric columns of a table."""
    return {str(name): table[name].to_numpy() for name in table.select_dtypes("number")}


# --- Moment estimates


@case
def estimate_stacked() -> Record:
    result = estimate_quietly(*draw_rows("gaussian", 600), family="gaussian")
    return record_estimate(result) | {
        "input_model": result.input_choice.chosen.name,
        "spectrum": result.diagnostics.spectrum,
    }


@case
def estimate_without_polish() -> Record:
    X, y = draw_rows("poisson", 600)
    return record_estimate(estimate_quietly(X, y, family="poisson", polish=False))


@case
def estimate_binomial() -> Record:
    X, y = draw_rows("binomial", 600)
    return record_estimate(estimate_quietly(X, y, family="binomial", n_trials=N_TRIALS))


@case
def estimate_one_component() -> Record:
    return record_estimate(estimate_quietly(*draw_rows("poisson"), 1, family="poisson"))


@case
def estimate_number_of_components() -> Record:
    result = estimate_quietly(*draw_rows("gaussian", 600), "auto", family="gaussian")
    return record_estimate(result) | {"n_visible": result.selection.n_visible}


@case
def estimate_many_rows() -> Record:
    """So many that the moments are those of a sample."""
    return record_estimate(estimate_quietly(*draw_rows("gaussian", 150_000), family="gaussian"))


@case
def estimate_dask() -> Record:
    X, y = draw_rows("gaussian", 60_000)
    blocks = dask.array.from_array(X, chunks=(20_000, 3)), dask.array.from_array(y, chunks=20_000)
    return record_estimate(estimate_quietly(*blocks, family="gaussian"))


# A third moment of binary responses takes some thousand rows; these calls take 20 milliseconds.


@case
def estimate_power() -> Record:
    X, y = draw_rows("bernoulli", 5_000)
    return record_estimate(estimate_quietly(X, y, family="bernoulli", method="power"))


@case
def estimate_power_with_known_scales() -> Record:
    X, y = draw_rows("bernoulli", 5_000)
    known = {
        "known_scales": 2.5 * np.linalg.norm(COEFFICIENTS, axis=0),
        "known_biases": 2.5 * BIASES,
    }
    return record_estimate(estimate_quietly(X, y, family="bernoulli", method="power", **known))


@case
def estimate_tensorly() -> Record:
    X, y = draw_rows("bernoulli", 5_000)
    return record_estimate(estimate_quietly(X, y, family="bernoulli", method="tensorly"))


@case
def estimate_two_responses() -> Record:
    return record_estimate(estimate_quietly(*draw_pair(), family="gaussian"))


@case
def estimate_clustered_inputs() -> Record:
    """The Gaussian fails here, so that "auto" goes on to a mixture."""
    X = draw_clusters(600)
    result = estimate_quietly(X, draw_responses("gaussian", X), family="gaussian")
    return record_estimate(result) | {"input_model": result.input_choice.chosen.name}


@case
def estimate_with_discrete_column() -> Record:
    X = draw_inputs(600)
    X[:, 2] = X[:, 2] > 0
    y = draw_responses("gaussian", X)
    return record_estimate(estimate_quietly(X, y, family="gaussian"))


@case
def estimate_features() -> Record:
    """Linear predictors of known features, here the inputs themselves again."""
    X, y = draw_rows("gaussian")
    options = {"phi": np.arcsinh, "input_model": "gaussian"}
    return record_estimate(estimate_quietly(np.sinh(X), y, family="gaussian", **options))


def estimate_under(model: Any, X: FloatArray) -> Record:
    """Unpolished estimate, in which the scores of the density matter."""
    y = draw_responses("gaussian", X)
    options = {"input_model": model, "polish": False}
    return record_estimate(estimate_quietly(X, y, family="gaussian", **options))


@case
def estimate_under_gaussian() -> Record:
    return estimate_under("gaussian", draw_inputs(600))


@case
def estimate_under_gaussian_mixture() -> Record:
    return estimate_under(GaussianMixture(2, random_seed=1), draw_clusters(600))


@case
def estimate_under_student_t() -> Record:
    return estimate_under(StudentT(), draw_heavy_tails(600))


@case
def estimate_under_independent() -> Record:
    return estimate_under(Independent(), draw_inputs(600))


@case
def estimate_under_rbm() -> Record:
    return estimate_under(RBM(2, random_seed=1), draw_clusters(600))


@case
def estimate_under_score_matching() -> Record:
    return estimate_under(ScoreMatching(20, random_seed=1), draw_clusters(600))


@case
def estimate_under_transformed() -> Record:
    return estimate_under(Transformed(np.tanh), draw_inputs(600))


@case
def estimate_under_log_density() -> Record:
    return estimate_under(LogDensity(pm.Normal.dist(0.0, 1.0)), draw_inputs(600))


# --- Densities of the input


def draw_clusters(n_obs: int) -> FloatArray:
    """Inputs from two Gaussians, (n_obs, n_features)."""
    centres = np.array([[2.5, 0.0, -1.5], [-2.0, 1.2, 1.5]])
    return np.asarray(draw_inputs(n_obs) + centres[draw_labels(n_obs, seed=29)])


def draw_heavy_tails(n_obs: int) -> FloatArray:
    """Student's t inputs with five degrees of freedom, (n_obs, n_features)."""
    squares = np.random.default_rng(31).chisquare(5, n_obs)
    return draw_inputs(n_obs) / np.sqrt(squares / 5)[:, None]


def record_density(model: InputModel, X: FloatArray) -> Record:
    """Log-density, and score tensors contracted with two directions."""
    basis = np.array([[1.0, 0.3], [-0.4, 1.0], [0.2, 0.5]])
    record: Record = {"log_density": model.log_density(X[:5])}
    record |= {f"score_{order}": model.score(X[:2], order, basis) for order in (1, 2, 3)}
    record["summed_score_3"] = model.contract(basis).sum_score(X, np.linspace(0, 1, len(X)), 3)
    return record


@case
def density_gaussian() -> Record:
    X = draw_inputs(300)
    check = stein_check(Gaussian().fit(X), X, random_seed=1)
    return record_density(Gaussian().fit(X), X) | {
        "stein_status": str(check.status),
        "stein_errors": [identity.standard_errors for identity in check.identities],
    }


@case
def density_gaussian_mixture() -> Record:
    X = draw_clusters(300)
    return record_density(GaussianMixture(2, random_seed=1).fit(X), X)


@case
def density_student_t() -> Record:
    X = draw_heavy_tails(300)
    return record_density(StudentT().fit(X), X)


@case
def density_independent() -> Record:
    X = np.exp(0.5 * draw_inputs(300))
    families = ["normal", "gamma", "lognormal", "logistic"]
    return record_density(Independent(families=families).fit(X), X)


@case
def density_rbm() -> Record:
    """With given parameters: those of a fit to few rows are poorly determined."""
    X = draw_clusters(300)
    model = RBM(
        weights=[[1.0, -0.5], [0.3, 0.8], [-0.6, 0.4]],
        visible_bias=[0.2, -0.1, 0.0],
        hidden_bias=[0.5, -0.3],
        precision=[1.0, 1.5, 0.8],
    )
    return record_density(model, X)


@case
def density_score_matching() -> Record:
    X = draw_clusters(300)
    return record_density(ScoreMatching(20, random_seed=1).fit(X), X)


@case
def density_transformed() -> Record:
    X = np.sinh(draw_inputs(300))
    model = Transformed(np.arcsinh).fit(X)
    check = stein_check(model, X, random_seed=1)
    return record_density(model, X) | {"stein_status": str(check.status)}


@case
def density_log_density() -> Record:
    X = draw_inputs(300)
    distribution = pm.Logistic.dist(0.0, 0.6)
    return record_density(LogDensity(distribution).fit(X), X)


# --- Simulated rows, matching, estimators


def record_simulation(family: str, **options: Any) -> Record:
    """Parameters, first rows and sums of simulated data."""
    data = simulate_mixture(200, 3, 2, family=family, random_seed=1, **options)
    names = ("directions", "scales", "biases", "weights", "dispersion")
    record = {name: getattr(data, name) for name in names if getattr(data, name) is not None}
    return record | {
        "first_rows": data.X[:3],
        "first_responses": data.y[:10],
        "sum_of_inputs": data.X.sum(axis=0),
        "sum_of_responses": data.y.sum(),
        "n_in_components": np.bincount(data.labels),
    }


@case
def simulate_bernoulli() -> Record:
    return record_simulation("bernoulli", link="probit")


@case
def simulate_gaussian_clusters() -> Record:
    return record_simulation("gaussian", inputs="clusters", dispersion=[0.5, 1.0])


@case
def simulate_negative_binomial() -> Record:
    return record_simulation("negative_binomial", inputs="student_t", weights=[0.7, 0.3])


@case
def match_directions() -> Record:
    turned = -DIRECTIONS[:, ::-1] + 0.05
    return {
        "order": match_components(turned, DIRECTIONS),
        "angles": angles_in_degrees(turned[:, ::-1], DIRECTIONS),
        "signed_angles": angles_in_degrees(turned[:, ::-1], DIRECTIONS, signed=True),
    }


@case
def regressor() -> Record:
    X, y = draw_rows("poisson")
    model = MixtureGLMRegressor(2, family="poisson", tolerance=1e-12, random_state=1).fit(X, y)
    return {
        "coefficients": model.coefficients_,
        "mean": model.predict(X[:4]),
        "component_means": model.predict_components(X[:4]),
        "membership": model.predict_membership(X[:4], y[:4]),
        "log_density": model.log_density(X[:4], y[:4]),
        "features": model.transform(X[:4]),
        "score": model.score(X, y),
    }


@case
def classifier() -> Record:
    X, y = draw_rows("bernoulli", 600)
    labels = np.where(y > 0, "yes", "no")
    model = MixtureGLMClassifier(2, tolerance=1e-12, random_state=1).fit(X, labels)
    return {
        "coefficients": model.coefficients_,
        "classes": model.predict(X[:4]),
        "probabilities": model.predict_proba(X[:4]),
        "score": model.score(X, labels),
    }


# --- Draws and PyMC models


def fit_with_rows() -> tuple[Any, FloatArray, FloatArray]:
    """A poisson fit and its rows."""
    X, y = draw_rows("poisson", 300)
    return fit_to_maximum(X, y, family="poisson"), X, y


@case
def start_values() -> Record:
    fit, _, _ = fit_with_rows()
    mapping = {"w": "weight", "alpha": "bias", "slopes": "coefficient", "u": "direction"}
    spread = initial_values(fit, mapping=mapping, spread=1.0, chains=2, random_seed=1)
    record = dict(initial_values(fit, mapping=mapping))
    return record | {f"second_{name}": value for name, value in spread[1].items()}


@case
def start_values_of_stan_program() -> Record:
    """An ordered parameter sets the order of the components."""
    program = """
    parameters {
      simplex[K] theta;
      ordered[K] alpha;
      array[K] vector[D] beta;
    }
    """
    fit, _, _ = fit_with_rows()
    options: dict[str, Any] = {
        "mapping": {"theta": "weight", "alpha": "bias", "beta": "coefficient"},
        "backend": "stan",
    }
    spread = initial_values(fit, program, spread=1.0, chains=2, random_seed=1, **options)
    record = dict(initial_values(fit, program, **options))
    return record | {f"second_{name}": value for name, value in spread[1].items()}


@case
def start_values_of_pymc_model() -> Record:
    """The axes of the slopes are exchanged, and a callable computes the lengths."""
    fit, X, y = fit_with_rows()
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(2))
        alpha = pm.Normal("alpha", 0.0, 2.0, shape=2)
        slopes = pm.Normal("slopes", 0.0, 2.0, shape=(2, 3))
        pm.HalfNormal("length", 2.0, shape=2)
        means = pm.math.exp(alpha + X @ slopes.T)
        components = [pm.Poisson.dist(means[:, component]) for component in range(2)]
        pm.Mixture("y", w=w, comp_dists=components, observed=y)
    mapping: dict[str, Any] = {
        "w": "weight",
        "alpha": "bias",
        "slopes": "coefficient",
        "length": lambda start: np.linalg.norm(start.coefficients, axis=0),
    }
    spread = initial_values(fit, model, mapping=mapping, spread=1.0, chains=2, random_seed=1)
    record = dict(initial_values(fit, model, mapping=mapping))
    return record | {f"second_{name}": value for name, value in spread[1].items()}


@case
def membership_and_alignment() -> Record:
    """Draws of the normal approximation of a fit, and the same with components exchanged."""
    fit, X, y = fit_with_rows()
    tree = fit.to_datatree(X, y, draws=20, random_seed=1)
    switched = tree.isel(component=[1, 0])
    aligned = align_components(switched, fit)
    return {
        "membership": predict_membership(tree, X[:4], y[:4], average=True).to_numpy(),
        "aligned_weights": aligned["posterior"]["weight"].to_numpy(),
        "moved_share": float(aligned["moment_init"]["moved_share"]),
    }


def record_model(model: pm.Model) -> Record:
    """Initial point of a model, and log-density and gradient beside it.

    At the point itself, a mode, the gradient is the small difference of large terms.
    """
    start = model.initial_point()
    point = {name: value + 0.1 for name, value in start.items()}
    record: Record = {f"start_{name}": value for name, value in start.items()}
    record["log_density"] = model.compile_logp()(point)
    record["gradient"] = model.compile_dlogp()(point)
    return record


@case
def model_with_fixed_directions() -> Record:
    fit, X, y = fit_with_rows()
    return record_model(mixture_glm(X, y, 2, family="poisson", init=fit, directions="fixed"))


@case
def model_with_anchored_directions() -> Record:
    fit, X, y = fit_with_rows()
    return record_model(mixture_glm(X, y, 2, family="poisson", init=fit))


@case
def model_of_experts() -> Record:
    X, y, gating = draw_gated()
    fit = fit_to_maximum(X, y, family="gaussian", gating=gating)
    return record_model(mixture_of_experts(X, y, 2, family="gaussian", gating=gating, init=fit))


def sample_by_laplace(X: FloatArray, y: FloatArray, **options: Any) -> Record:
    """Means and standard deviations of draws of a Laplace approximation."""
    options |= {"method": "laplace", "draws": 200, "chains": 1, "progressbar": False}
    posterior = sample(X, y, 2, random_seed=1, **options)["posterior"]
    record: Record = {}
    for name in ("coefficient", "bias", "weight"):
        record[f"mean_of_{name}"] = posterior[name].mean(("chain", "draw")).to_numpy()
        record[f"deviation_of_{name}"] = posterior[name].std(("chain", "draw")).to_numpy()
    return record


@case
def posterior_with_fixed_directions() -> Record:
    fit, X, y = fit_with_rows()
    return sample_by_laplace(X, y, family="poisson", init=fit, directions="fixed")


@case
def posterior_with_free_directions() -> Record:
    X, y = draw_rows("gaussian")
    fit = fit_to_maximum(X, y, family="gaussian")
    return sample_by_laplace(X, y, family="gaussian", init=fit, directions="free")
