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

# Imports are in the cells that need them.
# ruff: noqa: E402

# %%
SEED = 1988
QUICK = False  # True for fewer fits, and the fit's normal approximation instead of sampling

# %% [markdown]
# # Demand for medical care: kinds of patients
#
# A survey of 1987 and 1988 asked 4,406 Americans aged 66 and over about their visits to a doctor's
# office (Deb and Trivedi, 1997). Some have none, one has 89. Does one regression hold for all of
# them, or are there kinds of patients with different reasons to see a doctor?

# %%
# %matplotlib inline
import sys
from pathlib import Path

# A kernel starts in the notebook's folder, so the root of the repository is added to the path.
FOLDER = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
sys.path.insert(0, str(FOLDER.parents[1]))

from case_studies.medical_care.figures import draw_effects, draw_visits
from case_studies.medical_care.report import (
    describe_choice,
    describe_classes,
    describe_effects,
    describe_moments,
    describe_reference,
)
from case_studies.medical_care.run import describe_environment, read_survey, run_study

# %%
X, y, checksum = read_survey()
X.describe().round(2)

# %% [markdown]
# ## What moments can do here, and what they cannot
#
# Moments use the derivatives of the features' density. Four of the seven features are binary, two
# are small counts, and schooling is in whole years, where the end of high school alone accounts for
# more than a quarter of the people: none has such a derivative. So moments cannot be used here, and
# `estimate` says so. The likelihood has no such requirement: `fit_em` splits one regression into
# two and three, and compares the result with random starts.

# %%
study = run_study(quick=QUICK, seed=SEED)
print(describe_moments(study))

# %% [markdown]
# ## How many classes, and of which family?
#
# Poisson classes have a variance equal to their mean. Visits vary far more than that within any
# group of people, so Poisson mixtures need extra classes for that variance. Each negative binomial
# class has its own dispersion, so that the number of classes reflects kinds of people.
#
# The answer depends on the features. With the seven features of Zeileis, Kleiber and Jackman
# (2008), cross-validation and BIC choose three classes. Deb and Trivedi used sixteen: each further
# class then has nineteen parameters, which BIC rejects and AIC accepts.

# %%
print(describe_choice(study))

# %% [markdown]
# The integrated completed likelihood, ICL, prefers classes that are clearly separated for each
# person, and chooses a single one. The classes below describe the population, not individuals.
#
# Three classes fit the counts better than one, but not perfectly: more people have no visit than
# the model expects, and fewer have one or two.

# %%
draw_visits(study)

# %% [markdown]
# ## flexmix's answer
#
# Fits of the R package flexmix, from ten random starts for each family (`flexmix.R`).

# %%
print(describe_reference(study))

# %% [markdown]
# ## The three classes

# %%
print(describe_classes(study))

# %%
print(describe_effects(study))

# %% [markdown]
# - **Regular**: nearly all of these patients see a doctor, and often. Visits increase with poor
#   health and decrease with excellent health; insurance makes no detectable difference.
# - **As needed**: one in five has no visit. Every chronic condition and every hospital stay adds
#   many visits, and people with private insurance go more than twice as often.
# - **Erratic**: many have no visit, a few have very many, and the features explain little.
#
# So private insurance goes with more visits, but not among those who go anyway; one regression for
# all would report a value in between. These are associations: insurance was not randomised.

# %%
draw_effects(study)

# %%
print(describe_environment())
