"""Starts for users of Bambi, as the guide shows them: a single regression, and a mixture by hand.

Bambi is no dependency of the tests: these run where it is installed.
"""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import fit_em, initial_values
from moment_init.models import component_distribution

bambi = pytest.importorskip("bambi")
# Bambi calls pandas and formulae in ways that they are about to give up.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

N_OBS = 600
FORMULA = "visits ~ age + gender"


@cache
def people() -> pd.DataFrame:
    """Two kinds of people; columns whose means are not zero."""
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"age": rng.normal(2.0, 1.0, N_OBS), "gender": np.arange(N_OBS) % 3})
    table["gender"] = pd.Categorical(np.array(["a", "b", "c"])[table["gender"]])
    slope = np.where(rng.random(N_OBS) < 0.6, 0.6, -0.3)
    table["visits"] = rng.poisson(np.exp(0.4 + slope * table["age"]))
    return table


@cache
def bambi_model() -> Any:
    model = bambi.Model(FORMULA, people(), family="poisson")
    model.build()
    return model


def log_density(model: pm.Model, start: dict[str, Any]) -> tuple[float, float]:
    """Log joint density at the model's own start and at ours."""
    density = model.compile_logp()
    function = pm.initial_point.make_initial_point_fn(model=model, overrides=start)
    return float(density(model.initial_point())), float(density(function(0)))


def test_single_regression_starts_at_its_mode() -> None:
    """Flat priors: the mode is nearly the fit, if the intercept is that of centred columns."""
    fit = fit_em(FORMULA, people(), 1)
    assert fit.design is not None
    centre = fit.design.encode_features(people()).mean().to_numpy()
    model = bambi_model().backend.model
    mapping: Any = {
        "Intercept": lambda start: start.biases[0] + centre @ start.coefficients[:, 0],
        "age": lambda start: start.coefficients[0, 0],
        "gender": lambda start: start.coefficients[1:, 0],
    }
    start = initial_values(fit, model, mapping=mapping)
    default, ours = log_density(model, start)
    mode = pm.find_MAP(model=model, progressbar=False)
    assert default < ours
    errors = fit.standard_errors
    assert abs(mode["age"] - start["age"]) < 0.1 * errors.coefficients[0, 0]
    assert abs(mode["Intercept"] - start["Intercept"]) < 0.1 * errors.biases[0]


def test_mixture_takes_the_columns_that_bambi_codes() -> None:
    design = bambi_model().components["mu"].design.common.as_dataframe().drop(columns="Intercept")
    fit = fit_em(design, people()["visits"], 2, family="poisson", random_seed=1)
    ours = fit_em(FORMULA, people(), 1).design
    assert ours is not None
    assert_allclose(design.to_numpy(), ours.encode_features(people()))
    with pm.Model(coords={"component": range(2), "feature": list(design.columns)}) as mixture:
        weight = pm.Dirichlet("weight", np.ones(2), dims="component")
        bias = pm.Normal("bias", 0.0, 2.0, dims="component")
        coefficient = pm.Normal("coefficient", 0.0, 2.0, dims=("component", "feature"))
        eta = bias + design.to_numpy() @ coefficient.T
        components = [component_distribution("poisson", eta[:, j]) for j in range(2)]
        pm.Mixture("visits", w=weight, comp_dists=components, observed=people()["visits"])
    start = initial_values(fit, mixture)
    assert_array_equal(start["coefficient"], fit.coefficients.T)
    default, started = log_density(mixture, start)
    assert default < started
