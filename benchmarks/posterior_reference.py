"""Compare the posterior of a small problem with an independent implementation of the model.

The reference implementation shares only the location and scale of the data and the anchors with the
package. Its density is a few lines of array algebra in standardised coordinates, with its own
priors, transforms and orthonormal basis; JAX computes its gradient if needed. It is sampled by
NumPyro's NUTS if that is installed, otherwise by an ensemble sampler without gradients (Goodman and
Weare 2010). Means and standard deviations of all parameters in the user's units are compared in
Monte Carlo standard errors of both runs; the largest z is compared with its Bonferroni bound.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import null_space, solve_triangular
from scipy.stats import norm

from benchmarks.measuring import number
from benchmarks.posterior_runs import diagnostics, quiet_sampler, sample_from
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import MixtureData, fit_em, simulate_mixture
from moment_init.data.checking import validate_data

if TYPE_CHECKING:
    import xarray

__all__ = ["BENCHMARK", "Reference", "run"]

FloatArray = NDArray[np.float64]

FAMILIES = ("bernoulli", "gaussian")
DIRECTIONS = ("anchored", "free")
N_OBS, N_FEATURES, N_COMPONENTS = 300, 3, 2
SCALES = {"bernoulli": 5.0, "gaussian": 1.5}
DISPERSION = 0.5
ANCHOR_ANGLE = 45.0

# The defaults of `moment_init.models.priors`, repeated here on purpose.
SCALE_PRIOR = {"bernoulli": 5.0, "gaussian": 1.5}
BIAS_PRIOR = {"bernoulli": 2.5, "gaussian": 1.5}
DISPERSION_MEDIAN = 0.5

N_CHAINS, N_TUNE = 4, 1_000
N_DRAWS, QUICK_DRAWS = 10_000, 500

# A walker needs about a hundred steps for an independent draw; every fifth step is kept.
N_WALKERS, THINNING, N_ENSEMBLES = 64, 5, 4
STRETCH = 2.0
LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference implementation, as a function of an unconstrained vector.

    The vector holds the logit of the first weight, the logarithms of the scales and the tilts, or
    the coefficients if directions are free, then the biases and the logarithms of the dispersions.
    """

    family: str  # family of the response
    directions: str  # treatment of the directions
    Z: FloatArray  # standardised inputs; (n_obs, n_features)
    y: FloatArray  # response, standardised if Gaussian; (n_obs,)
    anchors: FloatArray  # unit anchors; (n_features, 2)
    start: FloatArray  # the vector at the fit

    def unpack(self, vector: Any, xp: Any = np) -> tuple[Any, Any, Any, Any, Any]:
        """Parameters in standardised coordinates, and the log prior with log Jacobians."""
        # (..., n_dim) -> weights (..., 2), coefficients (..., n_features, 2), biases (..., 2),
        # dispersions (..., 2) or None, log prior (...)
        first = 1.0 / (1.0 + xp.exp(-vector[..., 0]))
        weights = xp.stack([first, 1.0 - first], axis=-1)
        # The prior is uniform on the simplex: only the logistic Jacobian remains.
        total = xp.log(first) + xp.log1p(-first)
        coefficients, used, part = self._coefficients(vector[..., 1:], xp)
        total = total + part
        rest = vector[..., 1 + used :]
        biases = rest[..., :2]
        total = total - 0.5 * ((biases / BIAS_PRIOR[self.family]) ** 2).sum(-1)
        if self.family == "bernoulli":
            return weights, coefficients, biases, None, total
        # Log-normal with deviation 1 is normal in the logarithm; the Jacobian cancels.
        total = total - 0.5 * ((rest[..., 2:4] - np.log(DISPERSION_MEDIAN)) ** 2).sum(-1)
        return weights, coefficients, biases, xp.exp(rest[..., 2:4]), total

    def _coefficients(self, vector: Any, xp: Any) -> tuple[Any, int, Any]:
        n_features, deviation = self.anchors.shape[0], SCALE_PRIOR[self.family]
        if self.directions == "free":
            size = 2 * n_features
            free = vector[..., :size].reshape((*vector.shape[:-1], n_features, 2))
            narrow = deviation / np.sqrt(n_features)
            return free, size, -0.5 * ((free / narrow) ** 2).sum((-2, -1))
        n_tilts = n_features - 1
        log_scales = vector[..., :2]
        scales = xp.exp(log_scales)
        total = -0.5 * ((scales / deviation) ** 2).sum(-1) + log_scales.sum(-1)
        kappa = np.tan(np.radians(ANCHOR_ANGLE)) / np.sqrt(n_tilts)
        columns = []
        for j in range(2):
            tilt = vector[..., 2 + j * n_tilts : 2 + (j + 1) * n_tilts]
            total = total - 0.5 * (tilt**2).sum(-1)
            basis = null_space(self.anchors[:, j : j + 1].T)
            raw = self.anchors[:, j] + kappa * (tilt @ basis.T)
            columns.append(scales[..., j : j + 1] * raw / xp.sqrt((raw**2).sum(-1))[..., None])
        return xp.stack(columns, axis=-1), 2 + 2 * n_tilts, total

    def log_density(self, vector: Any, xp: Any = np) -> Any:
        """Log posterior of unconstrained vectors, up to a constant."""
        # vector: (..., n_dim) -> (...)
        weights, coefficients, biases, dispersion, total = self.unpack(vector, xp)
        eta = self.Z @ coefficients + biases[..., None, :]
        y = self.y[:, None]
        if dispersion is None:
            terms = -xp.logaddexp(0.0, (1.0 - 2.0 * y) * eta)
        else:
            spread = dispersion[..., None, :]
            terms = -0.5 * ((y - eta) / spread) ** 2 - xp.log(spread)
        joint = terms + xp.log(weights)[..., None, :]
        return total + xp.logaddexp(joint[..., 0], joint[..., 1]).sum(-1)


