"""Ways to fit one mixture, side by side."""

from moment_init.comparison.comparing import compare
from moment_init.comparison.result import Comparison, Verdict

__all__ = ["Comparison", "Verdict", "compare"]
