"""The site: its reference is complete, its links lead somewhere, its tables of groups are true."""

import importlib
import json
import platform
import re
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from PIL import Image
from pytensor.configdefaults import config

import moment_init
from moment_init import EMFit, estimate, fit_em, sample
from moment_init.comparison.scoring import COLUMNS
from moment_init.likelihood.climbing import Ending
from moment_init.results import SCHEMA, StartKind, StartRecord, StartStatus
from scripts.gather_pages import gather, page_map, turn_links
from scripts.layers import module_name, source_files
from scripts.make_thumbnail import make_thumbnail
from scripts.run_notebooks import clean
from scripts.studies import ROOT
from tests.bayesian_models import FakeSampler, fitted
from tests.joint_mixtures import simulate_joint
from tests.sampled import sampled

MODULES = ("moment_init", "moment_init.models", "moment_init.paper", "moment_init.scores")


# --- reference -----------------------------------------------------------------------------------


def names_in_reference() -> dict[str, list[str]]:
    """Names that each module's tables in the reference list."""
    listed: dict[str, list[str]] = {}
    module = ""
    for line in (ROOT / "docs" / "api.rst").read_text(encoding="utf-8").splitlines():
        if line.startswith(".. currentmodule:: "):
            module = line.split()[-1]
        elif re.fullmatch(r"   \w+", line):
            listed.setdefault(module, []).append(line.strip())
    return listed


@pytest.mark.parametrize("module", MODULES)
def test_reference_has_every_public_name_once(module: str) -> None:
    public = importlib.import_module(module).__all__
    assert sorted(names_in_reference()[module]) == sorted(public), "edit docs/api.rst"


# --- links ---------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a page of each kind."""
    files = {
        "README.md": "# Front\n",
        "ARCHITECTURE.md": "# Map\n",
        "CHANGELOG.md": "# Changes\n",
        "CONTRIBUTING.md": "# Rules\n",
        "LICENSE": "free\n",
        "docs/index.md": "the tail\n",
        "docs/case_studies.md": "# Studies\n",
        "docs/guide/fit.md": "# Fit\n",
        "case_studies/one/README.md": "# One\n\n- **Question.** Why\n  not?\n- **Data.** None.\n",
        "case_studies/one/notebook.ipynb": json.dumps(
            {"cells": [{"source": source} for source in ("SEED = 1", "# One", "f()")]}
        ),
        "case_studies/one/thumbnail.png": "png",
        "benchmarks/README.md": "# Measured\n",
        "benchmarks/results/a.json": "{}",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("README.md", "[a](ARCHITECTURE.md)", "[a](architecture.md)"),
        ("README.md", "[a](ARCHITECTURE.md#rooms)", "[a](architecture.md#rooms)"),
        ("README.md", "[a](case_studies/one)", "[a](case_studies/one/index.md)"),
        ("README.md", "[a](case_studies/one/)", "[a](case_studies/one/index.md)"),
        ("README.md", "[a](LICENSE)", "[a](files/LICENSE)"),
        ("README.md", "see [results](benchmarks/results).", "see results."),
        ("README.md", "[a](https://x.org/y.md)", "[a](https://x.org/y.md)"),
        ("README.md", "[a](#below)", "[a](#below)"),
        ("README.md", "```\n[a](nothing)\n```\n", "```\n[a](nothing)\n```\n"),
        (
            "README.md",
            "[![t](case_studies/one/thumbnail.png)](case_studies/one)",
            "[![t](files/case_studies/one/thumbnail.png)](case_studies/one/index.md)",
        ),
        (
            "README.md",
            '<img src="case_studies/one/thumbnail.png" width="9">',
            '<img src="files/case_studies/one/thumbnail.png" width="9">',
        ),
        ("case_studies/one/README.md", "[a](notebook.ipynb)", "[a](notebook.ipynb)"),
        ("case_studies/one/README.md", "[a](../../README.md)", "[a](../../index.md)"),
        ("docs/guide/fit.md", "[a](../../case_studies/one)", "[a](../case_studies/one/index.md)"),
    ],
)
def test_links_are_turned(repository: Path, source: str, text: str, expected: str) -> None:
    assert turn_links(text, source, page_map(repository), repository)[0] == expected


def test_link_to_nothing_is_an_error(repository: Path) -> None:
    with pytest.raises(ValueError, match=r"README.md links to 'gone.md', which does not exist"):
        turn_links("[a](gone.md)", "README.md", page_map(repository), repository)


