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
SEED = 11
QUICK = False  # True for a smaller run

# %% [markdown]
# # A start for a model of your own
#
# Someone has written a mixture of logistic regressions by hand, with `pm.Mixture`. Its components
# have no names: any order of them has the same posterior density. Four chains from PyMC's default
# start choose an order each, and R-hat, which compares chains, sees different answers.
#
# `initial_values` starts all chains at one fit, hence in one order.

# %%
# %matplotlib inline
import sys
from pathlib import Path

# A kernel starts in the notebook's folder; what is imported lies under the root of the repository.
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
# `initial_values` needs to know which variable of the model is which parameter of a fit.

# %%
MAPPING

# %% [markdown]
# Sample from both starts. The fit that gives ours is that of `fit_em`.

# %%
study = run_study(QUICK_OBS if QUICK else N_OBS, draws=QUICK_DRAWS if QUICK else DRAWS, seed=SEED)
study.fit

# %% [markdown]
# Largest R-hat and smallest effective sample size, as sampled and once `align_components` has
# matched the components of every draw to the fit.

# %%
print(describe(study))

# %% [markdown]
# The same in a picture: what each chain takes for component 1, 2 and 3. Where chains have chosen
# different orders, a colour stands at different heights.

# %%
draw_labels(study)

# %%
print(describe_environment())
