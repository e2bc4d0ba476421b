"""The polish: from moment estimates to the maximum of the likelihood, at the price of a few passes.

The paper proposes EM in the few dimensions of the projected data. Candidates race there, on a
sample of rows; the winner is then finished in all dimensions, by Newton steps on few rows, or, on
many, by Le Cam's steps: the score of all rows, the curvature of a sample.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from moment_init.blocks import read_block
from moment_init.families import Family
from moment_init.likelihood.bounds import active_bounds, bounds_of, enforce
from moment_init.likelihood.maximise import maximise, solve_information
from moment_init.likelihood.parameters import (
    MixtureParameters,
    component_size,
    move,
    parameter_count,
)
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.splits import improve, misfit
from moment_init.likelihood.sums import (
    likelihood_sums,
    outer_product_information,
    parameter_free_log_likelihood,
)
from moment_init.problem import EstimationProblem

__all__ = ["PolishedFit", "polish"]

FloatArray = NDArray[np.float64]

# Rows on which candidates race: enough to tell wrong modes apart by hundreds of log-likelihood
# units, and in any case this many for each parameter.
SAMPLE_ROWS = 20_000
SAMPLE_ROWS_PER_PARAMETER = 100

# Rows for the curvature of Le Cam's steps. Its relative error, sqrt(parameters / rows), is the rate
# at which the steps contract; 200 rows a parameter make it 1/14.
CURVATURE_ROWS = 50_000
CURVATURE_ROWS_PER_PARAMETER = 200

# Multiplications of a Newton step in all dimensions, rows times parameters squared, beyond which a
# search by such steps takes minutes: Le Cam's few steps then follow the race at once.
HEAVY_STEP = 5e8

# The same for moves, which take hundreds of steps.
HEAVY_MOVE = 1e8

# Steps of a race, the first two by EM; what is not separated by then has nearly the same fit.
RACE_STEPS = 8
RACE_EM_STEPS = 2
FINISH_STEPS = 60

# Damping at the start of a finish: the start is near the optimum, so close to Newton.
FINISH_DAMPING = 0.1

# Le Cam's steps end when what they leave is below half a unit of log-likelihood: every parameter is
# then within one standard error of the optimum. Before a rate is seen, a step leaves a tenth.
LARGEST_GAIN_LEFT = 0.5
EXPECTED_RATE = 0.1
MAX_CORRECTIONS = 8

# Information-matrix statistic, in units of the edge of its noise: right fits stay below about 1.3.
# Moves out of the optimum are tried a little before that where rows are few, since they are cheap
# then; above the larger limit they are tried always, and the status speaks.
MISFIT_THAT_MOVES = 1.2
LARGEST_MISFIT = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class PolishedFit:
    """Parameters at (or within a standard error of) a maximum of the likelihood.

    Parameters
    ----------
    parameters : MixtureParameters
        Parameters in standardised coordinates.
    log_likelihood : float
        Log-likelihood of all rows, in the user's units of the response.
    information : numpy.ndarray, shape (n_parameters, n_parameters)
        Information of all rows, positive definite.
    misfit : float
        Information-matrix statistic over the edge of its noise: near one or below for a right fit.
    n_moves : int
        How many moves out of a local optimum were taken.
    bounds : tuple of str
        Bounds on which parameters lie; empty at an interior maximum.
    has_converged : bool
        Whether the last step promised less than the tolerance.
    """

    parameters: MixtureParameters
    log_likelihood: float
    information: FloatArray
    misfit: float
    n_moves: int
    bounds: tuple[str, ...]
    has_converged: bool


class _Optimum(NamedTuple):
    """Where a search ended."""

    parameters: MixtureParameters
    log_likelihood: float
    information: FloatArray
    has_converged: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Likelihood:
    """All rows of the likelihood, with the way to standardised coordinates."""

    family: Family
    rows: LikelihoodRows  # Z holds the inputs in the user's units
    mean: FloatArray
    factor: FloatArray
    constant: float  # log-likelihood terms that no parameter enters

    def sample(self, size: int, rng: np.random.Generator) -> LikelihoodRows:
        """Whitened rows: a random sample, or all if there are not more."""
        n_obs = self.rows.n_obs
        index = np.arange(n_obs)
        if size < n_obs:
            index = np.sort(rng.choice(n_obs, size, replace=False))
        taken = self.rows.take(index)
        centred = read_block(taken.Z, slice(None)) - self.mean
        whitened = solve_triangular(self.factor, centred.T, lower=True).T
        return replace(taken, Z=np.ascontiguousarray(whitened))

    def score(self, parameters: MixtureParameters) -> tuple[float, FloatArray]:
        """Log-likelihood and score of all rows at standardised parameters, no row whitened."""
        slopes = solve_triangular(self.factor, parameters.coefficients, lower=True, trans="T")
        in_user_units = replace(
            parameters,
            coefficients=np.asarray(slopes),
            biases=np.asarray(parameters.biases - self.mean @ slopes),
        )
        sums = likelihood_sums(
            self.family, self.rows, in_user_units, curvature=False, constant=self.constant
        )
        score = sums.score.copy()
        p, r = parameters.coefficients.shape
        by_component = score[: r * component_size(parameters)].reshape(r, -1)
        about_mean = by_component[:, :p] - by_component[:, [p]] * self.mean
        by_component[:, :p] = solve_triangular(self.factor, about_mean.T, lower=True).T
        return sums.log_likelihood, score


def polish(
    problem: EstimationProblem,
    candidates: tuple[MixtureParameters, ...],
    subspace: FloatArray,
    rng: np.random.Generator,
) -> PolishedFit:
    """Climb from the best of several candidates to the maximum of the likelihood.

    Parameters
    ----------
    problem : EstimationProblem
        Rows, input model and coordinates.
    candidates : tuple of MixtureParameters
        Starts in standardised coordinates, best first.
    subspace : numpy.ndarray, shape (n_features, k)
        Orthonormal basis of the span of the directions.
    rng : numpy.random.Generator
        Draws the samples of rows.

    Returns
    -------
    PolishedFit
        The fit.

    Notes
    -----
    On up to twice the rows of the sample everything is exact. On more rows the candidate of the
    moments is corrected with the score of all rows, unless the sample's own optimum refutes it.
    With so many parameters that a Newton step is heavy, the better of the two is corrected.
    """
    likelihood = _likelihood(problem)
    family = problem.data.family
    n_parameters = parameter_count(candidates[0])
    size = max(SAMPLE_ROWS, SAMPLE_ROWS_PER_PARAMETER * n_parameters)
    is_whole = likelihood.rows.n_obs <= 2 * size
    n_rows = likelihood.rows.n_obs if is_whole else size
    is_heavy = n_rows * n_parameters**2 > HEAVY_STEP
    if is_heavy:  # the race needs few rows, and what follows reads all of them
        is_whole, n_rows = False, min(SAMPLE_ROWS, likelihood.rows.n_obs)
    rows = likelihood.sample(n_rows, rng)
    parameters, log_likelihood = _race(family, rows, candidates, subspace)
    by_moments = likelihood_sums(family, rows, candidates[0], curvature=False).log_likelihood
    # Twice the gain is about chi-square in the number of parameters if the moments are right.
    are_refuted = log_likelihood - by_moments > (0 if is_heavy else n_parameters)
    if not is_whole and not are_refuted:
        parameters = candidates[0]
    elif not is_whole and not is_heavy:
        parameters = _finish(family, rows, parameters)

    def settle(start: MixtureParameters) -> _Optimum:
        if is_whole:
            return _conclude(family, rows, start)
        return _correct(likelihood, start, rng)

    end, n_moves = settle(parameters), 0
    statistic = misfit(family, rows, end.parameters)
    may_move = parameters.n_components > 1 and rows.n_obs * n_parameters**2 <= HEAVY_MOVE
    if may_move and statistic > (MISFIT_THAT_MOVES if is_whole else LARGEST_MISFIT):
        sums = likelihood_sums(family, rows, end.parameters, curvature=False)
        moved = improve(family, rows, end.parameters, sums.log_likelihood)
        n_moves = moved.n_moves
        if n_moves:
            end = settle(moved.parameters)
            statistic = misfit(family, rows, end.parameters)
    scale = problem.coordinates.response_scale
    jacobian = likelihood.rows.total_weight * float(np.log(scale))
    active = active_bounds(end.parameters, bounds_of(family))
    return PolishedFit(
        parameters=end.parameters,
        log_likelihood=end.log_likelihood - jacobian,
        information=end.information,
        misfit=statistic,
        n_moves=n_moves,
        bounds=tuple(bound.label for bound in active),
        has_converged=end.has_converged,
    )


def _likelihood(problem: EstimationProblem) -> _Likelihood:
    """The likelihood's rows; for the identity link the offset is in the response already."""
    data = problem.data
    is_standardised = data.family.response_power
    rows = LikelihoodRows(
        Z=data.X,
        y=problem.response if is_standardised else data.y,
        sample_weight=data.sample_weight,
        offset=None if is_standardised else data.offset,
        n_trials=data.n_trials,
    )
    constant = parameter_free_log_likelihood(data.family, rows)
    coordinates = problem.coordinates
    return _Likelihood(data.family, rows, coordinates.mean, coordinates.factor, constant)


