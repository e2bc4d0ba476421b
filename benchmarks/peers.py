"""Python peers: statsmodels for a single model, scikit-learn for the cost of an EM iteration.

Neither fits mixtures of regressions. A mixture of one component is a generalised linear model,
which statsmodels fits too: both must find the same coefficients. The EM iterations of
scikit-learn's GaussianMixture are a yardstick for the cost of EM on the same rows.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning
from sklearn.mixture import GaussianMixture

from benchmarks.measuring import number
from benchmarks.mixtures import Mixture, draw
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from benchmarks.stacked_cost import em_iteration
from moment_init import MixtureData, estimate, fit_em, simulate_mixture
from moment_init.data.blocks import single_threaded_blas

__all__ = ["BENCHMARK", "run"]

FloatArray = NDArray[np.float64]

N_OBS, QUICK_OBS, N_FEATURES = 100_000, 2_000, 10
N_REPEATS, QUICK_REPEATS = 5, 1

SINGLE: dict[str, dict[str, Any]] = {
    "gaussian": {"scales": 1.0},
    "bernoulli": {"scales": 1.5},
    "poisson": {"scales": 0.6},
    "gamma": {"scales": 0.6, "dispersion": 4.0},
    "negative_binomial": {"scales": 0.6, "dispersion": 3.0},
}
"""Families that statsmodels fits, with the simulated norm of the coefficients."""

YARDSTICKS = (
    Mixture("gaussian", 100_000, 10, 3, 2.0, bar=0.0, dispersion=0.5),
    Mixture("bernoulli", 100_000, 20, 3, 2.0, bar=0.0),
)
YARDSTICK_ITERATIONS = 20

MAX_DIFFERENCE = 1e-2
"""Largest allowed difference of a coefficient, in standard errors; statsmodels fits the negative
binomial by BFGS, which stops a few thousandths short."""


def run(options: Options) -> Outcome:
    """Fit single models with both packages and time EM iterations, on one BLAS thread."""
    singles = [_single(family, options) for family in SINGLE]
    yardsticks = [_yardstick(mixture, options) for mixture in YARDSTICKS]
    figures = [*_single_figures(singles, options), *_yardstick_figures(yardsticks)]
    settings = {
        "time": "seconds of the processor, median",
        "repeats": _n_repeats(options),
        "EM iteration": "E-step with the missing information, and a solve; all rows and columns",
        "GaussianMixture": "full covariances, of inputs and response together",
    }
    return Outcome((*singles, *yardsticks), tuple(figures), settings)


def _single(family: str, options: Options) -> Row:
    """Fit one model with both packages in turn."""
    n_obs = QUICK_OBS if options.is_quick else N_OBS
    data = simulate_mixture(
        n_obs, N_FEATURES, 1, family=family, random_seed=options.seed, **SINGLE[family]
    )
    ours: Callable[[], Any] = partial(_fit_ours, data)
    theirs: Callable[[], Any] = partial(_fit_statsmodels, data)
    fit, peer = ours(), theirs()  # warm-up: imports and caches
    our_seconds, peer_seconds = _side_by_side((ours, theirs), _n_repeats(options))
    difference = np.abs(fit.coefficients[:, 0] - peer.params[1 : N_FEATURES + 1])
    return {
        "family": family,
        "n": n_obs,
        "d": N_FEATURES,
        "fit_em s": our_seconds,
        "statsmodels s": peer_seconds,
        "statsmodels over fit_em": peer_seconds / our_seconds,
        "difference in standard errors": float((difference / peer.bse[1 : N_FEATURES + 1]).max()),
        "log-likelihood above": float(fit.log_likelihood - peer.llf),
    }


def _fit_ours(data: MixtureData) -> Any:
    return fit_em(data.X, data.y, 1, family=data.family, progressbar=False, random_seed=1)


def _fit_statsmodels(data: MixtureData) -> Any:
    """Fit by maximum likelihood in statsmodels, with its defaults."""
    import statsmodels.api as sm

    design = sm.add_constant(data.X)
    if data.family == "negative_binomial":
        return sm.NegativeBinomial(data.y, design).fit(disp=False, maxiter=200)
    families = {
        "gaussian": sm.families.Gaussian(),
        "bernoulli": sm.families.Binomial(),
        "poisson": sm.families.Poisson(),
        "gamma": sm.families.Gamma(sm.families.links.Log()),
    }
    return sm.GLM(data.y, design, family=families[data.family]).fit()


def _yardstick(mixture: Mixture, options: Options) -> Row:
    """Time EM iterations of ours and of scikit-learn, and express our calls in the latter."""
    sized = mixture.resized(QUICK_OBS) if options.is_quick else mixture
    data = draw(sized, options.seed, 0)
    rows = np.column_stack([data.X, data.y])
    r, family = sized.n_components, sized.family
    calls: tuple[Callable[[], Any], ...] = (
        partial(_gaussian_mixture, rows, r),
        partial(em_iteration, data),
        partial(_quietly, estimate, data, r, family=family, random_seed=1),
        partial(_quietly, fit_em, data, r, family=family, random_seed=1, progressbar=False),
    )
    many, our_seconds, estimating, fitting = _side_by_side(calls, _n_repeats(options))
    each = many / YARDSTICK_ITERATIONS
    return {
        "family": family,
        "n": sized.n_obs,
        "d": sized.n_features,
        "r": r,
        "GaussianMixture iteration s": each,
        "EM iteration s": our_seconds,
        "EM iteration over GaussianMixture's": our_seconds / each,
        "estimate, in its iterations": estimating / each,
        "fit_em, in its iterations": fitting / each,
    }


def _gaussian_mixture(rows: FloatArray, n_components: int) -> None:
    model = GaussianMixture(
        n_components,
        tol=0.0,
        max_iter=YARDSTICK_ITERATIONS,
        init_params="random_from_data",
        random_state=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SklearnConvergenceWarning)
        model.fit(rows)


def _quietly(function: Callable[..., Any], data: MixtureData, r: int, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(data.X, data.y, r, **options)


def _side_by_side(calls: Sequence[Callable[[], Any]], n_repeats: int) -> list[float]:
    """Median CPU seconds of the calls, run in turn so that load affects all alike."""
    seconds: list[list[float]] = [[] for _ in calls]
    with single_threaded_blas():
        for _ in range(n_repeats):
            for call, own in zip(calls, seconds, strict=True):
                start = time.process_time()
                call()
                own.append(time.process_time() - start)
    return [median(own) for own in seconds]


def _n_repeats(options: Options) -> int:
    return QUICK_REPEATS if options.is_quick else N_REPEATS


def _single_figures(rows: Sequence[Row], options: Options) -> list[Figure]:
    figures = []
    for row in rows:
        difference = number(row, "difference in standard errors")
        figures += [
            Figure(
                f"{row['family']}: seconds of statsmodels over those of fit_em, one component",
                number(row, "statsmodels over fit_em"),
            ),
            Figure(
                f"{row['family']}: largest difference of coefficients in standard errors",
                difference,
                f"<= {MAX_DIFFERENCE:g}",
                difference <= MAX_DIFFERENCE if not options.is_quick else None,
            ),
        ]
    return figures


def _yardstick_figures(rows: Sequence[Row]) -> list[Figure]:
    columns = ("EM iteration over GaussianMixture's", "estimate, in its iterations")
    return [
        Figure(f"{row['family']}, n = {row['n']:,}, d = {row['d']}: {column}", number(row, column))
        for row in rows
        for column in columns
    ]


BENCHMARK = Benchmark(
    "peers",
    "single models against statsmodels, iterations against scikit-learn's GaussianMixture",
    run,
)
