"""The entry point `fit_em`: check the data, run the starts of `init`, climb, return the fit."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from moment_init.checks import (
    ConvergenceWarning,
    RandomSeed,
    make_generator,
    notify,
    validate_n_components,
)
from moment_init.data.blocks import single_threaded_blas
from moment_init.data.checking import RegressionData, validate_data
from moment_init.data.formulas import takes_formula
from moment_init.em.assembly import assemble_fit, assemble_gated_fit, with_all_rows
from moment_init.em.gaussian_gate import GatedProblem, GatedRun
from moment_init.em.given import given_starts
from moment_init.em.priors import PriorsArgument, log_prior_of, validate_priors
from moment_init.em.problem import (
    EMProblem,
    GateKind,
    pose_em,
    validate_dispersion_ratio,
    validate_gate_kind,
    validate_restrictions,
)
from moment_init.em.result import EMFit, FittedOptimum
from moment_init.em.runs import (
    FitOptions,
    Runs,
    require_rows,
    run_given,
    run_random,
)
from moment_init.em.search import (
    enlarged,
    held_sample,
    refined,
    search,
    search_sample,
)
from moment_init.em.starts import (
    RandomStart,
    Start,
    grow,
    tensor_starts,
)
from moment_init.families.base import Family
from moment_init.likelihood.climbing import MaximiseResult
from moment_init.likelihood.parameters import MIN_DISPERSION_RATIO
from moment_init.moments.result import MomentEstimate
from moment_init.progress import Display, passes_over, progress
from moment_init.results import BREAKDOWNS, Status

Init = (
    Literal["search", "tensor", "random"]
    | MomentEstimate
    | EMFit
    | FittedOptimum
    | tuple[ArrayLike | FittedOptimum, ...]
    | ArrayLike
)


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
    init: Init = "search",
    priors: PriorsArgument = None,
    n_starts: int | None = None,
    max_seconds: float | None = None,
    random_start: RandomStart = "both",
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
    r"""Fit a mixture of generalised linear models by maximum likelihood or a posteriori.

    .. math:: p(y \mid x) = \sum_j \pi_j\, f(y \mid \langle\beta_j, x\rangle + b_j),

    EM (Appendix C of [1]_) is used while it is fast, and damped Newton steps on the observed
    likelihood once it becomes slow. The log-likelihood never decreases. With `priors` the same
    steps climb the log-posterior, the log-likelihood plus the log prior. Several responses of a row
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
    init : {"search", "tensor", "random"}, MomentEstimate, EMFit, tuple or array, default "search"
        Starting values. "search" looks for the highest interior maximum from several kinds of
        starts: moments, growth by splits, bins, random starts, and ways out of local optima; see
        Notes. "tensor" is the moment estimate and the climb from it, "random" runs `n_starts`
        random starts, and nothing else. A MomentEstimate, an EMFit or a tuple (coefficients,
        biases, weights[, dispersion]) is used as the start, and responsibilities of shape
        (n_obs, n_components) by one M-step. One of `EMFit.optima` is a start, too, and a tuple of
        them several. The columns of an EMFit are matched by name, and its components to
        `fixed_weights` by size.
    priors : {"default"} or dict, optional
        None for maximum likelihood. "default", or numbers that replace some of the defaults, for
        the maximum of the posterior density of coefficients, biases, log dispersions and logits of
        weights. The keys are "coefficient" (a standard deviation, or a dict of them by column),
        "bias" (a standard deviation, or a mean and one), "dispersion" (mean and standard deviation
        of its logarithm), "weight" (the concentration of a Dirichlet distribution) and "gate" (a
        standard deviation). See Notes.
    n_starts : int, optional
        Number of random starts: 10 by default with init="random". A search by default runs as many
        as it needs.
    max_seconds : float, optional
        Time of a search, or of random starts. By default a search ends after about 2 seconds or the
        time of 30 random starts, whichever is longer, and the result depends on the seed only, not
        on the clock.
    random_start : {"both", "assignment", "coefficients"}, default "both"
        Whether random starts assign rows softly to components, as flexmix does, draw coefficients,
        or do both in turn.
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
        runs of a search have separate limits.
    tolerance : float, default 1e-6
        A run has converged when a Newton step is predicted to gain less log-likelihood than this.
    n_jobs : int, optional
        Number of random starts to run in parallel, with joblib; 1 by default.
    progressbar : bool, default True
        Whether to show the progress of a search or of random starts that take longer than two
        seconds.
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
        or collinear columns, too few rows, wrong priors, or if every start breaks down.

    Warns
    -----
    ConvergenceWarning
        If the final run did not converge.

    Notes
    -----
    A search runs random starts until the estimated probability that a further one ends in an
    optimum not yet seen is below .02, the best optimum stands out or was reached by 25 of them, or
    half of its time is used up. Then it leaves the best few optima by moves and perturbations.
    `EMFit.unseen_mass` has this estimate, and `status` is "not_explored" if a better optimum is
    likely.

    Boundary solutions are returned only if no interior maximum was found. They are kept on the
    boundary and reported in `warnings` and `bounds`: a weight at
    a tenth of a row (an empty component), a standard deviation at the smallest ratio (a collapsing
    variance), coefficients at the largest linear predictor (separation).

    The default priors are those of `sample` with free directions, for columns that are centred and
    scaled one by one. With the identity link the response is, too. So they do not depend on units.
    Coefficients are Normal(0, s / sqrt(n_features)) with s = 5 (logit), 3 (probit), 1 (log) or 1.5
    (identity). Biases, at the mean of the columns, are Normal(0, b) with b = 2.5 (logit) or 1.5,
    relative to the mean response (identity) or its logarithm (log). A standard deviation is
    LogNormal(log 0.5, 1), alpha and shape are LogNormal(log 3, 1), weights Dirichlet(1). Logits of
    a softmax gate, at the mean of its covariates, and slopes per standard deviation of a covariate
    are Normal(0, 2) with sum zero over the components. The densities of a Gaussian gate have no
    prior. A parameter that components share has its prior once. With `fixed_directions` the columns
    are the projections of the rows, one per component.

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
        gating=gating,
    )
    validate_gate_kind(gate, all_rows.gating)
    data = all_rows.drop_zero_weights()
    number = validate_n_components(n_components, data.n_obs)
    _validate_word(init)
    options = FitOptions(
        max_iter=max_iter,
        tolerance=tolerance,
        n_starts=n_starts,
        max_seconds=max_seconds,
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
        has_gate=all_rows.gating is not None,
    )
    has_logit_gate = all_rows.gating is not None and gate == "softmax"
    numbers = validate_priors(priors, data, restrictions, has_logit_gate=has_logit_gate)
    ratio = validate_dispersion_ratio(min_dispersion_ratio)
    rng = make_generator(random_seed)
    with single_threaded_blas():
        problem = pose_em(
            data,
            number,
            restrictions=restrictions,
            min_dispersion_ratio=ratio,
        ).prepared()
        if gate == "gaussian":
            problem = GatedProblem.of(problem)
        if numbers is not None:
            problem = replace(problem, prior=log_prior_of(problem, data, numbers))
        require_rows(problem)
        with progress("fit", is_shown=options.progressbar) as display:
            runs, end = _run_starts(problem, data, init, options, rng, all_rows, display)
        if isinstance(problem, GatedProblem) and isinstance(end, GatedRun):
            fit = assemble_gated_fit(problem, data, end, runs)
        else:
            fit = assemble_fit(problem, data, end, runs)
        if data is not all_rows:
            fit = with_all_rows(fit, all_rows)
    if fit.status is not Status.OK:
        is_short = fit.status in (Status.NOT_CONVERGED, Status.NOT_EXPLORED)
        notify(" ".join(fit.warnings), ConvergenceWarning if is_short else UserWarning)
    return fit


