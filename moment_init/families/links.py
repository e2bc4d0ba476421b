"""Link functions: the mean as a function of the linear predictor, and its derivatives.

The paper writes ``E[y | x, h = j] = g(<beta_j, x> + b_j)``; its ``g`` is the inverse of what is
usually called the link. The moments of order ``m`` are proportional to ``E[g^(m)]`` under a
Gaussian linear predictor (Lemma 3, there with ``m = 3``). Every link therefore has the derivatives
of ``g`` up to the fourth, and `expected_derivative` computes their expectations. Probit, log and
identity have closed forms. The logistic function has none, but it is analytic in a strip, so that
the trapezoidal rule converges geometrically.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import factorial
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from moment_init.checks import FloatArray

if TYPE_CHECKING:
    from moment_init.families.base import Family

MAX_DERIVATIVE_ORDER = 4
"""No estimator uses a score of higher order than the fourth."""

LARGEST_LOG_MEAN = 300.0
"""exp(300) is about 1e130: beyond any data, and its square is still a finite double. So no variance
or likelihood overflows while an optimiser is far from the optimum."""

LARGEST_DEVIATION = 1e140
"""Largest residual, in standard deviations, that is squared: its square, 1e280, can be weighted and
summed over all rows without overflow."""

LARGEST_LOGIT = 100.0
"""With a logistic predictor of standard deviation 100, only 2.4 percent of the rows have |eta| < 3:
beyond it the response is a step function of the predictor. Only separation leads there."""

_PROBIT_BOUND = 40.0
"""exp(-40**2 / 2) is zero in double precision: beyond it every derivative of Phi is zero."""


def bounded_exp(exponent: FloatArray) -> FloatArray:
    """Exponentiate without overflow."""
    result: FloatArray = np.exp(np.minimum(exponent, LARGEST_LOG_MEAN))
    return result


@dataclass(frozen=True, slots=True)
class Link:
    """A link function as data: what families and moments need to know about ``g``."""

    name: str  # as users write it
    # ``eta = g^{-1}(mean)``, elementwise
    link: Callable[[FloatArray], FloatArray] = field(repr=False)
    # ``(eta, order) -> g^(order)(eta)`` for the orders 0 to 4, elementwise
    derivative_function: Callable[[FloatArray, int], FloatArray] = field(repr=False)
    # ``(y, offset) -> y`` without the offset: the conditional mean of the result is
    # ``g(eta - offset)``. Links for which this is not possible exactly return `y`
    remove_offset: Callable[[FloatArray, FloatArray], FloatArray] = field(repr=False)
    # Linear predictor beyond which the response has no more information about it; likelihoods keep
    # the length of coefficients and bias below it
    largest_predictor: float = field(repr=False)
    # sign of ``g'''`` if it is the same everywhere, otherwise None
    third_derivative_sign: int | None

    def mean(self, eta: ArrayLike) -> FloatArray:
        """Evaluate ``g``, the mean at a linear predictor."""
        return self.derivative_function(np.asarray(eta, dtype=np.float64), 0)

    def derivative(self, eta: ArrayLike, order: int) -> FloatArray:
        """Evaluate a derivative of ``g``."""
        if order not in range(MAX_DERIVATIVE_ORDER + 1):
            raise ValueError(
                f"`order` must be an integer from 0 to {MAX_DERIVATIVE_ORDER}; got {order!r}. "
                "Moments of higher order are not supported."
            )
        return self.derivative_function(np.asarray(eta, dtype=np.float64), order)


def _logit_derivative(eta: FloatArray, order: int) -> FloatArray:
    """Differentiate the logistic function by polynomials of p' = p(1-p) and t = 1 - 2p."""
    probability: FloatArray = special.expit(eta)
    if order == 0:
        return probability
    slope = probability * special.expit(-eta)  # 1 - p would lose the upper tail
    tilt = -np.tanh(eta / 2)
    factors = (np.ones_like(eta), tilt, 1 - 6 * slope, tilt * (1 - 12 * slope))
    result: FloatArray = slope * factors[order - 1]
    return result


