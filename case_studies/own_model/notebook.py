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
SEED = 11
QUICK = False  # True for a smaller run

# %% [markdown]
# # A start for a model of your own
#
# Suppose you have written a mixture of logistic regressions by hand, with `pm.Mixture`. Its
# components have no names: every order of them has the same posterior density. From PyMC's default
# start, each of the four chains ends in some order, and R-hat, which compares chains, is large.
#
# `initial_values` starts all chains at one fit, and so in one order.

# %%
# %matplotlib inline
import sys
from pathlib import Path

# A kernel starts in the notebook's folder, so the root of the repository is added to the path.
FOLDER = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
sys.path.insert(0, str(FOLDER.parents[1]))

import inspect

from case_studies.own_model.run import (
    DRAWS,
    MAPPING,
    N_OBS,
    QUICK_DRAWS,
    QUICK_OBS,
    describe,
    describe_environment,
    draw_labels,
    hand_written_model,
    run_study,
)

# %% [markdown]
# The model:

# %%
print(inspect.getsource(hand_written_model))

# %% [markdown]
# `initial_values` needs to know which parameter of a fit each variable of the model stands for.

# %%
MAPPING

# %% [markdown]
# Sample from both starts. Our start is a fit by `fit_em`.

# %%
study = run_study(QUICK_OBS if QUICK else N_OBS, draws=QUICK_DRAWS if QUICK else DRAWS, seed=SEED)
study.fit

# %% [markdown]
# Largest R-hat and smallest effective sample size, as sampled and after `align_components` has
# matched the components of every draw to the fit.

# %%
print(describe(study))

# %% [markdown]
# The same in a picture: components 1, 2 and 3 of each chain. If chains have different orders, a
# colour is at different heights.

# %%
draw_labels(study)

# %%
print(describe_environment())