def _validate_word(init: Any) -> None:
    if isinstance(init, str) and init not in ("search", "tensor", "random"):
        raise ValueError(
            f"`init` must be 'search', 'tensor' or 'random' if it is a string; got {init!r}."
        )


def _run_starts(
    problem: EMProblem,
    data: RegressionData,
    init: Any,
    options: FitOptions,
    rng: np.random.Generator,
    all_rows: RegressionData,
    display: Display,
) -> tuple[Runs, MaximiseResult]:
    """Run the starts of `init`; return all of them and the end of the best one."""
    counted = partial(passes_over, problem.rows.n_units, problem.log_jacobian)
    if not isinstance(init, str):
        names = (data.feature_names, data.response_names)
        with counted():
            runs = run_given(problem, given_starts(problem, init, all_rows, *names), options)
        return runs, _require_run(runs)
    held = held_sample(problem)
    if init == "search" and options.max_iter > 0:
        runs = _search(problem, held, data, options, rng, display)
        best = _require_run(runs)
        with counted():
            if runs.problem.rows.n_units == problem.rows.n_units:
                return runs, _climb_on(problem, best, options)
            return _on_all_rows(problem, held, runs, options)
    sample = search_sample(held, rng)
    if init == "random":
        runs = run_random(sample, options, rng)
    elif init == "tensor":
        starts, has_signal = _required_moments(sample, data, rng)
        runs = run_given(sample, starts, options)
        runs.has_signal = has_signal
    else:
        starts, _ = tensor_starts(sample, data, rng)
        runs = run_given(sample, starts or [("growth", grow(sample))], options)
    best = _require_run(runs)
    if sample is problem:
        return runs, best
    with counted():
        return _on_all_rows(problem, held, runs, options)