def _probit_derivative(eta: FloatArray, order: int) -> FloatArray:
    """Differentiate the normal distribution function: Hermite polynomials times the density."""
    if order == 0:
        probability: FloatArray = special.ndtr(eta)
        return probability
    z = np.clip(eta, -_PROBIT_BOUND, _PROBIT_BOUND)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    factors = (np.ones_like(z), -z, z**2 - 1, -z * (z**2 - 3))
    result: FloatArray = density * factors[order - 1]
    return result


def _log_derivative(eta: FloatArray, order: int) -> FloatArray:
    """Return the exponential, which equals all its derivatives."""
    return bounded_exp(eta)


def _identity_derivative(eta: FloatArray, order: int) -> FloatArray:
    """Return the identity, then one, then zero."""
    return np.array(eta) if order == 0 else np.full_like(eta, float(order == 1))


def _log_link(mean: FloatArray) -> FloatArray:
    """Take the logarithm; it is minus infinity at zero, as other links are at their ends."""
    with np.errstate(divide="ignore"):
        result: FloatArray = np.log(mean)
    return result


def _divide_by_exposure(y: FloatArray, offset: FloatArray) -> FloatArray:
    """Turn counts into rates: the offset of a log link is the logarithm of an exposure."""
    return y * bounded_exp(-offset)


def _keep_offset(y: FloatArray, offset: FloatArray) -> FloatArray:
    """Leave the offset in a bounded response; it is assumed to be independent of x."""
    return y


_ALL_LINKS = (
    Link(
        name="logit",
        link=special.logit,
        derivative_function=_logit_derivative,
        remove_offset=_keep_offset,
        largest_predictor=LARGEST_LOGIT,
        third_derivative_sign=None,
    ),
    Link(
        name="probit",
        link=special.ndtri,
        derivative_function=_probit_derivative,
        remove_offset=_keep_offset,
        largest_predictor=LARGEST_LOGIT / 1.7,  # the probit is about the logit at 1.7 eta
        third_derivative_sign=None,
    ),
    Link(
        name="log",
        link=_log_link,
        derivative_function=_log_derivative,
        remove_offset=_divide_by_exposure,
        largest_predictor=LARGEST_LOG_MEAN,
        third_derivative_sign=1,
    ),
    Link(
        name="identity",
        link=np.array,
        derivative_function=_identity_derivative,
        remove_offset=np.subtract,
        largest_predictor=np.inf,
        third_derivative_sign=None,
    ),
)

LINKS: Mapping[str, Link] = MappingProxyType({link.name: link for link in _ALL_LINKS})
"""Every link by its name."""


_LARGEST_EXPONENT = 600.0
"""exp(600) is about 1e260: its product with the cube of a scale is still a finite double."""

_SMALL_SCALE = 1.0
"""Up to this scale the rule integrates over z, above it over eta: the integrand is then smooth."""

_Z_NODES = np.linspace(-10.0, 10.0, 61)
"""Spacing h = 1/3: the error of the rule is exp(-2 pi a / h + a^2 / 2) for any a < pi, the half
width of the strip where the integrand is analytic at scale 1; that is below 1e-20. At 10 the normal
density is 1e-22."""

_ETA_NODES = np.linspace(-45.0, 45.0, 271)
"""Spacing 1/3, by the same bound; derivatives of the logistic function at 45 are below 1e-19."""


