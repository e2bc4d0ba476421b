"""`sample`: what it refuses, and runs of the real sampler (slow: they compile)."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import (
    fit_em,
    open_store,
    predict,
    predict_membership,
    sample,
    simulate_mixture,
)

ROOT = Path(__file__).resolve().parents[2]

X = np.array([[0.5, 1.0], [-1.0, 0.2], [2.0, -0.3], [0.1, 0.4]])
Y = np.array([1, 0, 1, 0])
INIT = (np.array([[1.0, -1.0], [0.5, 0.3]]), [0.0, 0.1], [0.5, 0.5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "gibbs"}, r"`method` must be one of 'nuts', 'laplace', .*; got 'gibbs'"),
        ({"draws": 0}, "`draws` must be a positive integer; got 0"),
        ({"draws": 10.0}, r"`draws` must be a positive integer; got 10\.0"),
        ({"chains": True}, "`chains` must be a positive integer; got True"),
        ({"chains": -1}, "`chains` must be a positive integer; got -1"),
        ({"tune": -1}, "`tune` must be a non-negative integer; got -1"),
        ({"tune": 2.5}, r"`tune` must be a non-negative integer; got 2\.5"),
        ({"method": "advi", "store": "x"}, "`store` must be None with method='advi'"),
        ({"directions": "any"}, "`directions` must be one of"),
        ({"anchor_angle": 120}, "`anchor_angle` must be an angle"),
        ({"priors": {"slope": 1}}, "`priors` must have names among"),
        ({"n_components": 0}, "`n_components`"),
        ({"family": "cauchy"}, "family"),
        ({"groups": ["a"]}, "`groups` must have shape"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    number = arguments.pop("n_components", 2)
    with pytest.raises(ValueError, match=message):
        sample(X, Y, number, **({"init": INIT} | arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"group": [0, 0, 1, 1]}, "and those of pymc.sample; got group. Check"),
        ({"prior": {}, "direction": "free"}, "got direction, prior"),
        ({"maxdepth": 8}, "of another sampler go into the dict `nuts`"),
        ({"method": "laplace", "cores": 1}, "does not take cores with method='laplace'"),
        ({"method": "advi", "nuts": {}}, "does not take nuts with method='advi'"),
    ],
)
def test_arguments_that_nothing_would_read_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        sample(X, Y, 2, init=INIT, **arguments)


@pytest.mark.parametrize("method", ["nuts", "laplace", "advi"])
def test_arguments_of_pymc_are_known(method: str) -> None:
    sampling = pytest.importorskip("moment_init.posterior.running")
    sampling.require_known_arguments(["progressbar", "compile_kwargs", "random_seed"], method)
    chains = ["cores", "target_accept", "max_treedepth", "nuts", "init", "idata_kwargs", "mp_ctx"]
    sampling.require_known_arguments(chains, "nuts")


def test_approximation_without_its_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    approximation = pytest.importorskip("moment_init.posterior.running")
    monkeypatch.setattr(approximation, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="method='laplace' needs pymc-extras"):
        sample(X, Y, 2, init=INIT, method="laplace")


def test_store_without_nutpie_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("moment_init.posterior.store.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="`store` needs nutpie"):
        sample(X, Y, 2, init=INIT, store=tmp_path / "new")
    assert not (tmp_path / "new").exists()


# --- real runs -----------------------------------------------------------------------------------

DRAWS, CHAINS, N_ROWS = 200, 2, 1000
SETTINGS: dict[str, Any] = {"draws": DRAWS, "chains": CHAINS, "progressbar": False}


def make_rows() -> Any:
    """Directions 108 degrees apart, and enough rows that no label switches."""
    return simulate_mixture(
        N_ROWS, 2, 2, family="bernoulli", weights=[0.6, 0.4], scales=[5.0, 5.0], random_seed=2
    )


@pytest.fixture(scope="module")
def run() -> xr.DataTree:
    data = make_rows()
    return sample(data.X, data.y, 2, random_seed=3, **SETTINGS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")  # 400 draws are few
def test_real_run_is_read_by_arviz(run: xr.DataTree) -> None:
    table = az.summary(run, round_to="none")
    assert set(table.index) >= {"coefficient[x0, 0]", "weight[1]", "direction[x1, 0]"}
    assert np.all(np.isfinite(table.select_dtypes("number").to_numpy()))
    # Two chains of 200 draws from one mode: beyond 1.2 they have not met.
    assert float(az.rhat(run, var_names=["coefficient"])["coefficient"].max()) < 1.2
    assert float(az.ess(run, var_names=["bias"])["bias"].min()) > 20
    loo = az.loo(run)
    assert np.isfinite(loo.elpd)
    assert loo.n_data_points == N_ROWS
    assert run["posterior"].sizes["draw"] == DRAWS


@pytest.mark.slow
def test_real_run_has_the_mass_where_the_likelihood_is(run: xr.DataTree) -> None:
    """A posterior of k = 7 parameters lies some k / 2 below the maximum; twice that is generous."""
    data = make_rows()
    fit = fit_em(data.X, data.y, 2, random_seed=3)
    totals = run["log_likelihood"]["y"].sum("obs")
    assert float(totals.mean()) > fit.log_likelihood - 7.0
    assert float(totals.max()) <= fit.log_likelihood + 1e-6


@pytest.mark.slow
def test_membership_of_a_real_run(run: xr.DataTree) -> None:
    shares = predict_membership(run)
    assert shares.sizes["obs"] == N_ROWS
    assert_allclose(shares.sum("component"), 1.0)


@pytest.mark.slow
def test_same_seed_same_draws(run: xr.DataTree) -> None:
    data = make_rows()
    again = sample(data.X, data.y, 2, random_seed=3, **SETTINGS)
    for group in ("posterior", "posterior_predictive", "log_likelihood"):
        assert run[group].to_dataset().equals(again[group].to_dataset())


@pytest.mark.slow
def test_store_gives_the_same_draws(run: xr.DataTree, tmp_path: Path) -> None:
    data = make_rows()
    stored = sample(data.X, data.y, 2, random_seed=3, store=tmp_path / "draws", **SETTINGS)
    for name, values in run["posterior"].data_vars.items():
        assert_array_equal(stored["posterior"][str(name)], values)
    assert set(stored.children) == set(run.children)
    opened = open_store(tmp_path / "draws", warmup=False)
    assert predict_membership(opened).sizes["draw"] == DRAWS


@pytest.mark.slow
@pytest.mark.parametrize("family", ["categorical", ["poisson", "gaussian"]])
def test_store_of_several_responses(family: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    X = pd.DataFrame(rng.standard_normal((150, 2)), columns=["a", "b"])
    X.index = pd.Index([f"row {i}" for i in range(150)])
    eta = np.where(rng.random(150) < 0.5, 1.0, -1.0) * (1.0 + X["a"].to_numpy())
    y: Any = np.digitize(eta + rng.standard_normal(150), [-1.0, 1.0])
    if family != "categorical":
        y = np.column_stack([rng.poisson(np.exp(eta)), eta + 0.3 * rng.standard_normal(150)])
    options: dict[str, Any] = {"draws": 20, "tune": 50, "chains": 2, "progressbar": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = tmp_path / "draws"
        tree = sample(X, y, 2, family=family, random_seed=1, store=path, **options)
    opened = open_store(path, log_likelihood=True)
    assert_array_equal(opened["log_likelihood"]["y"], tree["log_likelihood"]["y"])
    assert opened["log_likelihood"]["obs"].to_numpy()[7] == "row 7"
    assert_allclose(predict_membership(opened).sum("component"), 1.0)
    outcome = "class" if family == "categorical" else "response"
    assert predict(opened).dims == ("chain", "draw", "obs", outcome)


def test_draws_are_no_start() -> None:
    data, tree = make_rows(), xr.DataTree()
    for function in (sample, fit_em):
        with pytest.raises(TypeError, match=r"must not be draws.*Sample again from a fit"):
            function(data.X, data.y, 2, init=tree)


KILLED = """
import os, signal, sys, threading, time
from pathlib import Path
from moment_init import sample
from tests.posterior.test_sampling import make_rows

def kill_when_begun(path):
    while not list((path / "draws" / "posterior" / "coefficient").glob("c/1/62*")):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)

path = Path(sys.argv[1])
threading.Thread(target=kill_when_begun, args=(path,), daemon=True).start()
data = make_rows()
sample(data.X, data.y, 2, random_seed=3, draws=200_000, chains=2, store=path, progressbar=False)
"""


@pytest.mark.slow
def test_killed_run_leaves_its_draws(tmp_path: Path) -> None:
    """The second chain had written 63 blocks of sixteen draws when the process was killed."""
    path = tmp_path / "draws"
    process = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == -9, process.stderr.decode()[-2000:]
    tree = open_store(path, warmup=False)
    posterior = tree["posterior"]
    assert {"coefficient", "direction", "scale", "bias", "weight"} <= set(posterior.data_vars)
    # A block or two of the slower chain may have been in memory still.
    assert posterior.sizes["draw"] >= 0.9 * 62 * 16
    assert all(np.all(np.isfinite(values)) for values in posterior.data_vars.values())
    assert_array_equal(tree["observed_data"]["y"], make_rows().y)
    assert_allclose(predict_membership(tree).sum("component"), 1.0)
