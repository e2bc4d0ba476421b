"""Evaluate a mixture on blocks of rows: densities, responsibilities and derivatives."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.data.blocks import sum_over_blocks
from moment_init.families.base import Family, normalise_joint
from moment_init.families.densities import rows_loop, table_loop
from moment_init.families.several import AnyFamily, Categorical, softmax_rows
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.passes import group_rows, share_units
from moment_init.likelihood.rows import LikelihoodRows, column, distinct_counts

ARRAYS_PER_COMPONENT = 8
"""Doubles held per row and component: posterior, predictors and derivatives, about this many."""

_SMALLEST_PROBABILITY = 1e-280
"""Lower bound of a gate's probabilities, so that their logarithms are finite."""

_NO_GROUPS = np.empty(0, dtype=np.intp)
NO_TABLE = np.empty((3, 0, 0))


class Derivatives(NamedTuple):
    """Log densities of the rows under the components, and their derivatives.

    P is the number of linear predictors of a component, T the number of those with a dispersion.
    """

    value: FloatArray  # without the terms that depend on no parameter; (n_components, n_block)
    first: FloatArray  # in the predictors; (P, n_components, n_block)
    # in pairs of predictors: each with itself, or for classes all pairs a <= b;
    # (n_pairs, n_components, n_block)
    second: FloatArray
    # in the log dispersions: first, second, and mixed with the predictor;
    # (T, 3, n_components, n_block)
    tau: FloatArray


class BlockPosterior(NamedTuple):
    """A mixture evaluated on a block of units."""

    x: FloatArray  # inputs of the rows and a one, read only; (n_features + 1, n_block)
    weight: FloatArray  # weights of the rows; (n_block,)
    derivatives: Derivatives  # of the rows; `value` has been used up
    log_density: FloatArray  # of the units; (n_units,)
    responsibilities: FloatArray  # of the units; (n_components, n_units)
    unit_weight: FloatArray  # number of draws of a component per unit; (n_units,)
    # prior probabilities of the components; (n_components, 1) or (n_components, n_units)
    prior: FloatArray
    starts: NDArray[np.intp]  # first row of each group within the block, or empty; (n_units,)
    # a one and the gating covariates of each unit, None without a gate; (n_units, 1 + n_gate)
    gate: FloatArray | None

    @property
    def is_grouped(self) -> bool:
        """Whether units are groups of rows."""
        return len(self.starts) > 0

    @property
    def gate_design(self) -> FloatArray:
        """A one and the gating covariates of each unit, (n_units, 1 + n_gate)."""
        return np.ones((len(self.unit_weight), 1)) if self.gate is None else self.gate

    @property
    def row_responsibilities(self) -> FloatArray:
        """Responsibilities of the rows; those of a group are the same; (n_components, n_block)."""
        if not self.is_grouped:
            return self.responsibilities
        sizes = np.diff(np.append(self.starts, len(self.weight)))
        return np.repeat(self.responsibilities, sizes, axis=1)


