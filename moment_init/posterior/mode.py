r"""The mode of a model's log posterior on the unconstrained scale, and its curvature there.

.. math:: \log p(v) \approx \log p(\hat v) - \tfrac{1}{2} (v - \hat v)' H (v - \hat v), \qquad
    H^{-1} = L L'

Here v are all unconstrained values in one vector. The log posterior and its gradient are evaluated
without numba, so that nothing is compiled: an evaluation takes about a millisecond for a thousand
rows. The curvature is made of differences of gradients. `draw_starts` and `draw_normal` draw from
the approximation, for chains and for `sample(method="laplace")`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.initial_point import make_initial_point_fn
from pytensor.compile.maker import function
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import grad
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.rewriting.basic import dfs_rewriter
from pytensor.graph.traversal import graph_inputs
from scipy.optimize import minimize
from scipy.stats import chi2

from moment_init.checks import FloatArray
from moment_init.models.ops import write_out
from moment_init.posterior.model_variables import changed_flags

_STEP = 1e-5
"""Step of the differences. Their error is about 1e-10 times the third derivatives, and 1e-11 times
the terms of the gradient."""

_LARGEST_DEVIATION = 5.0
"""Largest standard deviation of the approximation in any direction, twice that of the widest
default prior. A direction in which the log posterior is flat, or curves upwards, has this one."""

_ROUNDS = 6
"""Largest number of curvatures. Two are usual: one at the starting values, one at the mode."""

_NEAR = 0.1
"""Distance in standard deviations over which the curvature hardly changes."""

_HALVINGS = 30
"""Number of times that the distance of a start from the mode is halved: to a billionth."""

START_PROBABILITY = 0.99
"""A chain starts at most as far below the mode as this share of the draws from a normal
posterior."""

_SETTLINGS = 2
"""Number of times that the approximation is settled."""

_PROBES = 8
"""Number of draws that show whether a posterior is almost normal."""

_ALMOST_NORMAL = 0.05
"""Squared error of the gradients, relative to their squared lengths, up to which it is."""

_DRAWS_PER_VALUE = 4
"""Number of gradients for each unconstrained value to which the linear functions are fitted."""

_LARGEST_CHANGE = 5.0
"""Largest factor by which a standard deviation changes when the approximation is settled."""

_ADVI_POINTS = 40
"""Number of points at which ADVI averages the log posterior, in pairs on both sides of the mean. A
standard deviation then has an error of about 15 %."""

_AWAY = 1e300
"""What a minimiser gets in place of the infinite negative log density of an impossible point."""


class LogPosterior:
    """The log posterior density of a model as a function of all unconstrained values."""

    def __init__(self, model: pm.Model) -> None:
        self.model = model
        self.values: list[Any] = [model.rvs_to_values[variable] for variable in model.free_RVs]
        with changed_flags(cxx="", mode=in_python()):
            initial = make_initial_point_fn(model=model)(None)
        start = [np.asarray(initial[value.name], dtype=np.float64) for value in self.values]
        self.shapes = [value.shape for value in start]
        self.start = np.concatenate([value.ravel() for value in start])
        logp: Any = model.logp()
        gradient: Any = grad(logp, self.values)
        self._function = _function(self.values, [logp, *gradient])
        self.n_evaluations = 0

    def __call__(self, point: FloatArray) -> tuple[float, FloatArray]:
        """Return the log density and its gradient."""
        self.n_evaluations += 1
        with np.errstate(all="ignore"):
            value, *slopes = self._function(*self.split(point))
        return float(value), np.concatenate([np.ravel(slope) for slope in slopes])

    def split(self, points: FloatArray) -> list[FloatArray]:
        """Split the last axis into the values of the variables."""
        bounds = accumulate((int(np.prod(shape)) for shape in self.shapes), initial=0)
        return [
            points[..., first:last].reshape((*points.shape[:-1], *shape))
            for (first, last), shape in zip(pairwise(bounds), self.shapes, strict=True)
        ]

    def variables(self, points: FloatArray, names: Iterable[str]) -> dict[str, FloatArray]:
        """Compute variables of the model at many points."""
        # points: (n_points, n_values) -> (n_points, ...)
        wanted = list(names)
        graphs = self.model.replace_rvs_by_values([self.model[name] for name in wanted])
        return dict(zip(wanted, self._at_many(points, graphs), strict=True))

    def log_priors(self, points: FloatArray) -> FloatArray:
        """Compute the log prior density, of unconstrained values, at many points."""
        # points: (n_points, n_values) -> (n_points,)
        return self._at_many(points, [self.model.logp(vars=self.model.free_RVs)])[0]

    def _at_many(self, points: FloatArray, outputs: Sequence[Any]) -> list[FloatArray]:
        """Evaluate graphs of the values at many points together."""
        data = [item for item in graph_inputs(outputs) if isinstance(item, SharedVariable)]
        graph = FunctionGraph([*self.values, *data], list(outputs), clone=True)
        # PyTensor can vectorise its own operations only.
        dfs_rewriter(write_out).rewrite(graph)
        many = [pt.tensor(shape=(None, *shape), dtype="float64") for shape in self.shapes]
        together: Any = vectorize_graph(graph.outputs, dict(zip(graph.inputs, many, strict=False)))
        results = _function(many, list(together))(*self.split(points))
        return [
            np.array(np.broadcast_to(result, (len(points), *np.shape(result)[1:])))
            for result in results
        ]


def in_python() -> Mode:
    """Return the mode in which Python runs a graph after few rewrites."""
    return Mode(linker="py", optimizer="fast_compile")


def _function(inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., list[Any]]:
    """Make a function that Python runs."""
    with changed_flags(cxx=""):
        run: Callable[..., list[Any]] = function(
            list(inputs),
            list(outputs),
            mode=in_python(),
            on_unused_input="ignore",
            trust_input=True,
        )
    return run


@dataclass(frozen=True, slots=True, eq=False)
class PosteriorMode:
    """The normal approximation of a posterior on the unconstrained scale."""

    log_posterior: LogPosterior
    point: FloatArray  # the mode, or the centre of another approximation; (n_values,)
    root: FloatArray  # L, so that the covariance is L L'; (n_values, n_values)
    value: float  # log posterior density at the mode
    is_regular: bool  # whether the density falls off in every direction, so that L is its width
    is_settled: bool = True  # False if no normal density fits, so that a sampler has to adapt
    is_normal: bool = False  # whether gradients around the centre are those of a normal density

    @property
    def largest_fall(self) -> float:
        """How far below the mode a chain may start."""
        return 0.5 * float(chi2.ppf(START_PROBABILITY, len(self.point)))

    def whiten(self, point: FloatArray) -> FloatArray:
        """Return L^{-1} (v - mode)."""
        return np.linalg.solve(self.root, point - self.point)

    def with_independent_values(self, rng: np.random.Generator) -> "PosteriorMode":
        r"""Replace the approximation by the independent normals that are closest to the posterior.

        .. math:: \max_{m, \rho} \; \frac{1}{S} \sum_s \log p(m + e^{\rho} z_s) + \sum_k \rho_k

        The same S normal vectors z_s are used throughout, so that the maximum is found by a
        quasi-Newton method instead of by stochastic gradients [1]_.

        References
        ----------
        .. [1] Giordano, Ingram and Broderick (2024), Black box variational inference with a
           deterministic objective, JMLR 25(18).
        """
        half = rng.standard_normal((_ADVI_POINTS // 2, len(self.point)))
        noise = np.concatenate([half, -half])
        width = 1.0 / np.sqrt(np.sum(np.linalg.inv(self.root) ** 2, axis=0))

        def fall(step: FloatArray) -> tuple[float, FloatArray]:
            shift, log_factor = np.split(step, 2)
            deviation = width * np.exp(log_factor)
            total, slopes = -log_factor.sum(), np.concatenate([0.0 * shift, -1.0 + 0.0 * shift])
            for z in noise:
                value, gradient = self.log_posterior(self.point + width * shift + deviation * z)
                if not np.isfinite(value) or not np.all(np.isfinite(gradient)):
                    return _AWAY, np.zeros(len(step))
                total -= value / len(noise)
                slopes -= np.concatenate([width * gradient, deviation * z * gradient]) / len(noise)
            return total, slopes

        found = minimize(fall, np.zeros(2 * len(width)), jac=True, method="L-BFGS-B")
        shift, log_factor = np.split(found.x, 2)
        return replace(
            self, point=self.point + width * shift, root=np.diag(width * np.exp(log_factor))
        )

    def draw_normal(self, n_draws: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Draw from the normal approximation; return the points and their log densities."""
        # -> (n_draws, n_values), (n_draws,)
        noise = rng.standard_normal((n_draws, len(self.point)))
        level = np.linalg.slogdet(self.root)[1] + 0.5 * len(self.point) * np.log(2.0 * np.pi)
        return self.point + noise @ self.root.T, -0.5 * np.square(noise).sum(axis=1) - level

    def draw_starts(self, chains: int, rng: np.random.Generator) -> FloatArray:
        """Draw starts of chains, at most so far below the mode as `START_PROBABILITY` says."""
        # -> (chains, n_values)
        noise, _ = self._accepted(rng.standard_normal((chains, len(self.point))))
        return self.point + noise @ self.root.T

    def _accepted(self, noise: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Move draws that lie too far below the mode towards it; return them and their gradients.

        Without this a chain could start where the normal approximation is wrong: at a dispersion,
        say, at which it stays for ever.
        """
        # noise, whitened: (n_draws, n_values) -> the same, and the gradients in these coordinates
        moved, gradients = noise.copy(), np.empty(noise.shape)
        for k, step in enumerate(noise):
            for halvings in range(_HALVINGS):
                moved[k] = 0.5**halvings * step
                value, gradient = self.log_posterior(self.point + self.root @ moved[k])
                gradients[k] = gradient @ self.root
                if np.all(np.isfinite(gradient)) and self.value - value <= self.largest_fall:
                    break
        return moved, gradients

    def settled(self, rng: np.random.Generator) -> "PosteriorMode":
        r"""Fit centre and width to the gradients over the posterior instead of those at the mode.

        A normal density has the gradient :math:`-z` in whitened coordinates. If that of the
        posterior differs, linear functions :math:`c - A z` are fitted to the gradients at draws,
        the centre moves by :math:`A^{-1} c`, and the covariance becomes :math:`A^{-1}`. For a
        skewed posterior, chains mix better in these coordinates than in those of the mode. A centre
        that is lower than a typical draw from a normal posterior is refused: linear functions then
        say nothing about the gradients.
        """
        settled, n_values = self, len(self.point)
        for _ in range(_SETTLINGS):
            noise, gradients = settled._accepted(rng.standard_normal((_PROBES, n_values)))
            if np.sum((gradients + noise) ** 2) <= _ALMOST_NORMAL * np.sum(noise**2):
                return replace(settled, is_normal=True)
            half = rng.standard_normal((_DRAWS_PER_VALUE * n_values // 2, n_values))
            noise, gradients = settled._accepted(np.concatenate([half, -half]))
            design = np.column_stack([np.ones(len(noise)), noise])
            level, *slopes = np.linalg.lstsq(design, gradients, rcond=None)[0]
            curvature = -0.5 * (np.array(slopes) + np.array(slopes).T)
            values, vectors = np.linalg.eigh(curvature)
            widths = 1.0 / np.sqrt(np.clip(values, _LARGEST_CHANGE**-2, _LARGEST_CHANGE**2))
            shift = vectors @ (widths**2 * (vectors.T @ level))
            centre = settled.point + settled.root @ shift
            value, gradient = self.log_posterior(centre)
            if not np.all(np.isfinite(gradient)) or not self.value - value <= 0.5 * n_values:
                return replace(settled, is_settled=False)
            settled = replace(
                settled,
                point=centre,
                root=settled.root @ (vectors * widths) @ vectors.T,
                is_settled=bool(np.all(np.abs(np.log(widths)) < np.log(_LARGEST_CHANGE))),
            )
        return settled


def find_mode(model: pm.Model) -> PosteriorMode:
    """Climb from the model's initial values to the mode, in coordinates whitened by curvatures."""
    log_posterior = LogPosterior(model)
    point = log_posterior.start
    _require_possible(log_posterior)
    for _ in range(_ROUNDS):
        root, is_regular = _width(log_posterior, point)
        moved, value, distance = _climb(log_posterior, point, root)
        is_near = distance < _NEAR
        point = moved
        if is_near:
            break
    return PosteriorMode(log_posterior, point, root, value, is_regular)


def _require_possible(log_posterior: LogPosterior) -> None:
    """Raise if the model's initial values are impossible under the user's priors."""
    value, gradient = log_posterior(log_posterior.start)
    if np.isfinite(value) and np.all(np.isfinite(gradient)):
        return
    model, point = log_posterior.model, log_posterior.split(log_posterior.start)
    terms = [model.logp(vars=[variable]) for variable in model.free_RVs]
    with np.errstate(all="ignore"):
        densities = _function(log_posterior.values, terms)(*point)
    names = [
        repr(variable.name)
        for variable, density in zip(model.free_RVs, densities, strict=True)
        if not np.isfinite(density)
    ]
    raise ValueError(
        "`priors` must allow the starting values; they do not allow those of "
        f"{', '.join(names) or 'the model'}, where the posterior density is zero. Change the "
        "prior, or `init`."
    )


def _climb(
    log_posterior: LogPosterior, point: FloatArray, root: FloatArray
) -> tuple[FloatArray, float, float]:
    """Maximise along the columns of `root`; return the maximum, its value and its distance."""
    highest, best = log_posterior(point)[0], np.zeros(len(point))

    def fall(step: FloatArray) -> tuple[float, FloatArray]:
        nonlocal highest, best
        value, gradient = log_posterior(point + root @ step)
        if not np.isfinite(value) or not np.all(np.isfinite(gradient)):
            return _AWAY, np.zeros(len(step))
        if not value <= highest:
            highest, best = value, step.copy()
        return -value, -(root.T @ gradient)

    minimize(fall, np.zeros(len(point)), jac=True, method="L-BFGS-B", options={"gtol": 1e-3})
    return point + root @ best, highest, float(np.linalg.norm(best))


def _width(log_posterior: LogPosterior, point: FloatArray) -> tuple[FloatArray, bool]:
    """Compute L from differences of gradients, and whether it is the width in every direction."""
    steps = _STEP * np.maximum(1.0, np.abs(point))
    curvature = np.empty((len(point), len(point)))
    for k, step in enumerate(steps):
        shift = np.zeros(len(point))
        shift[k] = step
        ahead, behind = log_posterior(point + shift)[1], log_posterior(point - shift)[1]
        curvature[k] = (behind - ahead) / (2.0 * step)
    curvature = np.where(np.isfinite(curvature), curvature, 0.0)
    values, vectors = np.linalg.eigh(0.5 * (curvature + curvature.T))
    smallest = _LARGEST_DEVIATION**-2
    # symmetric, so that it does not depend on the signs of the eigenvectors
    root = (vectors / np.sqrt(np.maximum(values, smallest))) @ vectors.T
    return root, bool(values[0] > smallest)
