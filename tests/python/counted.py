"""A query that counts how often it runs."""

import polars as pl


def counted(frame: pl.DataFrame) -> tuple[pl.LazyFrame, list[int]]:
    """Return a query of the rows, and a list that gets their number each time it runs."""
    runs: list[int] = []

    def count(rows: pl.DataFrame) -> pl.DataFrame:
        runs.append(rows.height)
        return rows

    return frame.lazy().map_batches(count), runs