def run(options: Options) -> Outcome:
    """Compare posteriors of `sample` with the reference, by family, directions and parameter."""
    n_draws = QUICK_DRAWS if options.is_quick else N_DRAWS
    engine = "NumPyro" if find_spec("numpyro") is not None else "ensemble"
    rows: list[Row] = []
    with quiet_sampler():
        for family in FAMILIES:
            for directions in DIRECTIONS:
                case_rows = _compare_case(family, directions, n_draws, engine, options.seed)
                rows += case_rows
                print(f"{family}, {directions}: largest |z| {_largest(case_rows):.2f}", flush=True)
    settings = {
        "n": N_OBS,
        "d": N_FEATURES,
        "r": N_COMPONENTS,
        "draws": f"{N_CHAINS} x {n_draws}",
        "reference": engine,
    }
    return Outcome(tuple(rows), tuple(_figures(rows, is_judged=not options.is_quick)), settings)


def _largest(rows: list[Row]) -> float:
    return max(max(number(row, "max |z| mean"), number(row, "max |z| sd")) for row in rows)


def _figures(rows: list[Row], *, is_judged: bool) -> list[Figure]:
    n_tests = sum(2 * int(number(row, "scalars")) for row in rows)
    bound, worst = float(norm.isf(LEVEL / (2 * n_tests))), _largest(rows)
    return [
        Figure(
            f"largest |z| of {n_tests} means and sds",
            worst,
            f"<= {bound:.2f} (Bonferroni, {LEVEL:.0%})",
            worst <= bound if is_judged else None,
        ),
        Figure("largest R-hat of `sample`", max(number(row, "R-hat") for row in rows)),
        Figure("largest R-hat of the reference", max(number(row, "R-hat (ref.)") for row in rows)),
    ]


