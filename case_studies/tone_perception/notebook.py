# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# Cells import where they need to, and show what their last line is worth.
# ruff: noqa: B018, E402

# %%
SEED = 20
QUICK = False  # True for draws of the fit's normal approximation instead of sampling

# %% [markdown]
# # Two ways to tune an octave
#
# A trained musician heard a tone with overtones that were stretched: for a ratio of 2 they are
# where they are in nature, for a ratio of 2.4 an "octave" of the overtones is 2.4 times the
# frequency. A second tone was to be tuned an octave above, 150 times (Cohen 1980). Does a musician
# remember what an octave is, and tune to 2 whatever the overtones do, or match the overtones, and
# tune to their ratio? If sometimes this and sometimes that, the data lie on two lines.

# %%
# %matplotlib inline
import sys
from pathlib import Path

# A kernel starts in the notebook's folder; what is imported lies under the root of the repository.
FOLDER = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
sys.path.insert(0, str(FOLDER.parents[1]))

from case_studies.tone_perception.figures import draw_lines, draw_optima
from case_studies.tone_perception.run import (
    describe_environment,
    describe_optima,
    describe_posterior,
    describe_starts,
    run_study,
)

study = run_study(quick=QUICK, seed=SEED)
study.table.describe().round(3)

# %% [markdown]
# ## One feature, two lines: moments cannot help
#
# In one dimension all slopes are parallel: there is one direction, and two lines share it.
# `estimate` says so in its status. `fit_em` runs no moments here. It splits one line into two,
# peels lines off one after another, and compares with a random start.

# %%
print(describe_starts(study))

# %%
study.fit

# %% [markdown]
# ## What the guard keeps away
#
# The likelihood of Gaussian lines has no upper bound: a line through two points with a vanishing
# standard deviation makes it infinite. `min_dispersion_ratio` (0.05 by default) keeps standard
# deviations within a factor of 20. Here it matters: without it there is a higher maximum, one line
# through tunings that match the overtones almost exactly, and another through all the rest, which
# is no line at all.
#
# That maximum is called spurious, but it is not an accident of two or three points, and points to
# something that two lines miss. Three lines fit far better: memory, exact matches, and rough
# matches.

# %%
print(describe_optima(study))

# %%
draw_optima(study)

# %% [markdown]
# ## The posterior of the two lines
#
# With a single feature there is no direction to anchor, so that `directions="free"`.

# %%
print(describe_posterior(study))

# %%
draw_lines(study)

# %%
print(describe_environment())
