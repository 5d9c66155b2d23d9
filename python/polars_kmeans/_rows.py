"""Rows of a frame as numbers, as given or as a fit sees them. Their sums have the same bits on every machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl
from polars.exceptions import DuplicateError

from polars_kmeans import _arrays, _frames, _internal, _plugin
from polars_kmeans.errors import InvalidColumnError, InvalidDataError, InvalidParameterError

# Values are scaled to 80 bits before they become integers. So a sum of 2^47 of them has less than 128 bits.
_BITS = 80


def query(
    data: object, columns: tuple[Any, ...], read: Iterable[object] = (), weight: object = None
) -> tuple[pl.LazyFrame, tuple[Any, ...]]:
    """Return data that a fit takes, as a query, and its feature columns: those of an array are all of its columns.

    `read`: all columns that will be read, as far as they are known.
    """
    columns = tuple(_plugin.flat(columns))
    if _arrays.is_array(data):
        _arrays.alone(data, columns, weight, "pl.from_numpy makes a frame of a NumPy array: add the weights to it")
        frame = _internal.array_frame(data)
        return frame.lazy(), tuple(frame.columns)
    return _frames.polars_frame(data, *read).lazy(), columns


def collect(query: pl.LazyFrame) -> pl.DataFrame:
    """Run a query on columns that the caller names."""
    try:
        return _frames.stored(_plugin.collect(query))
    except DuplicateError as error:
        msg = f"columns: expected different names, got one twice: {str(error).splitlines()[0]}"
        raise InvalidColumnError(msg) from None


def coordinates(columns: Mapping[str, pl.DataType], widths: Mapping[str, int]) -> dict[str, pl.Expr]:
    """Return one expression (Float64) for each number of a row, by name. Values of an Array column are `name[0]`, ...

    `widths` has the lengths of the lists in List columns.
    """
    numbers: dict[str, pl.Expr] = {}
    for name, dtype in columns.items():
        values = _plugin.column(name)
        width = dtype.size if isinstance(dtype, pl.Array) else widths.get(name)
        known = (dtype == pl.Null and width is None) or _frames.is_number(dtype, nested=True)
        if not known or (isinstance(dtype, pl.List) and width is None):
            msg = f'column "{name}": expected numbers or booleans, got {dtype}: encode or leave out such columns'
            raise InvalidColumnError(msg)
        if width is None:
            numbers[name] = values.cast(pl.Float64)
        else:
            entry = values.arr.get if isinstance(dtype, pl.Array) else values.list.get
            numbers |= {f"{name}[{at}]": entry(at).cast(pl.Float64) for at in range(width)}
    return numbers


def widths(centroids: pl.DataFrame, names: Iterable[str]) -> dict[str, int]:
    """Return the length of the lists in the feature columns of a frame that have these names, in the model's order."""
    features = centroids.dtypes[len(_frames.OWN_COLUMNS) :]
    return {name: dtype.size for name, dtype in zip(names, features, strict=False) if isinstance(dtype, pl.Array)}


def lengths(rows: pl.DataFrame, names: Iterable[str]) -> dict[str, int]:
    """Return the length of the lists in each List column of a frame that has these names. All lists must have it."""
    found = {}
    for name in names:
        if isinstance(rows.schema[name], pl.List):
            known = rows[name].list.len().drop_nulls().unique(maintain_order=True)
            if len(known):
                found[name] = known[0]
            if len(known) > 1:
                msg = f'every list of column "{name}": expected {known[0]} values, got {known[1]}'
                raise InvalidParameterError(msg)
    return found


def masses(rows: pl.DataFrame, *, weighted: bool) -> pl.Expr:
    """Return the weights of collected rows. Refuse weights that no fit takes."""
    if not weighted:
        return pl.lit(1.0)
    weights = rows[_plugin.WEIGHT]
    if not _frames.is_number(weights.dtype):
        raise InvalidColumnError(f"weight: expected numbers, got {weights.dtype}")
    if weights.dtype.is_numeric() and (weights < 0).any():
        raise InvalidDataError(f"weight: expected non-negative values, got {weights.min()!r}")
    return _plugin.column(_plugin.WEIGHT).cast(pl.Float64)


def counts(weight: pl.Expr) -> pl.Expr:
    """Whether rows of these weights count."""
    return weight.is_finite() & (weight > 0)


def numbered(count: int, letter: str = "x") -> list[str]:
    """Return names of numbered columns."""
    return [f"{letter}{at}" for at in range(count)]


def arrived(
    query: pl.LazyFrame, values: Sequence[pl.Expr], factors: Mapping[str, float] | None, metric: str, *rest: pl.Expr
) -> pl.LazyFrame:
    """Return the rows as a fit sees them, scaled and normalised, in columns `x0`, `x1`, ... after some others."""
    names = numbered(len(values))
    if factors is not None:
        values = [value * factor for value, factor in zip(values, factors.values(), strict=True)]
    query = query.select(*rest, *(value.alias(name) for value, name in zip(values, names, strict=True)))
    if metric == "cosine":
        query = query.with_columns(length=added(pl.col(name) ** 2 for name in names).sqrt())
        query = query.with_columns(pl.col(name) / pl.col("length") for name in names).drop("length")
    return query


def added(terms: Iterable[pl.Expr]) -> pl.Expr:
    """Add expressions two by two. `sum_horizontal` may add in any order."""
    sums = list(terms)
    while len(sums) > 1:
        rest = [] if len(sums) % 2 == 0 else [sums[-1]]
        sums = [one + other for one, other in zip(sums[0::2], sums[1::2], strict=False)] + rest
    return sums[0]


def totals(query: pl.LazyFrame, by: str, values: Mapping[str, pl.Expr]) -> pl.DataFrame:
    """Sum expressions over groups, as integers. So the sums do not depend on the order of the rows.

    The groups come in order. Each value is rounded to 2^-80 of the largest one of its group, or of twice that.
    """
    query = query.select(by, *(value.alias(name) for name, value in values.items()))
    largest = collect(query.group_by(by).agg(pl.col(*values).abs().max()).sort(by))
    # Powers of two do not round.
    scales = largest.select(
        by,
        *(pl.Series(f"scale_{name}", [_scale(value) for value in largest[name]], dtype=pl.Float64) for name in values),
    )
    sums = collect(
        query.join(scales.lazy(), on=by)
        .group_by(by)
        .agg(
            (pl.col(name) * pl.col(f"scale_{name}") * 2.0**_BITS).round().cast(pl.Int128).sum().cast(pl.Float64)
            for name in values
        )
        .sort(by)
    )
    return sums.select(by, *(sums[name] * 2.0**-_BITS / scales[f"scale_{name}"] for name in values))


def _scale(largest: float | None) -> float:
    """Return the power of two that brings a value below 1."""
    return math.ldexp(1.0, -max(math.frexp(largest or 0.0)[1], -1000))


def with_silhouette(answer: pl.Expr) -> pl.Expr:
    """Add a field to the structs of `KMeansModel.predict`. However many are used, rows are labelled once."""
    first, second = pl.field("distance"), pl.field("second_distance")
    # If the second distance is 0, so is the first.
    value = pl.when(second > 0).then((second - first) / second).when(second == 0).then(0.0)
    return answer.struct.with_fields(value.alias("silhouette"))
