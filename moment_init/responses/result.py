"""What `fit_em` returns for several responses, or for a response of several classes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moment_init.arguments import RandomSeed
from moment_init.data import validate_sample_weight
from moment_init.em.start_records import StartRecord, count_best, tabulate_starts
from moment_init.formulas import FormulaDesign, reads_design
from moment_init.responses.datatree import fit_to_datatree
from moment_init.responses.display import fit_table
from moment_init.responses.kinds import ResponseKind
from moment_init.responses.parameters import JointParameters, Layout
from moment_init.responses.prediction import matched_inputs, rows_of
from moment_init.responses.sums import predictors, row_posterior
from moment_init.results import Status

if TYPE_CHECKING:
    import pandas
    import xarray

__all__ = ["JointErrors", "JointFit"]

FloatArray = NDArray[np.float64]


class JointErrors(NamedTuple):
    """Standard errors; NaN where the information says nothing, zero on a bound.

    Parameters
    ----------
    coefficients : numpy.ndarray, shape (n_features, n_components, n_predictors)
        Of the coefficients.
    biases : numpy.ndarray, shape (n_components, n_predictors)
        Of the biases.
    weights : numpy.ndarray, shape (n_components,)
        Of the weights.
    dispersion : numpy.ndarray, shape (n_components, n_predictors), or None
        Of the dispersion.
    """

    coefficients: FloatArray
    biases: FloatArray
    weights: FloatArray
    dispersion: FloatArray | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class JointFit:
    """Maximum-likelihood fit of a mixture whose rows have several linear predictors.

    Components come by decreasing weight; all responses of a row share theirs. A predictor belongs
    to a response, or to a class of a categorical response other than the first, the reference.

    Parameters
    ----------
    coefficients : numpy.ndarray, shape (n_features, n_components, n_predictors)
        Coefficients of the user's columns.
    biases : numpy.ndarray, shape (n_components, n_predictors)
        Intercepts.
    weights : numpy.ndarray, shape (n_components,)
        Probabilities of the components.
    dispersion : numpy.ndarray, shape (n_components, n_predictors), or None
        Dispersion; NaN for responses of a family without one.
    log_likelihood : float
        Log-likelihood of all responses in the user's units, with all constants.
    history : tuple of float
        Log-likelihood after every step of the winning run; it never falls.
    n_iter : int
        Steps of the winning run.
    converged : bool
        Whether it converged.
    starts : tuple of StartRecord
        Every start.
    responsibilities : numpy.ndarray, shape (n_obs, n_components)
        Posterior probabilities of the components.
    covariance : numpy.ndarray, shape (n_parameters, n_parameters), or None
        Covariance of the vector of parameters (`moment_init.responses.parameters`) from the
        observed information; zero for what lies on a bound, None if the information is singular.
    n_parameters : int
        Number of free parameters.
    n_obs : int
        Number of rows.
    n_units : float
        Total weight of the rows.
    entropy : float
        Entropy of the responsibilities.
    kind : ResponseKind
        Families and names of the responses.
    feature_names : tuple of str
        Names of the columns.
    status : Status
        How far the fit can be trusted.
    warnings : tuple of str
        What the status means and what to do.
    bounds : tuple of str
        Bounds on which parameters lie.
    design : FormulaDesign or None
        What encodes new rows, for a fit by formula.
    """

    coefficients: FloatArray
    biases: FloatArray
    weights: FloatArray
    dispersion: FloatArray | None
    log_likelihood: float
    history: tuple[float, ...]
    n_iter: int
    converged: bool
    starts: tuple[StartRecord, ...]
    responsibilities: FloatArray
    covariance: FloatArray | None
    n_parameters: int
    n_obs: int
    n_units: float
    entropy: float
    kind: ResponseKind
    feature_names: tuple[str, ...]
    status: Status
    warnings: tuple[str, ...]
    bounds: tuple[str, ...]
    design: FormulaDesign | None = None

    @property
    def n_components(self) -> int:
        """Number of components."""
        return int(self.weights.shape[0])

    @property
    def family(self) -> str:
        """Family of the responses; names joined by commas where they differ."""
        return self.kind.name

    @property
    def link(self) -> str:
        """Link of the responses; names joined by commas where they differ."""
        return self.kind.link_name

    @property
    def response_names(self) -> tuple[str, ...]:
        """Names of the predictors: the responses, or the classes other than the reference."""
        return self.kind.names

    @property
    def outcome_names(self) -> tuple[str, ...]:
        """Names of what `predict` returns: the responses, or all classes."""
        return self.kind.outcome_names

    @property
    def parameters(self) -> JointParameters:
        """Parameters of the user's columns."""
        return JointParameters(self.coefficients, self.biases, self.weights, self.dispersion)

    @property
    def layout(self) -> Layout:
        """Places of the parameters in their vector."""
        return Layout(len(self.feature_names), self.n_components, self.kind.has_dispersion)

    @property
    def scales(self) -> FloatArray:
        """Lengths of the coefficients, shape (n_components, n_predictors)."""
        return self.parameters.scales

    @property
    def directions(self) -> FloatArray:
        """Unit directions, shape (n_features, n_components, n_predictors)."""
        return self.parameters.directions

    @property
    def aic(self) -> float:
        """Akaike's criterion; smaller is better."""
        return -2.0 * self.log_likelihood + 2.0 * self.n_parameters

    @property
    def bic(self) -> float:
        """Bayesian criterion with the number of rows; smaller is better."""
        return float(-2.0 * self.log_likelihood + self.n_parameters * np.log(self.n_units))

    @property
    def icl(self) -> float:
        """BIC + 2 entropy; smaller is better."""
        return self.bic + 2.0 * self.entropy

    @property
    def standard_errors(self) -> JointErrors:
        """Standard errors from the observed information, by the delta method where needed."""
        layout = self.layout
        if self.covariance is None:
            errors = np.full(layout.size, np.nan)
            weights = np.full(self.n_components, np.nan)
        else:
            errors = np.sqrt(np.maximum(np.diag(self.covariance), 0.0))
            slopes = (np.diag(self.weights) - np.outer(self.weights, self.weights))[:, :-1]
            logits = self.covariance[layout.logits, layout.logits]
            weights = np.sqrt(np.maximum(np.diag(slopes @ logits @ slopes.T), 0.0))
        coefficients, biases, relative = layout.entries(errors)
        dispersion = None if self.dispersion is None else self.dispersion * relative
        return JointErrors(coefficients, biases, weights, dispersion)

    @property
    def share_of_best(self) -> float | None:
        """Share of the converged starts that reached the best log-likelihood within .01."""
        reached, converged = self.reached_best
        return reached / converged if converged > 1 else None

    @property
    def reached_best(self) -> tuple[int, int]:
        """How many starts converged to the best log-likelihood, and how many at all."""
        return count_best(self.starts, self.log_likelihood)

    @property
    def starts_table(self) -> "pandas.DataFrame":
        """A row a start: origin, log_likelihood, n_iter, status, bounds, message."""
        return tabulate_starts(self.starts)

    @reads_design
    def predict(
        self,
        X: Any,
        *,
        offset: Any = None,
        n_trials: Any = None,
        kind: Literal["mean", "components"] = "mean",
    ) -> FloatArray:
        """Mean responses of rows, or probabilities of all classes.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs; the columns of a DataFrame are matched by name.
        offset : array-like, shape (n_obs,) or (n_obs, n_responses), optional
            Known part of the linear predictors.
        n_trials : int or array-like, shape (n_obs,) or (n_obs, n_responses), optional
            Trials of binomial responses, one by default; others have none.
        kind : {"mean", "components"}, default "mean"
            Mean of the mixture, or of every component.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_outcomes) or (n_obs, n_components, n_outcomes)
            Means, in the order of `outcome_names`.

        Raises
        ------
        ValueError
            For an unknown kind, wrong shapes or columns, missing values, and trials where no
            response is binomial.
        """
        if kind not in ("mean", "components"):
            raise ValueError(f"`kind` must be 'mean' or 'components'; got {kind!r}.")
        rows = matched_inputs(self, X, offset=offset, n_trials=n_trials)
        means = self.kind.mean(predictors(rows, self.parameters))  # (M, r, n)
        if rows.n_trials is not None:  # one where a response has none
            means = means * rows.n_trials[:, None, :]
        if kind == "components":
            return np.ascontiguousarray(means.transpose(2, 1, 0))
        return np.asarray(np.einsum("mjn,j->nm", means, self.weights))

    @reads_design
    def predict_membership(
        self, X: Any, y: Any = None, *, offset: Any = None, n_trials: Any = None
    ) -> FloatArray:
        """Posterior probabilities of the components given rows and all their responses.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        y : array-like or DataFrame, shape (n_obs, n_responses), or labels, optional
            Responses; the columns of a DataFrame are matched by name. A fit by formula reads them
            from X.
        offset, n_trials : array-like, optional
            As in the fit.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_components)
            Probabilities; every row sums to one.

        Raises
        ------
        ValueError
            For wrong shapes or columns, missing values, and impossible responses.
        """
        rows = rows_of(self, X, y, offset=offset, n_trials=n_trials)
        _, shares, _ = row_posterior(self.kind, rows, self.parameters)
        return np.ascontiguousarray(shares.T)

    @reads_design
    def log_densities(
        self, X: Any, y: Any = None, *, offset: Any = None, n_trials: Any = None
    ) -> FloatArray:
        """Log density of all responses of every row.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        y : array-like or DataFrame, shape (n_obs, n_responses), or labels, optional
            Responses; as in `predict_membership`.
        offset, n_trials : array-like, optional
            As in the fit.

        Returns
        -------
        numpy.ndarray, shape (n_obs,)
            Log densities, with all constants.
        """
        rows = rows_of(self, X, y, offset=offset, n_trials=n_trials)
        density, _, _ = row_posterior(self.kind, rows, self.parameters)
        return np.asarray(density + self.kind.log_base_measure(rows.y, rows.n_trials))

    @reads_design
    def score(
        self,
        X: Any,
        y: Any = None,
        *,
        offset: Any = None,
        n_trials: Any = None,
        sample_weight: Any = None,
    ) -> float:
        """Mean log-likelihood of rows; higher is better.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        y : array-like or DataFrame, shape (n_obs, n_responses), or labels, optional
            Responses; as in `predict_membership`.
        offset, n_trials, sample_weight : array-like, optional
            As in the fit.

        Returns
        -------
        float
            Log-likelihood over the total weight of the rows.

        Raises
        ------
        ValueError
            As `log_densities`, and for weights of a wrong shape, negative or all zero.
        """
        values = self.log_densities(X, y, offset=offset, n_trials=n_trials)
        weights = validate_sample_weight(sample_weight, len(values))
        return float(np.average(values, weights=weights))

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
    ) -> "xarray.DataTree":
        """Convert to a DataTree that ArviZ reads, with draws of the Laplace approximation.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features), optional
            Inputs, for the log-likelihood of every draw.
        y : array-like or DataFrame, shape (n_obs, n_responses), or labels, optional
            Responses.
        draws : int, default 1000
            Number of draws.
        random_seed : int, sequence of int, numpy.random.Generator or None
            Seed of the draws.
        offset, n_trials : array-like, optional
            As in the fit.

        Returns
        -------
        xarray.DataTree
            See `moment_init.responses.datatree` for its groups and variables.

        Raises
        ------
        ValueError
            If only one of `X` and `y` is given, or `draws` is not positive.
        """
        return fit_to_datatree(
            self, X, y, draws=draws, random_seed=random_seed, offset=offset, n_trials=n_trials
        )

    def __repr__(self) -> str:
        """Tables of the parameters with standard errors, one for each response."""
        return fit_table(self).to_text()

    def _repr_html_(self) -> str:
        """Same tables for a notebook."""
        return fit_table(self).to_html()
