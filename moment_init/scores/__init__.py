"""Score functions of the input: densities p(x) and the tensors S_1, S_2, S_3 that go with them."""

from moment_init.scores.base import Contraction, InputModel
from moment_init.scores.gaussian import Gaussian

__all__ = ["Contraction", "Gaussian", "InputModel"]
