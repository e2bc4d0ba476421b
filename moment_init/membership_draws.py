"""Draws of a mixture's parameters, read from a DataTree for evaluation on rows."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from moment_init.families import Family, get_family
from moment_init.likelihood.gate_density import GaussianGate

if TYPE_CHECKING:
    import xarray

    from moment_init.em.result import EMFit

__all__ = [
    "ExpertDraws",
    "MixtureDraws",
    "RowLayout",
    "draw_values",
    "family_of",
    "labels_of",
    "posterior_of",
    "read_draws",
]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ExpertDraws:
    """Draws of what the response depends on, those of all chains in a row.

    Parameters
    ----------
    family : Family
        Family of the response, with its link.
    coefficients : numpy.ndarray, shape (n_components, n_draws, n_features)
        Coefficients.
    biases : numpy.ndarray, shape (n_components, n_draws)
        Intercepts.
    dispersion : numpy.ndarray, shape (n_components, n_draws), or None
        Dispersion, for a family that has one.
    """

    family: Family
    coefficients: FloatArray
    biases: FloatArray
    dispersion: FloatArray | None


@dataclass(frozen=True, slots=True, eq=False)
class MixtureDraws:
    """Draws of a mixture's parameters, those of all chains in a row.

    Parameters
    ----------
    logits : numpy.ndarray, shape (n_components, n_draws)
        Logarithms of weights, or a gate's logits at covariates zero.
    slopes : numpy.ndarray, shape (n_components, n_draws, n_gate), or None
        Slopes of the logits in the gating covariates, or their statistics.
    experts : ExpertDraws or None
        The components; None if there is no response.
    """

    logits: FloatArray
    slopes: FloatArray | None
    experts: ExpertDraws | None


@dataclass(frozen=True, slots=True, eq=False)
class RowLayout:
    """What `moment_init.em.prediction.rows_for` reads of a fit, without the fit.

    Parameters
    ----------
    family : Family
        Family of the response, with its link.
    feature_names, gate_names : tuple of str
        Columns of the inputs and of the gating covariates.
    gate_centre : numpy.ndarray, shape (n_gate,), or None
        What is subtracted from gating covariates; None without a gate.
    gate_means : numpy.ndarray or None
        Not None for a gaussian gate, which reads statistics of the covariates.
    link : None
        A fit names its link here; the family has it.
    """

    family: Family
    feature_names: tuple[str, ...]
    gate_names: tuple[str, ...]
    gate_centre: FloatArray | None
    gate_means: FloatArray | None
    link: None = None

    def as_fit(self) -> "EMFit":
        """The layout in the place of a fit, for `rows_for`.

        Returns
        -------
        EMFit
            The same object; it has no other attributes than its own.
        """
        return cast("EMFit", self)


def posterior_of(tree: Any, draws: Any) -> "xarray.Dataset":
    """Draws of a tree.

    Parameters
    ----------
    tree : xarray.DataTree
        The tree.
    draws : int or None
        How many draws of every chain to take at most, evenly spaced; all by default.

    Returns
    -------
    xarray.Dataset
        Its group ``posterior``.

    Raises
    ------
    TypeError
        If `tree` is not a DataTree.
    ValueError
        If it has no draws of components, or `draws` is not a positive whole number.
    """
    import xarray

    if not isinstance(tree, xarray.DataTree):
        raise TypeError(
            f"`tree` must be an xarray.DataTree; got an object of type {type(tree).__name__}. Pass "
            "what `sample` or `EMFit.to_datatree` returned."
        )
    found = tree.children.get("posterior")
    if found is None or not {"chain", "draw", "component"} <= set(found.sizes):
        raise ValueError(
            "`tree` must have a group 'posterior' with the dims chain, draw and component; got "
            f"{'the dims ' + str(tuple(found.sizes)) if found is not None else tuple(tree)}. Pass "
            "the tree of a mixture's draws."
        )
    return _thinned(found.to_dataset(), draws)


def _thinned(posterior: "xarray.Dataset", draws: Any) -> "xarray.Dataset":
    """At most so many draws of every chain, evenly spaced."""
    if draws is None:
        return posterior
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
        raise ValueError(f"`draws` must be a positive integer; got {draws!r}. Ask for 1 or more.")
    size = posterior.sizes["draw"]
    kept = min(int(draws), size)
    return posterior.isel(draw=np.arange(kept) * size // max(kept, 1))


def family_of(tree: "xarray.DataTree", family: str | Family | None, link: str | None) -> Family:
    """Family of the response.

    Parameters
    ----------
    tree : xarray.DataTree
        Tree whose group ``moment_init`` may have the attributes ``family`` and ``link``.
    family : str, Family or None
        The family; that of the tree by default.
    link : str or None
        The link; that of the tree by default, if the family is that of the tree.

    Returns
    -------
    Family
        The family with its link.

    Raises
    ------
    ValueError
        If the family is neither given nor in the tree, or there is no such family or link.
    """
    own = tree.children.get("moment_init")
    attrs = {} if own is None else own.attrs
    if family is None:
        if "family" not in attrs:
            raise ValueError(
                "`family` must be given for a tree whose group 'moment_init' has no attribute of "
                "that name; got None. Name the family of the response."
            )
        family = attrs["family"]
    if link is None and family == attrs.get("family"):
        link = attrs.get("link")
    return get_family(family, link)


def read_draws(
    posterior: "xarray.Dataset", family: Family | None
) -> tuple[MixtureDraws, RowLayout]:
    """Read the parameters of all draws.

    Parameters
    ----------
    posterior : xarray.Dataset
        The draws.
    family : Family or None
        Family of the response; None if only what comes before it is asked for.

    Returns
    -------
    draws : MixtureDraws
        The parameters.
    layout : RowLayout
        What rows must look like.

    Raises
    ------
    ValueError
        If a variable is missing, has other dims or is not finite.
    """
    slopes, centre, means = None, None, None
    if "gate_mean" in posterior:
        means = draw_values(posterior, "gate_mean", "gate_feature")
        centre = means.mean(axis=(0, 1))
        slopes = _gaussian_slopes(posterior, means, centre)
    elif "gate" in posterior:
        slopes = draw_values(posterior, "gate", "gate_feature")
        centre = np.zeros(slopes.shape[-1])
    is_softmax = slopes is not None and means is None
    logits = draw_values(posterior, "gate_bias") if is_softmax else _log_weights(posterior)
    experts = None if family is None else _read_experts(posterior, family)
    # Any response is possible under a gaussian family.
    response = get_family("gaussian") if family is None else family
    gate_names = () if centre is None else labels_of(posterior, "gate_feature")
    layout = RowLayout(response, labels_of(posterior, "feature"), gate_names, centre, means)
    return MixtureDraws(logits, slopes, experts), layout


def _read_experts(posterior: "xarray.Dataset", family: Family) -> ExpertDraws:
    return ExpertDraws(
        family,
        draw_values(posterior, "coefficient", "feature"),
        draw_values(posterior, "bias"),
        draw_values(posterior, "dispersion") if family.has_dispersion else None,
    )


def draw_values(posterior: "xarray.Dataset", name: str, *dims: str) -> FloatArray:
    """Draws of a variable, those of all chains in a row.

    Parameters
    ----------
    posterior : xarray.Dataset
        The draws.
    name : str
        Name of the variable.
    *dims : str
        Its dims after component, chain and draw.

    Returns
    -------
    numpy.ndarray, shape (n_components, n_draws, ...)
        The draws.

    Raises
    ------
    ValueError
        If the variable is missing, has other dims or is not finite.
    """
    wanted = ("component", "chain", "draw", *dims)
    if name not in posterior or set(posterior[name].dims) != set(wanted):
        got = posterior[name].dims if name in posterior else "no such variable"
        raise ValueError(
            f"`tree` must have {name!r} with the dims {', '.join(wanted)} in its posterior; got "
            f"{got}, and the posterior has {', '.join(map(repr, posterior.data_vars))}. Rename "
            "what stands for it, or pass the draws of another model."
        )
    array = posterior[name].transpose(*wanted)
    shape = (array.shape[0], array.shape[1] * array.shape[2], *array.shape[3:])
    result = np.asarray(array.values, dtype=np.float64).reshape(shape)
    finite = np.isfinite(result).all(axis=(0, *range(2, result.ndim)))
    if not finite.size or not finite.all():
        raise ValueError(
            f"`tree` must have finite draws; got {int((~finite).sum())} of {finite.size} with NaN "
            f"or infinite values of {name!r}. Drop these draws, or sample first."
        )
    return result


def _log_weights(posterior: "xarray.Dataset") -> FloatArray:
    with np.errstate(divide="ignore"):  # a weight of zero is a probability of zero
        return np.asarray(np.log(draw_values(posterior, "weight")))


def _gaussian_slopes(
    posterior: "xarray.Dataset", means: FloatArray, centre: FloatArray
) -> FloatArray:
    """Slopes of a gaussian gate's log densities in the statistics of centred covariates."""
    covariances = draw_values(posterior, "gate_covariance", "gate_feature", "gate_feature_2")
    roots = np.linalg.cholesky(covariances).swapaxes(0, 1)
    centred = (means - centre).transpose(1, 2, 0)
    slopes = [GaussianGate(*gate).slopes for gate in zip(centred, roots, strict=True)]
    return np.stack(slopes).transpose(2, 0, 1)


def labels_of(posterior: "xarray.Dataset", dim: str, letter: str = "x") -> tuple[str, ...]:
    """Labels of columns; those of an array without names if there are none.

    Parameters
    ----------
    posterior : xarray.Dataset
        The draws.
    dim : str
        The dim whose labels are asked for.
    letter : str, default "x"
        With which the names of columns of an array begin.

    Returns
    -------
    tuple of str
        A label a column.
    """
    if dim in posterior.coords:
        return tuple(map(str, posterior.coords[dim].values.tolist()))
    return tuple(f"{letter}{index}" for index in range(posterior.sizes.get(dim, 0)))
