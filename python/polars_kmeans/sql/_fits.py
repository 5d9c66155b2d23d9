"""Fits of rows that a SQL engine passes on: a partition, a group, or a chunk of groups."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import polars as pl

from polars_kmeans import _numeric
from polars_kmeans._options import OPTIONS, FitOptions
from polars_kmeans.errors import InvalidColumnError, InvalidDataError, InvalidParameterError, typed_errors
from polars_kmeans.expressions import centroids, kmeans

_CENTROID = pl.Struct({"cluster": pl.UInt32, "size": pl.UInt64, "inertia": pl.Float64, "centroid": pl.List(pl.Float64)})
CENTROIDS = pl.List(_CENTROID)
"""What `kmeans_centroids` gives for a group."""
_NO_LABELS = pl.lit(pl.Series([[]], dtype=pl.List(pl.UInt32)))
_NO_CENTROIDS = pl.lit(pl.Series([[]], dtype=CENTROIDS))

# SQL itself gives k and the weights. The others cannot be chosen in SQL.
_NOT_IN_SQL = ("k", "weight", "row_order", "history", "extents", "output")
_OPTIONS = [name for name in OPTIONS if name not in _NOT_IN_SQL]
_ROWS, _WEIGHT = "features", "weight"


class Fits:
    """Fits with one set of options. SQL passes rows, `k` and weights."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        for name in options:
            if name not in _OPTIONS:
                raise InvalidParameterError(f"options: expected some of {', '.join(_OPTIONS)}, got {name!r}")
        for name, expected in (("init", "a method"), ("scale", '"standard", "robust" or None')):
            if not isinstance(options.get(name, ""), str | None):
                msg = f"{name}: expected {expected}, got {type(options[name]).__name__}: features have no names in SQL"
                raise InvalidParameterError(msg)
        self._given = options
        self._options: dict[str, Any] = {"null_policy": "skip", **options, "row_order": "values"}
        FitOptions(k=1, **self._options)

    def to_json(self) -> str:
        """Return the options as a text that an engine keeps."""
        # Numbers of NumPy and others become Python's.
        return json.dumps(self._given, default=_numeric.plain)

    def labels(self, rows: pl.Series, k: pl.Series, weights: pl.Series | None) -> pl.Series:
        """Label the rows of one partition: lists of features, the same `k` in each row, and weights."""
        frame, number = _partition(rows, k, weights)
        with typed_errors():
            return frame.select(kmeans(_ROWS, k=number, weight=_weight(weights), **self._options)).to_series()

    def centroids(self, rows: pl.Series, k: pl.Series, weights: pl.Series | None) -> pl.Series:
        """Return the centroids of one partition, as one value of type `CENTROIDS`."""
        frame, number = _partition(rows, k, weights)
        with typed_errors():
            found = frame.select(centroids(_ROWS, k=number, weight=_weight(weights), **self._options))
        return found.select(_as_centroids(pl.all())).to_series()

    def labels_of_groups(self, rows: pl.Series, k: pl.Series, weights: pl.Series | None) -> pl.Series:
        """Label the rows of many groups. Each value is a group: a list of its rows, its `k`, a list of its weights."""
        groups = _groups(rows, k, weights)
        found = []
        for number, long in _by_k(groups):
            expr = kmeans(_ROWS, k=number, weight=_weight(weights), **self._options)
            with typed_errors():
                labels = long.select("group", expr.over("group") if long["group"].n_unique() > 1 else expr)
            found.append(labels.group_by("group", maintain_order=True).agg(answer="cluster"))
        answers = _in_order(groups, found, pl.List(pl.UInt32))
        return answers.select(
            pl.when(pl.col("rows").is_not_null()).then(pl.col("answer").fill_null(_NO_LABELS))
        ).to_series()

    def centroids_of_groups(self, rows: pl.Series, k: pl.Series, weights: pl.Series | None) -> pl.Series:
        """Return the centroids of many groups, given as for `labels_of_groups`. Without rows, a list is empty."""
        groups = _groups(rows, k, weights)
        found = []
        for number, long in _by_k(groups):
            expr = centroids(_ROWS, k=number, weight=_weight(weights), **self._options)
            with typed_errors():
                answers = long.group_by("group").agg(answer=expr)
            found.append(answers.with_columns(_as_centroids(pl.col("answer"))))
        return _in_order(groups, found, CENTROIDS).select(pl.col("answer").fill_null(_NO_CENTROIDS)).to_series()


