"""Pictures of clusters, as Altair charts. This module needs `pip install altair numpy`.

A chart never holds more than some thousands of points. So the chart of a million rows is as small as that of some
thousands. A chart shows at most 4,000 clusters, and that of silhouettes at most 1,000: the largest. The line below its
title then says so.

Examples
--------
>>> import polars as pl
>>> import polars_kmeans as pk
>>> from polars_kmeans import plot
>>> df = pl.DataFrame({"x": [0.0, 0.1, 5.0, 5.1], "y": [1.0, 1.1, 9.0, 9.1]})
>>> model = pk.KMeans(k=2, seed=1).fit(df, "x", "y")
>>> chart = plot.scatter(model, df, "x", "y")  # a notebook shows it; chart.save("clusters.html") writes it

"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from polars_kmeans import _pictured
from polars_kmeans.errors import InvalidColumnError, InvalidParameterError

try:
    import altair as alt
except ImportError as error:
    raise ImportError("polars_kmeans.plot needs Altair: pip install altair numpy") from error

if TYPE_CHECKING:
    from polars_kmeans._typing import Device, IntoArray, IntoFeatures, IntoFrame
    from polars_kmeans.model import KMeansModel

__all__ = ["choose_k", "profile", "scatter", "silhouette"]

_FEATURES = 30
_WITH_TEXT = 16
_MEASURES = {
    "silhouette": ("simplified silhouette", "high is good"),
    "calinski_harabasz": ("Calinski-Harabasz", "high is good"),
    "davies_bouldin": ("Davies-Bouldin", "low is good"),
    "bic": ("BIC", "low is good"),
    "inertia": ("inertia", "falls with every k: it cannot choose"),
}


def scatter(
    model: KMeansModel,
    data: pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray,
    x: str | pl.Expr | None = None,
    y: str | pl.Expr | None = None,
    *,
    columns: IntoFeatures = (),
    log: bool | None = None,
    device: Device = "auto",
) -> alt.LayerChart:
    """Show the rows of a frame in two dimensions, coloured by their clusters, and the mean of each cluster.

    Parameters
    ----------
    model
        The model that labels the rows.
    data
        A frame or an array, as in :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`. The query of a LazyFrame runs once.
    x, y
        Two columns or expressions, which need not be features. By default, the first two principal components of the
        rows as the model sees them: scaled and normalised as in the fit.
    columns
        The features, in the model's order. By default, the columns that the model was fitted to.
    log
        Whether axes are logarithmic. None: an axis is, if all its values are above 0 and half of them lie in the first
        tenth of a linear axis, where they would hide each other. True needs values above 0.
    device
        As in :meth:`KMeansModel.predict <polars_kmeans.KMeansModel.predict>`.

    Returns
    -------
    LayerChart
        Up to 4,000 rows are circles. If there are more rows, the picture is divided into cells, and a circle stands for
        all rows of a cluster in a cell. It lies at the mean of these rows, and its area grows with their number. Rows
        without a cluster, or without finite values of `x` and `y`, are left out. The legend has the names of the
        clusters, if the model has some, and the rows of each.

    Raises
    ------
    InvalidParameterError
        If one of `x` and `y` is given without the other, or if there is one feature and neither is given.
    KMeansError
        For columns that cannot be used: see :mod:`polars_kmeans.errors`.

    """
    if (x is None) != (y is None):
        raise InvalidParameterError("x, y: expected both, or neither for principal components, got one")
    query, names = model._query(data, _names(columns), (x, y))
    if x is None or y is None:
        rows, titles = _pictured.components(model, query, names, device)
    else:
        rows, titles = _pictured.plane(model, query, names, (x, y), device)
    rows = rows.filter(pl.col("cluster").is_not_null(), pl.col("x").is_finite(), pl.col("y").is_finite())
    means = rows.group_by("cluster").agg(pl.col("x", "y").mean(), rows=pl.len()).sort("cluster")
    called = _pictured.texts(model, means)
    shown, said = _pictured.largest(means, _pictured.MOST)
    counts = f"{rows.height:,} rows in {model.n_clusters} clusters"
    rows, means = (part.filter(pl.col("cluster").is_in(shown.implode())) for part in (rows, means))
    logs = [_pictured.is_logarithmic(rows[name], title, log) for name, title in zip("xy", titles, strict=True)]
    points, counted = _pictured.thinned(rows, logs)
    points, means = (_pictured.titled(part, called) for part in (points, means))
    scales = [alt.Scale(type="log", nice=False, padding=8) if one else alt.Scale(zero=False) for one in logs]
    across, up = alt.X("x:Q", title=titles[0], scale=scales[0]), alt.Y("y:Q", title=titles[1], scale=scales[1])
    hints: list[Any] = ["name:N", "rows:Q", alt.Tooltip("x:Q", title=titles[0]), alt.Tooltip("y:Q", title=titles[1])]
    circles = alt.Chart(points).mark_circle(opacity=0.55).encode(across, up, color=_colour(called), tooltip=hints)
    size = alt.Size("rows:Q").scale(range=[8, 260]) if counted else alt.value(24)
    marks = alt.Chart(means).encode(across, up, tooltip=hints)
    layers = [
        circles.encode(size=size),
        marks.mark_point(shape="diamond", size=140, filled=True, color="black", stroke="white", opacity=1),
        marks.mark_text(dx=12, dy=-8, fontWeight="bold", stroke="white", strokeWidth=3).encode(text="name:N"),
        marks.mark_text(dx=12, dy=-8, fontWeight="bold").encode(text="name:N"),
    ]
    said += "diamonds: the means of the clusters" + ("; circles: areas grow with their rows" if counted else "")
    return _layered(layers, 420, 340, counts, said)


def profile(
    model: KMeansModel,
    data: pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray,
    *columns: IntoFeatures,
    by: IntoFeatures | None = None,
    weight: str | pl.Expr | None = None,
) -> alt.LayerChart:
    """Show what sets the clusters apart: a heat map of :meth:`profile <polars_kmeans.KMeansModel.profile>`.

    Parameters
    ----------
    model, data, *columns, by, weight
        As in :meth:`KMeansModel.profile <polars_kmeans.KMeansModel.profile>`.

    Returns
    -------
    LayerChart
        One row per cluster and one column per feature. The colour is the difference of the mean from that of all rows,
        in standard deviations of all rows. If there are at most 16 features, each cell shows the mean. If there are
        more than 30 features, the 30 with the largest differences are shown.

    Raises
    ------
    KMeansError
        As in :meth:`KMeansModel.profile <polars_kmeans.KMeansModel.profile>`.

    """
    found = model.profile(data, *columns, by=by, weight=weight, quantiles=())
    sizes = found.unique("cluster").select("cluster", rows="size")
    shown, said = _pictured.largest(sizes, _pictured.MOST)
    found = found.filter(pl.col("cluster").is_in(shown.implode()))
    order = found["feature"].unique(maintain_order=True)
    most = min(_FEATURES, _pictured.MOST // len(shown))
    differing = (
        found.group_by("feature")
        .agg(pl.col("difference").abs().max())
        .sort("difference", descending=True, nulls_last=True)
    )
    kept = order.filter(order.is_in(differing["feature"].head(most).to_list()))
    # A frame without rows has no shares.
    names = found["cluster" if model.cluster_names is None else "name"]
    shares = [f"{name} ({share or 0.0:.1%})" for name, share in zip(names, found["share"], strict=True)]
    texts = [_short(mean) for mean in found["mean"]]
    cells = (
        found.select("cluster", "size", "share", "feature", "mean", "difference")
        .with_columns(pl.Series("name", shares, dtype=pl.String), pl.Series("text", texts, dtype=pl.String))
        .filter(pl.col("feature").is_in(kept.to_list()))
    )
    reach = max([1.0, *cells["difference"].drop_nulls().abs().to_list()])
    most_of = f"{len(kept)} of {len(order)} features, those that differ most; " if len(kept) < len(order) else ""
    said += f"{most_of}{sum(sizes['rows']):,} rows"
    base = alt.Chart(cells).encode(
        alt.X("feature:N", title=None, sort=kept.to_list()).axis(labelAngle=-40, orient="top"),
        alt.Y("name:N", title="cluster", sort=cells["name"].unique(maintain_order=True).to_list()),
    )
    colour = (
        alt.Color("difference:Q")
        .title(["standard deviations", "from the mean", "of all rows"])
        .scale(scheme="blueorange", domain=[-reach, reach], domainMid=0)
    )
    hints: list[Any] = [
        alt.Tooltip("name:N", title="cluster"),
        "feature:N",
        "size:Q",
        alt.Tooltip("share:Q", format=".1%"),
        "mean:Q",
        "difference:Q",
    ]
    heat = base.mark_rect().encode(color=colour, tooltip=hints)
    layers: list[alt.Chart] = [heat]
    if len(kept) <= _WITH_TEXT:
        strong = alt.expr.abs(alt.datum.difference) > 0.6 * reach
        layers.append(
            base.mark_text().encode(
                text="text:N",
                color=alt.when(strong).then(alt.value("white")).otherwise(alt.value("black")),
            )
        )
    step = 56 if len(kept) <= _WITH_TEXT else 20
    return _layered(layers, alt.Step(step), alt.Step(26), "What sets the clusters apart", said)


def choose_k(found: pl.DataFrame) -> alt.ConcatChart:
    """Show how the measures of :func:`polars_kmeans.choose_k` change with `k`. The best `k` of each is marked.

    Parameters
    ----------
    found
        The frame that :func:`polars_kmeans.choose_k` gives.

    Returns
    -------
    ConcatChart
        One curve for each measure that has values.

    Raises
    ------
    InvalidColumnError
        If the frame lacks the columns of that function.

    """
    missing = [name for name in ("k", *_MEASURES) if name not in found.columns]
    if missing:
        raise InvalidColumnError(f"found: expected the frame of polars_kmeans.choose_k, got one without {missing}")
    charts = []
    for name, (title, rule) in _MEASURES.items():
        rows = found.select("k", value=name).filter(pl.col("value").is_finite()).sort("k")
        if rows.is_empty():
            continue
        axis = alt.Axis(format="~s") if max(rows["value"].abs()) >= 1000 else alt.Axis()
        base = alt.Chart(rows, title=alt.Title(title, subtitle=rule)).encode(
            alt.X("k:Q").axis(tickMinStep=1, format="d").scale(zero=False, nice=False, padding=8),
            alt.Y("value:Q", title=None, axis=axis).scale(zero=False),
            tooltip=["k:Q", "value:Q"],
        )
        layers = [base.mark_line(point=alt.OverlayMarkDef(color="#777"), color="#777")]
        if name != "inertia":
            best = rows.sort("value", descending=rule.startswith("high"), maintain_order=True)["k"][0]
            marked = base.transform_filter(alt.datum.k == best)
            layers.append(marked.mark_point(size=140, filled=True, color="#d62728", opacity=1))
        charts.append(alt.layer(*layers, width=220, height=130))
    return alt.concat(*charts, columns=3, title=alt.Title("How many clusters", subtitle="red: the best k of a measure"))


def silhouette(
    model: KMeansModel,
    data: pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray,
    *columns: IntoFeatures,
    device: Device = "auto",
) -> alt.LayerChart:
    """Show how clearly rows belong to their clusters: the silhouettes of each cluster, from the largest down.

    A wide block is a cluster of rows that lie near their centroid. A block that gets thin holds rows that lie between
    clusters. The dashed line is the mean of all rows. (Rousseeuw 1987, with the simplified silhouette)

    Parameters
    ----------
    model, data
        A model, and a frame or an array. The query of a LazyFrame runs once.
    *columns, device
        As in :meth:`KMeansModel.silhouette <polars_kmeans.KMeansModel.silhouette>`.

    Returns
    -------
    LayerChart
        The chart shows evenly spaced silhouettes of each cluster, not all of them.

    Raises
    ------
    InvalidParameterError
        If the model has one cluster.
    KMeansError
        For columns that cannot be used: see :mod:`polars_kmeans.errors`.

    """
    if model.n_clusters == 1:
        raise InvalidParameterError("model: expected at least 2 clusters for silhouettes, got 1")
    blocks, areas, mean, said = _pictured.silhouettes(model, *model._query(data, columns, ()), device)
    called = _pictured.texts(model, blocks)
    blocks, areas = (_pictured.titled(part, called) for part in (blocks, areas))
    down = alt.Y("at:Q", title=None, axis=None).scale(reverse=True, nice=False)
    across = alt.X("silhouette:Q", title="simplified silhouette", stack=None).scale(domain=[0, 1])
    hints: list[Any] = ["name:N", "rows:Q", alt.Tooltip("mean:Q", format=".3f")]
    layers = [
        alt.Chart(areas)
        .mark_area(orient="horizontal")
        .encode(across, down, color=_colour(called).legend(None), tooltip="title:N"),
        alt.Chart(pl.DataFrame({"silhouette": [mean]})).mark_rule(strokeDash=[4, 4]).encode(across),
        alt.Chart(blocks)
        .mark_text(align="right", dx=-6)
        .encode(x=alt.value(0), y=alt.Y("middle:Q"), text="title:N", tooltip=hints),
    ]
    said += f"; dashed: their mean, {mean:.2f}" if mean is not None else ""
    return _layered(layers, 420, max(340, 16 * blocks.height), "How clearly rows belong to their clusters", said)


def _names(columns: IntoFeatures) -> tuple[IntoFeatures, ...]:
    """Return the columns as they are passed on: none, if there are none."""
    return () if isinstance(columns, (tuple, list)) and not columns else (columns,)


def _short(mean: float | None) -> str:
    """Return a mean as people write it."""
    if mean is None:
        return ""
    return f"{mean:,.0f}" if 1000 <= abs(mean) < 1e6 else f"{mean:.3g}"


def _layered(charts: list[alt.Chart], width: Any, height: Any, title: str, said: str) -> alt.LayerChart:
    return alt.LayerChart(layer=charts, width=width, height=height, title=alt.Title(title, subtitle=said))


def _colour(called: dict[str, list[str]]) -> Any:
    """Return a colour for each cluster. Many clusters share colours, and need no legend."""
    titles = called["title"]
    scale = alt.Scale(domain=titles, scheme="tableau10" if len(titles) <= 10 else "tableau20")
    colour = alt.Color("title:N", title="cluster (rows)", scale=scale)
    return colour if len(titles) <= 20 else colour.legend(None)
