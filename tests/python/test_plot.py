"""Pictures: what their charts hold, that they stay small, and that they can be drawn."""

import json
from typing import Any

import numpy as np
import polars as pl
import pytest
from helpers import counted, run
from sklearn.datasets import make_blobs
from sklearn.decomposition import PCA

import polars_kmeans as pk

alt = pytest.importorskip("altair")

from polars_kmeans import plot  # noqa: E402

X, _ = make_blobs(n_samples=300, n_features=4, centers=3, random_state=1)
DF = pl.DataFrame(X, schema=["a", "b.c", "d[0]", "e"])
MODEL = pk.KMeans(3, seed=1, scale="standard").fit(DF, pl.all())
LABELS = DF.select(MODEL.predict()).to_series()
MANY = pl.DataFrame(np.random.default_rng(0).normal(size=(200_000, 2)), schema=["x", "y"])
MANY_MODEL = pk.KMeans(12, tol=1.0).fit(MANY, "x", "y")


def layers(chart: Any) -> list[pl.DataFrame]:
    """Return the rows of each layer. Making them also checks the chart against the schema of Vega-Lite."""
    made = chart.to_dict()
    parts = made.get("layer") or [part for one in made["concat"] for part in one["layer"]]
    own = [part["data"]["name"] if "data" in part else made["data"]["name"] for part in parts]
    return [pl.DataFrame(made["datasets"][name]) for name in own]


def test_a_scatter_shows_the_rows_and_the_means_of_the_clusters() -> None:
    chart = plot.scatter(MODEL, DF.lazy(), "b.c", "e")
    circles, means = layers(chart)[:2]
    assert circles.sort("x").select("x", "y").equals(DF.select(x="b.c", y="e").sort("x"))
    assert circles["rows"].to_list() == [1] * 300
    expected = DF.group_by(LABELS.alias("cluster")).agg(x=pl.col("b.c").mean(), y=pl.col("e").mean()).sort("cluster")
    np.testing.assert_allclose(means.select("x", "y"), expected.select("x", "y"))
    assert chart.to_dict()["layer"][0]["encoding"]["x"]["title"] == "b.c"


def test_a_scatter_of_many_rows_counts_them_in_cells() -> None:
    chart = plot.scatter(MANY_MODEL, MANY, "x", pl.col("y") * 2)
    circles, means = layers(chart)[:2]
    assert circles.height <= 4000
    assert circles["rows"].sum() == means["rows"].sum() == 200_000
    sizes = circles.group_by("cluster").agg(pl.col("rows").sum()).sort("cluster")["rows"]
    expected = MANY.select(MANY_MODEL.predict()).group_by("cluster").len().sort("cluster")
    assert sizes.to_list() == expected["len"].to_list()
    middle = (circles["y"] * circles["rows"]).sum() / 200_000
    assert middle == pytest.approx(2 * MANY["y"].mean(), abs=1e-9)
    assert len(json.dumps(chart.to_dict())) < 500_000


def test_components_are_those_of_scikit_learn() -> None:
    chart = plot.scatter(MODEL, DF)
    circles = layers(chart)[0]
    scaled = X * np.array(list(MODEL.factors.values()))
    pca = PCA(2).fit(scaled)
    expected = pca.transform(scaled)
    signs = np.sign(pca.components_[[0, 1], np.abs(pca.components_).argmax(axis=1)])
    np.testing.assert_allclose(circles.select("x", "y"), expected * signs, atol=1e-9)
    title = chart.to_dict()["layer"][0]["encoding"]["x"]["title"]
    assert title == f"component 1 ({pca.explained_variance_ratio_[0]:.0%} of the variance)"


def test_scatters_of_array_columns_directions_and_rows_with_nulls() -> None:
    arrays = DF.select(e=pl.concat_arr(pl.all())).vstack(
        pl.DataFrame({"e": [None]}, schema={"e": pl.Array(pl.Float64, 4)})
    )
    model = pk.KMeans(3, metric="cosine", null_policy="skip").fit(arrays, "e")
    circles = layers(plot.scatter(model, arrays))[0]
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    spread = np.sort(np.linalg.eigvalsh(np.cov(unit.T)))[::-1]
    assert circles.height == 300
    assert circles["x"].var() == pytest.approx(spread[0])
    assert circles["y"].var() == pytest.approx(spread[1])


def test_features_by_other_names() -> None:
    other = DF.rename(dict(zip(DF.columns, "wxyz", strict=True)))
    chart = plot.scatter(MODEL, other, columns=["w", "x", "y", "z"])
    assert layers(chart)[0].equals(layers(plot.scatter(MODEL, DF))[0])
    assert layers(plot.silhouette(MODEL, other, "w", "x", "y", "z"))[0].equals(layers(plot.silhouette(MODEL, DF))[0])


def scales(chart: Any) -> list[str | None]:
    encoding = chart.to_dict()["layer"][0]["encoding"]
    return [encoding[axis]["scale"].get("type") for axis in "xy"]


