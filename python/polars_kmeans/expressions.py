"""Expressions: clustering as a column."""

from __future__ import annotations

from typing import Literal

import polars as pl

from polars_kmeans import _plugin
from polars_kmeans._typing import Device, History, Init, IntoFeatures, NullPolicy, Output, TooFew


def kmeans(
    *columns: IntoFeatures,
    k: int,
    init: Init = "k-means++",
    n_init: int | Literal["auto"] = "auto",
    max_iter: int = 300,
    tol: float = 1e-4,
    tol_labels: float = 0.0,
    seed: int = 0,
    weight: str | pl.Expr | None = None,
    null_policy: NullPolicy = "raise",
    too_few: TooFew = "raise",
    history: History = "light",
    device: Device = "auto",
    device_memory_limit: int | None = None,
    output: Output = "label",
) -> pl.Expr:
    """Cluster rows into `k` clusters by Lloyd's algorithm.

    Labels are exact (the nearest centroid by float64 distances, the smallest index on ties) and the result has the same
    bits whatever the number of threads, the chunking of the columns, the engine or the device.

    Parameters
    ----------
    *columns
        The features: column names, expressions or selectors of numbers or booleans, or one Array or List column of
        them, every row of one width. A name is taken as it is; patterns are for `pl.col` and selectors.
    k
        The number of clusters.
    init
        How starting centroids are found: `"k-means++"` (greedy; Arthur & Vassilvitskii 2007), `"random"`, or the
        centroids themselves: a frame or a model (columns matched by name), or an array or `k` rows of numbers.
    n_init
        Restarts; the one of least inertia wins. `"auto"`: 1, but 10 for random starts.
    max_iter
        At most so many iterations.
    tol
        Stop when the squared shift of the centroids is at most this times the mean variance of the features (over rows
        of positive weight, unweighted, as in scikit-learn).
    tol_labels
        Stop when at most this share of the rows changed cluster.
    seed
        The seed of every draw, from 0 to 2^64 - 1.
    weight
        Non-negative row weights: a column or an expression.
    null_policy
        `"raise"`, or `"skip"`: rows with nulls, NaNs or infinities take no part and get null labels (null structs).
    too_few
        What to do with fewer distinct rows (of positive weight) than clusters: `"raise"`, or `"null"` for null labels.
    history
        `"light"` or `"full"`; of no consequence in an expression.
    device
        Where it runs; the bits of the result are the same everywhere. `"auto"`: a GPU where one can be used and it is
        predicted to pay, else the CPU. `"cpu"`, `"cuda"` (the GPU with the most free memory) or
        `"cuda:1"`: there, or an error. See :func:`polars_kmeans.devices`. Rows that do not fit on the GPU stream
        through it in chunks.
    device_memory_limit
        Bytes of the GPU's memory that the fit may take; None: nine tenths of what is free. No matter on the CPU.
    output
        `"label"`, or `"struct"` with the distances to the nearest and to the second nearest centroid.

    Returns
    -------
    Expr
        A column named `kmeans`: `UInt32` labels, or `Struct(label, distance, second_distance)`. No rows give no labels.

    Raises
    ------
    InvalidParameterError
        At once, for a parameter outside its domain.
    polars.exceptions.ComputeError
        When the query runs, for columns or values that cannot be clustered or a device that cannot be used: see
        :mod:`polars_kmeans.errors`.

    Examples
    --------
    One fit over all rows, or one a group:

    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"x": [0.0, 0.1, 5.0, 5.1], "y": [1.0, 1.1, 9.0, 9.1], "g": [0, 0, 1, 1]})
    >>> df.with_columns(pk.kmeans("x", "y", k=2).over("g"))["kmeans"].max()
    1
    >>> df.with_columns(pk.kmeans("x", "y", k=2, seed=1))["kmeans"].n_unique()
    2
    >>> df.select(pk.kmeans("x", "y", k=2, output="struct")).unnest("kmeans").columns
    ['label', 'distance', 'second_distance']

    """
    options = _plugin.FitOptions(
        k, init, n_init, max_iter, tol, tol_labels, seed, null_policy, too_few, history, device, device_memory_limit
    )
    return _plugin.fit("kmeans", _plugin.features(columns), options, weight, output).alias("kmeans")


def centroids(
    *columns: IntoFeatures,
    k: int,
    init: Init = "k-means++",
    n_init: int | Literal["auto"] = "auto",
    max_iter: int = 300,
    tol: float = 1e-4,
    tol_labels: float = 0.0,
    seed: int = 0,
    weight: str | pl.Expr | None = None,
    null_policy: NullPolicy = "raise",
    too_few: TooFew = "raise",
    device: Device = "auto",
    device_memory_limit: int | None = None,
) -> pl.Expr:
    """Cluster rows into `k` clusters and return their centroids: an aggregation, one value a group.

    The parameters are those of :func:`polars_kmeans.kmeans`.

    Returns
    -------
    Expr
        A column named `centroids`: a `List(Struct)` of `k` structs with the fields `cluster` (UInt32), `size` (UInt64:
        rows of positive weight), `inertia` (Float64), then one a feature in the features' float type, or the one Array
        (List) column. Null where there are no rows, as other aggregates, and, with `too_few="null"`, where there are
        fewer distinct rows than clusters.

    Raises
    ------
    InvalidParameterError
        At once, for a parameter outside its domain.
    polars.exceptions.ComputeError
        When the query runs, for columns or values that cannot be clustered or a device that cannot be used: see
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
    options = _plugin.FitOptions(
        k, init, n_init, max_iter, tol, tol_labels, seed, null_policy, too_few, "light", device, device_memory_limit
    )
    return _plugin.fit("centroids", _plugin.features(columns), options, weight).alias("centroids")
