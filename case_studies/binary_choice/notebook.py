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
SEED = 1
QUICK = False  # True for draws of the fit's normal approximation instead of sampling

# %% [markdown]
# # What six kinds of train travellers would pay for
#
# In 1987, people in the Netherlands were shown pairs of train tickets that differed in price,
# travel time, number of changes and comfort, about twelve pairs each, and chose one of each pair. A
# single logit estimates what the average traveller would pay for an hour. There may be no such
# traveller.
#
# Rows are choices, groups are persons: all choices of a person come from one class.

# %%
# %matplotlib inline
import sys
from pathlib import Path

# A kernel starts in the notebook's folder, so the root of the repository is added to the path.
FOLDER = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
sys.path.insert(0, str(FOLDER.parents[1]))

from case_studies.binary_choice.run import (
    describe_classes,
    describe_environment,
    describe_number,
    describe_prediction,
    describe_starts,
    draw_calibration,
    draw_classes,
    draw_membership,
    run_study,
)

study = run_study(quick=QUICK, seed=SEED)
study.choices.X.describe().round(2)

# %% [markdown]
# ## How many classes
#
# Log-likelihood, criteria and, in the full run, the log-likelihood of held-out persons (five
# folds). A single logit is far behind. From six classes on, the criteria are nearly flat, and some
# coefficients of seven classes have no finite estimate.

# %%
print(describe_number(study))

# %% [markdown]
# ## What moments show, and what random starts find
#
# Moments use single rows and ignore which person made a choice. If all four columns were Gaussian,
# they would show two directions. But each column has few distinct values, or one value that recurs,
# and so no density: by default `estimate` refuses to use them, and `fit_em` has no start from
# moments. Structured starts (splits of one component into two, and so on) take their place. Random
# starts do well here too: most of them reach the same maximum.

# %%
print(describe_starts(study))

# %% [markdown]
# ## The classes

# %%
study.fit

# %% [markdown]
# Effects are reported for steps that are common in the data. The worth of an hour is the ratio of
# two coefficients. It has no upper limit if the data allow that a class ignores the price.

# %%
print(describe_classes(study))

# %%
draw_classes(study)

# %% [markdown]
# ## Who is in which class

# %%
draw_membership(study)

# %% [markdown]
# ## Does it help to predict?
#
# Three choices of every person were held out. For an unknown person, the classes add little to a
# single logit. For a person whose other choices are known, they add much.

# %%
print(describe_prediction(study))

# %%
draw_calibration(study)

# %%
print(describe_environment())
