"""The entry point `fit_em`: check the data, run the starts of `init`, climb, return the fit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moment_init.checks import (
    ConvergenceWarning,
    FloatArray,
    RandomSeed,
    make_generator,
    notify,
    validate_n_components,
)
from moment_init.data.blocks import single_threaded_blas, source_of
from moment_init.data.checking import RegressionData, validate_data, validate_gating
from moment_init.data.formulas import takes_formula
from moment_init.em.assembly import assemble_gated_fit, convergence_message, with_zero_weight_rows
from moment_init.em.gate_search import (
    GatedSearch,
    finish_gated,
    run_gated_given,
    run_gated_random,
    search_gated,
)
from moment_init.em.gaussian_gate import GatedProblem
from moment_init.em.problem import (
    EMProblem,
    GateKind,
    pose_em,
    validate_dispersion_ratio,
    validate_gate_kind,
    validate_restrictions,
)
from moment_init.em.result import EMFit
from moment_init.em.runs import (
    FitOptions,
    Portfolio,
    Start,
    require_rows,
    run_given,
    run_random,
    validate_options,
)
from moment_init.em.search import (
    LEAN_GROWTH,
    PortfolioOptions,
    enlarged,
    refine,
    search,
    search_sample,
)
from moment_init.em.starts import RandomStart, given_starts, grow
from moment_init.families.base import Family
from moment_init.likelihood.climbing import MaximiseResult
from moment_init.likelihood.gate import gate_size
from moment_init.likelihood.parameters import MIN_DISPERSION_RATIO
from moment_init.moments.result import MomentEstimate
from moment_init.results import BREAKDOWNS, StartRecord
from moment_init.row_sources.em_rows import (
    assemble_memory_or_dask,
    drop_zero_weight_covariates,
    moment_starts,
    require_supported_fit,
    rows_with_weight,
    searched_rows,
)

Covariates = tuple[FloatArray, tuple[str, ...]]
Init = Literal["tensor", "random"] | MomentEstimate | EMFit | tuple[ArrayLike, ...] | ArrayLike


@takes_formula
def fit_em(
    X: Any,
    y: Any,
    n_components: int,
    *,
    family: str | Family | Sequence[str | Family] = "bernoulli",
    link: str | None = None,
    offset: ArrayLike | None = None,
    n_trials: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    gating: Any = None,
    gate: GateKind = "softmax",
    init: Init = "tensor",
    n_starts: int | None = None,
    random_start: RandomStart = "assignment",
    shared: Any = None,
    fixed_weights: ArrayLike | None = None,
    fixed_directions: ArrayLike | None = None,
    min_dispersion_ratio: float = MIN_DISPERSION_RATIO,
    max_iter: int = 1000,
    tolerance: float = 1e-6,
    n_jobs: int | None = None,
    progressbar: bool = True,
    random_seed: RandomSeed = None,
) -> EMFit:
    r"""Fit a mixture of generalised linear models by maximum likelihood.

    .. math:: p(y \mid x) = \sum_j \pi_j\, f(y \mid \langle\beta_j, x\rangle + b_j),

    EM (Appendix C of [1]_) is used while it is fast, and damped Newton steps on the observed
    likelihood once it becomes slow. The log-likelihood never decreases. Several responses of a row
    are independent given its component, each with its own coefficients and bias.

    Parameters
    ----------
    X : array-like, DataFrame or Dask collection, shape (n_obs, n_features), or str
        Inputs, without a column of ones; or a formula such as ``"y ~ a + b | g"``.
    y : array-like or Dask collection, shape (n_obs,) or (n_obs, n_responses), or DataFrame
        Response, or several responses. With a formula, its data; `offset`, `groups`, ... may then
        name columns.
    n_components : int
        Number of components.
    family : str or Family, or a sequence of them, default "bernoulli"
        Family of the response, or one per response; "categorical" for class labels. With a
        formula the default is chosen by the values of the response.
    link : str, optional
        Link; by default that of the family.
    offset : array-like, shape (n_obs,) or (n_obs, n_responses), optional
        Known part of the linear predictors. Classes have one for each class but the first.
    n_trials : int or array-like, shape (n_obs,) or (n_obs, n_responses), optional
        Number of trials of each binomial response.
    sample_weight : array-like, shape (n_obs,), optional
        Weight of each row. A row of weight 2 counts as two rows, in the same group if any.
    groups : array-like, shape (n_obs,), optional
        Group labels. Rows of one group share their component.
    gating : array-like or DataFrame, shape (n_obs,) or (n_obs, n_gate), optional
        Covariates on which the component weights depend: a mixture of experts.
    gate : {"softmax", "gaussian"}, default "softmax"
        How the weights depend on `gating`: by a multinomial logit, or as posterior probabilities
        under Gaussian densities of the gating covariates [2]_. With "gaussian" the joint
        likelihood of gating covariates and response is maximised.
    init : {"tensor", "random"}, MomentEstimate, EMFit, tuple or array, default "tensor"
        Starting values. "tensor" searches from several kinds of starts: moment estimates, growth
        by information-matrix splits, random starts, and moves out of local optima. "random" runs
        `n_starts` random starts only. A MomentEstimate, an EMFit, a tuple (coefficients, biases,
        weights[, dispersion]) or responsibilities of shape (n_obs, n_components) is used as the
        start; a missing Gaussian gate is computed from its responsibilities. The columns of an
        EMFit are matched by name, and its components to `fixed_weights` by size.
    n_starts : int, optional
        Number of random starts, 10 by default. With init="tensor", the number in each of up to
        three rounds, which run while kinds of starts disagree; 2 by default.
    random_start : {"assignment", "coefficients"}, default "assignment"
        Whether random starts assign rows softly to components, as flexmix does, or draw
        coefficients.
    shared : str, int or sequence, optional
        Columns (names or indices), "bias" or "dispersion" that all components have in common. Each
        of several responses has its own shared values.
    fixed_weights : array-like, shape (n_components,), optional
        Known weights, which are not fitted.
    fixed_directions : array-like, shape (n_features, n_components), optional
        Known directions, for one response. Only scales, biases and weights are fitted, to the
        projected inputs.
    min_dispersion_ratio : float, default 0.05
        Smallest allowed ratio of two components' standard deviations (Hathaway's constraint), for
        families whose likelihood is otherwise unbounded. For a Gaussian gate, also the smallest
        ratio of a component's standard deviation to the overall one, in any direction.
    max_iter : int, default 1000
        Maximum number of iterations of the final run; 0 evaluates the start and returns it. The
        search of init="tensor" has separate limits.
    tolerance : float, default 1e-6
        A run has converged when a Newton step is predicted to gain less log-likelihood than this.
    n_jobs : int, optional
        Number of random starts to run in parallel, with joblib; 1 by default.
    progressbar : bool, default True
        Whether to show the progress of several random starts.
    random_seed : int, sequence of int, numpy.random.Generator, optional
        Seed; the result does not depend on `n_jobs`.

    Returns
    -------
    EMFit
        The fit, with a record of every start.

    Raises
    ------
    TypeError
        For data or starts of the wrong type.
    ValueError
        For wrong shapes, missing or infinite values, responses outside the family's range, constant
        or collinear columns, too few rows, or if every start breaks down.

    Warns
    -----
    ConvergenceWarning
        If the final run did not converge.

    Notes
    -----
    Boundary solutions are kept on the boundary and reported in `warnings` and `bounds`: a weight at
    a tenth of a row (an empty component), a standard deviation at the smallest ratio (a collapsing
    variance), coefficients at the largest linear predictor (separation).

    A Gaussian gate has :math:`\pi_j(g) \propto \alpha_j N(g; m_j, S_j)`. Its `log_likelihood` is
    the joint one of g and y, and is comparable with that of other Gaussian gates only.

    References
    ----------
    .. [1] Sedghi, Janzamin and Anandkumar (2016), Provable tensor methods for learning mixtures of
       generalized linear models, AISTATS, arXiv:1412.3046.
    .. [2] Xu, Jordan and Hinton (1995), An alternative model for mixtures of experts, NIPS 7.

    Examples
    --------
    >>> from moment_init import fit_em, simulate_mixture
    >>> data = simulate_mixture(2000, 3, 2, family="poisson", weights=[0.8, 0.2], random_seed=1)
    >>> fit = fit_em(data.X, data.y, 2, family="poisson", random_seed=1)
    >>> fit.converged
    True
    """
    all_rows = validate_data(
        X,
        y,
        family=family,
        link=link,
        offset=offset,
        n_trials=n_trials,
        sample_weight=sample_weight,
        groups=groups,
    )
    all_rows = searched_rows(all_rows, validate_n_components(n_components, all_rows.n_obs))
    source = source_of(all_rows.X)
    covariates = validate_gating(gating, all_rows.n_obs, all_rows.groups, source=source)
    validate_gate_kind(gate, gating)
    require_supported_fit(all_rows, init=init, gate=gate)
    data = all_rows.drop_zero_weights()
    number = validate_n_components(n_components, data.n_obs)
    _validate_word(init)
    options = validate_options(
        max_iter=max_iter,
        tolerance=tolerance,
        n_starts=n_starts,
        random_start=random_start,
        n_jobs=n_jobs,
        progressbar=progressbar,
    )
    restrictions = validate_restrictions(
        data,
        number,
        shared=shared,
        fixed_weights=fixed_weights,
        fixed_directions=fixed_directions,
        has_gate=covariates is not None,
    )
    ratio = validate_dispersion_ratio(min_dispersion_ratio)
    rng = make_generator(random_seed)
    has_weight = rows_with_weight(all_rows)
    with single_threaded_blas():
        problem = pose_em(
            data,
            number,
            gating=drop_zero_weight_covariates(covariates, data, has_weight),
            restrictions=restrictions,
            min_dispersion_ratio=ratio,
        ).prepared()
        if gate == "gaussian":
            fit, end = _fit_gaussian_gate(problem, data, init, options, rng, has_weight)
        else:
            require_rows(problem)
            portfolio, end = _run_starts(problem, data, init, options, rng, has_weight)
            fit = assemble_memory_or_dask(problem, all_rows, data, end, tuple(portfolio.records))
        if data is not all_rows and source is None:
            fit = with_zero_weight_rows(fit, all_rows, covariates)
    if not fit.converged:
        notify(convergence_message(end), ConvergenceWarning)
    return fit


def _validate_word(init: Any) -> None:
    if isinstance(init, str) and init not in ("tensor", "random"):
        raise ValueError(f"`init` must be 'tensor' or 'random' if it is a string; got {init!r}.")


def _fit_gaussian_gate(
    problem: EMProblem,
    data: RegressionData,
    init: Any,
    options: FitOptions,
    rng: np.random.Generator,
    has_weight: NDArray[np.bool_],
) -> tuple[EMFit, MaximiseResult]:
    """Fit with a Gaussian gate from the starts of `init`; return the fit and its best run."""
    gated = GatedProblem.of(problem)
    require_rows(gated.base, problem.n_components * gate_size(problem.rows.n_gate))
    if not isinstance(init, str):
        names = (data.feature_names, data.response_names)
        searched = run_gated_given(gated, init, options, has_weight, *names)
    elif init == "random":
        searched = run_gated_random(gated, options, rng)
    else:
        searched = _search_gaussian_gate(gated, data, options, rng)
    run = _require_run(searched.best, searched.records)
    if isinstance(init, str) and init == "tensor" and options.max_iter > 0:
        run, searched.records = finish_gated(gated, searched, options)
    fit = assemble_gated_fit(gated, data, run, tuple(searched.records))
    return fit, run.end


def _search_gaussian_gate(
    gated: GatedProblem, data: RegressionData, options: FitOptions, rng: np.random.Generator
) -> GatedSearch:
    """Search with a logit gate and without a gate, then start a Gaussian gate from the ends."""
    run_search = _by_search if options.max_iter > 0 else _by_bare_starts
    posed = {"softmax": gated.logit, "ungated": gated.base}
    ends = {
        origin: run_search(problem, data, options, rng).best for origin, problem in posed.items()
    }
    starts = [(origin, end.parameters) for origin, end in ends.items() if end is not None]
    sample = search_sample(gated.logit, rng)
    sampled = gated if sample is gated.logit else GatedProblem.of(sample)
    return search_gated(sampled, starts, options, rng)


def _run_starts(
    problem: EMProblem,
    data: RegressionData,
    init: Any,
    options: FitOptions,
    rng: np.random.Generator,
    has_weight: NDArray[np.bool_],
) -> tuple[Portfolio, MaximiseResult]:
    """Run the starts of `init`; return all of them and the end of the best one."""
    if not isinstance(init, str):
        names = (data.feature_names, data.response_names)
        portfolio = run_given(problem, given_starts(problem, init, has_weight, *names), options)
    elif init == "random":
        portfolio = run_random(problem, options, rng)
    elif options.max_iter == 0:
        portfolio = _by_bare_starts(problem, data, options, rng)
    else:
        portfolio = _by_search(problem, data, options, rng)
        return portfolio, _finished(problem, portfolio, options)
    return portfolio, _best(portfolio)


def _by_bare_starts(
    problem: EMProblem, data: RegressionData, options: FitOptions, rng: np.random.Generator
) -> Portfolio:
    """Evaluate the moment candidates without a search, or a grown mixture if there are none."""
    sample = search_sample(problem, rng)
    starts = moment_starts(problem, data, rng)
    if not starts:
        starts = [("splits", run.parameters) for run in grow(sample, LEAN_GROWTH)]
    return run_given(problem, starts, options)


def _by_search(
    problem: EMProblem, data: RegressionData, options: FitOptions, rng: np.random.Generator
) -> Portfolio:
    """Search on a sample if there are many rows; the caller then climbs on all rows."""
    sample = search_sample(problem, rng)
    settings = PortfolioOptions()
    if options.n_starts is not None:
        settings = replace(settings, n_random=options.n_starts)
    seeds = rng.spawn(2)
    failures: list[str] = []

    def from_moments() -> list[Start]:
        try:
            return moment_starts(problem, data, seeds[0])
        except BREAKDOWNS as error:  # moments are only one of several origins
            failures.append(str(error))
            return []

    portfolio = enlarged(
        problem, search(sample, from_moments, seeds[1], settings), from_moments, rng
    )
    for message in failures:
        portfolio.fail("tensor", message)
    return portfolio


def _best(portfolio: Portfolio) -> MaximiseResult:
    """Return the best run; raise if every start broke down."""
    return _require_run(portfolio.best, portfolio.records)


def _require_run[R](best: R | None, records: list[StartRecord]) -> R:
    if best is not None:
        return best
    first = records[0]
    raise ValueError(
        f"`init` must lead to a fit; got {len(records)} starts that all broke down. The message of "
        f"the first ({first.origin}) is: {first.message} Check `X` and `y` for extreme values, or "
        "try another `init`."
    )


def _finished(problem: EMProblem, portfolio: Portfolio, options: FitOptions) -> MaximiseResult:
    """Climb on all rows from the best run of a search, to the tolerance."""
    best, searched = _best(portfolio), portfolio.problem
    if searched.rows.n_units != problem.rows.n_units:
        portfolio.records = [replace(record, is_sampled=True) for record in portfolio.records]
        return refine(
            problem, searched, best, max_steps=options.max_iter, tolerance=options.tolerance
        )
    end = problem.climb(
        best.parameters, max_steps=options.max_iter, tolerance=options.tolerance, damping=0.0
    )
    # the climb starts by evaluating the last point of the search again
    history = (*best.history[:-1], *end.history)
    return replace(end, history=history, n_iter=best.n_iter + end.n_iter)
