"""Stores: draws that are written to disk during sampling, so that a killed run is not lost.

A store is a folder with two Zarr hierarchies:

| folder | written | contents |
| --- | --- | --- |
| `header` | by `write_header`, before sampling | data, starting values and versions |
| `draws` | by nutpie, during sampling | posterior and sample_stats, also of the warm-up |

nutpie creates its arrays at full length and fills them in blocks of 16 draws per chain, with one
file per block and variable. There is no file for a block that was not written, or that only holds
the fill value (NaN, or 0 for counts and flags); it reads as the fill value. A killed run leaves
chains of unequal length, and variables of unequal length within a chain. `open_store` reads the
draws as PyMC would have returned them, and cuts the chains to draws that are complete.
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
"""Attribute of the statistics that PyMC 6.3 expects in nutpie's result. With a store it is missing;
the same settings are in the attributes of the hierarchy."""


def open_hierarchy(folder: Path) -> "xarray.DataTree":
    """Open a Zarr hierarchy without reading its values."""
    import xarray
    from zarr.storage import LocalStore

    # Not the path itself: Zarr treats a path that contains `#` or `:` as a URL.
    store = LocalStore(folder, read_only=True)
    return xarray.open_datatree(store, engine="zarr", consolidated=False)  # type: ignore[arg-type]


def load_pair(
    raw: "xarray.DataTree", folder: Path, prefix: str, variables: list[str] | None
) -> dict[str, "xarray.Dataset"]:
    """Load posterior and sample_stats of the draws or, with a prefix, of the warm-up."""
    import xarray

    groups = {name: node.to_dataset() for name, node in raw.children.items()}
    posterior = groups.get(f"{prefix}posterior", xarray.Dataset())
    stats = groups.get(f"{prefix}sample_stats", xarray.Dataset())
    if variables is None:  # names of unconstrained values end in two underscores
        variables = sorted(str(name) for name in posterior if not str(name).endswith("__"))
    posterior = _selected(posterior, variables, folder)
    by_draw = [
        str(name)
        for name, value in stats.items()
        if value.dims[:2] == ("chain", "draw")
        # Without statistics that the sampler did not store, such as gradients.
        and (value.dtype.kind != "f" or _n_written(folder / f"{prefix}sample_stats", name, value))
    ]
    # Zarr looks for a file for every block, also for blocks that do not exist: stop at the last.
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
    """Select variables; a posterior that is still empty stays empty."""
    missing = [name for name in variables if name not in posterior]
    if missing and posterior:
        raise ValueError(
            f"`variables` must be in the posterior; {str(folder)!r} has no {', '.join(missing)}. "
            "Either the run was killed while it created the store, or the model has no such "
            "variables."
        )
    return posterior[variables] if posterior else posterior


def _n_written(group: Path, name: Any, value: "xarray.DataArray") -> int:
    """Count the draws up to the last block of any chain on disk.

    Blocks are files or folders c/chain/block, as specified by Zarr 3; files with other names are
    unfinished blocks of a killed run.
    """
    names = (entry.name for entry in (group / str(name)).glob("c/*/*"))
    blocks = max((int(block) + 1 for block in names if block.isdecimal()), default=0)
    return blocks * int(value.encoding["chunks"][1])


def sampler_attrs(root: Mapping[Any, Any], nutpie_version: str | None) -> dict[str, dict[str, Any]]:
    """Return the attrs of posterior and sample_stats as PyMC and nutpie write them."""
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
    """Convert strings to Python objects, as in PyMC: not all formats accept NumPy's type."""
    strings = [name for name, value in dataset.variables.items() if value.dtype.kind == "T"]
    return dataset.assign({name: dataset[name].astype(object) for name in strings})


IntArray = NDArray[np.int64]