def test_pages_are_gathered_with_what_they_show(repository: Path, tmp_path: Path) -> None:
    (repository / "README.md").write_text("# Front\n\n[l](LICENSE)\n", encoding="utf-8")
    folder = tmp_path / "site"
    gather(folder, repository)
    assert (folder / "index.md").read_text(encoding="utf-8").endswith("the tail\n")
    assert (folder / "files" / "LICENSE").read_text(encoding="utf-8") == "free\n"
    studies = (folder / "case_studies" / "index.md").read_text(encoding="utf-8")
    assert "[![One](../files/case_studies/one/thumbnail.png)](one/index.md)" in studies
    assert "\nWhy not?\n" in studies
    assert "\none/index\n" in studies
    study = (folder / "case_studies" / "one" / "index.md").read_text(encoding="utf-8")
    assert "\nNotebook <notebook>\n" in study
    notebook = json.loads((folder / "case_studies/one/notebook.ipynb").read_text(encoding="utf-8"))
    assert [cell["source"] for cell in notebook["cells"]] == ["# One", "SEED = 1", "f()"]


def test_pages_of_this_repository_link_to_what_exists(tmp_path: Path) -> None:
    gather(tmp_path / "site")
    assert (tmp_path / "site" / "index.md").exists()


# --- notebooks and thumbnails --------------------------------------------------------------------


def test_notebook_is_cleaned_of_machines_and_moments() -> None:
    stream = nbformat.v4.new_output(
        "stream", name="stdout", text=f"/x/y/case/a.png {platform.platform()}\n"
    )
    bar = nbformat.v4.new_output("stream", name="stderr", text="50 %")
    data = {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "HBox()"}
    widget = nbformat.v4.new_output("display_data", data=data)
    result = nbformat.v4.new_output("execute_result", data={"text/plain": "'/x/y/b'"})
    cell = nbformat.v4.new_code_cell("f()", metadata={"execution": {"iopub.execute_input": "now"}})
    cell.outputs = [stream, bar, widget, result]
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"widgets": {}, "path": "/x"})
    cleaned = clean(notebook, Path("/x/y"))
    assert set(cleaned.metadata) == {"kernelspec", "language_info"}
    assert cleaned.cells[0].metadata == {}
    assert cleaned.cells[0].id == "cell-0"
    kept = cleaned.cells[0].outputs
    assert [output.output_type for output in kept] == ["stream", "execute_result"]
    assert kept[0].text == f"case/a.png {platform.system()} {platform.machine()}\n"
    assert kept[1].data["text/plain"] == "'b'"


def test_thumbnail_is_shrunk_until_it_is_small(tmp_path: Path) -> None:
    figure, thumbnail = tmp_path / "figure.png", tmp_path / "thumbnail.png"
    Image.linear_gradient("L").resize((1000, 500)).save(figure)
    size = make_thumbnail(figure, thumbnail)
    assert size == thumbnail.stat().st_size <= 40_000
    with Image.open(thumbnail) as image:
        assert image.size == (480, 240)


def test_thumbnail_of_noise_is_refused(tmp_path: Path) -> None:
    """Noise of 16 colours has four bits a pixel: 480 * 480 / 2 bytes."""
    figure = tmp_path / "figure.png"
    Image.effect_noise((480, 480), 200.0).save(figure)
    with pytest.raises(ValueError, match=r"must fit into 40000 bytes at a width of 480 pixels"):
        make_thumbnail(figure, tmp_path / "thumbnail.png")


# --- the map of the code -------------------------------------------------------------------------


def modules_by_room() -> dict[str, set[str]]:
    """Modules of every room; what lies beside the rooms is a room of its own."""
    rooms: dict[str, set[str]] = {}
    for path in source_files():
        room, _, module = module_name(path).rpartition(".")
        if path.name != "__init__.py" and room:
            rooms.setdefault(f"{room.replace('.', '/')}/", set()).add(module)
        elif path.name != "__init__.py":
            rooms[f"{module}.py"] = set()
    return rooms