def _as_centroids(expr: pl.Expr) -> pl.Expr:
    """Give the centroids of groups the type `CENTROIDS`. A fit with too few rows has none."""
    fields = [field.name for field in _CENTROID.fields]
    return expr.list.eval(pl.element().struct.rename_fields(fields)).cast(CENTROIDS).fill_null(_NO_CENTROIDS)


def _weight(weights: pl.Series | None) -> str | None:
    return None if weights is None else _WEIGHT


def _check_k(k: pl.Series) -> None:
    """Refuse values that are not the number of clusters."""
    if not k.dtype.is_integer():
        raise InvalidParameterError(f"k: expected an integer, got {k.dtype}")
    if k.null_count() > 0:
        raise InvalidParameterError("k: expected an integer, got NULL")


def _partition(rows: pl.Series, k: pl.Series, weights: pl.Series | None) -> tuple[pl.DataFrame, int]:
    """Return rows and weights as a frame, and the one `k` that all rows have."""
    _check_k(k)
    numbers = k.unique()
    if len(numbers) != 1:
        raise InvalidParameterError(f"k: expected one number for all rows, got {len(numbers)} different ones")
    columns = [rows.alias(_ROWS)] if weights is None else [rows.alias(_ROWS), weights.alias(_WEIGHT)]
    return pl.DataFrame(columns), numbers.item()


def _lists(name: str, values: pl.Series, example: str) -> pl.Series:
    """Return lists, one per group. A NULL that stands in the query itself has no type."""
    if isinstance(values.dtype, pl.Array):
        return values.arr.to_list()
    if values.dtype in (pl.Null, pl.List(pl.Null)):
        return values.cast(pl.List(pl.Float64))
    if not isinstance(values.dtype, pl.List):
        raise InvalidColumnError(f"{name}: expected a list, as {example}, got {values.dtype}")
    return values


def _groups(rows: pl.Series, k: pl.Series, weights: pl.Series | None) -> pl.DataFrame:
    """Return a frame with one row per group: its number, the rows, `k` and the weights."""
    columns = [_lists("rows", rows, "list([x, y])").alias("rows"), k.alias("k")]
    if weights is not None:
        columns.append(_lists("weight", weights, "list(w)").alias("weight"))
    frame = pl.DataFrame(columns).with_row_index("group")
    used = frame.filter(pl.col("rows").is_not_null())
    _check_k(used["k"])
    if weights is not None:
        counts = used.select(rows=pl.col("rows").list.len(), weight=pl.col("weight").list.len())
        wrong = counts.filter(pl.col("rows").ne_missing(pl.col("weight")))
        if not wrong.is_empty():
            expected, got = wrong.row(0)
            msg = f"weight: expected one for each row of the list, got {got or 0} for {expected} rows"
            raise InvalidDataError(msg)
    return frame


def _by_k(groups: pl.DataFrame) -> list[tuple[int, pl.DataFrame]]:
    """Return the groups of each `k` in long form: each row has the number of its group."""
    lists = [name for name in ("rows", "weight") if name in groups.columns]
    parts = groups.filter(pl.col("rows").list.len() > 0).partition_by("k", maintain_order=True)
    return [(part["k"][0], part.explode(lists, empty_as_null=False).rename({"rows": _ROWS})) for part in parts]


def _in_order(groups: pl.DataFrame, found: list[pl.DataFrame], dtype: pl.DataType) -> pl.DataFrame:
    """Return the answers in the order of the groups. Groups without rows have null."""
    answers = pl.concat(found or [pl.DataFrame(schema={"group": groups.schema["group"], "answer": dtype})])
    return groups.select("group", "rows").join(answers, on="group", how="left", maintain_order="left")
