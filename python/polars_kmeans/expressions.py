"""The expressions: clustering in a Polars query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, SupportsIndex

import polars as pl

from polars_kmeans import _plugin
from polars_kmeans._generated import LabelOptions, Options
from polars_kmeans._keywords import takes
from polars_kmeans._options import FitOptions
from polars_kmeans._typing import IntoFeatures

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes(LabelOptions)
def kmeans(
    *columns: IntoFeatures,
    k: SupportsIndex,
    weight: str | pl.Expr | None = None,
    **options: Unpack[LabelOptions],
) -> pl.Expr:
    """Cluster rows into `k` clusters by Lloyd's algorithm.

    Labels are exact: each row gets the index of its nearest centroid by float64 distances, and the smallest index on
    ties. The result has the same bits for every number of threads, chunking of the columns, Polars engine and device.

    Parameters
    ----------
    *columns
        The features: column names, expressions or selectors of numbers or booleans, or one Array or List column of such
        values with rows of one width. A name stands for the column of exactly that name. For patterns, use `pl.col` or
        a selector.
    k
        The number of clusters.
    weight
        Non-negative row weights: a column or an expression.
    **options
        `init`, `seed`, `max_iter`, `scale`, `null_policy`, `too_few`, `output`, `device` and others.

    Returns
    -------
    Expr
        A column named `cluster`: `UInt32` labels, or `Struct(cluster, distance, second_distance)`. Without rows it is
        empty. If the frame has a column of this name, `with_columns` replaces that column: `.alias` gives another name.

    Raises
    ------
    InvalidParameterError
        At once, for a parameter outside its domain.
    polars.exceptions.ComputeError
        When the query runs: for columns or values that cannot be clustered, or a device that cannot be used. See
        :mod:`polars_kmeans.errors`.

    Examples
    --------
    One fit over all rows, or one fit per group:

    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"x": [0.0, 0.1, 5.0, 5.1], "y": [1.0, 1.1, 9.0, 9.1], "g": [0, 0, 1, 1]})
    >>> df.with_columns(pk.kmeans("x", "y", k=2).over("g"))["cluster"].max()
    1
    >>> df.with_columns(pk.kmeans("x", "y", k=2, seed=1))["cluster"].n_unique()
    2
    >>> df.select(pk.kmeans("x", "y", k=2, output="struct")).unnest("cluster").columns
    ['cluster', 'distance', 'second_distance']

    """
    fit = FitOptions(k=k, **options)
    return _plugin.expression("kmeans", _plugin.features(columns), fit, weight).alias("cluster")


@takes(Options)
def centroids(
    *columns: IntoFeatures,
    k: SupportsIndex,
    weight: str | pl.Expr | None = None,
    too_few: Literal["raise", "null", "fewer"] = "raise",
    **options: Unpack[Options],
) -> pl.Expr:
    """Cluster rows into `k` clusters and return their centroids: an aggregation with one value per group.

    The parameters are those of :func:`polars_kmeans.kmeans`.

    Returns
    -------
    Expr
        A column named `centroids`: a `List(Struct)` of `k` structs. The fields are `cluster` (UInt32), `size` (UInt64:
        rows of positive weight), `inertia` (Float64), then one per feature in the features' float type, or the one
        Array (List) column. Null if there are no rows, as for other aggregations. With `too_few="null"`, also null if
        there are fewer distinct rows than clusters.

    Raises
    ------
    InvalidParameterError
        At once, for a parameter outside its domain.
    polars.exceptions.ComputeError
        When the query runs: for columns or values that cannot be clustered, or a device that cannot be used. See
        :mod:`polars_kmeans.errors`.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"shop": ["a", "a", "a", "b", "b"], "x": [0.0, 0.2, 5.0, 7.0, 1.0]})
    >>> per_shop = df.group_by("shop").agg(pk.centroids("x", k=2))
    >>> per_shop.explode("centroids").unnest("centroids").sort("shop", "x").select("shop", "size", "x")
    shape: (4, 3)
    ┌──────┬──────┬─────┐
    │ shop ┆ size ┆ x   │
    │ ---  ┆ ---  ┆ --- │
    │ str  ┆ u64  ┆ f64 │
    ╞══════╪══════╪═════╡
    │ a    ┆ 2    ┆ 0.1 │
    │ a    ┆ 1    ┆ 5.0 │
    │ b    ┆ 1    ┆ 1.0 │
    │ b    ┆ 1    ┆ 7.0 │
    └──────┴──────┴─────┘

    """
    fit = FitOptions(k=k, **options, too_few=too_few)
    return _plugin.expression("centroids", _plugin.features(columns), fit, weight).alias("centroids")