def test_an_axis_is_logarithmic_where_rows_would_hide_each_other() -> None:
    random = np.random.default_rng(3)
    tail = pl.DataFrame({"x": random.normal(size=5_000), "tail": random.lognormal(3, 1.5, 5_000)})
    tail = tail.with_columns(below=pl.col("tail") - 1)
    model = pk.KMeans(3).fit(tail.select("x", pl.col("tail").log()), "x", "tail")
    given: dict[str, Any] = {"columns": ["x", pl.col("tail").log()]}
    assert scales(plot.scatter(model, tail, "x", "tail", **given)) == [None, "log"]
    assert scales(plot.scatter(model, tail, "x", pl.col("tail").log(), **given)) == [None, None]
    assert scales(plot.scatter(model, tail, "x", "below", **given)) == [None, None]
    assert scales(plot.scatter(model, tail, "x", "tail", log=False, **given)) == [None, None]
    assert scales(plot.scatter(model, tail, pl.col("x").exp(), "tail", log=True, **given)) == ["log", "log"]
    # Cells are even on the axis that is shown: the middle ones are not one cell.
    points = layers(plot.scatter(model, tail, "x", "tail", **given))[0]
    assert (points["y"] < 100).mean() > 0.5
    with pytest.raises(pk.InvalidParameterError, match='log: expected values above 0 on the axis "below", got -'):
        plot.scatter(model, tail, "tail", "below", log=True, **given)
    with pytest.raises(pk.InvalidParameterError, match="log: expected True, False or None, got 'y'"):
        plot.scatter(model, tail, "x", "tail", log="y", **given)  # type: ignore[arg-type]


