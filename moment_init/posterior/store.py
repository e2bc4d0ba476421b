"""What nutpie writes to a Zarr hierarchy, read back as PyMC would have given it.

Arrays have the length that was asked for. A block of draws that was not written, or that holds
nothing but the fill value (NaN, or 0 for counts and flags), is a file that is not there.

Chains of unequal length, cut to draws that are complete.

A killed run leaves chains of unequal length, and variables of unequal length within a chain. What
was not written reads as NaN.

Draws on disk while they are made, and what a run that was killed has left.

A store is a folder with two Zarr hierarchies:

| folder | written | contents |
| --- | --- | --- |
| `header` | by `write_header`, before sampling | what the sampler does not know |
| `draws` | by nutpie, while sampling | posterior, sample_stats and both of the warm-up |

nutpie creates its arrays at full length and fills them by blocks of 16 draws a chain, each variable
in a file of its own. `open_store` cuts what a killed run leaves to draws that are complete.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import notify
from moment_init.posterior.draws import stored_log_likelihood

if TYPE_CHECKING:
    import xarray

SETTINGS = "inference_library_settings"
"""Attribute of the statistics that PyMC 6.3 reads from nutpie's result; a store does not have it,
but has the same settings elsewhere."""


def open_hierarchy(folder: Path) -> "xarray.DataTree":
    """Open a Zarr hierarchy, without reading its values."""
    import xarray
    from zarr.storage import LocalStore

    # Not the path itself: Zarr takes a path with `#` or `:` in it for an address.
    store = LocalStore(folder, read_only=True)
    return xarray.open_datatree(store, engine="zarr", consolidated=False)  # type: ignore[arg-type]


def load_pair(
    raw: "xarray.DataTree", folder: Path, prefix: str, variables: list[str] | None
) -> dict[str, "xarray.Dataset"]:
    """Load posterior and sample_stats, of the draws or of the warm-up."""
    import xarray

    groups = {name: node.to_dataset() for name, node in raw.children.items()}
    posterior = groups.get(f"{prefix}posterior", xarray.Dataset())
    stats = groups.get(f"{prefix}sample_stats", xarray.Dataset())
    if variables is None:  # PyMC's names of unconstrained values end in two underscores
        variables = sorted(str(name) for name in posterior if not str(name).endswith("__"))
    posterior = _selected(posterior, variables, folder)
    by_draw = [
        str(name)
        for name, value in stats.items()
        if value.dims[:2] == ("chain", "draw")
        # Not what the sampler was not told to store, such as gradients.
        and (value.dtype.kind != "f" or _n_written(folder / f"{prefix}sample_stats", name, value))
    ]
    # Zarr asks the disk for every block, also for those that are not there: stop in time.
    ends = [
        _n_written(folder / f"{prefix}posterior", name, value) for name, value in posterior.items()
    ]
    pair = {"posterior": posterior, "sample_stats": stats[sorted(by_draw)]}
    until = slice(min(ends, default=0))
    return {
        name: dataset.isel(draw=until, missing_dims="ignore").load()
        for name, dataset in pair.items()
    }


def _selected(posterior: "xarray.Dataset", variables: list[str], folder: Path) -> "xarray.Dataset":
    """Some variables; none of a posterior that has none yet."""
    missing = [name for name in variables if name not in posterior]
    if missing and posterior:
        raise ValueError(
            f"`variables` must be in the posterior; {str(folder)!r} has no {', '.join(missing)}. "
            "Its run was killed while it made the store, or the model has no such variables."
        )
    return posterior[variables] if posterior else posterior


def _n_written(group: Path, name: Any, value: "xarray.DataArray") -> int:
    """Number of draws up to the last block of any chain that is on disk.

    Blocks are files or folders c/chain/block, as in the specification of Zarr 3; others are
    what a killed run left unfinished.
    """
    found = (entry.name for entry in (group / str(name)).glob("c/*/*"))
    blocks = max((int(block) + 1 for block in found if block.isdecimal()), default=0)
    return blocks * int(value.encoding["chunks"][1])


def sampler_attrs(root: Mapping[Any, Any], nutpie_version: str | None) -> dict[str, dict[str, Any]]:
    """Attrs of posterior and sample_stats, as PyMC and nutpie write them."""
    settings = root.get("sampler_settings", {})
    library = {"inference_library": "nutpie"}
    if nutpie_version is not None:
        library["inference_library_version"] = nutpie_version
    described = {
        "sampler": root.get("sampler_kind"),
        "adaptation": root.get("adaptation_kind"),
        "settings": settings,
    }
    counts = {"tuning_steps": settings.get("num_tune"), "draws_asked": settings.get("num_draws")}
    return {
        "posterior": {**library, **counts},
        "sample_stats": {**library, SETTINGS: json.dumps(described)},
    }


def with_plain_strings(dataset: "xarray.Dataset") -> "xarray.Dataset":
    """Strings as Python objects, as PyMC has them: not every format takes NumPy's own type."""
    strings = [name for name, value in dataset.variables.items() if value.dtype.kind == "T"]
    return dataset.assign({name: dataset[name].astype(object) for name in strings})


