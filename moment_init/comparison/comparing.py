"""The entry point `compare`: checks arguments, runs the methods, holds no mathematics."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from moment_init.arguments import RandomSeed, make_generator, validate_n_components
from moment_init.comparison.assembly import Setting, assemble
from moment_init.comparison.methods import run_all
from moment_init.comparison.options import validate_options
from moment_init.comparison.result import Comparison
from moment_init.comparison.rows import check_rows, split_rows
from moment_init.comparison.truth import read_truth
from moment_init.families import Family
from moment_init.formulas import takes_formula
from moment_init.responses.data import require_one_response
from moment_init.simulation import MixtureData

if TYPE_CHECKING:
    from moment_init.models.specification import Directions

__all__ = ["compare"]


@takes_formula
def compare(
    X: Any,
    y: Any,
    n_components: int,
    *,
    family: str | Family = "bernoulli",
    link: str | None = None,
    offset: ArrayLike | None = None,
    n_trials: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    random_seed: RandomSeed = None,
    gating: Any = None,
    n_starts: int = 20,
    truth: MixtureData | Mapping[str, ArrayLike] | None = None,
    held_out: float = 0.2,
    include_default_nuts: bool = False,
    directions: "Directions" = "anchored",
    priors: Mapping[str, Any] | None = None,
    draws: int = 1000,
    tune: int | None = None,
    chains: int = 4,
    n_jobs: int | None = None,
    progressbar: bool = True,
    **pm_sample_kwargs: Any,
) -> Comparison:
    r"""Compare the tensor start with random starts, by EM and by NUTS, on the same rows.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features), or str
        Inputs; names of a DataFrame's columns become the `feature` coordinate. Or a formula, such
        as ``"y ~ a + b | g"``.
    y : array-like, shape (n_obs,), or DataFrame
        Response; or the formula's data, whose columns `offset`, `groups`, ... may then name.
    n_components : int
        Number of components.
    family : str or Family, default "bernoulli"
        Family of the response; with a formula, by default the one that suits its values.
    link : str, optional
        Its link; the family's own by default.
    offset : array-like, shape (n_obs,), optional
        Known part of the linear predictor.
    n_trials : int or array-like, shape (n_obs,), optional
        Trials behind binomial responses.
    sample_weight : array-like, shape (n_obs,), optional
        How often each row counts; rows of weight zero are left out.
    groups : array-like, shape (n_obs,), optional
        Labels of groups whose rows share their component. A group is held out, and left out, as a
        whole.
    random_seed : int, sequence of int, numpy.random.Generator, optional
        Seed of the split, the starts and the samplers. All but seconds is the same for one seed.
    gating : array-like or DataFrame, shape (n_obs, n_gate), optional
        Covariates on which the weights depend: a mixture of experts.
    n_starts : int, default 20
        Number of random starts of EM.
    truth : MixtureData or mapping of str to array-like, optional
        What is behind simulated data: what `simulate_mixture` returned, or `coefficients`,
        `biases`, `weights` and perhaps `dispersion`, with shapes as there.
    held_out : float, default 0.2
        Share of the rows, or groups, that is held out to be predicted; 0 for none.
    include_default_nuts : bool, default False
        Whether to sample the same mixture from PyMC's own start as well, with free coefficients and
        its jitter. It is slow.
    directions : {"anchored", "fixed", "free"}, default "anchored"
        What is done about directions in NUTS from the tensor start, see `sample`.
    priors : mapping of str to prior, optional
        Priors of NUTS, see `moment_init.models.mixture_glm`.
    draws : int, default 1000
        Draws of each chain that are kept, and Laplace draws of each fit by EM that is scored; of
        these there are 400 at least.
    tune : int, optional
        Draws of each chain that tune the sampler; the sampler's default if left out.
    chains : int, default 4
        Number of chains of NUTS.
    n_jobs : int, optional
        Random starts that run at once, through joblib; 1 by default.
    progressbar : bool, default True
        Whether to show progress.
    **pm_sample_kwargs
        Passed to ``pymc.sample``: `target_accept`, `cores`, `nuts_sampler`, ...

    Returns
    -------
    Comparison
        Table, draws by method, landscape of optima, leave-one-out comparison and verdict.

    Raises
    ------
    TypeError
        For arguments of a wrong type.
    ValueError
        For wrong values, as `fit_em` and `sample`, and if the search from the tensor start ends in
        no fit. A random start that breaks down is recorded in `landscape`.

    Notes
    -----
    Fits by EM are compared as draws of their Laplace approximation, whose leave-one-out weights
    correct for it (`arviz.loo_approximate_posterior`). Random starts are chains of one tree, their
    components matched by one permutation a start, so that R-hat shows whether starts disagree. Only
    single starts are scored: ``"random EM"`` has the figures of the typical start, that of the
    median log-likelihood, and ``"best random EM"`` those of the best of `n_starts`. ``seconds``
    of both are those of all starts.

    Every chain of NUTS is climbed from its best draw, to the optimum it belongs to. An optimum is
    the "best found" if it is within .01 of the highest log-likelihood of any start or chain; that
    there is none better is never known.

    A leave-one-out score with more than one in a hundred Pareto k too large is not relied on: `loo`
    ranks it below the others (``is_reliable``), and the verdict cites rows held out instead.

    The group ``posterior_predictive`` has about a thousand draws of every method. Row labels
    ``obs`` are places in `X`.

    Examples
    --------
    .. code-block:: python

        data = simulate_mixture(2000, 5, 3, weights=[0.7, 0.2, 0.1], random_seed=1)
        comparison = compare(data.X, data.y, 3, truth=data, random_seed=1)
        comparison.verdict.headline
        comparison.figure()  # a notebook shows it
        comparison.to_html("comparison.html")
    """
    options = validate_options(
        n_starts=n_starts,
        held_out=held_out,
        include_default_nuts=include_default_nuts,
        directions=directions,
        priors=priors,
        draws=draws,
        tune=tune,
        chains=chains,
        n_jobs=n_jobs,
        progressbar=progressbar,
        pm_sample=pm_sample_kwargs,
    )
    block = {
        "family": family,
        "link": link,
        "offset": offset,
        "n_trials": n_trials,
        "sample_weight": sample_weight,
        "groups": groups,
        "gating": gating,
    }
    require_one_response("compare", y, family)
    rows = check_rows(X, y, block)
    number = validate_n_components(n_components, rows.checked.n_obs)
    true = read_truth(truth, rows.checked.n_features, number)
    split, run, finish = make_generator(random_seed).spawn(3)
    training, rest = split_rows(rows, options.held_out, split)
    methods = run_all(training, number, options, run)
    return assemble(Setting(training, rest, true, options, random_seed), methods, finish)
