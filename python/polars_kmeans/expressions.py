"""Expressions: clustering as a column."""

from __future__ import annotations

from typing import Literal

import polars as pl

from polars_kmeans import _plugin
from polars_kmeans._typing import History, Init, IntoFeatures, NullPolicy, Output, TooFew


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
    output: Output = "label",
) -> pl.Expr:
    """Cluster rows into `k` clusters by Lloyd's algorithm.

    Labels are exact (the nearest centroid by float64 distances, the smallest index on ties) and the result has the same
    bits whatever the number of threads, the chunking of the columns or the engine.

    Parameters
    ----------
    *columns
        The features: column names, expressions or selectors. Numeric or boolean.
    k
        The number of clusters.
    init
        How starting centroids are found: `"k-means++"` (greedy; Arthur & Vassilvitskii 2007), `"random"`, or the
        centroids themselves: a frame (its columns matched by name) or `k` rows of numbers.
    n_init
        Restarts; the one of least inertia wins. `"auto"`: 1, but 10 for random starts.
    max_iter
        At most so many iterations.
    tol
        Stop when the squared shift of the centroids is at most this times the mean variance of the features.
    tol_labels
        Stop when at most this share of the rows changed cluster.
    seed
        The seed of every draw, from 0 to 2^64 - 1.
    weight
        Non-negative row weights: a column or an expression.
    null_policy
        `"raise"`, or `"skip"`: rows with nulls, NaNs or infinities take no part and get null labels.
    too_few
        What to do with fewer distinct rows than clusters: `"raise"`, or `"null"` for null labels.
    history
        `"light"` or `"full"`; of no consequence in an expression.
    output
        `"label"`, or `"struct"` with the distances to the nearest and to the second nearest centroid.

    Returns
    -------
    Expr
        A column named `kmeans`: `UInt32` labels, or `Struct(label, distance, second_distance)`.

    Raises
    ------
    polars.exceptions.ComputeError
        When the query runs, for parameters or values that cannot be clustered.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"x": [0.0, 0.1, 5.0, 5.1], "y": [1.0, 1.1, 9.0, 9.1]})
    >>> df.with_columns(pk.kmeans("x", "y", k=2, seed=1))["kmeans"].n_unique()
    2
    >>> df.select(pk.kmeans("x", "y", k=2, output="struct")).unnest("kmeans").columns
    ['label', 'distance', 'second_distance']

    """
    options = _plugin.FitOptions(k, init, n_init, max_iter, tol, tol_labels, seed, null_policy, too_few, history)
    return _plugin.fit("kmeans", _plugin.features(columns), options, weight, output).alias("kmeans")