def _compare_case(family: str, directions: str, n_draws: int, engine: str, seed: int) -> list[Row]:
    data = _simulate(family, seed)
    fit = fit_em(data.X, data.y, N_COMPONENTS, family=family, progressbar=False, random_seed=seed)
    tree = sample_from(
        fit,
        data,
        directions=directions,
        anchor_angle=ANCHOR_ANGLE,
        draws=n_draws,
        tune=N_TUNE,
        chains=N_CHAINS,
        random_seed=seed,
    )
    reference, to_user = _reference(data, fit, directions)
    sampler = _sample_with_numpyro if engine == "NumPyro" else _sample_with_ensembles
    draws = to_user(sampler(reference, n_draws, seed))
    return _compare(tree["posterior"].to_dataset(), draws, {"family": family, "u": directions})


def _simulate(family: str, seed: int) -> MixtureData:
    return simulate_mixture(
        N_OBS,
        N_FEATURES,
        N_COMPONENTS,
        family=family,
        directions=np.eye(N_FEATURES, N_COMPONENTS),
        scales=SCALES[family],
        dispersion=DISPERSION if family == "gaussian" else None,
        random_seed=seed,
    )


def _reference(
    data: MixtureData, fit: Any, directions: str
) -> tuple[Reference, Callable[[FloatArray], "xarray.Dataset"]]:
    """Build the reference, and the map from its vectors to parameters in the user's units."""
    from moment_init.models.specification import specify

    where = specify(
        validate_data(data.X, data.y, family=data.family),
        N_COMPONENTS,
        init=fit,
        directions=directions,
        anchor_angle=ANCHOR_ANGLE,
        random_seed=0,
    ).coordinates[0]
    shift, unit = where.response_shift, where.response_scale
    factor = where.factor
    if directions == "free":  # coefficients of columns that are scaled, not whitened
        factor = np.diag(np.linalg.norm(factor, axis=1))
    Z = solve_triangular(factor, (data.X - where.mean).T, lower=True).T
    slopes = factor.T @ fit.coefficients / unit
    lengths = np.linalg.norm(slopes, axis=0)
    levels = (fit.biases + where.mean @ fit.coefficients - shift) / unit
    tilts = np.zeros(2 * (N_FEATURES - 1))
    shape = slopes.ravel() if directions == "free" else np.concatenate([np.log(lengths), tilts])
    spread = [] if fit.dispersion is None else np.log(fit.dispersion / unit)
    weight = np.log(fit.weights[:1] / fit.weights[1:])
    start = np.concatenate([weight, shape, levels, spread])
    y = np.asarray((data.y - shift) / unit if data.family == "gaussian" else data.y, float)
    reference = Reference(data.family, directions, Z, y, slopes / lengths, start)

    def to_user(vectors: FloatArray) -> "xarray.Dataset":
        weights, standardised, biases, dispersion, _ = reference.unpack(vectors)
        coefficients = unit * np.linalg.solve(factor.T, standardised)
        at_zero = shift + unit * biases - where.mean @ coefficients
        scaled = None if dispersion is None else unit * dispersion
        return _as_dataset(coefficients, at_zero, weights, scaled, fit.coefficients)

    return reference, to_user


def _as_dataset(
    coefficients: FloatArray,
    biases: FloatArray,
    weights: FloatArray,
    dispersion: FloatArray | None,
    labels: FloatArray,
) -> "xarray.Dataset":
    """Draws by name, with each draw's components in the order nearest to some coefficients."""
    import xarray

    kept = ((coefficients - labels) ** 2).sum((-2, -1))
    switched = ((coefficients[..., ::-1] - labels) ** 2).sum((-2, -1)) < kept
    values = {"bias": biases, "weight": weights}
    if dispersion is not None:
        values["dispersion"] = dispersion
    variables: dict[str, Any] = {
        name: (
            ("chain", "draw", "component"),
            np.where(switched[..., None], value[..., ::-1], value),
        )
        for name, value in values.items()
    }
    ordered = np.where(switched[..., None, None], coefficients[..., ::-1], coefficients)
    variables["coefficient"] = (("chain", "draw", "feature", "component"), ordered)
    variables["scale"] = (("chain", "draw", "component"), np.linalg.norm(ordered, axis=-2))
    return xarray.Dataset(variables)


