"""Effective draws per second of `sample`, against the same mixture written in NumPyro.

The NumPyro model has free coefficients and its components summed out, as its users write it, and
the priors of our model with free directions. Both start at the same fit. Each is run twice, and the
second run counts, so that nothing is compiled. Seconds are those of the whole call, with warm-up.
NumPyro is not a dependency: without it nothing is measured.
"""

import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measuring import number
from benchmarks.posterior_quality import Case, draw_case
from benchmarks.posterior_runs import diagnostics, quiet_sampler
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row, format_table
from moment_init import EMFit, MixtureData, fit_em, initial_values, sample
from moment_init.em.priors import LINK_PRIORS

__all__ = ["BENCHMARK", "run"]

N_CHAINS, N_DRAWS, N_TUNE, QUICK_DRAWS = 4, 1_000, 1_000, 50
BAR = 2.0
CASES = (
    Case("bernoulli", 5_000, 5, 3, 3, scales=(3.5, 4.0, 4.5)),
    Case("poisson", 5_000, 5, 3, 3),
    Case("gaussian", 5_000, 5, 3, 3),
)
LINKS = {"bernoulli": "logit", "poisson": "log", "gaussian": "identity"}


def run(options: Options) -> Outcome:
    """Sample every data set by both, and print one line for each."""
    rows: list[Row] = []
    if find_spec("numpyro") is None:
        print("numpyro is not installed: nothing is measured")
        return Outcome((), (), {})
    with quiet_sampler():
        for case in CASES[1:2] if options.is_quick else CASES:
            for index in range(options.data_sets(case.n_data_sets, 1)):
                rows += _measure(case, options, index)
                print(format_table(rows[-2:]), flush=True)
    figures = []
    for family in dict.fromkeys(str(row["family"]) for row in rows):
        rates = [number(row, "ESS/s") for row in rows if row["family"] == family]
        ratio = float(np.median(np.array(rates[::2]) / np.array(rates[1::2])))
        name = f"{family}: effective draws per second over NumPyro's"
        is_met = None if options.is_quick else ratio >= BAR
        figures.append(Figure(name, ratio, f">= {BAR:g}", is_met))
    return Outcome(tuple(rows), tuple(figures), {"chains": N_CHAINS, "draws": N_DRAWS})


def _measure(case: Case, options: Options, index: int) -> list[Row]:
    data, _ = draw_case(case, options, index)
    fit = fit_em(
        *(data.X, data.y, case.n_components),
        family=case.family,
        priors="default",
        progressbar=False,
        random_seed=[options.seed, index],
    )
    draws = QUICK_DRAWS if options.is_quick else N_DRAWS

    def ours() -> Any:
        tree = sample(
            *(data.X, data.y, case.n_components),
            family=case.family,
            init=fit,
            draws=draws,
            chains=N_CHAINS,
            random_seed=options.seed,
            progressbar=False,
            log_likelihood=False,
            posterior_predictive=False,
        )
        return tree["posterior"].to_dataset()[["coefficient", "bias", "weight"]]

    runs = {"sample": ours, "NumPyro": _numpyro_run(data, fit, case.family, draws, options.seed)}
    heads: list[Row] = [
        {"family": case.family, "data set": index, "sampler": name} for name in runs
    ]
    return [head | _timed(call) for head, call in zip(heads, runs.values(), strict=True)]


def _timed(call: Callable[[], Any]) -> Row:
    """Time the second of two calls."""
    call()
    start = time.perf_counter()
    posterior = call()
    seconds = time.perf_counter() - start
    worst, effective = diagnostics(posterior)
    return {"R-hat": worst, "ESS": effective, "seconds": seconds, "ESS/s": effective / seconds}


def _numpyro_run(
    data: MixtureData, fit: EMFit, family: str, draws: int, seed: int
) -> Callable[[], Any]:
    """Return a function that samples the model in NumPyro, its chains on the cores."""
    import arviz as az
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    numpyro.enable_x64()
    prior = LINK_PRIORS[LINKS[family]]
    n_features, r = fit.coefficients.shape
    X, y = jnp.asarray(data.X), jnp.asarray(data.y)
    unit = float(np.std(data.y)) if family == "gaussian" else 1.0
    level = {"gaussian": float(np.mean(data.y)), "poisson": float(np.log(np.mean(data.y)))}

    def model() -> None:
        weight = numpyro.sample("weight", dist.Dirichlet(jnp.ones(r)))
        deviation = unit * prior.scale / np.sqrt(n_features)
        slopes = dist.Normal(0.0, deviation).expand([n_features, r]).to_event(2)
        coefficient = numpyro.sample("coefficient", slopes)
        levels = dist.Normal(level.get(family, 0.0), unit * prior.bias).expand([r]).to_event(1)
        eta = X @ coefficient + numpyro.sample("bias", levels)
        if family == "gaussian":
            spread = dist.LogNormal(jnp.log(0.5 * unit), 1.0).expand([r]).to_event(1)
            parts = dist.Normal(eta, numpyro.sample("dispersion", spread))
        elif family == "poisson":
            parts = dist.Poisson(jnp.exp(eta))
        else:
            parts = dist.Bernoulli(logits=eta)
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weight), parts), obs=y)

    starts: list[dict[str, NDArray[np.float64]]] = initial_values(
        fit, model, backend="numpyro", chains=N_CHAINS, spread=1.0, random_seed=seed
    )

    sampler = MCMC(
        NUTS(model),
        num_warmup=min(draws, N_TUNE),
        num_samples=draws,
        num_chains=N_CHAINS,
        chain_method="vectorized" if jax.local_device_count() < N_CHAINS else "parallel",
        progress_bar=False,
    )

    def call() -> Any:
        inner = [numpyro.infer.util.unconstrain_fn(model, (), {}, start) for start in starts]
        stacked = jax.tree.map(lambda *values: jnp.stack(values), *inner)
        sampler.run(jax.random.PRNGKey(seed), init_params=stacked)
        names = ("coefficient", "bias", "weight")
        drawn = {name: np.asarray(sampler.get_samples(group_by_chain=True)[name]) for name in names}
        return az.from_dict({"posterior": drawn})["posterior"].to_dataset()

    return call


BENCHMARK = Benchmark("numpyro_rate", "effective draws per second, against NumPyro", run)
