"""Formulas: ``fit_em("visits ~ age + gender | income", frame, 3)`` in the place of X and y.

`variables` finds what a formula names, `encoding` asks formulaic for its columns, `design` keeps
what new rows are encoded by, `reading` makes it from the data, and `boundary` hands arrays to the
entry points. Nothing beyond them sees a formula. formulaic is imported when a formula is read.
"""

from moment_init.formulas.boundary import reads_design, takes_formula
from moment_init.formulas.design import FormulaDesign
from moment_init.formulas.reading import read_formula

__all__ = ["FormulaDesign", "read_formula", "reads_design", "takes_formula"]
