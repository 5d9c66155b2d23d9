"""Rows as pictures need them: in two dimensions, and few."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import polars as pl

from polars_kmeans import _frames, _names, _plugin, _rows
from polars_kmeans.errors import InvalidColumnError, InvalidParameterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polars_kmeans._typing import Device, IntoFeatures
    from polars_kmeans.model import KMeansModel

# The most points of a chart, and so the most clusters: Altair refuses charts of more than 5,000 rows.
MOST = 4000
_CELLS = 64
# How many points a silhouette plot has, and the fewest that a cluster has in it.
_CURVE = 1000
_LEAST = 4
_SLICE = 1 << 16
_LABEL = "__cluster__"


def plane(
    model: KMeansModel,
    query: pl.LazyFrame,
    columns: tuple[IntoFeatures, ...],
    axes: tuple[str | pl.Expr, str | pl.Expr],
    device: Device,
) -> tuple[pl.DataFrame, Sequence[str]]:
    """Return the clusters of rows and two of their columns, in columns `cluster`, `x` and `y`. Also the names."""
    exprs = [_plugin.features((item,)).exprs[0] for item in axes]
    titles = [
        expr.meta.output_name(raise_if_undetermined=False) or name for expr, name in zip(exprs, "xy", strict=True)
    ]
    x, y = (expr.alias(name) for expr, name in zip(exprs, "xy", strict=True))
    rows = _rows.collect(query.select(model.predict(*columns, device=device), x, y))
    for name, title in zip("xy", titles, strict=True):
        if not _frames.is_number(rows.schema[name]):
            raise InvalidColumnError(f'column "{title}": expected numbers or booleans, got {rows.schema[name]}')
    return rows.with_columns(pl.col("x", "y").cast(pl.Float64)), titles


def components(
    model: KMeansModel, query: pl.LazyFrame, columns: tuple[IntoFeatures, ...], device: Device
) -> tuple[pl.DataFrame, Sequence[str]]:
    """Return the clusters of rows and their first two principal components. Also names of these."""
    import numpy as np

    label = model.predict(*columns, device=device).alias(_LABEL)
    given = _rows.collect(query.select(label, *model._features(columns)))
    schema = dict(given.schema)
    del schema[_LABEL]
    values = list(_rows.coordinates(schema, _rows.widths(model.centroids, schema)).values())
    if len(values) < 2:
        msg = "x, y: expected two columns for a model of one feature, which has no two principal components, got none"
        raise InvalidParameterError(msg)
    labelled = given.lazy().filter(pl.col(_LABEL).is_not_null())
    cluster = pl.col(_LABEL).alias("cluster")
    rows = _rows.collect(_rows.arrived(labelled, values, model.factors, model.parameters["metric"], cluster))
    points = rows.drop("cluster")
    middle = points.mean().to_numpy().ravel()
    scatter_matrix = np.zeros((len(values), len(values)))
    for part in points.iter_slices(_SLICE):
        centred = part.to_numpy() - middle
        scatter_matrix += centred.T @ centred
    variances, vectors = np.linalg.eigh(scatter_matrix)
    # The sign of a component means nothing. Its largest number is positive, so that pictures look alike.
    first = vectors[:, [-1, -2]]
    first = first * np.sign(first[np.abs(first).argmax(axis=0), [0, 1]])
    parts = [np.empty((0, 2)), *((part.to_numpy() - middle) @ first for part in points.iter_slices(_SLICE))]
    flat = np.concatenate(parts)
    shares = variances[[-1, -2]] / max(variances.sum(), np.finfo(float).tiny)
    titles = [f"component {at + 1} ({share:.0%} of the variance)" for at, share in enumerate(shares)]
    return rows.select("cluster", x=pl.Series(flat[:, 0]), y=pl.Series(flat[:, 1])), titles


def is_logarithmic(values: pl.Series, title: str, log: bool | None) -> bool:
    """Whether an axis is logarithmic: as asked for, or where rows would lie on top of each other at one end."""
    if not isinstance(log, (bool, type(None))):
        raise InvalidParameterError(f"log: expected True, False or None, got {log!r:.80}")
    low, middle, high = (cast("float", value or 0.0) for value in (values.min(), values.median(), values.max()))
    if log and low <= 0 and len(values):
        raise InvalidParameterError(f'log: expected values above 0 on the axis "{title}", got {low}')
    return middle - low < (high - low) / 10 and low > 0 if log is None else log


def texts(model: KMeansModel, sizes: pl.DataFrame) -> dict[str, list[str]]:
    """Return what charts call the clusters: their names, or their numbers, and the same with their numbers of rows."""
    names = model.cluster_names or [str(cluster) for cluster in range(model.n_clusters)]
    rows = dict(sizes.select("cluster", "rows").iter_rows())
    return {"name": names, "title": [f"{name} ({rows.get(cluster, 0):,})" for cluster, name in enumerate(names)]}


def titled(frame: pl.DataFrame, called: dict[str, list[str]]) -> pl.DataFrame:
    """Add these texts to a frame, as columns."""
    return frame.with_columns(_names.of(frame["cluster"], of).cast(pl.String).alias(at) for at, of in called.items())


def largest(sizes: pl.DataFrame, most: int) -> tuple[pl.Series, str]:
    """Return the clusters that a chart shows: the `most` largest. Also what the chart says where there are more.

    `sizes`: the clusters and their rows.
    """
    if sizes.height <= most:
        return sizes["cluster"], ""
    shown = sizes.sort("rows", "cluster", descending=[True, False]).head(most)
    return shown["cluster"], f"the {most:,} largest of {sizes.height:,} clusters; "


def thinned(rows: pl.DataFrame, logs: Sequence[bool]) -> tuple[pl.DataFrame, bool]:
    """Count rows in the cells of a grid, if there are too many. The grid is as fine as the limit allows.

    The rows must be those of at most `MOST` clusters. `logs`: whether x and y have logarithmic axes. Also return
    whether rows were counted.
    """
    if rows.height <= MOST:
        return rows.with_columns(rows=pl.lit(1, dtype=pl.UInt32)), False
    cells = _CELLS
    drawn = [pl.col(name).log() if log else pl.col(name) for name, log in zip("xy", logs, strict=True)]
    extent = [(place - place.min()) / (place.max() - place.min()) for place in drawn]
    places = [(part.fill_nan(0.0) * cells).floor().clip(0, cells - 1).cast(pl.Int32) for part in extent]
    counted = rows.select("cluster", "x", "y", pl.lit(1, dtype=pl.UInt32).alias("rows"), at_x=places[0], at_y=places[1])
    weighted = [(pl.col(name) * pl.col("rows")).sum() / pl.col("rows").sum() for name in "xy"]
    while True:
        counted = counted.group_by("cluster", "at_x", "at_y").agg(
            weighted[0].alias("x"), weighted[1].alias("y"), pl.col("rows").sum()
        )
        if counted.height <= MOST:
            return counted.sort("cluster", "at_x", "at_y").select("cluster", "x", "y", "rows"), True
        counted = counted.with_columns(pl.col("at_x", "at_y") // 2)


def silhouettes(
    model: KMeansModel, query: pl.LazyFrame, columns: tuple[IntoFeatures, ...], device: Device
) -> tuple[pl.DataFrame, pl.DataFrame, float | None, str]:
    """Return the clusters as blocks from top to bottom, points of their outlines, the mean of all silhouettes.

    Also return what the chart says of its clusters and rows.
    """
    answer = _rows.with_silhouette(model.predict(*columns, output="struct", device=device))
    rows = _rows.collect(query.select(answer.alias("answer"))).unnest("answer")
    rows = rows.select("cluster", "silhouette").filter(pl.col("cluster").is_not_null())
    shown, said = largest(rows.group_by("cluster").agg(rows=pl.len()), MOST // _LEAST)
    points = max(_LEAST, _CURVE // model.n_clusters)
    at = (pl.int_range(points) / (points - 1) * (pl.len() - 1)).round().cast(pl.UInt32)
    silhouette = pl.col("silhouette")
    outlines = (
        rows.filter(pl.col("cluster").is_in(shown.implode()))
        .group_by("cluster")
        .agg(pl.len().alias("rows"), silhouette.mean().alias("mean"), silhouette.sort(descending=True).gather(at))
        .sort("cluster")
    )
    gap = rows.height / max(50, 5 * model.n_clusters)
    start = pl.col("rows").cum_sum() - pl.col("rows") + gap * pl.int_range(pl.len())
    outlines = outlines.with_columns(start=start, middle=start + pl.col("rows") / 2)
    down = pl.int_range(pl.len()).over("cluster") / (points - 1) * pl.col("rows")
    areas = outlines.explode("silhouette", empty_as_null=True).select(
        "cluster", "silhouette", at=pl.col("start") + down
    )
    mean = math.fsum(rows["silhouette"]) / rows.height if rows.height else None
    return outlines.drop("silhouette"), areas, mean, f"{said}{rows.height:,} rows"