def draws_made(pair: Mapping[str, "xarray.Dataset"]) -> IntArray:
    """Count the draws of each chain that are complete in all variables.

    Only floating-point variables show which draws were not written.
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
    """Return the length of each chain, (n_chains,), up to the last draw before an empty block.

    NaN before that draw counts as a value, as some quantities are not always defined. Blocks are
    written in parallel, so that a block can be missing although a later one exists.
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
    """Find the chains and common length that keep most draws; if equal, the most chains."""
    # made: (n_chains,) -> (n_kept,), ...
    lengths = np.unique(made[made > 0])
    kept = lengths * np.array([(made >= length).sum() for length in lengths])
    length = int(lengths[np.argmax(kept)])
    return np.flatnonzero(made >= length), length


def describe_trimming(made: IntArray, chains: IntArray, length: int) -> str:
    """Say which draws and chains are cut."""
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
    """Select chains, cut them to a length, and give every dim a coordinate."""
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
"""The first file that the sampler writes."""

_CONTENTS = "contents.json"
"""File with the names of the posterior's variables, in order, and versions."""


def store_arguments(
    path: StorePath, arguments: Mapping[str, Any] | None = None, /
) -> dict[str, Any]:
    """Return the arguments with which `pymc.sample` writes its draws to a new store.

    All chains run at once, on threads that share the processors: chains that wait for others would
    have no draws if the run is killed.
    """
    options = dict(arguments or {})
    nuts = dict(options.get("nuts") or {})
    _check_sampler(options.get("nuts_sampler"), nuts)
    folder = _new_folder(path)
    import nutpie

    nuts["zarr_store"] = nutpie.zarr_store.LocalStore(str(folder / _DRAWS), mkdir=True)
    if options.get("chains") is not None and options.get("cores") is None:
        options["cores"] = options["chains"]
    return {**options, "nuts_sampler": "nutpie", "nuts": nuts}


def write_header(
    path: StorePath, tree: "xarray.DataTree", *, variables: Sequence[str] | None = None
) -> None:
    """Write the groups of the tree that the sampler does not write."""
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
    """Sample with a store, and return the result of `open_store`.

    A run that fails before sampling starts leaves no store behind.
    """
    import xarray

    sampler_arguments = store_arguments(path, arguments)
    folder = Path(path).absolute()
    try:
        write_header(folder, xarray.DataTree() if header is None else header, variables=variables)
        _run(sample, sampler_arguments)
    except BaseException:
        if not (folder / _BEGUN).exists():
            _remove_parts(folder)
        raise
    return open_store(folder, warmup=not sampler_arguments.get("discard_tuned_samples", True))


