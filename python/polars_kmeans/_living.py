"""Models over time: tables of sums, what has changed, and models as expressions of other engines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import polars as pl

from polars_kmeans import _frames, _numeric, _plugin, _rows
from polars_kmeans.errors import InvalidColumnError, InvalidParameterError

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
    if value is None or isinstance(value, str):
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


class Formula:
    """What a label is computed from."""

    def __init__(self, model: Any) -> None:
        features = model.centroids.drop(_frames.OWN_COLUMNS)
        if features.dtypes[0].is_nested():
            msg = f"expected a model of columns of numbers, got one of the Array column {features.columns[0]!r}"
            raise InvalidColumnError(f"model: {msg}: fit it to its fields")
        self.float32 = features.dtypes[0] == pl.Float32
        self.names = features.columns
        self.cosine = model.parameters["metric"] == "cosine"
        self.factors = None if model.factors is None else list(model.factors.values())
        # As the model compares them: with scaled rows.
        self.centroids: Sequence[Sequence[float]] = model._compared()

    def polars(self) -> pl.Expr:
        """Return the label as an expression of plain Polars."""
        x = [_plugin.column(name).cast(pl.Float64) for name in self.names]
        known = pl.all_horizontal(value.is_not_null() & value.is_finite() for value in x)
        if self.factors is not None:
            x = [self._rounded(value * pl.lit(factor)) for value, factor in zip(x, self.factors, strict=True)]
        if self.cosine:
            length = _chain([value * value for value in x]).sqrt()
            known = known & (length > 0)
            x = [self._rounded(value / length) for value in x]
        distances = [
            _chain([(v - pl.lit(c)) * (v - pl.lit(c)) for v, c in zip(x, row, strict=True)]) for row in self.centroids
        ]
        least = pl.concat_list(distances).list.arg_min()
        return pl.when(known).then(least.cast(pl.UInt32)).alias("cluster")

    def _rounded(self, value: pl.Expr) -> pl.Expr:
        return value.cast(pl.Float32).cast(pl.Float64) if self.float32 else value

    def duckdb(self) -> str:
        """Return the label as an expression of DuckDB."""
        x = ['"' + name.replace('"', '""') + '"::DOUBLE' for name in self.names]
        known = " AND ".join(f"isfinite({value})" for value in x)
        cast = "::FLOAT::DOUBLE" if self.float32 else ""
        if self.factors is not None:
            x = [f"({v} * {_number(factor)}){cast}" for v, factor in zip(x, self.factors, strict=True)]
        if self.cosine:
            length = "sqrt(" + " + ".join(f"{v} * {v}" for v in x) + ")"
            known += f" AND {length} > 0"
            x = [f"({v} / {length}){cast}" for v in x]
        rows = []
        for row in self.centroids:
            differences = [f"({v} - {_number(c)})" for v, c in zip(x, row, strict=True)]
            rows.append(" + ".join(f"{t} * {t}" for t in differences))
        distances = "[" + ", ".join(rows) + "]"
        return f"CASE WHEN {known} THEN (list_position({distances}, list_min({distances})) - 1)::UINTEGER END"


def _number(value: float) -> str:
    """Return a number that DuckDB reads as this float64."""
    return f"({value!r}::DOUBLE)" if math.copysign(1.0, value) < 0 else f"{value!r}::DOUBLE"


def _chain(terms: list[pl.Expr]) -> pl.Expr:
    """Add up from the left."""
    return reduce(add, terms)
