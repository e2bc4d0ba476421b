"""The result of `fit_em`, and the table that it prints.

The table has one column per component, with standard errors in brackets, and one block of rows per
response or class. The criteria, the number of starts that reached the best log-likelihood, and the
warnings follow.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, RandomSeed
from moment_init.data.formulas import FormulaDesign, reads_design
from moment_init.em.datatree import fit_to_datatree
from moment_init.em.exploration import UnseenMass
from moment_init.em.information import (
    LaplaceApproximation,
    StandardErrors,
    gated_standard_errors,
    standard_errors_of,
)
from moment_init.em.prediction import (
    PredictionKind,
    membership,
    predicted_mean,
    rows_for,
    unit_scores,
    with_index_of,
)
from moment_init.families.registry import parse_family
from moment_init.families.several import AnyFamily
from moment_init.likelihood.gate import GaussianGate
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.results import (
    DISTINCT_OPTIMA,
    ComponentTable,
    StartRecord,
    Status,
    count_best,
    counted,
    estimate_cells,
    tabulate_starts,
)

if TYPE_CHECKING:
    import pandas
    import xarray

Rows = list[tuple[str, list[str]]]


def fit_table(fit: "EMFit") -> ComponentTable:
    """Build the printed table of a fit."""
    notes = [_criteria(fit), _agreement(fit), *_exploration(fit), *_higher_on_bound(fit)]
    if fit.log_posterior is not None:
        notes.insert(1, f"log-posterior {fit.log_posterior:.2f}; priors: {fit.priors}")
    return ComponentTable(_title(fit), _rows(fit), notes, fit.warnings)


def _title(fit: "EMFit") -> str:
    outcomes, number = "", len(fit.outcome_names)
    if number:
        outcomes = f"{number} responses, " if fit.classes is None else f"{number} classes, "
    return (
        f"EMFit: {counted(fit.n_components, 'component')}, "
        f"{counted(len(fit.feature_names), 'feature')}, {outcomes}{fit.family} "
        f"({fit.link}), {counted(fit.n_obs, 'row')}, status {fit.status}"
    )


def _criteria(fit: "EMFit") -> str:
    kind = (
        "log-likelihood" if fit.gate_means is None else "joint log-likelihood of gate and response"
    )
    return (
        f"{kind} {fit.log_likelihood:.2f} ({counted(fit.n_parameters, 'parameter')}), "
        f"AIC {fit.aic:.1f}, BIC {fit.bic:.1f}, ICL {fit.icl:.1f}"
    )


def _objective(fit: "EMFit") -> str:
    return "log-likelihood" if fit.log_posterior is None else "log-posterior"


def _agreement(fit: "EMFit") -> str:
    """Say how many starts reached the best optimum: many make a global optimum likely."""
    reached, converged = fit.reached_best
    return (
        f"best {_objective(fit)} reached by {reached} of {converged} converged starts "
        f"({len(fit.starts)} in all), first from: {fit.origin}"
    )


def _exploration(fit: "EMFit") -> list[str]:
    """Say what further random starts would find."""
    unseen = fit.unseen_mass
    if unseen is None or fit.n_components == 1:
        return []
    where = " of the sample of rows" if unseen.is_sampled else ""
    left_out = f", {unseen.n_unconverged} did not converge" if unseen.n_unconverged else ""
    error = "" if np.isnan(unseen.error) else f" (standard error {unseen.error:.1%})"
    better = f"about {unseen.better:.2%}" if unseen.better >= 5e-5 else "below 0.01%"
    return [
        f"a further random start would find an optimum{where} not yet seen with probability about "
        f"{unseen.mass:.1%}{error}, a better one {better}: {unseen.outcome}"
        f"{left_out}"
    ]


def _higher_on_bound(fit: "EMFit") -> list[str]:
    """Name the highest solution on a bound, if it is above the fit."""
    higher = [
        start
        for start in fit.starts
        if start.bounds
        and not start.is_sampled
        and start.objective > fit.objective + DISTINCT_OPTIMA
    ]
    if fit.bounds or not higher:
        return []
    start = max(higher, key=lambda each: each.objective)
    return [
        f"a boundary solution has the higher {_objective(fit)} {start.objective:.2f} "
        f"({', '.join(start.bounds)}); see starts_table"
    ]


def _rows(fit: "EMFit") -> Rows:
    """Return the rows of the table: a name, then one cell per component."""
    errors = fit.standard_errors
    rows: Rows = []
    for a, response in enumerate(fit.response_names or ("",)):
        rows += _response_rows(fit, errors, a, response)
    if fit.gate is None:
        rows += _block(("weight",), fit.weights[None], errors.weights[None])
    else:
        rows += _share_rows(fit)
    if fit.gate is not None and fit.gate_biases is not None:
        if errors.gate is not None and errors.gate_biases is not None:
            rows += _block(("gate: bias",), fit.gate_biases[None], errors.gate_biases[None])
            names = tuple(f"gate: {name}" for name in fit.gate_names)
            rows += _block(names, fit.gate, errors.gate)
    if fit.gate_means is not None and errors.gate_means is not None:
        names = tuple(f"gate: mean of {name}" for name in fit.gate_names)
        rows += _block(names, fit.gate_means, errors.gate_means)
    return rows + _spread_rows(fit, errors)


def _response_rows(fit: "EMFit", errors: StandardErrors, index: int, name: str) -> Rows:
    """Return the rows of one response or class: a heading if it has a name, then its parameters."""
    parameters = fit.centred_parameters
    of = MixtureParameters(errors.coefficients, errors.biases, errors.weights, errors.dispersion)
    slopes, levels, spreads = parameters.slopes, parameters.levels, parameters.spreads
    indent = "  " if name else ""
    rows: Rows = [(f"{name}:", [""] * fit.n_components)] if name else []
    names = tuple(indent + feature for feature in fit.feature_names)
    rows += _block(names, slopes[index], of.slopes[index])
    rows += _block((f"{indent}bias",), levels[[index]], of.levels[[index]])
    if spreads is not None and of.spreads is not None and not np.isnan(spreads[index]).any():
        rows += _block((f"{indent}dispersion",), spreads[[index]], of.spreads[[index]])
    return rows


def _share_rows(fit: "EMFit") -> Rows:
    """Return average probabilities and numbers of rows, which do not depend on where the gate is.

    At the maximum of the likelihood the prior and the posterior probabilities of a component have
    the same average.
    """
    counts = np.asarray(fit.responsibilities.sum(axis=0))
    averages = [f"{share:.3g}" for share in counts / counts.sum()]
    return [("average weight", averages), ("rows", [f"{count:.1f}" for count in counts])]


def _spread_rows(fit: "EMFit", errors: StandardErrors) -> Rows:
    """Return rows with the variances of a Gaussian gate; covariances are not printed."""
    if fit.gate_covariances is None or errors.gate_covariances is None:
        return []
    names = tuple(f"gate: variance of {name}" for name in fit.gate_names)
    variances = np.einsum("jaa->aj", fit.gate_covariances)
    return _block(names, variances, np.einsum("jaa->aj", errors.gate_covariances))


def _block(names: tuple[str, ...], values: FloatArray, errors: FloatArray) -> Rows:
    return [
        (name, estimate_cells(row, row_errors))
        for name, row, row_errors in zip(names, values, errors, strict=True)
    ]


_SMALLEST_WEIGHT = 1e-300
"""Lower limit of weights at gating covariates zero, which may be far outside the data, so that
their logarithms exist."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EMFit:
    """Fit of a mixture of generalised linear models by `fit_em`, in the user's units.

    Components are sorted by decreasing weight. With fixed weights or directions they keep the
    order of these. With several responses, or with more than two classes, coefficients, biases and
    dispersion have a leading axis, which runs over `response_names`.

    Parameters
    ----------
    coefficients : numpy.ndarray, shape ([n_responses,] n_features, n_components)
        Coefficients of the user's columns.
    biases : numpy.ndarray, shape ([n_responses,] n_components)
        Biases of the linear predictors.
    weights : numpy.ndarray, shape (n_components,)
        Probabilities of the components; with a softmax gate, at the mean of its covariates.
    dispersion : numpy.ndarray, shape ([n_responses,] n_components), or None
        Dispersion, for families that have one; NaN for other responses beside them.
    gate : numpy.ndarray, shape (n_gate, n_components), or None
        Slopes of the logits of a softmax gate; zero for the last component.
    gate_biases : numpy.ndarray, shape (n_components,), or None
        Logits of the gate at covariates zero; zero for the last component.
    gate_centre : numpy.ndarray, shape (n_gate,), or None
        Mean of the gating covariates.
    log_likelihood : float
        Log-likelihood of all responses in the user's units, with all constants; with a Gaussian
        gate, the joint one of gating covariates and responses.
    history : tuple of float
        Log-likelihood, or with priors log-posterior, at the start of the best run and after every
        accepted step. It decreases by rounding errors at most.
    n_iter : int
        Number of steps of the best run, including rejected ones.
    converged : bool
        Whether the best run converged.
    starts : tuple of StartRecord
        Records of all starts.
    responsibilities : numpy.ndarray, shape (n_obs, n_components)
        Posterior probabilities of the components for each row.
    laplace : LaplaceApproximation
        Normal approximation at the maximum; see `covariance`.
    n_parameters : int
        Number of free parameters.
    n_obs : int
        Number of rows.
    n_units : float
        Number of groups or, without groups, the total weight of the rows.
    entropy : float
        Entropy of the responsibilities, summed over groups or rows.
    family, link : str
        Family of the response and its link; names of several are joined by commas if they differ.
    feature_names, gate_names : tuple of str
        Names of the columns and of the gating covariates.
    status : Status
        OK, NOT_CONVERGED, NOT_IDENTIFIED if parameters lie on a bound, are not determined, or
        components coincide, or NOT_EXPLORED if further starts are likely to find a better optimum.
    warnings : tuple of str
        What the status means and what to do.
    bounds : tuple of str
        Bounds on which parameters lie.
    gate_means : numpy.ndarray, shape (n_gate, n_components), or None
        Means of the gating covariates in each component, for a Gaussian gate.
    gate_covariances : numpy.ndarray, shape (n_components, n_gate, n_gate), or None
        Covariances of the gating covariates in each component, for a Gaussian gate.
    design : FormulaDesign or None
        Encoding of rows by the formula, for a fit by formula. Predictions then take a DataFrame
        with its variables, and read from it whatever is not passed separately.
    response_names : tuple of str
        Names of several responses, or of all classes but the first; empty for one response.
    classes : numpy.ndarray, shape (n_classes,), or None
        Sorted labels of a categorical response; the first is the reference.
    origin : str
        Start from which the best optimum was first reached.
    unseen_mass : UnseenMass or None
        Estimated probability that a further random start ends in an optimum not yet seen, or in a
        better one; None without random starts.
    log_posterior : float or None
        Log-likelihood plus the log prior density of the standardised parameters; None without
        priors. AIC, BIC and ICL use the log-likelihood.
    priors : str or None
        The priors of the standardised parameters, in words; None for maximum likelihood.
    """

    coefficients: FloatArray
    biases: FloatArray
    weights: FloatArray
    dispersion: FloatArray | None
    gate: FloatArray | None
    gate_biases: FloatArray | None
    gate_centre: FloatArray | None
    log_likelihood: float
    history: tuple[float, ...]
    n_iter: int
    converged: bool
    starts: tuple[StartRecord, ...]
    responsibilities: FloatArray
    laplace: LaplaceApproximation
    n_parameters: int
    n_obs: int
    n_units: float
    entropy: float
    family: str
    link: str
    feature_names: tuple[str, ...]
    gate_names: tuple[str, ...]
    status: Status
    warnings: tuple[str, ...]
    bounds: tuple[str, ...]
    gate_means: FloatArray | None = None
    gate_covariances: FloatArray | None = None
    design: FormulaDesign | None = None
    response_names: tuple[str, ...] = ()
    classes: NDArray[Any] | None = None
    origin: str = ""
    unseen_mass: UnseenMass | None = None
    log_posterior: float | None = None
    priors: str | None = None

    @property
    def objective(self) -> float:
        """What the fit maximised: the log-posterior, or without priors the log-likelihood."""
        return self.log_likelihood if self.log_posterior is None else self.log_posterior

    @property
    def n_components(self) -> int:
        """Number of components."""
        return int(self.weights.shape[0])

    @property
    def response_family(self) -> AnyFamily:
        """Family of all responses, with links."""
        n_classes = None if self.classes is None else len(self.classes)
        n_responses = max(1, len(self.response_names))
        return parse_family(self.family, self.link, n_classes, n_responses)

    @property
    def outcome_names(self) -> tuple[str, ...]:
        """Names of what `predict` returns: several responses, or all classes; else empty."""
        if self.classes is not None:
            return tuple(str(label) for label in self.classes)
        return self.response_names

    @property
    def scales(self) -> FloatArray:
        """Lengths s_j of the coefficients, in the shape of the biases."""
        return self.centred_parameters.scales

    @property
    def directions(self) -> FloatArray:
        """Unit directions u_j, in the shape of the coefficients; zero if the scale is zero."""
        return self.centred_parameters.directions

    @property
    def parameters(self) -> MixtureParameters:
        """Parameters in the user's units; with a gate, weights are at gating covariates zero."""
        weights = self.weights
        if self.gate_biases is not None:
            odds = np.exp(self.gate_biases - self.gate_biases.max())
            weights = np.maximum(odds / odds.sum(), _SMALLEST_WEIGHT)
        return MixtureParameters(
            self.coefficients, self.biases, weights, self.dispersion, self.gate
        )

    @property
    def centred_parameters(self) -> MixtureParameters:
        """Parameters for gating covariates from which `gate_centre` is subtracted."""
        return MixtureParameters(
            self.coefficients, self.biases, self.weights, self.dispersion, self.gate
        )

    @property
    def gaussian_gate(self) -> GaussianGate | None:
        """Densities of the gating covariates, for a Gaussian gate."""
        if self.gate_means is None or self.gate_covariances is None:
            return None
        return GaussianGate(self.gate_means, np.linalg.cholesky(self.gate_covariances))

    @property
    def aic(self) -> float:
        """Akaike's criterion, -2 log-likelihood + 2 n_parameters; smaller is better."""
        return -2.0 * self.log_likelihood + 2.0 * self.n_parameters

    @property
    def bic(self) -> float:
        """Bayesian criterion, -2 log-likelihood + n_parameters log(n_units); smaller is better."""
        return float(-2.0 * self.log_likelihood + self.n_parameters * np.log(self.n_units))

    @property
    def icl(self) -> float:
        """BIC + 2 entropy: prefers components that do not overlap; smaller is better."""
        return self.bic + 2.0 * self.entropy

    @property
    def covariance(self) -> FloatArray | None:
        """Covariance of the vector of parameters, (N, N), from the observed information.

        The order is that of `moment_init.likelihood.parameters`: component by component, in it
        response by response, coefficients, bias and log dispersion; then, for each component but
        the last, its logit (at gating covariates zero) and gate slopes. The parameters of a
        Gaussian gate follow in the order of `moment_init.likelihood.gate`. Entries are NaN where
        the information is singular, and zero for fixed parameters and those on a bound; None if
        nothing is determined.
        """
        return self.laplace.covariance

    @property
    def standard_errors(self) -> StandardErrors:
        """Standard errors from the observed information, by the delta method where needed.

        With priors the information is the curvature of the log-posterior.
        """
        gate = self.gaussian_gate
        if gate is not None:
            return gated_standard_errors(self.centred_parameters, gate, self.laplace)
        return standard_errors_of(self.centred_parameters, self.laplace, self.gate_centre)

    @property
    def share_of_best(self) -> float | None:
        """Share of the converged starts that reached the best objective within .01.

        A high share suggests that the optimum is global. None if fewer than two starts converged.
        """
        reached, converged = self.reached_best
        return reached / converged if converged > 1 else None

    @property
    def reached_best(self) -> tuple[int, int]:
        """Number of starts that converged to the best objective within .01, and to any."""
        return count_best(self.starts, self.objective)

    @property
    def starts_table(self) -> "pandas.DataFrame":
        """One row per start: origin, log_likelihood, n_iter, status, bounds, message.

        If some starts ran on a sample of the rows, the column `is_sampled` says which. With priors
        the column log_posterior is that by which starts are ranked.
        """
        return tabulate_starts(self.starts)

    @reads_design
    def predict(
        self,
        X: Any,
        *,
        offset: Any = None,
        n_trials: Any = None,
        gating: Any = None,
        kind: PredictionKind = "mean",
    ) -> Any:
        """Predict the mean responses of rows, or the probabilities of all classes.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs; the columns of a DataFrame are matched by name.
        offset : array-like, shape (n_obs,) or (n_obs, n_responses), optional
            Known part of the linear predictors; zero by default.
        n_trials : int or array-like, shape (n_obs,) or (n_obs, n_responses), optional
            Binomial trials; one by default.
        gating : array-like or DataFrame, shape (n_obs, n_gate), optional
            Gating covariates, for a fit with a gate.
        kind : {"mean", "components"}, default "mean"
            Mean of the mixture, or of each component.

        Returns
        -------
        numpy.ndarray, shape (n_obs,) or (n_obs, n_components)
            Mean responses; for the binomial family, probabilities times the number of trials. With
            several responses or classes, a last axis runs over `outcome_names`. Of a pandas
            DataFrame, a Series or DataFrame with its index, unless there are three axes.

        Raises
        ------
        ValueError
            For an unknown kind, wrong shapes or columns, or missing values.
        """
        given = {"offset": offset, "n_trials": n_trials, "gating": gating}
        return with_index_of(X, predicted_mean(self, X, **given, kind=kind), self.outcome_names)

    @reads_design
    def predict_membership(
        self,
        X: Any,
        y: Any = None,
        *,
        offset: Any = None,
        n_trials: Any = None,
        gating: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
    ) -> FloatArray:
        """Compute posterior probabilities of the components for rows with responses.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs; the columns of a DataFrame are matched by name.
        y : array-like or DataFrame, shape (n_obs,) or (n_obs, n_responses), optional
            Response, responses (matched by name if they have names) or labels of classes; a fit by
            formula reads them from the DataFrame of `X`.
        offset, n_trials, gating : array-like, optional
            As in the fit.
        groups : array-like, shape (n_obs,), optional
            Group labels. Rows of one group share their component.
        sample_weight : array-like, shape (n_obs,), optional
            Weight of each row within its group; it has no effect without groups.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_components)
            Probabilities that sum to one in each row.

        Raises
        ------
        ValueError
            For wrong shapes or columns, missing values, and impossible responses.
        """
        data = {"offset": offset, "n_trials": n_trials, "gating": gating, "groups": groups}
        return membership(self, X, y, **data, sample_weight=sample_weight)

    @reads_design
    def score(
        self,
        X: Any,
        y: Any = None,
        *,
        offset: Any = None,
        n_trials: Any = None,
        gating: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
    ) -> float:
        """Compute the mean log-likelihood of rows or groups; higher is better, as in scikit-learn.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs; the columns of a DataFrame are matched by name.
        y : array-like or DataFrame, shape (n_obs,) or (n_obs, n_responses), optional
            Response, as in `predict_membership`.
        offset, n_trials, gating, groups, sample_weight : array-like, optional
            As in the fit.

        Returns
        -------
        float
            Log-likelihood (joint with a Gaussian gate), divided by the number of groups or by the
            total weight of the rows.

        Raises
        ------
        ValueError
            For wrong shapes or columns, missing values, and impossible responses.
        """
        data = {"offset": offset, "n_trials": n_trials, "gating": gating, "groups": groups}
        rows, _ = rows_for(self, X, y, **data, sample_weight=sample_weight)
        values, weights = unit_scores(self, rows)
        return float(weights @ values / weights.sum())

    @reads_design
    def to_datatree(
        self,
        X: Any = None,
        y: Any = None,
        *,
        draws: int = 1000,
        random_seed: RandomSeed = None,
        offset: Any = None,
        n_trials: Any = None,
        gating: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
    ) -> "xarray.DataTree":
        """Convert to a DataTree for ArviZ, with draws from the Laplace approximation.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features), optional
            Inputs; with them the log-likelihood of every draw is computed.
        y : array-like or DataFrame, shape (n_obs,) or (n_obs, n_responses), optional
            Response, as in `predict_membership`.
        draws : int, default 1000
            Number of draws.
        random_seed : int, sequence of int, numpy.random.Generator or None
            Seed of the draws.
        offset, n_trials, gating, groups, sample_weight : array-like, optional
            As in the fit.

        Returns
        -------
        xarray.DataTree
            With the groups and variables that the guide lists under "Groups of a DataTree".

        Raises
        ------
        ValueError
            If only one of `X` and `y` is given, or `draws` is not positive.
        """
        data = {"offset": offset, "n_trials": n_trials, "gating": gating, "groups": groups}
        data["sample_weight"] = sample_weight
        return fit_to_datatree(self, X, y, draws=draws, random_seed=random_seed, data=data)

    def __repr__(self) -> str:
        """Table of parameters with standard errors, one column per component."""
        return fit_table(self).to_text()

    def _repr_html_(self) -> str:
        """Same table for a notebook."""
        return fit_table(self).to_html()