def open_store(
    path: StorePath, *, warmup: bool = True, trim: bool = True, log_likelihood: bool = False
) -> "xarray.DataTree":
    """Open the draws of a run that has finished, is still running, or was killed.

    Parameters
    ----------
    path : str or path-like
        Folder of the store: the argument `store` of `sample`.
    warmup : bool, default True
        Whether to add the draws of the warm-up, in separate groups.
    trim : bool, default True
        Whether to cut chains of unequal length to one length. If False, all draws are kept and
        shorter chains end in NaN.
    log_likelihood : bool, default False
        Whether to add the log-likelihood of every row under every draw, for `arviz.loo`. It is
        computed from the rows that `sample` wrote to the store.

    Returns
    -------
    xarray.DataTree
        Groups posterior, sample_stats and those of the header, in memory. The attrs of the
        posterior say how many draws were requested (`draws_asked`), how many each chain has made
        (`draws_made`), and what was cut (`trimming`, empty if nothing was).

    Raises
    ------
    FileNotFoundError
        If `path` does not exist.
    ImportError
        If Zarr is not installed.
    TypeError
        If `path` is not a string or path-like.
    ValueError
        If there is no store at `path`, or it has no draws after the warm-up; if `log_likelihood` is
        True and the store has no rows (those of `sample` have them).

    Warns
    -----
    UserWarning
        If chains are left out.

    Notes
    -----
    Chains are cut to the length that keeps most draws. Shorter chains are left out, which happens
    if a chain has hardly begun. About 15 draws of each chain, those of an incomplete block, are not
    on disk yet; up to about 47 if draws are made as fast as they are written, so that two more
    blocks wait. Statistics of single divergences and of single updates of the mass matrix, which
    have no draw dim, are not read. If a run was killed, a statistic that is a count or a flag can
    read 0 in the last 32 draws, because its file was not written.

    The draws are not relabelled. `sample` relabels draws of free directions when it ends; use
    ``align_components(tree, fit)`` for those of a store.
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
        record = {"draws_made": made.tolist(), "trimming": describe_trimming(made, chains, length)}
        if not prefix and chains.size < made.size:
            notify(f"{folder}: {record['trimming']}", UserWarning)
        for name, dataset in pair.items():
            cut = cut_chains(dataset, made, chains, length)
            group = header.pop(f"/{prefix}{name}", None)
            cut.attrs = {**attrs[name], **({} if group is None else group.attrs)}
            cut.attrs |= record if name == "posterior" else {}
            groups[f"/{prefix}{name}"] = cut
    tree = xarray.DataTree.from_dict({**groups, **header})
    if log_likelihood:
        tree["log_likelihood"] = xarray.DataTree(stored_log_likelihood(tree))
    return tree


# --- arguments -----------------------------------------------------------------------------------


def _check_sampler(sampler: str | None, nuts: dict[str, Any]) -> None:
    """Raise if the draws cannot go to a store: only nutpie writes one, and only one."""
    if sampler not in (None, "nutpie"):
        raise ValueError(
            f"`nuts_sampler` must be 'nutpie' with `store`; got {sampler!r}. Leave it out, or "
            "sample without `store`."
        )
    if "zarr_store" in nuts:
        raise ValueError("`nuts` must not have a `zarr_store` with `store`; got both. Pass one.")
    if find_spec("nutpie") is None:
        raise ImportError(
            "`store` needs nutpie, which is not installed. Run "
            "`pip install 'moment-init[nutpie]'`, or sample without `store`."
        )


def require_new_folder(path: StorePath) -> Path:
    """Raise if a path exists and is not an empty folder."""
    folder = Path(path).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        kind = "a folder that is not empty" if folder.is_dir() else "a file"
        raise FileExistsError(
            f"`store` must be a new or empty folder; {str(folder)!r} is {kind}. Choose another "
            "path, or open an existing store with `open_store`."
        )
    return folder


def _new_folder(path: StorePath) -> Path:
    """Create the folder of a new store."""
    folder = require_new_folder(path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _require_zarr() -> None:
    if find_spec("zarr") is None:
        raise ImportError("A store needs Zarr. Run `pip install 'moment-init[nutpie]'`.")


def _run(sample: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Sample, and ignore PyMC's error about an attribute that is missing with a store."""
    try:
        sample(**arguments)
    except KeyError as error:
        # PyMC raises it after the last draw; the draws are on disk and are read from there.
        if error.args != (SETTINGS,):
            raise


def _remove_parts(folder: Path) -> None:
    """Remove the parts of a store from its folder."""
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
            f"`path` must be the folder of a store; {str(folder)!r} does not exist. Pass the "
            "`store` that was used for sampling."
        )
    if not (folder / _DRAWS).is_dir():
        raise ValueError(
            f"`path` must be the folder of a store; {str(folder)!r} has no subfolder {_DRAWS!r}. "
            "Pass the `store` that was used for sampling."
        )
    return folder


def _read_contents(folder: Path) -> dict[str, Any]:
    file = folder / _CONTENTS
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def _header_groups(folder: Path) -> dict[str, "xarray.Dataset"]:
    """Read the groups of the header into memory, by path."""
    if not (folder / _CONTENTS).exists():  # written last
        return {}
    tree = open_hierarchy(folder / _HEADER).load()
    return {node.path: with_plain_strings(node.to_dataset()) for node in tree.subtree}