def test_map_of_the_code_names_every_module() -> None:
    """Beside modules, the rows of the table name public functions only."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w./]+)` \| (.*) \|$", text, flags=re.MULTILINE))
    rooms = modules_by_room()
    assert set(rows) == set(rooms)
    for room, modules in rooms.items():
        named = set(re.findall(r"`([a-z_0-9]+)`", rows[room]))
        assert modules - named == set(), f"add to ARCHITECTURE.md: {room}"
        gone = named - modules - set(moment_init.__all__)
        assert gone == set(), f"remove from ARCHITECTURE.md: {room}"
    assert len(text.splitlines()) <= 80


# --- the guide -----------------------------------------------------------------------------------


def test_columns_that_the_guide_explains_are_those_of_a_comparison() -> None:
    text = (ROOT / "docs" / "guide" / "compare.md").read_text(encoding="utf-8")
    items = re.findall(r"^- (`.*?`):", text, flags=re.MULTILINE)
    named = {name for item in items for name in re.findall(r"`(\w+)`", item)}
    assert len(named) > 6
    assert named <= set(COLUMNS)


def explained(column: str) -> set[str]:
    """Words in the first column of the table of the guide to `fit_em` that begins with `column`."""
    text = (ROOT / "docs" / "guide" / "fit_em.md").read_text(encoding="utf-8")
    table = text.split(f"\n| {column} |", 1)[1].split("\n\n", 1)[0]
    return set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))


def test_starts_and_endings_that_the_guide_explains_are_those_of_the_code() -> None:
    """A record refuses other kinds, so that no start can have an origin without an explanation."""
    assert explained("origin") == set(StartKind)
    assert explained("ending") == set(StartStatus)
    with pytest.raises(ValueError, match="'peeling' is not a valid StartKind"):
        StartRecord("peeling 1", 0.0, 1, StartStatus.CONVERGED)
    rooms = [path for path in source_files() if path.parent.name in ("em", "row_sources")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in rooms)
    for kind in StartKind:
        assert re.search(rf'"{kind}( \{{| of |")', code), f"no start is called {kind}"


def test_a_climb_ends_as_the_guide_explains() -> None:
    """Starts of a fit have no target, without which no run is abandoned."""
    assert set(Ending) - {Ending.ABANDONED} <= set(StartStatus)


# --- the tables of groups ------------------------------------------------------------------------

Trees = dict[str, xr.DataTree]


def rows_of_table() -> list[tuple[str, str, list[str], str, str]]:
    """Group, variable, dims, dtype and owners of every line of the table."""
    lines = [line.strip("| ").split(" | ") for line in SCHEMA.strip().splitlines()]
    return [
        (group, variable, re.findall(r"\w+(?: or \w+)?", dims), dtype, owners)
        for group, variable, dims, dtype, _, owners in lines
    ]


def test_guide_has_the_table_of_the_schema() -> None:
    text = (ROOT / "docs" / "guide" / "datatree.md").read_text(encoding="utf-8")
    assert SCHEMA.strip() in text


def with_sample(X: Any, y: Any, fit: EMFit, **data: Any) -> Trees:
    """Trees of a fit and of a sample that starts there."""
    with pytest.MonkeyPatch.context() as patch, config.change_flags(cxx=""):
        patch.setattr(pm, "sample", FakeSampler())
        tree = sample(
            X,
            y,
            fit.n_components,
            family=fit.family,
            link=fit.link,
            init=fit,
            draws=4,
            chains=2,
            random_seed=1,
            **data,
        )
    return {"f": fit.to_datatree(X, y, draws=4, random_seed=1, **data), "s": tree}


@pytest.fixture(scope="module")
def trees() -> Trees:
    """An estimate, a fit and a sample; the last two with everything at once."""
    start = fitted("gaussian", "identity", "both")
    data = sampled("gaussian", 1, 5_000)
    return {
        "e": estimate(data.X, data.y, 2, family="gaussian", random_seed=1).to_datatree(),
        **with_sample(start.X, start.y, start.fit, **start.block),
    }


@pytest.fixture(scope="module")
def trees_of_several() -> Trees:
    """The same with two responses."""
    rng = np.random.default_rng(1)
    rows = simulate_joint("gaussian", 400, 2, [0.6, 0.4], 2, rng, dispersion=0.4)
    data: dict[str, Any] = {
        "offset": np.zeros((400, 2)),
        "sample_weight": np.ones(400),
        "groups": np.arange(400),
        "gating": rng.standard_normal(400),
    }
    start = estimate(rows.X, rows.y, 2, family="gaussian", random_seed=1)
    fit = fit_em(rows.X, rows.y, 2, family="gaussian", init=start, **data)
    return {"e": start.to_datatree(), **with_sample(rows.X, rows.y, fit, **data)}


@pytest.mark.parametrize("several", [False, True])
def test_table_of_groups_is_true(several: bool, request: pytest.FixtureRequest) -> None:
    trees: Trees = request.getfixturevalue("trees_of_several" if several else "trees")
    kinds = {"float": "f", "int": "i", "str": "UO", "int or str": "iuUO"}
    rows = rows_of_table()
    assert len(rows) > 20
    for group, variable, dims, dtype, owners in rows:
        for owner, tree in trees.items():
            has_it = group in tree.children and variable in tree[group].data_vars
            assert has_it == (owner in owners) or "(" in owners, (group, variable, owner)
            if has_it:
                found = tree[group][variable]
                expected = [dim.replace("obs or group", "group") for dim in dims]
                if not several or (owner, variable) == ("e", "direction"):
                    expected = [dim for dim in expected if dim != "response"]
                assert list(found.dims) == expected, (group, variable, owner)
                assert found.dtype.kind in kinds[dtype], (group, variable, owner)


def test_table_lists_every_group_and_parameter(trees: Trees) -> None:
    listed = {(group, variable) for group, variable, *_ in rows_of_table()}
    own = ("standardised_", "tilt")
    for tree in trees.values():
        assert set(tree.children) <= {group for group, _ in listed}
        names = {str(name) for name in tree["posterior"].data_vars}
        shown = {name for name in names if not name.startswith(own)}
        assert {("posterior", name) for name in shown} <= listed
