"""The likelihood of a mixture of generalised linear models: sums over rows, maximum, splits."""

from moment_init.likelihood.maximise import MaximiseResult, maximise
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import responsibilities, unit_log_likelihood
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import LikelihoodSums, likelihood_sums, outer_product_information

__all__ = [
    "LikelihoodRows",
    "LikelihoodSums",
    "MaximiseResult",
    "MixtureParameters",
    "likelihood_sums",
    "maximise",
    "outer_product_information",
    "responsibilities",
    "unit_log_likelihood",
]
