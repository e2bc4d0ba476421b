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
QUICK = False  # True for a smaller run

# %% [markdown]
# # Rare components
#
# The responses come from four unlabelled groups; the smallest has one row in twenty. EM from a
# random start often splits the large group and misses the small ones. The tensor start is computed
# from moments of the data, and the posterior is sampled from there.

# %%
# %matplotlib inline
import sys
from pathlib import Path

# A kernel starts in the notebook's folder, so the root of the repository is added to the path.
FOLDER = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
sys.path.insert(0, str(FOLDER.parents[1]))

from case_studies.rare_components.run import (
    DRAWS,
    N_OBS,
    N_STARTS,
    QUICK_DRAWS,
    QUICK_OBS,
    QUICK_STARTS,
    describe_environment,
    run_study,
    simulate,
)

# %% [markdown]
# The same mixture is fitted by EM and NUTS from the tensor start, and by EM from each of twenty
# random starts, on the same rows; a fifth of the rows is held out.

# %%
data = simulate(QUICK_OBS if QUICK else N_OBS, seed=SEED)
comparison = run_study(
    data,
    n_starts=QUICK_STARTS if QUICK else N_STARTS,
    draws=QUICK_DRAWS if QUICK else DRAWS,
    seed=SEED,
    progressbar=False,
)
comparison

# %% [markdown]
# Where the starts end, and the consequences for the weights of the components.

# %%
comparison.plot("landscape")

# %%
comparison.plot("weights")

# %% [markdown]
# Any ArviZ function works on the draws of every method.

# %%
import arviz as az

az.summary(comparison.trees["tensor NUTS"], var_names=["weight", "bias"], round_to=3)

# %%
print(describe_environment())
