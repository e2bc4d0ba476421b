"""Maximum likelihood by EM, and where it starts.

The walk: `posing` (rows and restrictions in standardised coordinates, an `EMProblem`), the starts
(`tensor_starts`, `growth`, `subset_starts`, `random_starts`, `initial`), `portfolio` (which of them
run, in which order, and the moves between maxima), `fitting` (the entry point), `assembly` (the
result in the user's units).
"""

from moment_init.em.fitting import fit_em
from moment_init.em.result import EMFit
from moment_init.em.selection import select_components

__all__ = ["EMFit", "fit_em", "select_components"]
