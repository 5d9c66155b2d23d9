"""How many rows keep their cluster when the rows of the fit are drawn again."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Any, SupportsIndex

import polars as pl

from polars_kmeans import _internal, _numeric, _plugin, _rows
from polars_kmeans.errors import InvalidParameterError
from polars_kmeans.estimator import KMeans

if TYPE_CHECKING:
    from polars_kmeans._typing import IntoArray, IntoFeatures, IntoFrame

_MOST = 10_000


def stability(
    data: pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray,
    *columns: IntoFeatures,
    k: SupportsIndex,
    resamples: int = 20,
    **options: Any,
) -> pl.DataFrame:
    """Fit resamples of the rows, and measure how many rows keep the cluster that they have in the fit of all rows.

    A resample has as many rows as the frame, drawn with replacement (a bootstrap). The model of each resample labels
    all rows. Its clusters are matched with those of the fit of all rows: see :meth:`KMeansModel.match
    <polars_kmeans.KMeansModel.match>`. All numbers have the same bits on every machine, for rows in the same order.

    Parameters
    ----------
    data, *columns
        As in :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`. The query of a LazyFrame runs once. An array is copied.
    k
        The number of clusters, at most 4,096.
    resamples
        How many resamples to fit, from 1 to 10,000. Each takes the time of a fit.
    **options
        The other parameters of :class:`polars_kmeans.KMeans`. `seed` is that of each fit and of the resamples. A row of
        weight 2 counts as two rows, except in `size`, and is drawn as often as another row.

    Returns
    -------
    DataFrame
        One row for each cluster of the fit of all rows, in order: `cluster` (UInt32), `size` (UInt64: rows of positive
        weight), `kept` (Float64: the share of its rows that keep their cluster, the mean of all resamples) and `least`
        (Float64: this share in the worst resample). 1 is a cluster that each resample finds again.

    Raises
    ------
    InvalidParameterError
        At once, for a parameter outside its domain, and for `too_few="null"`.
    KMeansError
        As in :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`. A resample may have fewer distinct rows than clusters.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"x": [0.0, 0.1, 0.2, 5.0, 5.1, 5.2]})
    >>> pk.stability(df, "x", k=2, sort_by="x").rows()
    [(0, 3, 1.0, 1.0), (1, 3, 1.0, 1.0)]

    """
    count = _numeric.integer("resamples", resamples, f"an integer from 1 to {_MOST:,}", most=_MOST)
    if options.get("too_few") == "null":
        raise InvalidParameterError('too_few: expected "raise" or "fewer", got "null"')
    weight = options.get("weight")
    weights = _plugin.weights(weight)
    estimator: KMeans = KMeans(k, **{**options, "weight": _plugin.WEIGHT if weights else None})
    query, columns = _rows.query(data, columns, (*columns, weight), weight)
    rows = _rows.collect(query.select(*_plugin.features(columns).exprs, *weights))
    names = [name for name in rows.columns if not weights or name != _plugin.WEIGHT]
    model = estimator.fit(rows, names)
    mass = _plugin.column(_plugin.WEIGHT).cast(pl.Float64) if weights else pl.lit(1.0)
    labelled, w = rows.select(model.predict(names), weight=mass), pl.col("weight")
    seed, shares = estimator.parameters["seed"], []
    for step in range(count):
        drawn = pl.Series(array("q", _internal.draw_rows(seed, step, rows.height, rows.height)))
        # One warning of the fit of all rows is enough.
        other: Any = estimator._fit(rows[drawn], (names,), None)
        pairs = other.match(model)
        again = rows.select(other.predict(names).replace_strict(pairs["cluster"], pairs["matched"])).to_series()
        same = labelled.with_columns(same=(again == labelled["cluster"]).fill_null(False)).lazy()
        same = same.filter(pl.col("cluster").is_not_null(), w.is_finite(), w > 0)
        sums = _rows.totals(same, "cluster", {"mass": w, "kept": pl.when("same").then(w).otherwise(0.0)})
        shares.append(sums.select("cluster", kept=pl.col("kept") / pl.col("mass")))
    # In a model that did not converge, a cluster may have no rows.
    found = pl.concat(shares).group_by("cluster").agg("kept", least=pl.col("kept").min())
    found = found.with_columns(kept=pl.Series([math.fsum(of) / count for of in found["kept"]], dtype=pl.Float64))
    return model.centroids.select("cluster", "size").join(found, on="cluster", how="left", maintain_order="left")
