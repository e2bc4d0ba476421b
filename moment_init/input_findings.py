"""What an estimate says of its input: assumptions that fail, columns that were set apart."""

from dataclasses import replace

from moment_init.column_kinds import describe_discrete_columns, name_discrete
from moment_init.problem import EstimationProblem
from moment_init.results import MomentEstimate, Status
from moment_init.scores.stein import SteinStatus

__all__ = ["with_input_findings"]


def with_input_findings(problem: EstimationProblem, result: MomentEstimate) -> MomentEstimate:
    """Add to an estimate what was found about its input.

    Parameters
    ----------
    problem : EstimationProblem
        Rows, densities and coordinates.
    result : MomentEstimate
        The estimate.

    Returns
    -------
    MomentEstimate
        With the choice of the density; with a warning where columns are discrete; and with status
        `INPUT_ASSUMPTION` where no density has the scores that moments need, or where moments alone
        rest on a density that fails Stein's identities.
    """
    warnings = list(result.warnings)
    status = result.status
    if problem.block is not None:
        discrete = name_discrete(problem.data.feature_names, problem.block.kinds)
        kept = problem.block.problem.data.feature_names
        warnings.append(
            f"Discrete columns have no score: {discrete}. Moments are those of the "
            f"continuous columns ({', '.join(kept)}) given them; the likelihood of all columns "
            "followed."
        )
    choice = problem.choice
    if choice is not None and result.method != "stacked":
        kinds = describe_discrete_columns(problem.data.X)
        discrete = name_discrete(problem.data.feature_names, kinds)
        if discrete:
            warnings.append(
                f"Discrete columns have no score, and the third moment takes them for continuous: "
                f"{discrete}. Use method='stacked', which sets them apart."
            )
            status = Status.INPUT_ASSUMPTION if status is Status.OK else status
    if choice is not None:
        check = choice.chosen.check
        # An edge that leaves all identities intact does no harm: clusters can look like one.
        has_failed = not all(identity.passed for identity in check.identities)
        is_alone = result.log_likelihood is None
        if has_failed and (is_alone or check.status is SteinStatus.BOUNDARY):
            warnings.append(f"Moments assume more of the input than holds: {check.message}")
            status = Status.INPUT_ASSUMPTION if status is Status.OK else status
    return replace(result, warnings=tuple(warnings), status=status, input_choice=choice)