def _race(
    family: Family,
    rows: LikelihoodRows,
    candidates: tuple[MixtureParameters, ...],
    subspace: FloatArray,
) -> tuple[MixtureParameters, float]:
    """Short runs of all candidates in the projected rows, the best of them to its end."""
    projected = replace(rows, Z=np.ascontiguousarray(np.asarray(rows.Z) @ subspace))
    runs = [
        maximise(
            family,
            projected,
            replace(candidate, coefficients=subspace.T @ candidate.coefficients),
            max_steps=RACE_STEPS,
            em_steps=RACE_EM_STEPS,
        )
        for candidate in candidates
    ]
    leader = max(runs, key=lambda run: run.log_likelihood)
    end = maximise(family, projected, leader.parameters, max_steps=FINISH_STEPS)
    return end.parameters.lift(subspace), end.log_likelihood


def _finish(
    family: Family, rows: LikelihoodRows, parameters: MixtureParameters
) -> MixtureParameters:
    """Newton steps in all dimensions."""
    end = maximise(family, rows, parameters, max_steps=FINISH_STEPS, damping=FINISH_DAMPING)
    return end.parameters


def _conclude(family: Family, rows: LikelihoodRows, parameters: MixtureParameters) -> _Optimum:
    """The optimum with its observed information, made positive where it is not."""
    end = maximise(family, rows, parameters, max_steps=FINISH_STEPS, damping=FINISH_DAMPING)
    information = end.information
    if solve_information(information, np.zeros(len(information))) is None:
        # Not an interior maximum, or too few rows for a difference of two large matrices.
        information = outer_product_information(family, rows, end.parameters)
    return _Optimum(end.parameters, end.log_likelihood, information, end.converged)