def evaluate_rows(
    family: AnyFamily,
    rows: LikelihoodRows,
    parameters: MixtureParameters,
    row_slice: slice,
    x: FloatArray,
    tables: tuple[FloatArray | None, ...],
    value: FloatArray,
) -> Derivatives:
    """Add the log density of a block of rows under every component to `value`."""
    # x: (n_features + 1, n_block), value: (n_components, n_block)
    (width, n), r = x.shape, parameters.n_components
    n_predictors = parameters.n_predictors
    vectors = np.empty((n_predictors, r, width))
    vectors[:, :, :-1] = parameters.slopes.transpose(0, 2, 1)
    vectors[:, :, -1] = parameters.levels
    eta = np.dot(vectors.reshape(n_predictors * r, -1), x).reshape(n_predictors, r, n)
    if rows.offset is not None:
        offset = rows.offset[row_slice]
        eta += offset if offset.ndim == 1 else offset.T[:, None]
    first = np.empty((n_predictors, r, n))
    if isinstance(family, Categorical):
        second = np.empty((n_predictors * (n_predictors + 1) // 2, r, n))
        codes = np.ascontiguousarray(rows.y[row_slice])
        softmax_rows(codes, eta, value, first, second)
        return Derivatives(value, first, second, np.empty((0, 3, r, n)))
    second, place = np.empty((n_predictors, r, n)), 0
    tau = np.empty((len(parameters.layout.dispersed), 3, r, n))
    for a, member in enumerate(family.members):
        y, number, table = _prepared(member, rows, row_slice, a, tables[a], parameters)
        spread = tau[place] if member.has_dispersion else tau[:0].reshape(0, r, n)
        loop = rows_loop(member.kernel, member.kernel_name)
        dispersion = _dispersion_of(member, parameters, a)
        loop(y, number, eta[a], dispersion, table, value, first[a], second[a], spread)
        place += member.has_dispersion
    return Derivatives(value, first, second, tau)


def _dispersion_of(member: Family, parameters: MixtureParameters, response: int) -> FloatArray:
    """Dispersions of the components; ones, which are not read, for a family without."""
    if member.has_dispersion and parameters.spreads is not None:
        return np.ascontiguousarray(parameters.spreads[response])
    return np.ones(parameters.n_components)


def _prepared(
    member: Family,
    rows: LikelihoodRows,
    row_slice: slice,
    response: int,
    table: FloatArray | None,
    parameters: MixtureParameters,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Response of a block, the numbers that its kernel needs, and its table of counts."""
    y = np.ascontiguousarray(column(rows.y, response)[row_slice], dtype=np.float64)
    if rows.numbers is not None:
        number = np.ascontiguousarray(column(rows.numbers, response)[row_slice])
        return y, number, NO_TABLE if table is None else table
    if member.kernel.ratio is not None:
        counts, number = distinct_counts(y)
        return y, number, tabulate(member, counts, parameters, response)
    trials = None
    if member.has_trials and rows.n_trials is not None:
        trials = column(rows.n_trials, response)[row_slice]
    return y, member.prepare_rows(y, trials)[1], NO_TABLE


def tabulate(
    member: Family, counts: FloatArray, parameters: MixtureParameters, response: int
) -> FloatArray:
    """Evaluate what depends on count and dispersion alone, once for each count."""
    # counts: (n_counts,) -> (3, n_components, n_counts)
    dispersion = _dispersion_of(member, parameters, response)
    table = np.empty((3, parameters.n_components, len(counts)))
    table_loop(member.kernel, member.kernel_name)(counts, dispersion, table)
    return table


def tables_of(
    family: AnyFamily, rows: LikelihoodRows, parameters: MixtureParameters
) -> tuple[FloatArray | None, ...]:
    """Tables of the distinct counts of all rows, for every response that needs one."""
    counts = rows.counts or (None,) * len(family.members)
    return tuple(
        None if distinct is None else tabulate(member, distinct, parameters, a)
        for a, (member, distinct) in enumerate(zip(family.members, counts, strict=True))
    )


def posterior_of_block(
    family: AnyFamily,
    rows: LikelihoodRows,
    parameters: MixtureParameters,
    block: slice,
    *,
    assigned: FloatArray | None = None,
    tables: tuple[FloatArray | None, ...] | None = None,
) -> BlockPosterior:
    """Read a block of units and evaluate the mixture on it."""
    # assigned: (n_components, n_units)
    row_slice = rows.rows_of(block)
    x, weight = rows.read_x(row_slice), rows.sample_weight[row_slice]
    if tables is None:
        tables = (None,) * len(family.members)
        if rows.numbers is not None:
            tables = tables_of(family, rows, parameters)
    starts, gate = _NO_GROUPS, None
    if rows.group_starts is not None:
        starts = rows.group_starts[block] - row_slice.start
    if parameters.gate is not None and rows.gate is not None:
        gate = _gate_design(rows.gate, row_slice, starts)
    prior = parameters.weights[:, None] if gate is None else prior_probabilities(parameters, gate)
    value = np.empty((parameters.n_components, x.shape[1]))
    value[:] = 0.0 if len(starts) else np.log(prior)
    derivatives = evaluate_rows(family, rows, parameters, row_slice, x, tables, value)
    joint, unit_weight = value, weight
    if len(starts):
        joint, unit_weight = np.empty((len(value), len(starts))), np.ones(len(starts))
        group_rows(value, weight, starts, joint)
        joint += np.log(prior)
    if assigned is None:
        log_density, shares = np.empty(joint.shape[1]), joint
        share_units(joint, log_density)
    else:
        shares = assigned[:, block]
        log_density = (joint * shares).sum(axis=0)
    return BlockPosterior(
        x, weight, derivatives, log_density, shares, unit_weight, prior, starts, gate
    )


def prior_probabilities(parameters: MixtureParameters, gate: FloatArray) -> FloatArray:
    r"""Prior probabilities of the components, given the gating covariates but not the response.

    .. math:: \pi_j(g) \propto w_j \exp(\langle\gamma_j, g\rangle).
    """
    # gate: (n_units, 1 + n_gate) -> (n_components, 1) or (n_components, n_units)
    if parameters.gate is None:
        return parameters.weights[:, None]
    logits = parameters.gate.T @ gate[:, 1:].T + np.log(parameters.weights)[:, None]
    _, prior = normalise_joint(logits)
    return np.maximum(prior, _SMALLEST_PROBABILITY)


def unit_log_likelihood(
    family: AnyFamily, rows: LikelihoodRows, parameters: MixtureParameters
) -> FloatArray:
    """Log density of every unit under the mixture, with all constants."""
    # -> (n_units,)
    result = np.empty(rows.n_units)

    def write_block(units: slice) -> tuple[FloatArray, ...]:
        block = posterior_of_block(family, rows, parameters, units)
        base = base_measure(family, rows, rows.rows_of(units))
        if block.is_grouped:
            base = np.add.reduceat(base * block.weight, block.starts)
        result[units] = block.log_density + base
        return ()

    sum_over_blocks(write_block, rows.n_units, doubles_per_unit(rows, parameters))
    return result


def base_measure(family: AnyFamily, rows: LikelihoodRows, row_slice: slice) -> FloatArray:
    """Terms of the log density of rows that depend on no parameter, summed over responses."""
    # -> (n_block,)
    total = np.zeros(row_slice.stop - row_slice.start)
    for a, member in enumerate(family.members):
        trials = None
        if member.has_trials and rows.n_trials is not None:
            trials = column(rows.n_trials, a)[row_slice]
        total += member.log_base_measure(column(rows.y, a)[row_slice], n_trials=trials)
    return total


def responsibilities(
    family: AnyFamily, rows: LikelihoodRows, parameters: MixtureParameters
) -> FloatArray:
    """Posterior probability of every component for each row, or for its group."""
    # -> (n_obs, n_components)
    result = np.empty((rows.n_obs, parameters.n_components))

    def write_block(units: slice) -> tuple[FloatArray, ...]:
        block = posterior_of_block(family, rows, parameters, units)
        result[rows.rows_of(units)] = block.row_responsibilities.T
        return ()

    sum_over_blocks(write_block, rows.n_units, doubles_per_unit(rows, parameters))
    return result


def doubles_per_unit(rows: LikelihoodRows, parameters: MixtureParameters, extra: int = 0) -> int:
    """Doubles that a block holds for each of its units."""
    predictors = parameters.n_predictors * parameters.n_components
    per_row = parameters.n_features + ARRAYS_PER_COMPONENT * predictors + extra
    return per_row * -(-rows.n_obs // max(1, rows.n_units))


def _gate_design(covariates: FloatArray, row_slice: slice, starts: NDArray[np.intp]) -> FloatArray:
    """A one and the gating covariates of each unit; a group has those of its first row."""
    block = covariates[row_slice]
    units = block[starts] if len(starts) else block
    design = np.ones((len(units), 1 + units.shape[1]))
    design[:, 1:] = units
    return design
