"""Stores: what is written while sampling, and what is read back, also after a kill."""

import json
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_array_equal

from moment_init.posterior import store
from moment_init.posterior.store import (
    cut_chains,
    describe_trimming,
    draws_made,
    largest_block,
    open_store,
    sample_into_store,
    store_arguments,
    write_header,
)
from tests.draw_runs import FEATURES, N_TUNE, make_model, sample_as_pymc

ROOT = Path(__file__).resolve().parents[2]

BLOCK = 16
"""Draws that nutpie writes at once."""

N_DRAWS = 50
"""Three blocks and a part of a fourth."""

VARIABLES = ["scale", "coefficient", "pair"]


def make_header() -> xr.DataTree:
    return xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(attrs={"anchor_angle": 45.0}),
            "observed_data": xr.Dataset({"y": ("obs", [0, 1, 1])}, {"obs": ["a", "b", "c"]}),
            "moment_init": xr.Dataset({"origin": ("start", ["tensor"])}, attrs={"status": "ok"}),
        }
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three chains, in a folder whose name could be an address."""
    path = tmp_path_factory.mktemp("stores") / "new folder" / "draws: été #1"
    arguments = {"draws": N_DRAWS, "chains": 3, "seed": 4}
    sample_into_store(path, sample_as_pymc, arguments, header=make_header(), variables=VARIABLES)
    return path


@pytest.fixture
def partial(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "partial"))


def remove_blocks(path: Path, variable: str, chain: int, first: int, last: int = 3) -> None:
    """Remove blocks of one chain of a variable, as if they had not been written."""
    for block in range(first, last + 1):
        entry = path / "draws" / variable / "c" / str(chain) / str(block)
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def remove_group_blocks(path: Path, group: str) -> None:
    for folder in (path / "draws" / group).glob("*/c"):
        if folder.parent.name not in ("feature", "component"):
            shutil.rmtree(folder)


# --- a run that finished -------------------------------------------------------------------------


def test_finished_run_is_read_back_as_the_sampler_gives_it_without_a_store(finished: Path) -> None:
    nutpie = pytest.importorskip("nutpie")
    tree = open_store(finished)
    expected = nutpie.sample(
        make_model(), draws=N_DRAWS, tune=N_TUNE, chains=3, seed=4, progress_bar=False
    )
    for prefix in ("", "warmup_"):
        posterior = tree[f"{prefix}posterior"].to_dataset()
        xr.testing.assert_equal(posterior, expected[f"{prefix}posterior"].to_dataset()[VARIABLES])
        stats = tree[f"{prefix}sample_stats"].to_dataset()
        assert {"diverging", "energy", "logp", "n_steps", "tuning"} < set(stats)
        assert "gradient" not in stats
        xr.testing.assert_equal(stats, expected[f"{prefix}sample_stats"].to_dataset()[list(stats)])
    assert list(tree["posterior"].data_vars) == VARIABLES
    assert_array_equal(tree["posterior"]["feature"], FEATURES)
    assert tree["posterior"]["feature"].dtype == object


def test_attrs_say_what_was_asked_for_and_made(finished: Path) -> None:
    tree = open_store(finished)
    assert tree["posterior"].attrs == {
        "inference_library": "nutpie",
        "inference_library_version": version("nutpie"),
        "tuning_steps": N_TUNE,
        "draws_asked": N_DRAWS,
        "draws_made": [N_DRAWS] * 3,
        "trimming": "",
        "anchor_angle": 45.0,
    }
    settings = json.loads(tree["sample_stats"].attrs["inference_library_settings"])
    assert settings["sampler"] == "nuts"
    assert settings["settings"]["num_chains"] == 3


def test_header_is_joined_to_the_draws(finished: Path) -> None:
    tree = open_store(finished, warmup=False)
    groups = {"posterior", "sample_stats", "observed_data", "moment_init"}
    assert set(tree.children) == groups
    for name in ("observed_data", "moment_init"):
        xr.testing.assert_identical(tree[name].to_dataset(), make_header()[name].to_dataset())


def test_without_a_header_variables_come_by_name_and_constrained(partial: Path) -> None:
    shutil.rmtree(partial / "header")
    (partial / "contents.json").unlink()
    tree = open_store(partial)
    assert list(tree["posterior"].data_vars) == ["coefficient", "pair", "scale"]
    assert "anchor_angle" not in tree["posterior"].attrs
    assert "inference_library_version" not in tree["posterior"].attrs
    assert "observed_data" not in tree.children


def test_sampling_gives_what_the_store_gives(tmp_path: Path) -> None:
    arguments = {"draws": 20, "chains": 1, "seed": 1, "discard_tuned_samples": False}
    tree = sample_into_store(tmp_path, sample_as_pymc, arguments)
    xr.testing.assert_identical(tree, open_store(tmp_path))
    assert "warmup_posterior" in tree.children
    assert dict(tree["posterior"].sizes)["draw"] == 20


@pytest.mark.slow
def test_pymc_writes_to_a_store_the_draws_that_it_makes_without(tmp_path: Path) -> None:
    pm = pytest.importorskip("pymc")
    with pm.Model(coords={"component": ["first", "second"]}) as model:
        pm.HalfNormal("scale", dims="component")
    arguments: dict[str, Any] = {"draws": 40, "tune": 50, "chains": 2, "random_seed": 1}
    arguments |= {"model": model, "progressbar": False, "quiet": True}
    expected = pm.sample(**arguments, nuts_sampler="nutpie")
    tree = sample_into_store(tmp_path / "store", pm.sample, arguments)
    assert set(tree.children) == {"posterior", "sample_stats"}
    for name in tree.children:
        found = tree[name].to_dataset()
        xr.testing.assert_equal(found, expected[name].to_dataset()[list(found)])
    assert list(tree["posterior"].data_vars) == ["scale"]


# --- a run that was killed -----------------------------------------------------------------------


def test_killed_run_reopens_with_nine_tenths_of_its_draws(tmp_path: Path) -> None:
    """Of each chain at most about 47 draws of 1000 are lost: three blocks less one draw."""
    path, counts, n_draws = tmp_path / "store", tmp_path / "counts.json", 1000
    code = (
        "from pathlib import Path; from tests.draw_runs import sample_until_killed; "
        f"sample_until_killed(Path({str(path)!r}), Path({str(counts)!r}), {n_draws})"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert result.returncode == -9, result.stderr
    made = np.array(json.loads(counts.read_text()))
    tree = open_store(path)
    posterior = tree["posterior"].to_dataset()
    assert posterior.attrs["draws_asked"] == 1000 * n_draws
    assert posterior.sizes["chain"] * posterior.sizes["draw"] >= 0.9 * made.sum()
    assert all(bool(value.notnull().all()) for value in posterior.values())
    assert bool(tree["sample_stats"]["energy"].notnull().all())
    assert_array_equal(tree["warmup_posterior"].attrs["draws_made"], [N_TUNE, N_TUNE])


def test_chains_are_cut_to_draws_that_all_variables_have(partial: Path) -> None:
    remove_blocks(partial, "posterior/scale", 0, first=3)
    remove_blocks(partial, "sample_stats/energy", 1, first=2)
    tree, whole = open_store(partial), open_store(partial, trim=False)
    attrs = tree["posterior"].attrs
    assert attrs["draws_made"] == [3 * BLOCK, 2 * BLOCK, N_DRAWS]
    assert attrs["trimming"] == f"{2 * BLOCK} draws kept of each chain"
    assert dict(tree["posterior"].sizes)["draw"] == 2 * BLOCK
    assert dict(tree["sample_stats"].sizes)["draw"] == 2 * BLOCK
    assert tree["sample_stats"]["diverging"].dtype == bool
    n_values = whole["posterior"]["coefficient"].notnull().sum(("draw", "feature", "component"))
    assert_array_equal(n_values, 4 * np.array(attrs["draws_made"]))
    assert whole["posterior"].attrs["trimming"] == ""
    assert_array_equal(whole["sample_stats"]["n_steps"].notnull().sum("draw"), attrs["draws_made"])


def test_chain_that_had_hardly_begun_is_left_out(partial: Path) -> None:
    remove_blocks(partial, "posterior/pair", 1, first=1)
    message = rf"chains left out: 1 \({BLOCK} draws\)"
    with pytest.warns(UserWarning, match=message):
        tree = open_store(partial)
    assert_array_equal(tree["posterior"]["chain"], [0, 2])
    assert dict(tree["posterior"].sizes)["draw"] == N_DRAWS
    assert f"chains left out: 1 ({BLOCK} draws)" in tree["posterior"].attrs["trimming"]
    assert tree["warmup_posterior"].sizes["chain"] == 3


def test_block_that_is_missing_before_another_ends_its_chain(partial: Path) -> None:
    remove_blocks(partial, "posterior/scale", 2, first=1, last=1)
    with pytest.warns(UserWarning, match="chains left out: 2"):
        tree = open_store(partial)
    assert tree["posterior"].attrs["draws_made"] == [N_DRAWS, N_DRAWS, BLOCK]


def test_unfinished_files_and_missing_warm_up_do_no_harm(partial: Path) -> None:
    remove_group_blocks(partial, "warmup_posterior")
    (partial / "draws" / "posterior" / "scale" / "c" / "0" / "9#1").touch()
    tree = open_store(partial)
    assert "warmup_posterior" not in tree.children
    assert tree["posterior"].attrs["draws_made"] == [N_DRAWS] * 3


# --- trimming ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "chains", "length"),
    [
        ([50, 50, 50], [0, 1, 2], 50),
        ([50, 48, 49], [0, 1, 2], 48),
        ([50, 3, 49], [0, 2], 49),
        ([0, 0, 7], [2], 7),
        ([40, 20], [0, 1], 20),  # 40 draws either way
    ],
)
def test_largest_block_keeps_most_draws(made: list[int], chains: list[int], length: int) -> None:
    found, found_length = largest_block(np.array(made))
    assert_array_equal(found, chains)
    assert found_length == length


def test_words_for_what_is_cut() -> None:
    made = np.array([50, 3, 49])
    assert describe_trimming(made, np.arange(3), 50) == ""
    words = "49 draws kept of each chain; chains left out: 1 (3 draws)"
    assert describe_trimming(made, np.array([0, 2]), 49) == words


def test_undefined_values_are_not_missing_draws() -> None:
    values = np.ones((2, 40))
    values[0, 5:10] = np.nan
    values[1, 30:] = np.nan
    posterior = xr.Dataset({"a": (("chain", "draw"), values)})
    posterior["a"].encoding["chunks"] = (1, BLOCK)
    assert_array_equal(draws_made({"posterior": posterior}), [40, 30])
    cut = cut_chains(posterior, np.array([40, 30]), np.array([1]), 20)
    assert_array_equal(cut["chain"], [1])
    assert_array_equal(cut["a"], np.ones((1, 20)))


# --- arguments -----------------------------------------------------------------------------------


def test_arguments_add_the_store_and_run_all_chains_at_once(tmp_path: Path) -> None:
    nuts = {"target_accept": 0.9}
    given = {"chains": 4, "draws": 10, "nuts": nuts}
    found = store_arguments(tmp_path / "a" / "b", given)
    assert set(found) == {"chains", "draws", "cores", "nuts_sampler", "nuts"}
    assert (found["cores"], found["nuts_sampler"]) == (4, "nutpie")
    assert set(found["nuts"]) == {"target_accept", "zarr_store"}
    assert nuts == {"target_accept": 0.9}
    assert (tmp_path / "a" / "b").is_dir()
    assert store_arguments(tmp_path / "c", {"chains": 4, "cores": 1})["cores"] == 1
    assert "cores" not in store_arguments(tmp_path / "d")


def test_arguments_that_do_not_go_with_a_store(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`nuts_sampler` must be 'nutpie'.*got 'numpyro'"):
        store_arguments(tmp_path, {"nuts_sampler": "numpyro"})
    with pytest.raises(ValueError, match="`zarr_store` with `store`"):
        store_arguments(tmp_path, {"nuts": {"zarr_store": object()}})
    assert not any(tmp_path.iterdir())


def test_new_store_takes_no_folder_or_file_that_is_there(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match=r"a folder that is not empty\. Choose another path"):
        store_arguments(finished)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(FileExistsError, match="is a file"):
        store_arguments(file)
    with pytest.raises(FileExistsError, match="store without a header"):
        write_header(finished, make_header())


def test_libraries_that_are_not_installed(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"`store` needs nutpie.*moment-init\[nutpie\]"):
        store_arguments(tmp_path / "store")
    with pytest.raises(ImportError, match="A store needs Zarr"):
        open_store(finished)
    assert not (tmp_path / "store").exists()


def test_run_that_fails_before_sampling_leaves_no_store(tmp_path: Path) -> None:
    def fail(**_: Any) -> None:
        raise KeyError("no such variable")

    with pytest.raises(KeyError, match="no such variable"):
        sample_into_store(tmp_path, fail)
    assert not any(tmp_path.iterdir())


def test_run_that_fails_while_sampling_keeps_its_store(tmp_path: Path) -> None:
    def fail(**arguments: Any) -> None:
        with pytest.raises(KeyError, match="inference_library_settings"):
            sample_as_pymc(**arguments)
        raise RuntimeError("lost the connection")

    with pytest.raises(RuntimeError, match="lost the connection"):
        sample_into_store(tmp_path, fail, {"draws": 20, "chains": 1, "seed": 1})
    assert open_store(tmp_path)["posterior"].attrs["draws_made"] == [20]


# --- what is not a store -------------------------------------------------------------------------


def test_path_that_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere' does not exist"):
        open_store(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"must be the folder of a store.*no subfolder 'draws'"):
        open_store(str(tmp_path))


def test_store_without_draws(partial: Path, tmp_path: Path) -> None:
    store_arguments(tmp_path / "begun")
    with pytest.raises(ValueError, match=r"must be a store with draws.*none after the warm-up"):
        open_store(tmp_path / "begun")
    remove_group_blocks(partial, "posterior")
    with pytest.raises(ValueError, match=r"must be a store with draws.*none after the warm-up"):
        open_store(partial)


def test_header_that_names_a_variable_the_model_does_not_have(partial: Path) -> None:
    (partial / "contents.json").write_text(json.dumps({"variables": ["scale", "angle"]}))
    with pytest.raises(ValueError, match=r"`variables` must be in the posterior.*has no angle"):
        open_store(partial)


def test_log_likelihood_is_added_where_it_is_asked_for(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header of this store has no inputs: `sample` writes them."""
    assert "log_likelihood" not in open_store(finished).children
    with pytest.raises(ValueError, match="no 'X' in constant_data"):
        open_store(finished, log_likelihood=True)
    found = xr.Dataset({"y": (("chain", "draw", "obs"), np.zeros((3, N_DRAWS, 3)))})
    monkeypatch.setattr(store, "stored_log_likelihood", lambda tree: found)
    tree = open_store(finished, log_likelihood=True)
    assert tree["log_likelihood"]["y"].shape == (3, N_DRAWS, 3)
