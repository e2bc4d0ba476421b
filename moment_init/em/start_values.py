r"""Starting values of all parameters for a sampler: an estimate, and draws around it.

Draws around an `EMFit` come from its normal approximation at the maximum, in which biases,
coefficients and weights vary together. Independent draws with the same standard errors would leave
the mode if the columns are not centred. A `MomentEstimate` has standard errors of its directions
only, so its draws turn the directions.

Chains that start at one mode stay near it. `weigh_modes` estimates how much of the posterior is
near the other optima that the search found, and warns if it is much.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from moment_init.checks import FloatArray, notify, quiet_notices
from moment_init.data.checking import RegressionData
from moment_init.em.fitting import fit_em
from moment_init.em.result import EMFit, mass_shares
from moment_init.moments.result import MomentEstimate
from moment_init.moments.stacked_result import COVERAGE
from moment_init.results import ATTRIBUTES, BREAKDOWNS, TRANSPOSED, dims_of, parameters_of

IndexArray = NDArray[np.intp]

_LARGEST_ANGLE = 45.0
"""Upper limit of twice the standard error of a direction, in degrees: a start that is turned
further is closer to other directions than to the estimate."""


@dataclass(frozen=True, slots=True, eq=False)
class StartValues:
    """One value of every parameter, named and shaped as in an estimate; None if unknown.

    With several responses or classes, directions, coefficients, scales, biases and dispersion have
    a leading axis.
    """

    directions: FloatArray  # unit directions; (n_features, n_components)
    coefficients: FloatArray | None = None  # (n_features, n_components)
    scales: FloatArray | None = None  # lengths of the coefficients; (n_components,)
    biases: FloatArray | None = None  # (n_components,)
    weights: FloatArray | None = None  # probabilities of the components; (n_components,)
    dispersion: FloatArray | None = None  # (n_components,)
    # slopes of the logits of a softmax gate, of sum zero over the components;
    # (n_gate, n_components)
    gate: FloatArray | None = None
    # logits of a softmax gate at covariates zero, of sum zero; (n_components,)
    gate_biases: FloatArray | None = None
    gate_means: FloatArray | None = None  # means of a Gaussian gate; (n_gate, n_components)
    # covariances of a Gaussian gate; (n_components, n_gate, n_gate)
    gate_covariances: FloatArray | None = None

    @property
    def n_components(self) -> int:
        """Number of components."""
        return int(self.directions.shape[-1])

    def variables(self) -> dict[str, FloatArray]:
        """Return the known parameters by their names in the data model, with dims as `dims_of`."""
        return parameters_of(self)

    def reorder(self, order: IndexArray) -> "StartValues":
        """Reorder the components."""
        # order: (n_components,)
        changed = {}
        for name, value in self.variables().items():
            taken = np.take(value, order, axis=dims_of(name, value.ndim).index("component"))
            changed[ATTRIBUTES[name]] = taken.T if name in TRANSPOSED else taken
        return StartValues(**changed)


def start_values_of(estimate: MomentEstimate | EMFit) -> StartValues:
    """Read the parameters of an estimate."""
    values: dict[str, Any] = {
        field.name: getattr(estimate, field.name, None) for field in fields(StartValues)
    }
    for name in ("gate", "gate_biases"):  # a fit has them relative to its last component
        if values[name] is not None:
            values[name] = values[name] - values[name].mean(axis=-1, keepdims=True)
    return _with_response_directions(StartValues(**values))


def _with_response_directions(start: StartValues) -> StartValues:
    """Give every response its own directions and positive scales, if all share a direction."""
    scales = start.scales
    if scales is None or scales.ndim == start.directions.ndim - 1:
        return start
    directions = start.directions * np.where(scales < 0.0, -1.0, 1.0)[:, None]
    return replace(start, directions=directions, scales=np.abs(scales))


def draw_start_values(
    estimate: MomentEstimate | EMFit, draws: int, rng: np.random.Generator, *, spread: float
) -> list[StartValues]:
    """Draw parameters around an estimate, with `spread` times its standard errors."""
    if isinstance(estimate, EMFit):
        return _draw_fit(estimate, draws, rng, spread)
    return _draw_directions(estimate, draws, rng, spread)


def _draw_fit(fit: EMFit, draws: int, rng: np.random.Generator, spread: float) -> list[StartValues]:
    laplace = replace(fit.laplace, root=spread * fit.laplace.root)
    tree = replace(fit, laplace=laplace).to_datatree(draws=draws, random_seed=rng)
    arrays = {}
    for name, variable in tree["posterior"].data_vars.items():
        values = variable.to_numpy()[0]
        is_turned = name in TRANSPOSED
        arrays[ATTRIBUTES[str(name)]] = np.swapaxes(values, 1, 2) if is_turned else values
    return [
        StartValues(**{attribute: values[draw] for attribute, values in arrays.items()})
        for draw in range(draws)
    ]


def _draw_directions(
    estimate: MomentEstimate, draws: int, rng: np.random.Generator, spread: float
) -> list[StartValues]:
    """Turn directions by normal steps in their tangent spaces, 95 % within two errors."""
    if estimate.standard_errors is None:
        raise ValueError(
            f"`spread` must be 0 for an estimate without standard errors; got {spread} with "
            f'method={estimate.method!r}. Use method="stacked", or `fit_em(..., init=estimate)`.'
        )
    scales, directions = estimate.scales, estimate.directions
    start = start_values_of(estimate)
    angles = np.minimum(2.0 * estimate.standard_errors, _LARGEST_ANGLE)
    steps = spread * np.tan(np.radians(angles))
    if len(directions) > 1:  # a single column has one direction only, with error zero
        steps /= np.sqrt(chi2.ppf(COVERAGE, len(directions) - 1))
    result = []
    for noise in rng.standard_normal((draws, *directions.shape)):
        tangent = noise - directions * (directions * noise).sum(axis=0)
        turned = directions + steps * tangent
        turned /= np.linalg.norm(turned, axis=0)
        coefficients = None if scales is None else turned * scales[..., None, :]
        changed = replace(start, directions=turned, coefficients=coefficients, scales=scales)
        result.append(_with_response_directions(changed))
    return result


NOTABLE_MASS = 0.05
"""Share of the posterior mass away from the start above which a warning is given."""


def weigh_modes(data: RegressionData, origin: MomentEstimate | EMFit | None) -> Any:
    """Return a fit whose optima have posterior masses, and warn if the others hold much of it.

    The optima of a fit without priors are climbed again with the default priors. One optimum, an
    estimate and arrays say nothing of others.
    """
    if not isinstance(origin, EMFit) or len(origin.optima) < 2:
        return origin
    optima, start = origin.optima, origin.log_posterior
    has_priors = start is not None
    if start is None:
        settings: dict[str, Any] = {"priors": "default", "progressbar": False}
        try:
            with quiet_notices():
                weighed = fit_em(data, None, origin.n_components, init=optima, **settings)
        except BREAKDOWNS:  # the masses are a diagnosis only, so sampling goes on without them
            return origin
        optima, start = weighed.optima, weighed.starts[0].log_posterior
        origin = replace(origin, optima=optima)
        if start is None:  # the climb from the fit itself failed: its mode is not known
            return origin
    heights = [np.inf if each.log_posterior is None else each.log_posterior for each in optima]
    at = int(np.argmin(np.abs(np.array(heights) - start)))
    shares = mass_shares(optima)
    others = float(np.nansum(np.delete(shares, at)))
    if others > NOTABLE_MASS and not np.isnan(shares[at]):
        numbers = [index for index, share in enumerate(shares) if index != at and share > 0.01]
        # optima that were climbed again are in another order than those of the fit
        which = f": optima {numbers} of tree['moment_init']" if has_priors else ""
        remedy = 'fit with `fit_em(..., priors="default")` and pass each of its `optima` as `init`'
        if has_priors:  # the fit may be the user's, or one that `sample` made
            remedy = (
                f"pass `init=fit.optima[k]` of the fit that you gave; if you gave none, {remedy}"
            )
        notify(
            f"About {others:.0%} of the posterior mass is near other modes than the one at "
            f"which the chains start, by Laplace's approximation{which}. Chains rarely move "
            "between modes, so intervals may be too narrow. Look at the modes with `compare`, or "
            f"sample each of them: {remedy}. Weight them by stacking, as the page 'Several modes' "
            "of the guide shows.",
            UserWarning,
        )
    return origin
