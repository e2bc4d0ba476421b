"""Score functions of the input: densities p(x) and the tensors S_1, S_2, S_3 that go with them."""

from moment_init.scores.base import Contraction, InputModel, score_tensor
from moment_init.scores.gaussian import Gaussian
from moment_init.scores.gaussian_mixture import GaussianMixture
from moment_init.scores.independent import ColumnDensity, ColumnMixture, Independent
from moment_init.scores.log_density import LogDensity
from moment_init.scores.rbm import RBM
from moment_init.scores.score_matching import ScoreMatching
from moment_init.scores.stein import SteinCheck, SteinIdentity, SteinStatus, stein_check
from moment_init.scores.student_t import StudentT
from moment_init.scores.transformed import Transformed

__all__ = [
    "RBM",
    "ColumnDensity",
    "ColumnMixture",
    "Contraction",
    "Gaussian",
    "GaussianMixture",
    "Independent",
    "InputModel",
    "LogDensity",
    "ScoreMatching",
    "SteinCheck",
    "SteinIdentity",
    "SteinStatus",
    "StudentT",
    "Transformed",
    "score_tensor",
    "stein_check",
]
