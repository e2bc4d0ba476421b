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
SEED = 7
QUICK = False  # True for a smaller run

# %% [markdown]
# # A logistic mixture from its moments
#
# Each row belongs to one of three logistic regressions, but we do not know to which. The directions
# of the three regressions are the components of the cross-moments of $y$ and the score functions of
# $x$, $M_m = \sum_j c_j\, u_j^{\otimes m}$. `estimate` decomposes these moments, which needs no
# starting values, recovers scales, biases and weights, and climbs the likelihood from there.

# %%
# %matplotlib inline
import sys
from pathlib import Path

# A kernel starts in the notebook's folder, so the root of the repository is added to the path.
FOLDER = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
sys.path.insert(0, str(FOLDER.parents[1]))

from case_studies.logistic_mixture.run import (
    N_OBS,
    QUICK_OBS,
    describe,
    describe_environment,
    draw_directions,
    run_study,
)

# %% [markdown]
# Simulate, estimate, and match the components to the truth.

# %%
study = run_study(QUICK_OBS if QUICK else N_OBS, seed=SEED)
print(describe(study))

# %% [markdown]
# The estimate itself shows directions with their standard errors, scales, biases and weights.

# %%
study.result

# %% [markdown]
# True and estimated coefficients side by side.

# %%
draw_directions(study)

# %%
print(describe_environment())
