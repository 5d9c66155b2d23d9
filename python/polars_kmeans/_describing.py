"""What a model says of its clusters: methods of `KMeansModel`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import polars as pl

from polars_kmeans import _arrays
from polars_kmeans._typing import Device, IntoFeatures
from polars_kmeans.errors import InvalidParameterError

if TYPE_CHECKING:
    from polars_kmeans.model import KMeansModel


def silhouette(self: KMeansModel, *columns: IntoFeatures, device: Device = "auto") -> pl.Expr:
    """Say how clearly each row belongs to its cluster: the simplified silhouette, as an expression.

    It is `(second - first) / second`, from the distances to the nearest and to the second nearest centroid. 1 is a row
    on its centroid. 0 is a row halfway between two. The expression is elementwise, so it can stream, and it labels the
    rows once. Rousseeuw's silhouette needs the distances between all rows. The simplified one (Hruschka, de Castro &
    Campello 2004) needs only the distances to the centroids.

    Parameters
    ----------
    *columns
        The features, in the model's order. By default, the columns that the model was fitted to, as in
        :meth:`predict`.
    device
        As in :meth:`predict`.

    Returns
    -------
    Expr
        A column named `silhouette` (Float64), from 0 to 1. Distances are those of the model, which scales and
        normalises rows as the fit did. A row that lies on two centroids has 0. Rows with nulls, NaNs or infinities are
        null. All rows are null if the model has one cluster.

    Raises
    ------
    InvalidParameterError
        At once, for an array in place of columns, or for a text that is not the name of a device.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"x": [0.0, 2.0, 5.0]})
    >>> model = pk.KMeans(k=2, init=[[0.0], [5.0]]).fit(df, "x")
    >>> df.select(model.silhouette().round(3)).to_series().to_list()
    [0.8, 0.667, 1.0]

    """
    if _arrays.in_place_of(columns) is not None:
        msg = 'columns: expected names or expressions, got an array: predict(array, output="struct") has distances'
        raise InvalidParameterError(msg)
    answer = self.predict(*columns, output="struct", device=device)
    return with_silhouette(answer).struct.field("silhouette")


def profile(
    self: KMeansModel,
    data: pl.DataFrame | pl.LazyFrame,
    *columns: IntoFeatures,
    by: IntoFeatures | None = None,
    weight: str | pl.Expr | None = None,
    quantiles: Sequence[float] = (0.25, 0.5, 0.75),
) -> pl.DataFrame:
    """Describe the clusters by columns of a frame: how large they are, and what sets them apart.

    Means and standard deviations have the same bits for every number of threads, chunking and Polars engine.

    Parameters
    ----------
    data
        A frame. The query of a LazyFrame runs once. The columns that are used are held in memory.
    *columns
        The features, in the model's order. By default, the columns that the model was fitted to, as in
        :meth:`predict`.
    by
        The columns that describe the clusters: names, expressions or selectors of numbers or booleans. They need
        not be features. By default, the features. An Array column `e` is described as `e[0]`, `e[1]`, ...
    weight
        Non-negative row weights: a column or an expression. A row of weight 2 counts as two rows, except in `size`.
    quantiles
        Which quantiles to show, from 0 to 1.

    Returns
    -------
    DataFrame
        One row for each cluster and column, in order. Values are in the units of the columns.

        - `cluster` (UInt32), `size` (UInt64: rows of positive weight), `share` (Float64: of the weight of all rows
          that have a cluster).
        - `feature` (String): the column that the rest of the row describes.
        - `mean`, `std` (Float64; of the population, not of a sample).
        - `25%`, `50%`, `75%`, or what is asked for (Float64): the smallest value that has at least this share of
          the rows at or below it.
        - `overall_mean`, `overall_std` (Float64): those of all rows that have a cluster.
        - `difference` (Float64): `(mean - overall_mean) / overall_std`. How many standard deviations the mean of
          the cluster is away from that of all rows. Null if all rows have one value.
        - `rank` (UInt32): 1 is the feature that sets the cluster apart the most. It has the largest absolute
          difference.

        Rows without a cluster, and rows whose weight is null, NaN or infinite, are left out. So are nulls, NaNs and
        infinities in the columns of `by`. A cluster without rows has nulls.

    Raises
    ------
    KMeansError
        For columns or weights that cannot be used: see :mod:`polars_kmeans.errors`.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"age": [20, 30, 70, 80], "sons": [1, 0, 1, 2]})
    >>> model = pk.KMeans(k=2, init=[[25, 0], [75, 1]], scale="standard").fit(df, "age", "sons")
    >>> found = model.profile(df, quantiles=[0.5])
    >>> found.select("cluster", "size", "feature", "mean", "50%", pl.col("difference").round(2), "rank")
    shape: (4, 7)
    ┌─────────┬──────┬─────────┬──────┬──────┬────────────┬──────┐
    │ cluster ┆ size ┆ feature ┆ mean ┆ 50%  ┆ difference ┆ rank │
    │ ---     ┆ ---  ┆ ---     ┆ ---  ┆ ---  ┆ ---        ┆ ---  │
    │ u32     ┆ u64  ┆ str     ┆ f64  ┆ f64  ┆ f64        ┆ u32  │
    ╞═════════╪══════╪═════════╪══════╪══════╪════════════╪══════╡
    │ 0       ┆ 2    ┆ age     ┆ 25.0 ┆ 20.0 ┆ -0.98      ┆ 1    │
    │ 0       ┆ 2    ┆ sons    ┆ 0.5  ┆ 0.0  ┆ -0.71      ┆ 2    │
    │ 1       ┆ 2    ┆ age     ┆ 75.0 ┆ 70.0 ┆ 0.98       ┆ 1    │
    │ 1       ┆ 2    ┆ sons    ┆ 1.5  ┆ 1.0  ┆ 0.71       ┆ 2    │
    └─────────┴──────┴─────────┴──────┴──────┴────────────┴──────┘

    """
    from polars_kmeans import _profile

    return _profile.profile(self, data, columns, by, weight, quantiles)


def nearest(self: KMeansModel, data: pl.DataFrame | pl.LazyFrame, m: int, *columns: IntoFeatures) -> pl.DataFrame:
    """Find the `m` rows nearest each centroid: typical rows, which show what a cluster holds.

    Parameters
    ----------
    data
        A frame. The query of a LazyFrame runs once, in batches, so its rows need not fit into memory.
    m
        How many rows to find for each cluster.
    *columns
        The features, in the model's order. By default, the columns that the model was fitted to, as in
        :meth:`predict`.

    Returns
    -------
    DataFrame
        Rows of the frame, with all their columns, sorted by cluster and distance. Rows that are equally far keep their
        order. The first columns are `cluster` (UInt32), `rank` (UInt32, from 1) and `distance` (Float64). A cluster of
        fewer than `m` rows has all of them.

    Raises
    ------
    KMeansError
        For columns that cannot be used, an `m` below 1, or a frame that has a column named `cluster`, `rank` or
        `distance`.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"name": ["ant", "bee", "cat", "dog"], "kilos": [0.0, 0.1, 4.0, 20.0]})
    >>> model = pk.KMeans(k=2, init=[[0.0], [20.0]]).fit(df, "kilos")
    >>> model.nearest(df, 2)["name"].to_list()
    ['bee', 'ant', 'dog']

    """
    from polars_kmeans import _nearest

    return _nearest.nearest(self, data, m, columns)


def with_silhouette(answer: pl.Expr) -> pl.Expr:
    """Add a field to the structs of `KMeansModel.predict`. However many are used, rows are labelled once."""
    first, second = pl.field("distance"), pl.field("second_distance")
    # If the second distance is 0, so is the first.
    value = pl.when(second > 0).then((second - first) / second).when(second == 0).then(0.0)
    return answer.struct.with_fields(value.alias("silhouette"))
