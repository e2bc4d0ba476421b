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

# Cells import where they need to.
# ruff: noqa: E402

# %%
SEED = 1988
QUICK = False  # True for fewer fits, and draws about the fit instead of sampling

# %% [markdown]
# # Demand for medical care: kinds of patients
#
# A survey of 1987 and 1988 asked 4,406 Americans aged 66 and over for their visits to a doctor's
# office (Deb and Trivedi, 1997). Some have none, one has 89. Does one regression hold for all of
# them, or are there kinds of patients whom different things send to the doctor?

# %%
# %matplotlib inline
import sys
from pathlib import Path

# A kernel starts in the notebook's folder; what is imported lies under the root of the repository.
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
# Moments use the derivatives of the features' density. Four of the seven features are yes or no,
# two are small counts, and schooling is in whole years of which one, the end of high school, stands
# for more than a quarter of the people: none has such a derivative. So moments have nothing to say
# here, and `estimate` says so. The likelihood does not care: `fit_em` splits one regression into
# two and three, and checks the end against random starts.

# %%
study = run_study(quick=QUICK, seed=SEED)
print(describe_moments(study))

# %% [markdown]
# ## How many classes, and of which family?
#
# Poisson classes have a variance equal to their mean. Visits vary far more than that within any
# group of people, so Poisson mixtures spend classes on that variance. Negative binomial
# classes have a dispersion each, and what is left for the number of classes are kinds of people.
#
# The answer depends on the features. With the seven of Zeileis, Kleiber and Jackman (2008),
# cross-validation and BIC choose three classes. Deb and Trivedi had sixteen; the
# nineteen parameters of every further class are then more than BIC will pay, though AIC would.

# %%
print(describe_choice(study))

# %% [markdown]
# The integrated completed likelihood, ICL, asks for classes that can be told apart person by
# person, and prefers a single one. The classes below describe the population, not individuals.
#
# Three classes fit the counts better than one. They do not fit all of them: people without a visit
# are more than the model expects, people with one or two visits fewer.

# %%
draw_visits(study)

# %% [markdown]
# ## flexmix's answer
#
# The R package flexmix from ten random starts each (`flexmix.R`).

# %%
print(describe_reference(study))

# %% [markdown]
# ## The three classes

# %%
print(describe_classes(study))

# %%
print(describe_effects(study))

# %% [markdown]
# - **Regular** patients nearly all see a doctor, and see one often. Poor health adds visits,
#   excellent health takes some away; insurance makes no difference that could be told.
# - **As needed**: one in five has no visit. Every chronic condition and every hospital stay adds a
#   large part, and those with private insurance go more than twice as often.
# - **Erratic**: many without a visit, a few with very many, and little that explains who.
#
# So private insurance goes with more visits, but not among those who go anyway; one regression for
# all would report something between. These are associations: nobody drew lots for insurance.

# %%
draw_effects(study)

# %%
print(describe_environment())
