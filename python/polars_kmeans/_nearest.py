"""The rows nearest the centroids of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import SupportsIndex

import polars as pl

from polars_kmeans import _numeric, _plugin, _rows
from polars_kmeans.errors import InvalidColumnError, typed_errors

_BATCH = 1 << 18
_FOUND = {"cluster": pl.UInt32, "rank": pl.UInt32, "distance": pl.Float64}


def nearest(query: pl.LazyFrame, answer: pl.Expr, m: SupportsIndex) -> pl.DataFrame:
    """Find the rows nearest each centroid: see :meth:`KMeansModel.nearest`. `answer`: labels with distances."""
    m = _numeric.integer("m", m)
    none = pl.DataFrame(schema=query.collect_schema())
    if "rank" in none.columns:
        raise _taken("rank", "")
    ahead = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in _FOUND.items()]
    best = none.select(*ahead, pl.exclude(*_FOUND))
    for batch in _batches(query):
        found = _rows.collect(batch.lazy().select(answer)).to_series().struct.unnest()
        batch = _without_answers(batch, found)
        candidates = (
            found.lazy()
            .with_row_index("row")
            .filter(pl.col("cluster").is_not_null())
            .sort("distance", "row")
            .group_by("cluster", maintain_order=True)
            .head(m)
            .collect()
        )
        rows = batch[candidates["row"]]
        rank = pl.lit(None, dtype=pl.UInt32).alias("rank")
        news = candidates.select("cluster", rank, "distance")
        # Rows of earlier batches come first, and the sort keeps the order of rows that are equally far.
        best = (
            pl.concat([best, news.hstack(rows)])
            .sort("cluster", "distance", maintain_order=True)
            .group_by("cluster", maintain_order=True)
            .head(m)
        )
    return best.with_columns(pl.int_range(1, pl.len() + 1, dtype=pl.UInt32).over("cluster").alias("rank"))


def _without_answers(batch: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """Leave out columns that have the names of answers, and hold them: those of `label` and of `predict`."""
    for name in ("cluster", "distance"):
        if name in batch.columns:
            own = batch[name]
            if not own.dtype.is_numeric() or not own.eq_missing(found[name]).all():
                raise _taken(name, " and other values")
            batch = batch.drop(name)
    return batch


def _taken(name: str, why: str) -> InvalidColumnError:
    msg = f'column "{name}": the answer has a column of this name{why}: rename or drop the one of the frame'
    return InvalidColumnError(msg)


def _batches(query: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    """Return the rows of a query in order, some at a time. The query runs once."""
    _plugin.check_process(runs=True)
    with typed_errors():
        yield from query.collect_batches(chunk_size=_BATCH, maintain_order=True)
