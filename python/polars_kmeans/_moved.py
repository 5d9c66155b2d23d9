"""Who moved between two models."""

from __future__ import annotations

import polars as pl

from polars_kmeans import _frames, _plugin, _rows
from polars_kmeans._typing import IntoArray, IntoFeatures, IntoFrame
from polars_kmeans.errors import InvalidParameterError
from polars_kmeans.model import KMeansModel


def moved(
    data: pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray,
    old: KMeansModel,
    new: KMeansModel,
    *columns: IntoFeatures,
    weight: str | pl.Expr | None = None,
) -> pl.DataFrame:
    """Count the rows that have each pair of an old and a new label.

    Numbers mean the same in both models if the new one was fitted with `sort_by=old`.

    Parameters
    ----------
    data
        A frame or an array, as in :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`. The query of a LazyFrame runs once.
    old, new
        Two models.
    *columns
        The features of both, in the order of both models. By default, each model takes the columns that it was fitted
        to.
    weight
        Non-negative row weights: a column or an expression. Rows of weight 0, and those whose weight is null, NaN or
        infinite, are left out.

    Returns
    -------
    DataFrame
        One row for each pair that occurs: `before` and `after` (UInt32; null for rows with nulls, NaNs or infinities),
        and `size` (UInt64: rows), sorted. With weights, also `weight` (Float64): the weight of these rows.

    Raises
    ------
    KMeansError
        For what is no model, and for columns or weights that cannot be used: see :mod:`polars_kmeans.errors`.

    Warns
    -----
    WeightWarning
        Once for each model of a fit with weights, if there is no `weight`.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> old = pk.KMeansModel.from_centroids([[0.0], [5.0]], ["x"])
    >>> new = pk.KMeansModel.from_centroids([[0.0], [9.0]], ["x"])
    >>> pk.moved(pl.DataFrame({"x": [0.0, 4.0, 9.0]}), old, new).rows()
    [(0, 0, 1), (1, 0, 1), (1, 1, 1)]

    """
    for name, model in (("old", old), ("new", new)):
        if not isinstance(model, KMeansModel):
            raise InvalidParameterError(f"{name}: expected a KMeansModel, got {_frames.type_name(model)}")
        model._weigh(weight)
    query, columns = old._query(data, columns, (*new._asked(columns), weight), weight)
    rows = query.select(*_plugin.weights(weight), before=old.predict(*columns), after=new.predict(*columns))
    if weight is not None:
        known = _rows.collect(rows)
        rows = (
            known.lazy().with_columns(weight=_rows.masses(known, weighted=True)).filter(_rows.counts(pl.col("weight")))
        )
    pair = ["before", "after"]
    counts = rows.group_by(pair).agg(size=pl.len().cast(pl.UInt64))
    found = _plugin.collect(counts.sort(pair, nulls_last=True))
    if weight is None:
        return found
    numbers = found.lazy().select(pair).with_row_index("pair")
    sums = _rows.totals(rows.join(numbers, on=pair, nulls_equal=True), "pair", {"weight": pl.col("weight")})
    return found.with_columns(sums["weight"])
