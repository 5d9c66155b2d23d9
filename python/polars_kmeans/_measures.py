"""How good the clusters of a model are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import polars as pl

from polars_kmeans import _plugin, _rows

if TYPE_CHECKING:
    from polars_kmeans.model import KMeansModel

_ANSWER = "__answer__"


def measures(model: KMeansModel, rows: pl.DataFrame, names: list[str], device: str) -> dict[str, float | None]:
    """Measure the clusters of a model in the rows that it was fitted to: in four passes, after one that labels them."""
    features = {name: rows.schema[name] for name in names}
    values = list(_rows.coordinates(features, _rows.widths(model.centroids, names)).values())
    x, means = _rows.numbered(len(values)), _rows.numbered(len(values), "mean")
    labelled = rows.with_columns(
        _rows.with_silhouette(model.predict(names, output="struct", device=device)).alias(_ANSWER)
    )
    weighted = _plugin.WEIGHT in rows.columns and _plugin.WEIGHT not in names
    weight = pl.col(_plugin.WEIGHT).cast(pl.Float64) if weighted else pl.lit(1.0)
    answer = pl.col(_ANSWER).struct
    metric = model.parameters["metric"]
    query = _rows.arrived(
        labelled.lazy().filter(answer.field("cluster").is_not_null(), weight.is_finite(), weight > 0),
        values,
        model.factors,
        metric,
        answer.field("cluster"),
        answer.field("silhouette").alias("silhouette"),
        weight.alias("weight"),
    )
    w = pl.col("weight")
    parts = {"mass": w, "silhouette": w * pl.col("silhouette"), **{name: w * pl.col(name) for name in x}}
    sums = _rows.totals(query, "cluster", parts)
    mass = math.fsum(sums["mass"])
    middle = [(pl.col(name) / pl.col("mass")).alias(mean) for name, mean in zip(x, means, strict=True)]
    centres = sums.select("cluster", *middle)
    squares = query.join(centres.lazy(), on="cluster").select("cluster", "weight", square=_square(x, means))
    parts = {"within": w * pl.col("square"), "distance": w * pl.col("square").sqrt()}
    spread = _rows.totals(squares, "cluster", parts)
    within = math.fsum(spread["within"])
    present = sums.height
    found: dict[str, float | None] = {"smallest": min(model.centroids["size"])}
    if model.n_clusters > 1:
        found["border"] = _border(model, rows, names, device, weight)
    if present > 1:
        found["silhouette"] = math.fsum(sums["silhouette"]) / mass
        found["calinski_harabasz"] = _calinski_harabasz(sums, x, mass, within)
        found["davies_bouldin"] = _davies_bouldin(centres, spread["distance"] / sums["mass"], means)
    if metric == "euclidean":
        found["bic"] = _bic(sums["mass"].to_list(), mass, within, len(values))
    return found


def _border(model: KMeansModel, rows: pl.DataFrame, names: list[str], device: str, weight: pl.Expr) -> float | None:
    """Return the share of the rows that lie near the border between their two nearest clusters.

    Along the line between two centroids, the border is in the middle. These rows have come less than a quarter of the
    way from there to their centroid.
    """
    near = model.nearest_clusters(2, names, squared=True, device=device).struct.unnest()
    first, second = (pl.col("clusters").arr.get(at).cast(pl.UInt64) for at in range(2))
    k, apart = model.n_clusters, pl.col("distances").arr.get(1) - pl.col("distances").arr.get(0)
    query = rows.lazy().select(near, weight=weight)
    found = _rows.collect(query.select("weight", pair=first * k + second, apart=apart))
    found = found.filter(pl.col("pair").is_not_null(), _rows.counts(pl.col("weight")))
    if found.is_empty():
        return None
    limits, centroids = {}, model._compared()
    for pair in found["pair"].unique():
        one, other = centroids[pair // k], centroids[pair % k]
        limits[pair] = math.fsum((a - b) * (a - b) for a, b in zip(one, other, strict=True)) / 4
    close = pl.col("apart") < pl.col("pair").replace_strict(limits, return_dtype=pl.Float64)
    weights = {"all": pl.col("weight"), "close": pl.when(close).then("weight").otherwise(0.0)}
    sums = _rows.totals(found.lazy(), "pair", weights)
    return math.fsum(sums["close"]) / math.fsum(sums["all"])


def _square(some: list[str], others: list[str]) -> pl.Expr:
    """Return squared distances between points in some columns and in others."""
    return _rows.added((pl.col(one) - pl.col(other)) ** 2 for one, other in zip(some, others, strict=True))


def _calinski_harabasz(sums: pl.DataFrame, x: list[str], mass: float, within: float) -> float | None:
    """Divide the variance between clusters by that within them. Null if there are not more rows than clusters."""
    if mass <= sums.height:
        return None
    if within == 0:
        return 1.0
    masses = sums["mass"].to_list()
    between = 0.0
    for name in x:
        column = sums[name].to_list()
        mean = math.fsum(column) / mass
        between += math.fsum(m * (s / m - mean) ** 2 for s, m in zip(column, masses, strict=True))
    return between * (mass - sums.height) / (within * (sums.height - 1))


def _davies_bouldin(centres: pl.DataFrame, radii: pl.Series, means: list[str]) -> float:
    """Return the mean, over clusters, of the worst ratio of the radii of two clusters to their distance."""
    one = centres.with_columns(radius=radii)
    other = one.rename(lambda name: f"other_{name}")
    apart = _square(means, [f"other_{name}" for name in means]).sqrt()
    pairs = one.lazy().join(other.lazy(), how="cross").filter(pl.col("cluster") != pl.col("other_cluster"))
    # Clusters with the same mean have distance 0. As in scikit-learn, they do not count as worst.
    ratio = pl.when(apart > 0).then((pl.col("radius") + pl.col("other_radius")) / apart).otherwise(0.0)
    worst = _rows.collect(
        pairs.select("cluster", ratio=ratio).group_by("cluster").agg(pl.col("ratio").max()).sort("cluster")
    )
    return math.fsum(worst["ratio"]) / worst.height


def _bic(masses: list[float], mass: float, within: float, width: int) -> float:
    """Return the criterion of round clusters of equal width, each as frequent as its share of the rows."""
    if within == 0:
        return -math.inf
    variance = within / (mass * width)
    likelihood = math.fsum(m * math.log(m / mass) for m in masses)
    likelihood -= mass * width / 2 * (math.log(2 * math.pi * variance) + 1)
    parameters = (len(masses) - 1) + len(masses) * width + 1
    return parameters * math.log(mass) - 2 * likelihood
