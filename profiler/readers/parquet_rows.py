"""Rows of a public profile."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from profiler.errors import ProfileUnusable
from profiler.latency import Floats


def read_rows(file: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Raises ProfileUnusable: the file cannot be read, or has not these columns."""
    if not file.exists():
        raise ProfileUnusable(path=str(file), reason="no such file", remedy="give a readable parquet file")
    try:
        rows = pd.read_parquet(file)
    except (OSError, ValueError) as error:
        raise ProfileUnusable(path=str(file), reason=str(error), remedy="give a readable parquet file") from error
    missing = [column for column in columns if column not in rows.columns]
    if missing:
        reason = f"has no column {missing[0]!r}"
        raise ProfileUnusable(path=str(file), reason=reason, remedy=f"give a file with {', '.join(columns)}")
    return rows


def require(rows: pd.DataFrame, known: pd.DataFrame, file: Path, wanted: str) -> pd.DataFrame:
    """Raises ProfileUnusable: there are no `rows`; the message lists what the file has, from the columns of `known`."""
    if rows.empty:
        has = known.drop_duplicates().astype(str).agg(" ".join, axis=1)
        reason = f"holds nothing of {wanted}"
        raise ProfileUnusable(path=str(file), reason=reason, remedy=f"it has: {'; '.join(has)}")
    return rows


def column(rows: pd.DataFrame, name: str) -> Floats:
    return rows[name].to_numpy(dtype="float64")
