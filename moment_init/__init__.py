"""Starting values, fits and posteriors for mixtures of generalized linear models.

The subpackages follow the data. `families` describes the responses and `data` checks the rows.
`scores` models the density of the input; `moments` turns its scores into estimates (`estimate`),
and `moments.paper` does so by the paper's own algorithm. `em` fits by maximum likelihood, from
these moments and from other starts (`fit_em`). `posterior` samples the PyMC models of
`moment_init.models` (`sample`). `comparison` compares all of these with fits from random starts
(`compare`), and `estimators` wraps the fits for scikit-learn. PyMC and scikit-learn are imported
when they are first needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from moment_init.checks import ConvergenceWarning, IdentifiabilityError, WeakSignalWarning
from moment_init.comparison.comparing import compare
from moment_init.comparison.result import Comparison
from moment_init.data.simulation import MixtureData, simulate_mixture
from moment_init.em.fitting import fit_em
from moment_init.em.result import EMFit
from moment_init.em.selection import select_components
from moment_init.likelihood.parameters import angles_in_degrees, match_components
from moment_init.moments.estimation import estimate
from moment_init.moments.result import MomentEstimate
from moment_init.posterior.alignment import align_components
from moment_init.posterior.initial_values import initial_values
from moment_init.posterior.prediction import marginal_effects, predict, predict_membership
from moment_init.posterior.sampling import sample
from moment_init.posterior.store import open_store
from moment_init.results import Status

if TYPE_CHECKING:
    from moment_init.estimators.classifier import MixtureGLMClassifier
    from moment_init.estimators.regressor import MixtureGLMRegressor

__all__ = [
    "Comparison",
    "ConvergenceWarning",
    "EMFit",
    "IdentifiabilityError",
    "MixtureData",
    "MixtureGLMClassifier",
    "MixtureGLMRegressor",
    "MomentEstimate",
    "Status",
    "WeakSignalWarning",
    "align_components",
    "angles_in_degrees",
    "compare",
    "estimate",
    "fit_em",
    "initial_values",
    "marginal_effects",
    "match_components",
    "open_store",
    "predict",
    "predict_membership",
    "sample",
    "select_components",
    "simulate_mixture",
]

_ON_DEMAND = {
    "MixtureGLMClassifier": "moment_init.estimators.classifier",
    "MixtureGLMRegressor": "moment_init.estimators.regressor",
}
"""Names that are imported on first use, because their modules import scikit-learn."""


def __getattr__(name: str) -> Any:
    """Import a name of `_ON_DEMAND` when it is first used."""
    if name in _ON_DEMAND:
        return getattr(import_module(_ON_DEMAND[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the names of the package, including those imported on demand."""
    return sorted({*globals(), *__all__})