IntArray = NDArray[np.int64]


def draws_made(pair: Mapping[str, "xarray.Dataset"]) -> IntArray:
    """Number of draws of each chain that are complete in all variables.

    Only floating-point variables tell what was not written.
    """
    # -> (n_chains,)
    lengths = [
        _length(value.values, value.encoding.get("chunks", value.shape)[1])
        for dataset in pair.values()
        for value in dataset.values()
        if value.dtype.kind == "f"
    ]
    if not pair["posterior"]:
        return np.zeros(1, dtype=np.int64)
    return np.min(lengths, axis=0)


def _length(values: NDArray[Any], block: int) -> IntArray:
    """Length of each chain, (n_chains,), up to its last draw before a block without values.

    NaN before that draw count as values, those of a quantity that is not always defined. Blocks
    are written side by side, so that one can be missing before one that is there.
    """
    n_chains, n_draws = values.shape[:2]
    if n_draws == 0:
        return np.zeros(n_chains, dtype=np.int64)
    has_value = ~np.isnan(values).all(axis=tuple(range(2, values.ndim)))
    starts = np.arange(0, n_draws, block)
    is_written = np.logical_and.accumulate(
        np.logical_or.reduceat(has_value, starts, axis=1), axis=1
    )
    has_value &= np.repeat(is_written, block, axis=1)[:, :n_draws]
    return np.where(has_value, np.arange(1, n_draws + 1), 0).max(axis=1)


def largest_block(made: IntArray) -> tuple[IntArray, int]:
    """Chains and their common length that keep most draws; with equal numbers, the most chains."""
    # made: (n_chains,) -> (n_kept,), ...
    lengths = np.unique(made[made > 0])
    kept = lengths * np.array([(made >= length).sum() for length in lengths])
    length = int(lengths[np.argmax(kept)])
    return np.flatnonzero(made >= length), length


def describe_trimming(made: IntArray, chains: IntArray, length: int) -> str:
    """What is cut, in words."""
    # made: (n_chains,), chains: (n_kept,)
    left_out = np.setdiff1d(np.arange(made.size), chains)
    parts = [f"{length} draws kept of each chain"] if (made[chains] > length).any() else []
    if left_out.size:
        listed = ", ".join(f"{chain} ({made[chain]} draws)" for chain in left_out)
        parts.append(f"chains left out: {listed}")
    return "; ".join(parts)


def cut_chains(
    dataset: "xarray.Dataset", made: IntArray, chains: IntArray, length: int
) -> "xarray.Dataset":
    """Some chains up to a length, with a coordinate for every dim."""
    # made: (n_chains,), chains: (n_kept,)
    import xarray

    result = dataset.isel(chain=chains, draw=slice(length))
    if made[chains].min() < length:
        drawn = xarray.DataArray(np.arange(length) < made[chains, None], dims=("chain", "draw"))
        result = result.astype(np.float64).where(drawn)
    used = {dim for value in result.values() for dim in value.dims}
    result = result.drop_vars([name for name in result.coords if name not in used])
    ranges = {dim: np.arange(result.sizes[dim]) for dim in used if dim not in result.coords}
    return with_plain_strings(result.assign_coords({**ranges, "chain": chains}))


StorePath = str | PathLike[str]

_DRAWS = "draws"
_HEADER = "header"
_BEGUN = "draws/zarr.json"
"""File that the sampler writes first."""

_CONTENTS = "contents.json"
"""Names of the posterior's variables, in order, and versions; in the store's folder."""