def expected_derivative(
    family_or_link: "Family | Link", order: int, scales: ArrayLike, biases: ArrayLike
) -> FloatArray:
    r"""Average a derivative of ``g`` over a Gaussian linear predictor.

    .. math:: \rho^{(m)}(s, b) = E[g^{(m)}(s z + b)], \quad z \sim N(0, 1).

    It is exact to rounding for probit, log and identity. For logit the absolute error is below
    1e-13 at every scale and bias.
    """
    if order not in range(MAX_DERIVATIVE_ORDER + 1):
        raise ValueError(
            f"`order` must be an integer from 0 to {MAX_DERIVATIVE_ORDER}; got {order!r}. "
            "Moments of higher order are not supported."
        )
    link = family_or_link if isinstance(family_or_link, Link) else family_or_link.link
    s, b = np.broadcast_arrays(
        np.asarray(scales, dtype=np.float64), np.asarray(biases, dtype=np.float64)
    )
    return np.asarray(_EXPECTATIONS[link.name](order, np.abs(s), b))


def moment_coefficient(
    family: "Family", order: int, scales: ArrayLike, biases: ArrayLike
) -> FloatArray:
    r"""Compute the coefficient of each component in the moment of order m.

    It is :math:`\rho^{(m)}` of `expected_derivative`. If the derivatives of ``g`` vanish and the
    moment uses :math:`y^m` instead of y (Lemma 6 of the paper), it is
    :math:`E[d^m \eta^m / d\eta^m] = m!`.
    """
    rho = expected_derivative(family, order, scales, biases)
    return np.full_like(rho, factorial(order)) if family.response_power else rho


def _expected_logit(order: int, scales: FloatArray, biases: FloatArray) -> FloatArray:
    is_small = scales <= _SMALL_SCALE
    result = np.empty(scales.shape)
    result[is_small] = _logit_over_z(order, scales[is_small], biases[is_small])
    result[~is_small] = _logit_over_eta(order, scales[~is_small], biases[~is_small])
    return result


def _logit_over_z(order: int, scales: FloatArray, biases: FloatArray) -> FloatArray:
    weights = np.exp(-(_Z_NODES**2) / 2)
    eta = scales[:, None] * _Z_NODES + biases[:, None]
    result: FloatArray = LINKS["logit"].derivative(eta, order) @ (weights / weights.sum())
    return result


def _logit_over_eta(order: int, scales: FloatArray, biases: FloatArray) -> FloatArray:
    """Integrate over eta; for order 0, which does not decay, the difference from the probit."""
    values = LINKS["logit"].derivative(_ETA_NODES, order)
    rest = np.zeros(scales.shape)
    if order == 0:
        values = values - LINKS["probit"].mean(_ETA_NODES)
        rest = _expected_probit(0, scales, biases)
    z = (_ETA_NODES - biases[:, None]) / scales[:, None]
    density = np.exp(-(z**2) / 2) / (np.sqrt(2 * np.pi) * scales[:, None])
    spacing = _ETA_NODES[1] - _ETA_NODES[0]
    integral: FloatArray = density @ values * spacing
    return rest + integral


def _expected_probit(order: int, scales: FloatArray, biases: FloatArray) -> FloatArray:
    """Differentiate ``E[Phi(sz + b)] = Phi(b / c)``, ``c^2 = 1 + s^2``, in b."""
    spread = np.sqrt(1 + scales**2)
    result: FloatArray = LINKS["probit"].derivative(biases / spread, order) / spread**order
    return result


def _expected_log(order: int, scales: FloatArray, biases: FloatArray) -> FloatArray:
    """Return the mean of a log-normal variable, the same for every order."""
    result: FloatArray = np.exp(np.minimum(biases + scales**2 / 2, _LARGEST_EXPONENT))
    return result


def _expected_identity(order: int, scales: FloatArray, biases: FloatArray) -> FloatArray:
    return LINKS["identity"].derivative(biases, order)


_EXPECTATIONS: Mapping[str, Callable[[int, FloatArray, FloatArray], FloatArray]] = MappingProxyType(
    {
        "logit": _expected_logit,
        "probit": _expected_probit,
        "log": _expected_log,
        "identity": _expected_identity,
    }
)
