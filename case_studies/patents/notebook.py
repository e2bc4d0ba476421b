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
SEED = 19
QUICK = False  # True for draws about the fit instead of sampling

# %% [markdown]
# # Patents and research: three kinds of firms
#
# How many patents does a research budget bring? Wang, Cockburn and Puterman (1998) gave 70
# pharmaceutical and biomedical firms three Poisson regressions of patents on the logarithm of
# research spending. Which of them holds for a firm depends on the share of its sales that it spends
# on research: a mixture of experts, or a mixture with a *gate*.
#
# A slope on the log scale is an elasticity: one per cent more research brings so many per cent more
# patents.

# %%
# %matplotlib inline
import sys
from pathlib import Path

# A kernel starts in the notebook's folder; what is imported lies under the root of the repository.
FOLDER = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
sys.path.insert(0, str(FOLDER.parents[1]))

from case_studies.patents.figures import draw_classes
from case_studies.patents.report import describe_fit, describe_posterior
from case_studies.patents.run import describe_environment, read_firms, run_study

# %%
firms, checksum = read_firms()
firms.describe().round(3)

# %% [markdown]
# With one feature and three classes there is no direction for moments to find: all three lie on one
# axis. `fit_em` starts by splitting one regression into two and three.

# %%
study = run_study(quick=QUICK, seed=SEED)
study.fit

# %% [markdown]
# ## The published fit
#
# BIC chooses three classes, and the gate is worth its two parameters. The fit is flexmix's to all
# four digits. Not every random start finds it.

# %%
print(describe_fit(study))

# %% [markdown]
# ## The posterior
#
# The published table has one number for each elasticity. The posterior has a distribution, also for
# what follows from them: expected patents at a budget, and the probability of each class.
#
# Seventy firms leave room for the prior. The package's defaults expect an ordinary spread of
# features and counts. Budgets differ here by a factor of 2,622, so that an elasticity of one alone
# moves the logarithm of patents by two. And one firm spends three times its sales on research; it
# makes the standard deviation of that share 12 times the spread of ordinary firms.
# `prior_deviations` derives wider priors in the units of the problem. They were chosen after a run
# with the defaults had left the published fit; what the defaults say stands at the end.

# %%
print(describe_posterior(study))

# %% [markdown]
# - **Ordinary** firms, nearly two thirds, spend a small share of sales on research; their patents
#   grow a little slower than their budgets.
# - **Prolific** firms have the most patents at small and middling budgets: doubling the budget
#   brings far less than double the patents.
# - **Steep** firms get hardly any patents from small budgets and catch up at large ones.
#
# The third class rests on a dozen firms, and standard errors make it look better known than it is:
# the interval of its elasticity is three times as wide in the posterior. In some draws a class of
# few patents at any budget takes its place, and under the default priors it is hardly there. The
# gate tells ordinary firms from the others; it does not tell prolific from steep ones.

# %%
draw_classes(study)

# %%
print(describe_environment())
