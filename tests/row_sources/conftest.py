"""Limits below which rows are read whole, lowered: small tables then take the way of large ones."""

import pytest

pytest.importorskip("dask.array")


@pytest.fixture
def nothing_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """No table is small enough to be read whole."""
    monkeypatch.setattr("moment_init.row_sources.checking.MOST_READ_WHOLE", 0)
    monkeypatch.setattr("moment_init.row_sources.checking.SAMPLE_ROWS", 0)


@pytest.fixture
def little_held(monkeypatch: pytest.MonkeyPatch, nothing_whole: None) -> None:
    """Nor are more than samples of rows held."""
    for module in ("columns", "posing", "em_rows"):
        monkeypatch.setattr(f"moment_init.row_sources.{module}.MOST_HELD", 2**16)