def _correct(
    likelihood: _Likelihood, parameters: MixtureParameters, rng: np.random.Generator
) -> _Optimum:
    """Le Cam's steps: score of all rows, curvature of a sample by outer products of scores."""
    family = likelihood.family
    n_parameters = parameter_count(parameters)
    size = max(CURVATURE_ROWS, CURVATURE_ROWS_PER_PARAMETER * n_parameters)
    rows = likelihood.sample(min(size, likelihood.rows.n_obs), rng)
    share = likelihood.rows.total_weight / rows.total_weight
    bounds = bounds_of(family)
    log_likelihood, score = likelihood.score(parameters)
    information = share * outer_product_information(family, rows, parameters)
    fraction, last_gain = 1.0, None
    for _ in range(MAX_CORRECTIONS):
        step = solve_information(information, score)
        if step is None:
            break
        gain = 0.5 * float(score @ step)
        candidate = enforce(move(parameters, fraction * step), bounds)
        rate = EXPECTED_RATE if last_gain is None else min(1.0, gain / last_gain)
        if gain * rate < LARGEST_GAIN_LEFT and fraction == 1.0:
            return _Optimum(candidate, likelihood.score(candidate)[0], information, True)
        new_log_likelihood, new_score = likelihood.score(candidate)
        if new_log_likelihood < log_likelihood:
            fraction /= 4.0
            continue
        parameters, log_likelihood, score = candidate, new_log_likelihood, new_score
        last_gain, fraction = gain, min(1.0, 2.0 * fraction)
        if gain > n_parameters / 2.0:  # further off than the curvature of the start holds for
            information = share * outer_product_information(family, rows, parameters)
    return _Optimum(parameters, log_likelihood, information, False)
