"""PyMC building blocks and models for mixtures of generalised linear models.

Import this package as ``moment_init.models``. Its folder is ``models/`` at the root of the
repository, but no top-level package of that name is ever installed.
"""

if __name__ == "models":
    raise ImportError(
        "the folder `models/` is the package `moment_init.models`: install the project "
        "(`pip install -e .`) and write `import moment_init.models`."
    )

from moment_init.models.density import mixture_log_density, mixture_response
from moment_init.models.likelihoods import component_distribution
from moment_init.models.mixture_glm import mixture_glm, mixture_of_experts
from moment_init.models.priors import user_units

__all__ = [
    "component_distribution",
    "mixture_glm",
    "mixture_log_density",
    "mixture_of_experts",
    "mixture_response",
    "user_units",
]