def test_charts_have_titles_and_the_sizes_of_clusters() -> None:
    sizes = MODEL.centroids["size"].to_list()
    charts = [
        plot.scatter(MODEL, DF),
        plot.profile(MODEL, DF),
        plot.silhouette(MODEL, DF),
        plot.choose_k(pk.choose_k(DF, pl.all(), k=[2, 3])),
    ]
    titles = [chart.to_dict()["title"] for chart in charts]
    assert [title["text"] for title in titles] == [
        "300 rows in 3 clusters",
        "What sets the clusters apart",
        "How clearly rows belong to their clusters",
        "How many clusters",
    ]
    assert all(title["subtitle"] for title in titles)
    domain = charts[0].to_dict()["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert domain == [f"{cluster} ({size})" for cluster, size in enumerate(sizes)]


def test_a_heat_map_shows_the_profile() -> None:
    cells = layers(plot.profile(MODEL, DF))[0]
    found = MODEL.profile(DF)
    assert cells.height == 12
    assert cells.select("cluster", "feature", "difference").equals(
        found.select(pl.col("cluster").cast(pl.Int64), "feature", "difference")
    )
    assert cells["name"][0] == f"0 ({found['share'][0]:.1%})"
    assert cells["text"][0] == f"{found['mean'][0]:.3g}"
    assert layers(plot.profile(MODEL, DF * 1000))[0]["text"].str.contains(",").any()


def test_a_heat_map_of_many_features_shows_those_that_differ_most() -> None:
    wide = pl.DataFrame(np.random.default_rng(1).normal(size=(100, 50))).with_columns(
        pl.col("column_7") + pl.int_range(pl.len()) // 50 * 100
    )
    model = pk.KMeans(2).fit(wide, pl.all())
    chart = plot.profile(model, wide)
    cells = layers(chart)[0]
    assert cells["feature"].n_unique() == 30
    assert "column_7" in cells["feature"]
    assert "30 of 50 features" in json.dumps(chart.to_dict())
    assert len(chart.to_dict()["layer"]) == 1


def test_curves_mark_the_best_k() -> None:
    found = pk.choose_k(DF, pl.all(), k=range(1, 6), n_init=3)
    made = plot.choose_k(found).to_dict()
    titles = [one["layer"][0]["title"]["text"] for one in made["concat"]]
    assert titles == ["simplified silhouette", "Calinski-Harabasz", "Davies-Bouldin", "BIC", "inertia"]
    assert [len(one["layer"]) for one in made["concat"]] == [2, 2, 2, 2, 1]
    best = [one["layer"][1]["transform"][0]["filter"] for one in made["concat"][:-1]]
    places = [found[name].arg_max() for name in ("silhouette", "calinski_harabasz")]
    places += [found[name].arg_min() for name in ("davies_bouldin", "bic")]
    assert best == [f"(datum.k === {found['k'][place]})" for place in places]
    few = plot.choose_k(pk.choose_k(DF, pl.all(), k=[2, 3], metric="cosine")).to_dict()
    assert len(few["concat"]) == 4


def test_a_silhouette_plot_has_the_silhouettes_of_the_rows() -> None:
    areas, mean, blocks = layers(plot.silhouette(MODEL, DF.lazy()))
    direct = DF.select(MODEL.silhouette()).to_series()
    assert mean["silhouette"].item() == pytest.approx(direct.mean())
    assert blocks["rows"].to_list() == MODEL.centroids["size"].to_list()
    for cluster in range(3):
        mine = direct.filter(LABELS == cluster)
        part = areas.filter(pl.col("cluster") == cluster)
        assert part["silhouette"].is_sorted(descending=True)
        assert (part["silhouette"][0], part["silhouette"][-1]) == (mine.max(), mine.min())
        assert part["at"][-1] - part["at"][0] == pytest.approx(len(mine))
        assert blocks["mean"][cluster] == pytest.approx(mine.mean())
    assert len(json.dumps(plot.silhouette(MANY_MODEL, MANY).to_dict())) < 200_000


@pytest.mark.filterwarnings("ignore::polars_kmeans.ConvergenceWarning")  # it stops early
@pytest.mark.parametrize("k", [25, 300])
def test_many_clusters(k: int) -> None:
    model = pk.KMeans(k, init="random", n_init=1, max_iter=1).fit(MANY, "x", "y")
    for chart in (plot.scatter(model, MANY), plot.profile(model, MANY), plot.silhouette(model, MANY)):
        assert all(len(rows) <= 5000 for rows in layers(chart))
    assert plot.scatter(model, MANY).to_dict()["layer"][0]["encoding"]["color"]["legend"] is None


def test_charts_of_thousands_of_clusters_show_the_largest() -> None:
    code = """
import warnings

import polars as pl
import polars_kmeans as pk
from polars_kmeans import plot

# Clusters of one row and of two, in random order.
rows = pl.DataFrame({"x": range(5_000)}).with_columns(y=pl.col("x") * 7919 % 5_000).cast(pl.Float64)
rows = rows.vstack(rows.filter(pl.col("y") < 1_500))
model = pk.KMeans(5_000, init=rows[:5_000], max_iter=1).fit(rows, "x", "y")
for chart in (plot.scatter(model, rows, "x", "y"), plot.silhouette(model, rows), plot.profile(model, rows)):
    made = chart.to_dict()
    clusters = {row["cluster"] for data in made["datasets"].values() for row in data if "cluster" in row}
    largest = sum(rows["y"][cluster] < 1_500 for cluster in clusters)
    print(max(map(len, made["datasets"].values())) <= 5_000, len(clusters), largest, made["title"]["subtitle"])
"""
    assert run(code, timeout=60).splitlines() == [
        "True 4000 1500 the 4,000 largest of 5,000 clusters; "
        "diamonds: the means of the clusters; circles: areas grow with their rows",
        "True 1000 1000 the 1,000 largest of 5,000 clusters; 6,500 rows; dashed: their mean, 1.00",
        "True 4000 1500 the 4,000 largest of 5,000 clusters; 1 of 2 features, those that differ most; 6,500 rows",
    ]


def test_queries_run_once() -> None:
    query, runs = counted(DF)
    plot.scatter(MODEL, query)
    plot.scatter(MODEL, query, "a", "e")
    plot.silhouette(MODEL, query)
    plot.profile(MODEL, query)
    assert runs == [300] * 4


def test_frames_without_rows() -> None:
    empty = DF.clear()
    for chart in (plot.scatter(MODEL, empty, "a", "e"), plot.scatter(MODEL, empty), plot.profile(MODEL, empty)):
        chart.to_dict()
    plot.silhouette(MODEL, empty).to_dict()


def test_charts_can_be_drawn() -> None:
    converter = pytest.importorskip("vl_convert")
    charts = [
        plot.scatter(MODEL, DF),
        plot.profile(MODEL, DF),
        plot.choose_k(pk.choose_k(DF, pl.all(), k=[2, 3])),
        plot.silhouette(MODEL, DF),
    ]
    for chart in charts:
        assert converter.vegalite_to_svg(chart.to_json()).startswith("<svg")


def test_bad_pictures() -> None:
    with pytest.raises(pk.InvalidParameterError, match="x, y: expected both"):
        plot.scatter(MODEL, DF, "a")
    one = pk.KMeans(2).fit(DF, "a")
    with pytest.raises(pk.InvalidParameterError, match="a model of one feature"):
        plot.scatter(one, DF)
    with pytest.raises(pk.InvalidColumnError, match='column "s": expected numbers or booleans, got String'):
        plot.scatter(MODEL, DF.with_columns(s=pl.lit("a")), "a", "s")
    with pytest.raises(pk.InvalidParameterError, match="model: expected at least 2 clusters for silhouettes, got 1"):
        plot.silhouette(pk.KMeans(1).fit(DF, "a"), DF)
    with pytest.raises(pk.InvalidColumnError, match=r"expected the frame of polars_kmeans\.choose_k"):
        plot.choose_k(DF)


def test_the_package_imports_no_plotting_library() -> None:
    code = (
        "import sys, polars_kmeans; print([m for m in ('altair', 'numpy', 'polars_kmeans.plot') if m in sys.modules])"
    )
    assert run(code) == "[]\n"


def test_without_altair_the_error_says_what_to_install() -> None:
    code = """
import sys
sys.modules["altair"] = None
try:
    import polars_kmeans.plot
except ImportError as error:
    print(error)
"""
    assert "polars_kmeans.plot needs Altair: pip install altair numpy" in run(code)
