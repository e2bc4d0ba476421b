r"""The response distribution of one mixture component, as a PyMC distribution.

This is for users who write their own mixture. Each component of ``pm.Mixture(comp_dists=...)`` is
:math:`p(y \mid \eta_j)` with :math:`E[y \mid \eta_j] = g(\eta_j)` and
:math:`\eta_j = \langle \beta_j, x \rangle + b_j`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable

from moment_init.families.base import Family
from moment_init.families.registry import get_family
from moment_init.families.several import AnyFamily

type Tensor = TensorVariable[Any, Any]
type TensorLike = Tensor | NDArray[Any] | float


def log_normal_cdf(z: Tensor) -> Tensor:
    """Return log Phi(z), with a finite value and gradient for every z.

    Each branch receives only arguments in its own range: PyTensor differentiates both branches of
    a switch, and an overflow of ``erfcx`` at large z would make the gradient NaN.
    """
    lower = pt.minimum(z, -1.0)
    upper = pt.maximum(z, -1.0)
    log_lower = pt.log(pt.erfcx(-lower / np.sqrt(2.0)) / 2.0) - pt.sqr(lower) / 2.0
    log_upper = pt.log1p(-pt.erfc(upper / np.sqrt(2.0)) / 2.0)
    log_cdf: Tensor = pt.switch(pt.lt(z, -1.0), log_lower, log_upper)
    return log_cdf


def _logit_of_probit_mean(eta: Tensor) -> Tensor:
    """Return logit Phi(eta): the probit link as log-odds, where the binomial is stable."""
    log_odds: Tensor = log_normal_cdf(eta) - log_normal_cdf(-eta)
    return log_odds


@dataclass(frozen=True, slots=True)
class _Likelihood:
    """A PyMC distribution, and the function that makes its parameters."""

    distribution: Any
    parameters: Callable[[Tensor, Any, Any], dict[str, Any]]


_LIKELIHOODS: Mapping[tuple[str, str], _Likelihood] = MappingProxyType(
    {
        # A binomial with one trial: far out, the gradient of PyMC's Bernoulli is zero or NaN for
        # failures.
        ("bernoulli", "logit"): _Likelihood(
            pm.Binomial, lambda eta, dispersion, n_trials: {"n": 1, "logit_p": eta}
        ),
        ("bernoulli", "probit"): _Likelihood(
            pm.Binomial,
            lambda eta, dispersion, n_trials: {"n": 1, "logit_p": _logit_of_probit_mean(eta)},
        ),
        ("binomial", "logit"): _Likelihood(
            pm.Binomial, lambda eta, dispersion, n_trials: {"n": n_trials, "logit_p": eta}
        ),
        ("binomial", "probit"): _Likelihood(
            pm.Binomial,
            lambda eta, dispersion, n_trials: {
                "n": n_trials,
                "logit_p": _logit_of_probit_mean(eta),
            },
        ),
        ("poisson", "log"): _Likelihood(
            pm.Poisson, lambda eta, dispersion, n_trials: {"mu": pt.exp(eta)}
        ),
        # p = alpha / (mu + alpha) without forming mu = exp(eta), which can overflow.
        ("negative_binomial", "log"): _Likelihood(
            pm.NegativeBinomial,
            lambda eta, dispersion, n_trials: {
                "n": dispersion,
                "p": pt.sigmoid(pt.log(dispersion) - eta),
            },
        ),
        ("gaussian", "identity"): _Likelihood(
            pm.Normal, lambda eta, dispersion, n_trials: {"mu": eta, "sigma": dispersion}
        ),
        # mean = alpha / beta.
        ("gamma", "log"): _Likelihood(
            pm.Gamma,
            lambda eta, dispersion, n_trials: {
                "alpha": dispersion,
                "beta": dispersion * pt.exp(-eta),
            },
        ),
    }
)


def _check_argument(family: AnyFamily, name: str, value: object, *, needed: bool) -> None:
    """Raise if an argument that the family needs is missing, or one is given that it lacks."""
    if needed and value is None:
        raise ValueError(f"`{name}` must be given for family {family.name!r}; got None.")
    if not needed and value is not None:
        raise ValueError(
            f"`{name}` must be None for family {family.name!r}, which has none; got {value!r}. "
            "Leave it out."
        )


def component_distribution(
    family: str | Family,
    linear_predictor: TensorLike,
    *,
    link: str | None = None,
    dispersion: TensorLike | None = None,
    n_trials: TensorLike | None = None,
) -> Tensor:
    r"""Build the PyMC distribution of one component's response.

    .. math:: y \mid \eta \sim p(\cdot \mid \mu = g(\eta), \text{dispersion})

    Parameters
    ----------
    family : str or Family
        Name of the response family, as in :func:`moment_init.families.get_family`.
    linear_predictor : tensor_like, shape (n_obs,)
        The component's linear predictor, offset included.
    link : str, optional
        Name of the link; the family's default link if left out.
    dispersion : tensor_like, optional
        Gaussian: the standard deviation. Negative binomial: alpha, with variance
        ``mu + mu**2 / alpha``. Gamma: the shape. Other families have none.
    n_trials : tensor_like, shape (n_obs,), optional
        Number of trials, for the binomial family only.

    Returns
    -------
    TensorVariable, shape (n_obs,)
        An unregistered random variable, for ``pm.Mixture(comp_dists=...)``.

    Raises
    ------
    ValueError
        If `dispersion` or `n_trials` is missing for a family that needs it or given for one that
        does not, or if the family or link is unknown.

    Notes
    -----
    Its ``pm.logp`` equals the family's ``log_density``. A binary response is a binomial with one
    trial. Binomials are built from the log-odds and the negative binomial from
    ``log(alpha) - eta``, so that density and gradient stay finite for large linear predictors.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> X = np.array([[0.5], [-1.0], [2.0]])
    >>> with pm.Model() as model:
    ...     weight = pm.Dirichlet("weight", np.ones(2))
    ...     coefficient = pm.Normal("coefficient", shape=(1, 2))
    ...     eta = X @ coefficient
    ...     components = [component_distribution("poisson", eta[:, j]) for j in range(2)]
    ...     _ = pm.Mixture("y", w=weight, comp_dists=components, observed=[2, 0, 7])
    >>> [variable.name for variable in model.observed_RVs]
    ['y']
    """
    resolved = get_family(family, link)
    _check_argument(resolved, "dispersion", dispersion, needed=resolved.has_dispersion)
    _check_argument(resolved, "n_trials", n_trials, needed=resolved.has_trials)
    likelihood = _LIKELIHOODS[resolved.name, resolved.link.name]
    eta = pt.as_tensor_variable(linear_predictor)
    distribution: Tensor = likelihood.distribution.dist(
        **likelihood.parameters(eta, dispersion, n_trials)
    )
    return distribution