def store_arguments(
    path: StorePath, arguments: Mapping[str, Any] | None = None, /
) -> dict[str, Any]:
    """Arguments with which `pymc.sample` writes its draws to a new store.

    All chains run at once, on threads that share the processors: chains that wait for others to end
    would have no draws when the run is killed.
    """
    given = dict(arguments or {})
    nuts = dict(given.get("nuts") or {})
    _check_sampler(given.get("nuts_sampler"), nuts)
    folder = _new_folder(path)
    import nutpie

    nuts["zarr_store"] = nutpie.zarr_store.LocalStore(str(folder / _DRAWS), mkdir=True)
    if given.get("chains") is not None and given.get("cores") is None:
        given["cores"] = given["chains"]
    return {**given, "nuts_sampler": "nutpie", "nuts": nuts}


def write_header(
    path: StorePath, tree: "xarray.DataTree", *, variables: Sequence[str] | None = None
) -> None:
    """Write what the sampler does not know beside its draws."""
    _require_zarr()
    from zarr.storage import LocalStore

    folder = Path(path).absolute()
    if (folder / _HEADER).exists():
        raise FileExistsError(
            f"`path` must be a store without a header; {str(folder)!r} has one. Use a new folder."
        )
    tree.to_zarr(LocalStore(folder / _HEADER), zarr_format=3, consolidated=False)
    contents = {
        "variables": None if variables is None else list(variables),
        "nutpie_version": version("nutpie") if find_spec("nutpie") else None,
    }
    (folder / _CONTENTS).write_text(json.dumps(contents), encoding="utf-8")


def sample_into_store(
    path: StorePath,
    sample: Callable[..., Any],
    arguments: Mapping[str, Any] | None = None,
    *,
    header: "xarray.DataTree | None" = None,
    variables: Sequence[str] | None = None,
) -> "xarray.DataTree":
    """Sample with a store, and give what `open_store` gives.

    A run that fails before sampling starts leaves no store behind.
    """
    import xarray

    given = store_arguments(path, arguments)
    folder = Path(path).absolute()
    try:
        write_header(folder, xarray.DataTree() if header is None else header, variables=variables)
        _run(sample, given)
    except BaseException:
        if not (folder / _BEGUN).exists():
            _remove_parts(folder)
        raise
    return open_store(folder, warmup=not given.get("discard_tuned_samples", True))


def open_store(
    path: StorePath, *, warmup: bool = True, trim: bool = True, log_likelihood: bool = False
) -> "xarray.DataTree":
    """Open the draws of a run that has finished, still goes on, or was killed.

    Parameters
    ----------
    path : str or path-like
        Folder of the store: what was `store` in `sample`.
    warmup : bool, default True
        Whether to add the draws of the warm-up, in groups of their own.
    trim : bool, default True
        Whether to cut chains of unequal length to one length. If false, every draw is kept, and
        shorter chains end in NaN.
    log_likelihood : bool, default False
        Whether to add the log-likelihood of every row under every draw, for `arviz.loo`. It is
        computed from the rows that `sample` wrote beside the draws.

    Returns
    -------
    xarray.DataTree
        Groups posterior, sample_stats and those of the header, in memory. The posterior's attrs say
        how many draws were asked for (`draws_asked`), how many each chain had made
        (`draws_made`), and what was cut (`trimming`, empty if nothing was).

    Raises
    ------
    FileNotFoundError
        If there is nothing at `path`.
    ImportError
        If Zarr is not installed.
    TypeError
        If `path` is no path.
    ValueError
        If there is no store at `path`, or no draws after the warm-up in it; if log-likelihoods
        are asked for and the store has no rows, which those of `sample` have.

    Warns
    -----
    UserWarning
        If chains are left out.

    Notes
    -----
    Chains are cut to the length that keeps most draws: shorter ones are left out, which happens
    where a chain had hardly begun. Of each chain some 15 draws have not reached the disk, those of
    a block that is not full; up to about 47 if draws are made as fast as they are written, so that
    two blocks wait. Statistics of single divergences and of single updates of the mass matrix,
    which have no draw dim, are not read. Of a run that was killed, a statistic that is a count or
    a flag can read 0 in the last 32 draws, where its own file was not written.

    Draws have the labels with which they were made: those of free directions, which `sample`
    relabels at its end, are relabelled by ``align_components(tree, fit)``.
    """
    import xarray

    _require_zarr()
    folder = _existing_store(path)
    contents = _read_contents(folder)
    header = _header_groups(folder)
    raw = open_hierarchy(folder / _DRAWS) if (folder / _BEGUN).exists() else xarray.DataTree()
    attrs = sampler_attrs(raw.attrs, contents.get("nutpie_version"))
    groups: dict[str, xarray.Dataset] = {}
    for prefix in ("", "warmup_") if warmup else ("",):
        pair = load_pair(raw, folder / _DRAWS, prefix, contents.get("variables"))
        made = draws_made(pair)
        if not made.any():
            if not prefix:
                raise ValueError(
                    f"`path` must be a store with draws; {str(folder)!r} has none after the "
                    "warm-up. Wait for them, or sample again with another store."
                )
            continue
        chains, length = largest_block(made) if trim else (np.flatnonzero(made), int(made.max()))
        told = {"draws_made": made.tolist(), "trimming": describe_trimming(made, chains, length)}
        if not prefix and chains.size < made.size:
            notify(f"{folder}: {told['trimming']}", UserWarning)
        for name, dataset in pair.items():
            cut = cut_chains(dataset, made, chains, length)
            given = header.pop(f"/{prefix}{name}", None)
            cut.attrs = {**attrs[name], **({} if given is None else given.attrs)}
            cut.attrs |= told if name == "posterior" else {}
            groups[f"/{prefix}{name}"] = cut
    tree = xarray.DataTree.from_dict({**groups, **header})
    if log_likelihood:
        tree["log_likelihood"] = xarray.DataTree(stored_log_likelihood(tree))
    return tree