def _on_all_rows(
    problem: EMProblem, held: EMProblem, runs: Runs, options: FitOptions
) -> tuple[Runs, MaximiseResult]:
    """Refine the best ends of runs on a sample."""
    runs.refined = refined(problem, held, runs, options)
    runs.records = [replace(record, is_sampled=True) for record in runs.records]
    return runs, runs.refined[0].run


def _required_moments(
    problem: EMProblem, data: RegressionData, rng: np.random.Generator
) -> tuple[list[Start], bool]:
    """Return the moment candidates, and whether the moments show a direction; raise without any."""
    starts, has_signal = tensor_starts(problem, data, rng, is_forced=True)
    if not starts:
        raise ValueError(
            "`init` must be 'search' or 'random' for these data: moments need a column with a "
            "density (several responses, or classes, only such columns), free directions, and few "
            f"enough components to tell apart; got {problem.n_components}. Use init='search'."
        )
    return starts, has_signal


def _search(
    problem: EMProblem,
    held: EMProblem,
    data: RegressionData,
    options: FitOptions,
    rng: np.random.Generator,
    display: Display,
) -> Runs:
    """Search, on a sample if there are many rows."""
    sample = search_sample(held, rng)
    seeds = rng.spawn(2)
    failures: list[str] = []

    def from_moments() -> list[Start]:
        try:
            return tensor_starts(sample, data, seeds[0])[0]
        except BREAKDOWNS as error:  # moments are only one of several origins
            failures.append(str(error))
            return []

    runs = search(sample, from_moments, seeds[1], options, display=display)
    if sample is not problem:
        runs = enlarged(held, runs, from_moments, rng)
    for message in failures:
        runs.fail("tensor", message)
    return runs


def _climb_on(problem: EMProblem, best: MaximiseResult, options: FitOptions) -> MaximiseResult:
    """Climb from the end of a search to the tolerance."""
    limits: dict[str, Any] = {"max_steps": options.max_iter, "tolerance": options.tolerance}
    end = problem.climb(best.parameters, damping=0.0, least_steps=1, **limits)
    # the climb starts by evaluating the last point of the search again
    history = (*best.history[:-1], *end.history)
    return replace(end, history=history, n_iter=best.n_iter + end.n_iter)


def _require_run(runs: Runs) -> MaximiseResult:
    """Return the best run; raise if every start broke down."""
    if runs.best is not None:
        return runs.best
    first = runs.records[0]
    raise ValueError(
        f"`init` must lead to a fit; got {len(runs.records)} starts that all broke down. The "
        f"message of the first ({first.origin}) is: {first.message} Check `X` and `y` for extreme "
        "values, or try another `init`."
    )
