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

# Imports are in the cells that need them, and the last line of a cell is its output.
# ruff: noqa: B018, E402

# %%
SEED = 20
QUICK = False  # True for draws of the fit's normal approximation instead of sampling

# %% [markdown]
# # Two ways to tune an octave
#
# A trained musician heard a tone with stretched overtones: with a ratio of 2 they are natural; with
# a ratio of 2.4 an "octave" of the overtones is 2.4 times the frequency. The task was to tune a
# second tone an octave above the first, 150 times (Cohen 1980). Does a musician remember what an
# octave is, and tune to 2 whatever the overtones are, or match the overtones, and tune to their
# ratio? If both happen, the data lie on two lines.

# %%
# %matplotlib inline
import sys
from pathlib import Path

# A kernel starts in the notebook's folder, so the root of the repository is added to the path.
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
# ## One feature, two lines, without moments
#
# In one dimension all slopes are parallel: there is one direction, and two lines share it.
# `fit_em` does not use moments here. It splits a line into two, groups the rows by quantiles, and
# draws random starts.

# %%
print(describe_starts(study))

# %%
study.fit

# %% [markdown]
# ## What the guard prevents
#
# The likelihood of Gaussian lines has no upper bound: a line through two points with a vanishing
# standard deviation makes it infinite. `min_dispersion_ratio` (0.05 by default) keeps standard
# deviations within a factor of 20. Here it matters: without it there is a higher maximum, with one
# line through tunings that match the overtones almost exactly, and another through all the rest,
# which do not form a line.
#
# Such a maximum is called spurious, but this one is not caused by two or three points, and it shows
# something that two lines miss. Three lines fit far better: memory, exact matches, and rough
# matches.

# %%
print(describe_optima(study))

# %%
draw_optima(study)

# %% [markdown]
# ## The posterior of the two lines
#
# With a single feature there is no direction to anchor, so `directions="free"`.

# %%
print(describe_posterior(study))

# %%
draw_lines(study)

# %%
print(describe_environment())