# --- arguments -----------------------------------------------------------------------------------


def _check_sampler(sampler: str | None, nuts: dict[str, Any]) -> None:
    """Only nutpie writes stores, and only one."""
    if sampler not in (None, "nutpie"):
        raise ValueError(
            f"`nuts_sampler` must be 'nutpie' where draws go to a store; got {sampler!r}. Leave "
            "it out, or sample without `store`."
        )
    if "zarr_store" in nuts:
        raise ValueError("`nuts` must not have a `zarr_store` beside `store`; got both. Pass one.")
    if find_spec("nutpie") is None:
        raise ImportError(
            "`store` needs nutpie, which writes the draws, and it is not installed. Run "
            "`pip install 'moment-init[nutpie]'`, or sample without `store`."
        )


def require_new_folder(path: StorePath) -> Path:
    """Refuse a path at which there is something already."""
    folder = Path(path).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        kind = "a folder that is not empty" if folder.is_dir() else "a file"
        raise FileExistsError(
            f"`store` must be a new or empty folder; {str(folder)!r} is {kind}. Choose another "
            "path, or read what is there with `open_store`."
        )
    return folder


def _new_folder(path: StorePath) -> Path:
    """The folder of a new store, created."""
    folder = require_new_folder(path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _require_zarr() -> None:
    if find_spec("zarr") is None:
        raise ImportError("A store needs Zarr. Run `pip install 'moment-init[nutpie]'`.")


def _run(sample: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Sample; the draws are on disk when PyMC misses an attribute that a store does not have."""
    try:
        sample(**arguments)
    except KeyError as error:
        # Raised after the last draw, while PyMC annotates a result that is read back anyway.
        if error.args != (SETTINGS,):
            raise


def _remove_parts(folder: Path) -> None:
    """Remove what was written to a folder that had been empty."""
    (folder / _CONTENTS).unlink(missing_ok=True)
    for part in (_HEADER, _DRAWS):
        shutil.rmtree(folder / part, ignore_errors=True)


# --- reading -------------------------------------------------------------------------------------


def _existing_store(path: Any) -> Path:
    if not isinstance(path, str | PathLike):
        raise TypeError(f"`path` must be a string or path-like; got {type(path).__name__}.")
    folder = Path(path).absolute()
    if not folder.exists():
        raise FileNotFoundError(
            f"`path` must be the folder of a store; there is nothing at {str(folder)!r}. Pass what "
            "was `store` when sampling."
        )
    if not (folder / _DRAWS).is_dir():
        raise ValueError(
            f"`path` must be the folder of a store; {str(folder)!r} has no subfolder {_DRAWS!r}. "
            "Pass what was `store` when sampling."
        )
    return folder


def _read_contents(folder: Path) -> dict[str, Any]:
    file = folder / _CONTENTS
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def _header_groups(folder: Path) -> dict[str, "xarray.Dataset"]:
    """Groups of the header by path, in memory."""
    if not (folder / _CONTENTS).exists():  # written last
        return {}
    tree = open_hierarchy(folder / _HEADER).load()
    return {node.path: with_plain_strings(node.to_dataset()) for node in tree.subtree}
