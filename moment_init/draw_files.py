"""What nutpie writes to a Zarr hierarchy, read back as PyMC would have given it.

Arrays have the length that was asked for. A block of draws that was not written, or that holds
nothing but the fill value (NaN, or 0 for counts and flags), is a file that is not there.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray

__all__ = ["SETTINGS", "load_pair", "open_hierarchy", "sampler_attrs", "with_plain_strings"]

SETTINGS = "inference_library_settings"
"""Attribute of the statistics that PyMC 6.3 reads from nutpie's result; a store does not have it,
but has the same settings elsewhere."""


def open_hierarchy(folder: Path) -> "xarray.DataTree":
    """Open a Zarr hierarchy, without reading its values.

    Parameters
    ----------
    folder : pathlib.Path
        Its folder.

    Returns
    -------
    xarray.DataTree
        The hierarchy.
    """
    import xarray
    from zarr.storage import LocalStore

    # Not the path itself: Zarr takes a path with `#` or `:` in it for an address.
    store = LocalStore(folder, read_only=True)
    return xarray.open_datatree(store, engine="zarr", consolidated=False)  # type: ignore[arg-type]


def load_pair(
    raw: "xarray.DataTree", folder: Path, prefix: str, variables: list[str] | None
) -> dict[str, "xarray.Dataset"]:
    """Load posterior and sample_stats, of the draws or of the warm-up.

    Parameters
    ----------
    raw : xarray.DataTree
        What nutpie has written.
    folder : pathlib.Path
        Its folder.
    prefix : str
        Of the names of the groups: "" or "warmup_".
    variables : list of str or None
        Variables of the posterior, in order; None for all but the unconstrained values of
        transformed variables, by name.

    Returns
    -------
    dict of str to xarray.Dataset
        `posterior` and `sample_stats`, in memory, up to about the last draw that was written.

    Raises
    ------
    ValueError
        If the posterior does not have the variables.
    """
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
    """Attrs of posterior and sample_stats, as PyMC and nutpie write them.

    Parameters
    ----------
    root : mapping
        Attrs of what nutpie has written.
    nutpie_version : str or None
        Its version, if known.

    Returns
    -------
    dict of str to dict of str to object
        Attrs of `posterior` and `sample_stats`.
    """
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
    """Strings as Python objects, as PyMC has them: not every format takes NumPy's own type.

    Parameters
    ----------
    dataset : xarray.Dataset
        Variables and coordinates of any type.

    Returns
    -------
    xarray.Dataset
        The same values.
    """
    strings = [name for name, value in dataset.variables.items() if value.dtype.kind == "T"]
    return dataset.assign({name: dataset[name].astype(object) for name in strings})
