"""Measures of clusters for several numbers of clusters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import polars as pl

from polars_kmeans import _numeric, _plugin, _warned
from polars_kmeans.errors import InvalidParameterError, NoClearKWarning, TooFewRowsWarning
from polars_kmeans.estimator import KMeans
from polars_kmeans.model import KMeansModel

if TYPE_CHECKING:
    from polars_kmeans._typing import IntoArray, IntoFeatures, IntoFrame

_SCHEMA = {
    "k": pl.UInt32,
    "smallest": pl.UInt64,
    "inertia": pl.Float64,
    "silhouette": pl.Float64,
    "calinski_harabasz": pl.Float64,
    "davies_bouldin": pl.Float64,
    "bic": pl.Float64,
    "border": pl.Float64,
    "seconds": pl.Float64,
}
# No k is clear if a larger share of the rows lies near borders for each.
_CLEAR = 0.05


def choose_k(
    data: pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray,
    *columns: IntoFeatures,
    k: Iterable[int] = range(2, 11),
    **options: Any,
) -> pl.DataFrame:
    """Fit several numbers of clusters, and measure the clusters of each fit.

    Each fit is that of :class:`polars_kmeans.KMeans` with the same parameters, bit for bit. All numbers except the
    seconds have the same bits on every device, for every number of threads and every chunking of the columns.

    Parameters
    ----------
    data
        A frame or an array, as in :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`. The query of a LazyFrame runs once. An
        array is copied.
    *columns
        The features: column names, expressions or selectors, as in :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`.
    k
        The numbers of clusters.
    **options
        The other parameters of :class:`polars_kmeans.KMeans`. `init` must be a method, because starting centroids
        belong to one `k`. Here the default of `too_few` is `"null"`, with a warning: a `k` that is larger than the
        number of distinct rows has a row of nulls, and the other `k` have their measures. Pass `"null"` to get no
        warning, or `"raise"` to get an error.

    Returns
    -------
    DataFrame
        One row per `k`. Distances are those of the fit: between scaled and normalised rows, if the fit scales or
        normalises.

        - `k` (UInt32).
        - `smallest` (UInt64): the rows of the smallest cluster. A cluster of a few rows may be one of outliers.
        - `inertia` (Float64): falls with every `k`, so it cannot choose one.
        - `silhouette` (Float64): the mean of :meth:`KMeansModel.silhouette <polars_kmeans.KMeansModel.silhouette>`,
          from 0 to 1. High is good. (Hruschka, de Castro & Campello 2004)
        - `calinski_harabasz` (Float64): the variance between clusters over that within them. High is good. The same as
          scikit-learn's `calinski_harabasz_score`. (Caliński & Harabasz 1974)
        - `davies_bouldin` (Float64): how far clusters reach, divided by how far they are apart, for the worst neighbour
          of each cluster. Low is good. The same as scikit-learn's `davies_bouldin_score`. (Davies & Bouldin 1979)
        - `bic` (Float64): the Bayesian information criterion of round clusters that are equally wide. Low is good.
          Null with `metric="cosine"`: directions are not such clusters. (Schwarz 1978; Pelleg & Moore 2000)
        - `border` (Float64): the share of the rows that lie near a border between clusters: on the line from the middle
          of their two nearest centroids to the nearest one, less than a quarter of the way. Clusters that are far apart
          leave borders empty. Evenly spread rows have about 0.125 or more. No k is clear if every `border` is above
          0.05, and then there is a warning.
        - `seconds` (Float64): the time of the fit and of its measures. The time for the rows, which all `k` share, is
          not in it.

        Silhouette, Calinski-Harabasz, Davies-Bouldin and border compare clusters, so they are null for `k=1`. A row of
        weight 2 counts as two rows, but not in `smallest`.

    Warns
    -----
    NoClearKWarning
        If no `k` is clear, by the rule of `border`. The message has the rule.
    TooFewRowsWarning
        If a `k` is larger than the number of distinct rows, unless `too_few` is given.
    ConvergenceWarning
        As in :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`.

    Raises
    ------
    InvalidParameterError
        At once, for a parameter outside its domain.
    KMeansError
        For values or columns that cannot be clustered, or a device that cannot be used. See
        :mod:`polars_kmeans.errors`.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"x": [0.0, 1.0, 2.0, 10.0, 11.0, 12.0, 20.0, 21.0, 22.0]})
    >>> found = pk.choose_k(df, "x", k=range(2, 5))
    >>> found.select("k", pl.col("silhouette", "calinski_harabasz", "davies_bouldin").round(2))
    shape: (3, 4)
    ┌─────┬────────────┬───────────────────┬────────────────┐
    │ k   ┆ silhouette ┆ calinski_harabasz ┆ davies_bouldin │
    │ --- ┆ ---        ┆ ---               ┆ ---            │
    │ u32 ┆ f64        ┆ f64               ┆ f64            │
    ╞═════╪════════════╪═══════════════════╪════════════════╡
    │ 2   ┆ 0.73       ┆ 20.19             ┆ 0.38           │
    │ 3   ┆ 0.93       ┆ 300.0             ┆ 0.13           │
    │ 4   ┆ 0.87       ┆ 222.78            ┆ 0.23           │
    └─────┴────────────┴───────────────────┴────────────────┘

    """
    # These modules are imported here, because most programs that import the package never call this function.
    from polars_kmeans import _measures, _rows

    counts = _counts(k)
    if not isinstance(options.get("init", ""), str):
        raise InvalidParameterError("init: expected a method, got starting centroids: they belong to one k")
    warns, options = "too_few" not in options, {"too_few": "null", **options}
    weight = options.get("weight")
    weights = _plugin.weights(weight)
    if weights:
        options = {**options, "weight": _plugin.WEIGHT}
    # Refuse bad parameters before the first fit.
    estimators = [KMeans(count, **options) for count in counts]
    query, columns = _rows.query(data, columns, (*columns, weight), weight)
    features = _plugin.features(columns)
    rows = _rows.collect(query.select(*features.exprs, *weights))
    names = [name for name in rows.columns if not weights or name != _plugin.WEIGHT]
    found: list[dict[str, Any]] = []
    # One call, so that the rows are checked, and sent to a GPU, once.
    fits = _plugin.fit_each(rows, _plugin.features((names,)), estimators[0]._options, options.get("weight"), counts)
    for count, estimator, fit in zip(counts, estimators, fits, strict=True):
        if fit is None:
            found.append({"k": count})
            continue
        start, model = perf_counter(), KMeansModel._of_fit(*fit)
        estimator._warn([model])
        measures = _measures.measures(model, rows, names, options.get("device", "auto"))
        seconds = sum((model.seconds or {}).values()) + perf_counter() - start
        found.append({"k": count, "inertia": model.inertia, **measures, "seconds": seconds})
    none = [str(count) for count, fit in zip(counts, fits, strict=True) if fit is None]
    if none and warns:
        msg = f"k = {', '.join(none)}: there are fewer distinct rows than clusters, so the measures are null"
        _warned.warn(msg, TooFewRowsWarning)
    table = pl.DataFrame(found, schema=_SCHEMA)
    least = table["border"].min()
    if least is not None and cast("float", least) > _CLEAR:
        msg = f"no clear k: for every k, more than {_CLEAR:.0%} of the rows lie near a border between clusters"
        msg += ", less than a quarter of the way from it to their centroid (column border)"
        _warned.warn(msg, NoClearKWarning)
    return table


def _counts(k: Iterable[int]) -> list[int]:
    """Return the numbers of clusters. Their domain is checked where they are used."""
    expected = "k: expected numbers of clusters, such as range(2, 11)"
    try:
        if isinstance(k, str):
            raise TypeError
        counts = [_numeric.integer("k", count, least=-math.inf, most=math.inf) for count in k]
    except TypeError:
        raise InvalidParameterError(f"{expected}, got {k!r:.80}") from None
    if not counts:
        raise InvalidParameterError(f"{expected}, got none")
    return counts
