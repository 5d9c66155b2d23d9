"""Models over time: tables of sums, and what has changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from polars_kmeans import _frames, _numeric, _rows
from polars_kmeans.errors import InvalidParameterError

_MARK = "fingerprint"


def table(sums: Any, what: str) -> pl.DataFrame:
    """Return tables of sums as one frame: a frame of them, or one that has them in a column of lists of structs."""
    frame = sums.to_frame() if isinstance(sums, pl.Series) else _frames.collected(sums)
    if _MARK in frame.columns:
        return frame
    nested = [
        name
        for name, dtype in frame.schema.items()
        if isinstance(dtype, pl.List)
        and isinstance(dtype.inner, pl.Struct)
        and _MARK in {field.name for field in dtype.inner.fields}
    ]
    if len(nested) != 1:
        msg = f"{what}: expected a table of model.sums, or a frame with one column of them, got columns {frame.columns}"
        raise InvalidParameterError(f"{msg:.300}")
    return frame.select(pl.col(nested[0]).drop_nulls().explode(empty_as_null=False)).unnest(nested[0])


def extents(values: Any, names: list[str]) -> list[float] | None:
    """Return the largest magnitude of each feature."""
    if values is None:
        return None
    try:
        given = [values[n] for n in names] if isinstance(values, Mapping) else values
        return [_numeric.number("extents", value) for value in given]
    except (KeyError, TypeError, ValueError):
        msg = f"extents: expected a number for each of {names!r:.80}, by name or in order, got {values!r:.80}"
        raise InvalidParameterError(msg) from None


def check_features(values: Mapping[Any, Any], names: list[str]) -> None:
    """Refuse numbers of other features."""
    for name in values:
        if name not in names:
            raise InvalidParameterError(f"extents: expected features of the model, {names!r:.80}, got {name!r:.80}")


def key(name: str, value: Any) -> str | None:
    """Return the key of a batch."""
    # Half of a surrogate pair is no text.
    if value is None or (isinstance(value, str) and not any("\ud800" <= sign <= "\udfff" for sign in value)):
        return value
    raise InvalidParameterError(f"{name}: expected a text, as in {name}='2026-11-28', got {value!r:.80}")


def drift(then: pl.DataFrame, answers: pl.DataFrame, *, weighted: bool) -> pl.DataFrame:
    """Compare the clusters of a fit with those of later rows.

    `then`: their `size`, `inertia`, `mass` (what shares are of) and `weight` (what the inertia is of). `answers`:
    clusters, distances and, if the rows are `weighted`, weights.
    """
    w, square = pl.col("mass"), pl.col("mass") * pl.col("distance") ** 2
    counted = answers.with_columns(mass=_rows.masses(answers, weighted=weighted))
    counted = counted.filter(pl.col("cluster").is_not_null(), _rows.counts(w))
    now = _rows.totals(counted.lazy(), "cluster", {"size": pl.lit(1.0), "mass": w, "square": square})
    both = then.join(now, on="cluster", how="left", suffix="_now", maintain_order="left")
    size, rows = pl.col("mass"), pl.col("size").cast(pl.Float64)
    later, rows_now = pl.col("mass_now").fill_null(0.0), pl.col("size_now").fill_null(0.0)

    def share(sizes: pl.Expr, rows: pl.Expr) -> pl.Expr:
        # Half a row stands for none, so that the logarithm is finite.
        half = 0.5 * (sizes.sum() / rows.sum())
        return pl.when(sizes.sum() > 0).then(pl.max_horizontal(sizes, half) / sizes.sum())

    def root(squares: pl.Expr, sizes: pl.Expr) -> pl.Expr:
        return pl.when(sizes > 0).then((squares / sizes).sqrt())

    return both.select(
        "cluster",
        share_then=share(size, rows),
        share_now=share(later, rows_now),
        distance_then=root(pl.col("inertia"), pl.col("weight")),
        distance_now=root(pl.col("square"), later),
    ).with_columns(
        stability_index=(pl.col("share_now") - pl.col("share_then"))
        * (pl.col("share_now") / pl.col("share_then")).log()
    )