def _sample_with_numpyro(reference: Reference, n_draws: int, seed: int) -> FloatArray:
    """Draws (chain, draw, n_dim) by NumPyro's NUTS on the density alone."""
    # Imported dynamically: they are not dependencies, and type checkers would not find them.
    jax: Any = import_module("jax")
    numpyro: Any = import_module("numpyro")
    inference: Any = import_module("numpyro.infer")
    numpyro.enable_x64()
    jax_numpy = jax.numpy
    kernel = inference.NUTS(
        potential_fn=lambda vector: -reference.log_density(vector, jax_numpy), dense_mass=True
    )
    run = inference.MCMC(
        kernel,
        num_warmup=N_TUNE,
        num_samples=n_draws,
        num_chains=N_CHAINS,
        chain_method="sequential",
        progress_bar=False,
    )
    rng = np.random.default_rng(seed)
    starts = reference.start + 0.05 * rng.standard_normal((N_CHAINS, reference.start.size))
    run.run(jax.random.PRNGKey(seed), init_params=jax_numpy.asarray(starts))
    return np.asarray(run.get_samples(group_by_chain=True), dtype=np.float64)


def _sample_with_ensembles(reference: Reference, n_draws: int, seed: int) -> FloatArray:
    """Draws (chain, draw, n_dim) by ensemble samplers; the walkers of an ensemble form one chain.

    The walks are concatenated, so the autocorrelation of a chain is that of the walks, except at
    the few joins.
    """
    chains = []
    for rng in np.random.default_rng(seed).spawn(N_ENSEMBLES):
        walks = _walk(reference, n_draws, rng)
        chains.append(walks.transpose(1, 0, 2).reshape(-1, walks.shape[-1]))
    return np.stack(chains)


def _walk(reference: Reference, n_steps: int, rng: np.random.Generator) -> FloatArray:
    """Walks (step, walker, n_dim) by stretch moves of one half of the walkers about the other."""
    n_dim, half = reference.start.size, N_WALKERS // 2
    at = reference.start + 0.05 * rng.standard_normal((N_WALKERS, n_dim))
    value = reference.log_density(at)
    kept = []
    for step in range(n_steps + n_steps // 2):
        for moving in (slice(None, half), slice(half, None)):
            others = at[half:] if moving.start is None else at[:half]
            stretch = ((STRETCH - 1.0) * rng.random(half) + 1.0) ** 2 / STRETCH
            centre = others[rng.integers(half, size=half)]
            proposed = centre + stretch[:, None] * (at[moving] - centre)
            found = reference.log_density(proposed)
            gain = (n_dim - 1) * np.log(stretch) + found - value[moving]
            accepted = np.log(rng.random(half)) < gain
            at[moving] = np.where(accepted[:, None], proposed, at[moving])
            value[moving] = np.where(accepted, found, value[moving])
        # The first third is warm-up.
        if step >= n_steps // 2 and step % THINNING == 0:
            kept.append(at.copy())
    return np.stack(kept)


def _compare(posterior: "xarray.Dataset", reference: "xarray.Dataset", labels: Row) -> list[Row]:
    """One row per variable: z of its means and standard deviations, and both runs' diagnostics."""
    import arviz as az

    rows: list[Row] = []
    for name in reference.data_vars:
        ours, theirs = posterior[[name]], reference[[name]]
        row: Row = {**labels, "variable": str(name), "scalars": int(ours[name][0, 0].size)}
        for method, statistic in (("mean", "mean"), ("sd", "std")):
            pair = [getattr(each[name], statistic)(("chain", "draw")) for each in (ours, theirs)]
            errors = [az.mcse(each, method=method)[name] for each in (ours, theirs)]
            z = (pair[0] - pair[1].to_numpy()) / np.hypot(errors[0], errors[1].to_numpy())
            row[f"max |z| {method}"] = float(np.abs(z).max())
        row["R-hat"], row["ESS"] = diagnostics(ours)
        row["R-hat (ref.)"], row["ESS (ref.)"] = diagnostics(theirs)
        rows.append(row)
    return rows


BENCHMARK = Benchmark(
    "posterior_reference", "the posterior against the same model written a second time", run
)
