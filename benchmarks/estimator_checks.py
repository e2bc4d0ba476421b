"""Count the scikit-learn checks that the estimators pass; none is expected to fail."""

import json
import os
import subprocess
import sys
from collections import Counter

from benchmarks.report import Benchmark, Figure, Options, Outcome, Row

__all__ = ["BENCHMARK", "run"]

ESTIMATORS = ("MixtureGLMRegressor", "MixtureGLMClassifier")

# The quick size fits one component from one start instead of searching.
QUICK_PARAMETERS = "1, init='random', n_starts=1"

TEMPLATE = """
import json, warnings
from sklearn.utils.estimator_checks import check_estimator
from moment_init import {name}
warnings.simplefilter("ignore")
results = check_estimator({name}({parameters}), on_skip=None, on_fail=None)
print(json.dumps([(result["check_name"], result["status"]) for result in results]))
"""


def run(options: Options) -> Outcome:
    """Run every check on both estimators."""
    parameters = QUICK_PARAMETERS if options.is_quick else ""
    by_name = {name: _checked(name, parameters) for name in ESTIMATORS}
    rows: tuple[Row, ...] = tuple(_row(name, checks) for name, checks in by_name.items())
    statuses = [status for checks in by_name.values() for _, status in checks]
    n_passed = statuses.count("passed")
    figure = Figure(
        "checks of scikit-learn passed by both estimators",
        n_passed,
        bar=f"all {len(statuses)}",
        is_met=n_passed == len(statuses),
    )
    return Outcome(rows, (figure,), {"parameters": parameters})


def _row(name: str, checks: list[tuple[str, str]]) -> Row:
    counts = Counter(status for _, status in checks)
    others = [check for check, status in checks if status != "passed"]
    return {
        "estimator": name,
        "passed": counts["passed"],
        "failed": counts["failed"] + counts["xfail"],
        "skipped": counts["skipped"],
        "not passed": ", ".join(others),
    }


def _checked(name: str, parameters: str) -> list[tuple[str, str]]:
    """Name and status of every check, run in a separate process.

    SciPy reads the variable when it is imported; without it a check of arrays is skipped.
    """
    result = subprocess.run(
        [sys.executable, "-c", TEMPLATE.format(name=name, parameters=parameters)],
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [(check, status) for check, status in json.loads(result.stdout)]


BENCHMARK = Benchmark("estimator_checks", "scikit-learn's checks of the estimators", run)
