"""The expressions: clustering in a Polars query."""

from __future__ import annotations

from typing import Literal, SupportsIndex

import polars as pl

from polars_kmeans import _plugin
from polars_kmeans._keywords import named
from polars_kmeans._options import FitOptions
from polars_kmeans._typing import Device, Init, IntoFeatures, Scale


@named
def kmeans(
    *columns: IntoFeatures,
    k: SupportsIndex,
    weight: str | pl.Expr | None = None,
    init: Init = "k-means++",
    n_init: SupportsIndex | Literal["auto"] = "auto",
    seed: SupportsIndex = 0,
    oversampling: float = 2.0,
    rounds: SupportsIndex = 5,
    chain_length: SupportsIndex = 200,
    init_sample: SupportsIndex | None = None,
    max_iter: SupportsIndex = 300,
    tol: float = 0.0001,
    tol_labels: float = 0.0,
    metric: Literal["euclidean", "cosine"] = "euclidean",
    scale: Scale = None,
    null_policy: Literal["raise", "skip"] = "raise",
    row_order: Literal["given", "values"] = "given",
    sort_by: str | None = None,
    history: Literal["light", "full"] = "light",
    device: Device = "auto",
    device_memory_limit: SupportsIndex | None = None,
    too_few: Literal["raise", "null", "fewer"] = "raise",
    output: Literal["label", "struct"] = "label",
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
    init
        The starting centroids. `"k-means++"` (greedy; Arthur & Vassilvitskii 2007), `"kmeans-parallel"` (Bahmani et al.
        2012), `"afk-mc2"` (Bachem et al. 2016) and `"random"` choose them. For one feature, `"optimal"` (Wang & Song
        2011) finds the clusters of least inertia. Or pass the centroids themselves: a frame or a model (columns matched
        by name), an array, or `k` rows of numbers.
    n_init
        The number of restarts. The result with the least inertia is kept. `"auto"`: 10 for random starts, else 1.
    seed
        The seed of every draw, from 0 to 2^64 - 1.
    oversampling
        For `init="kmeans-parallel"`: how many candidates a round draws on average, in multiples of `k`.
    rounds
        For `init="kmeans-parallel"`: the number of rounds, from 1 to 255.
    chain_length
        For `init="afk-mc2"`: the rows of a chain. Longer chains draw more like k-means++, and take longer.
    init_sample
        How many rows the starting centroids are chosen from. They are drawn without replacement, each row equally
        likely. None: all rows. Given centroids need no sample.
    max_iter
        The most iterations of one restart.
    tol
        Stop when the squared shift of the centroids is at most `tol` times the mean variance of the features (over rows
        of positive weight, unweighted). This is scikit-learn's rule. Outliers raise the variance: with values a million
        times farther out than the rest, a fit stops after one iteration. Remove such values, or use `tol=0`, which
        stops when no centroid moves.
    tol_labels
        Stop when at most this share of the rows changed cluster.
    metric
        `"euclidean"`, or `"cosine"`: rows and centroids are normalised to length 1, so only their directions count. A
        row of zeros has none and counts as null. Distances are then those between points on the unit sphere: `2 - 2
        cos(angle)`, squared.
    scale
        What the values of each column are multiplied by, so that columns of different units count alike. `"standard"`:
        1 over the standard deviation. `"robust"`: 1 over the distance between the quartiles, which outliers hardly
        change. Or a dict of factors by column; other columns keep their values. The model keeps the factors, so it
        takes raw columns and shows centroids in their units. Starting centroids are in these units too. Distances and
        inertia are those of scaled values.
    null_policy
        `"raise"` or `"skip"`. With `"skip"`, rows with nulls, NaNs or infinities are left out and get null labels (or
        null structs).
    row_order
        `"given"` or `"values"`. With `"values"`, the order of the rows does not matter: the same rows in another order
        give the same centroids, inertia and history, and each row gets the same label. For tables whose rows come in
        another order each time, as from SQL engines and shuffles. Seeding then draws among rows that are sorted by
        their values, feature by feature, after they are scaled and normalised. The fit sorts the rows once and works on
        a copy of them.
    sort_by
        `"size"` or the name of a feature: clusters are numbered in ascending order of their rows of positive weight, or
        of this feature of their centroids. Clusters with equal values keep their order. None: in the order in which
        seeding found them. The numbers are given at the end of the fit, and change nothing else. They are given by the
        sizes before: where a row is equally near to two centroids, the smaller number gets it, so sizes may be out of
        order by such rows. An entry of an Array column `e` is named `e[0]`, `e[1]`, ... A feature named size cannot be
        used here.
    history
        `"light"` or `"full"`: the history of a model also has the inertia of every iteration. It changes nothing in the
        result of an expression.
    device
        The device to run on. The result has the same bits on every device. `"auto"`: a GPU if one can be used and is
        predicted to be faster, else the CPU. `"cpu"`, `"cuda"` (the GPU with the most free memory) or `"cuda:1"`: this
        device, or an error. `"cuda:all"` or a list as `["cuda:0", "cuda:1"]`: the rows are shared between these GPUs.
        See `polars_kmeans.devices`. Rows that do not fit on the GPU stream through it in chunks.
    device_memory_limit
        How many bytes of the GPU's memory the fit may use. None: nine tenths of the free memory. Without effect on the
        CPU.
    too_few
        What to do if there are fewer distinct rows (of positive weight) than clusters: `"raise"`, `"null"` for null
        labels, or `"fewer"` for as many clusters as there are distinct rows. With `"fewer"`, these rows are then the
        centroids, in the order in which they first appear. With `metric="cosine"`, in the order in which they are
        drawn.
    output
        `"label"`, or `"struct"` with the distances to the nearest and to the second nearest centroid.

    Returns
    -------
    Expr
        A column named `kmeans`: `UInt32` labels, or `Struct(label, distance, second_distance)`. Without rows it is
        empty.

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
    >>> df.with_columns(pk.kmeans("x", "y", k=2).over("g"))["kmeans"].max()
    1
    >>> df.with_columns(pk.kmeans("x", "y", k=2, seed=1))["kmeans"].n_unique()
    2
    >>> df.select(pk.kmeans("x", "y", k=2, output="struct")).unnest("kmeans").columns
    ['label', 'distance', 'second_distance']

    """
    options = FitOptions(
        k=k,
        init=init,
        n_init=n_init,
        seed=seed,
        oversampling=oversampling,
        rounds=rounds,
        chain_length=chain_length,
        init_sample=init_sample,
        max_iter=max_iter,
        tol=tol,
        tol_labels=tol_labels,
        metric=metric,
        scale=scale,
        null_policy=null_policy,
        row_order=row_order,
        sort_by=sort_by,
        history=history,
        device=device,
        device_memory_limit=device_memory_limit,
        too_few=too_few,
        output=output,
    )
    return _plugin.expression("kmeans", _plugin.features(columns), options, weight).alias("kmeans")


@named
def centroids(
    *columns: IntoFeatures,
    k: SupportsIndex,
    weight: str | pl.Expr | None = None,
    init: Init = "k-means++",
    n_init: SupportsIndex | Literal["auto"] = "auto",
    seed: SupportsIndex = 0,
    oversampling: float = 2.0,
    rounds: SupportsIndex = 5,
    chain_length: SupportsIndex = 200,
    init_sample: SupportsIndex | None = None,
    max_iter: SupportsIndex = 300,
    tol: float = 0.0001,
    tol_labels: float = 0.0,
    metric: Literal["euclidean", "cosine"] = "euclidean",
    scale: Scale = None,
    null_policy: Literal["raise", "skip"] = "raise",
    row_order: Literal["given", "values"] = "given",
    sort_by: str | None = None,
    device: Device = "auto",
    device_memory_limit: SupportsIndex | None = None,
    too_few: Literal["raise", "null", "fewer"] = "raise",
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
    options = FitOptions(
        k=k,
        init=init,
        n_init=n_init,
        seed=seed,
        oversampling=oversampling,
        rounds=rounds,
        chain_length=chain_length,
        init_sample=init_sample,
        max_iter=max_iter,
        tol=tol,
        tol_labels=tol_labels,
        metric=metric,
        scale=scale,
        null_policy=null_policy,
        row_order=row_order,
        sort_by=sort_by,
        device=device,
        device_memory_limit=device_memory_limit,
        too_few=too_few,
    )
    return _plugin.expression("centroids", _plugin.features(columns), options, weight).alias("centroids")
