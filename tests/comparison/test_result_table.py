"""The table as text and as HTML: what is written, what is marked, what fits a line."""

from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from moment_init.comparison.result import (
    LINE_WIDTH,
    MEASURES,
    Comparison,
    MeasureRow,
    comparison_to_html,
    comparison_to_text,
    measure_rows,
)
from moment_init.comparison.scoring import COLUMNS
from tests.comparison.examples import make_example


class Reader(HTMLParser):
    """Collects rows of cells, and fails on tags that are not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "tr" in self.open:
            self.rows[-1][-1] += data


def row_of(comparison: Comparison, column: str) -> MeasureRow:
    """One row of the table."""
    return next(row for row in measure_rows(comparison) if row.column == column)


def with_column(column: str, values: list[float]) -> Comparison:
    """A comparison of four methods with other values in a column."""
    comparison = make_example()
    return replace(comparison, table=comparison.table.assign(**{column: values}))


def test_every_column_is_shown_and_explained() -> None:
    assert set(MEASURES) == set(COLUMNS)
    assert all(measure.meaning for measure in MEASURES.values())


@pytest.mark.parametrize("with_default_nuts", [False, True])
def test_text_fits_its_lines(with_default_nuts: bool) -> None:
    text = comparison_to_text(make_example(with_default_nuts=with_default_nuts))
    lines = text.splitlines()
    assert lines[0] == "Random starts are not enough: most end below the best optimum found."
    assert max(map(len, lines)) <= LINE_WIDTH
    assert lines[-1] == "- Warning: Pareto k exceeds 0.7 for <3> rows of random EM."


def test_text_has_a_column_a_method() -> None:
    lines = comparison_to_text(make_example()).splitlines()
    head = next(line for line in lines if "search NUTS" in line)
    assert head.split("  ")[-1].strip() == "best random EM"
    shares = next(line for line in lines if line.startswith("share at best optimum"))
    assert shares.split()[4:] == ["100", "%*", "100", "%*", "40", "%", "-"]
    rhat = next(line for line in lines if line.startswith("largest R-hat"))
    assert rhat.split()[-1] == "-"


def test_many_methods_take_several_tables() -> None:
    comparison = make_example()
    names = [f"a method with a long name, number {index}" for index in range(4)]
    table = comparison.table.set_axis(pd.Index(names, name="method"))
    text = comparison_to_text(replace(comparison, table=table))
    assert max(map(len, text.splitlines())) <= LINE_WIDTH
    assert text.count("log-likelihood") == 4 // 2
    assert all(name in text for name in names)


@pytest.mark.parametrize(
    ("column", "values", "best"),
    [
        ("log_likelihood", [-10.0, -10.004, -12.0, -10.0], {0, 1, 3}),
        ("log_likelihood", [-10.0, -10.0, -10.0, -10.001], set()),
        ("rhat_max", [1.2, np.nan, 1.001, 1.5], {2}),
        ("rhat_max", [1.2, np.nan, np.nan, np.nan], set()),
        ("seconds", [4.0, 1.0, 2.0, np.inf], {1}),
        ("elpd_held_out", [-100.0, -101.5, -104.5, -120.0], {0, 1}),
        ("n_starts", [1.0, 2.0, 3.0, 4.0], set()),
    ],
)
def test_best_values_are_marked(column: str, values: list[float], best: set[int]) -> None:
    comparison = with_column(column, values)
    names = [str(name) for name in comparison.table.index]
    assert row_of(comparison, column).best == {names[index] for index in best}


def with_scores(difference: list[float], errors: list[float], reliable: list[bool]) -> Comparison:
    """A comparison with other leave-one-out scores."""
    comparison = make_example()
    loo = pd.DataFrame(
        {"elpd_diff": difference, "dse": errors, "is_reliable": reliable},
        index=comparison.table.index,
    )
    table = comparison.table.assign(elpd_loo=-500 + np.array(difference))
    return replace(comparison, table=table, loo=loo)


def test_scores_within_noise_are_marked() -> None:
    """Of 0, -3, -30 and -30 with errors 0, 1, 20 and 5, only the last is clearly worse."""
    errors = [0.0, 1.0, 20.0, 5.0]
    found = row_of(with_scores([0.0, -3.0, -30.0, -30.0], errors, [True] * 4), "elpd_loo")
    assert found.best == {"search NUTS", "search EM", "random EM"}


def test_scores_that_are_not_reliable_are_never_marked() -> None:
    reliable = [True, False, True, False]
    comparison = with_scores([0.0, 50.0, -20.0, 50.0], [0.0, 1.0, 1.0, 1.0], reliable)
    assert row_of(comparison, "elpd_loo").best == {"search NUTS"}


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("log_likelihood", -12345.678, "-12,345.68"),
        ("share_at_best", 0.35, "35 %"),
        ("pareto_k_bad", 0.0123, "1.2 %"),
        ("rhat_max", 1.0049, "1.005"),
        ("ess_per_second", 0.0456, "0.0456"),
        ("ess_per_second", 12345.6, "12,346"),
        ("error", 0.00001234, "1.2e-05"),
        ("seconds", np.inf, "∞"),
        ("divergences", np.nan, ""),
    ],
)
def test_how_values_are_written(column: str, value: float, text: str) -> None:
    found = row_of(with_column(column, [value, 1.0, 1.0, 1.0]), column)
    assert found.cells["search NUTS"] == text


def test_what_no_method_has_is_left_out() -> None:
    columns = [row.column for row in measure_rows(make_example(with_truth=False))]
    assert "error" not in columns
    assert "error_angle" not in columns
    assert "elpd_loo" in columns


def test_a_column_of_another_kind_is_shown_by_its_name() -> None:
    comparison = with_column("something_else", [1.5, 2.5, 3.5, 4.5])
    assert "something_else" in comparison_to_text(comparison)


def test_html_of_a_notebook() -> None:
    comparison = make_example()
    html = comparison_to_html(comparison)
    rows = Reader(html).rows
    assert rows[0][1:] == list(comparison.table.index)
    assert ["share at best optimum", "100 % ★", "100 % ★", "40 %", "–"] in rows  # noqa: RUF001
    assert "&lt;reaches&gt; it &amp; stays" in html
    assert "<style" not in html
    assert html == comparison._repr_html_()


def test_repr_is_the_text() -> None:
    assert repr(make_example()) == comparison_to_text(make_example())
