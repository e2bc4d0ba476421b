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
SEED = 7
QUICK = False  # True for a smaller run

# %% [markdown]
# # A logistic mixture from its moments
#
# Each row belongs to one of three logistic regressions, and nobody says to which. The cross-moments
# of $y$ and the score functions of $x$ have the directions of the three regressions as components,
# $M_m = \sum_j c_j\, u_j^{\otimes m}$: they take no starting values. `estimate` decomposes them,
# recovers scales, biases and weights, and climbs the likelihood from there.

# %%
# %matplotlib inline
import sys
from pathlib import Path

# A kernel starts in the notebook's folder; what is imported lies under the root of the repository.
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
# What `estimate` itself has to show for it: directions with their standard errors, scales, biases,
# weights.

# %%
study.result

# %% [markdown]
# True and estimated coefficients side by side.

# %%
draw_directions(study)

# %%
print(describe_environment())
