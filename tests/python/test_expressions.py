"""The expressions and the estimator, as a Polars user calls them."""

import json
import pickle
import sys
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
from polars.exceptions import ComputeError

import polars_kmeans as pk


@pytest.fixture
def df() -> pl.DataFrame:
    rng = np.random.default_rng(0)
    centres = rng.uniform(-10, 10, (5, 3))
    points = centres[rng.integers(0, 5, 2_000)] + rng.normal(0, 0.5, (2_000, 3))
    return pl.DataFrame(points, schema=["x", "y", "z"])


def test_label_column_is_the_models(df: pl.DataFrame) -> None:
    labels = df.with_columns(pk.kmeans("x", "y", "z", k=5, seed=3))["cluster"]
    assert labels.dtype == pl.UInt32
    model = pk.KMeans(k=5, seed=3).fit(df, ["x", "y", "z"])
    assert df.select(model.predict())["cluster"].equals(labels)
    sizes = labels.value_counts().sort("cluster")["count"].to_list()
    assert model.centroids["size"].to_list() == sizes
    means = df.with_columns(labels).group_by("cluster").agg(pl.all().mean()).sort("cluster").drop("cluster")
    np.testing.assert_allclose(model.centroids.select("x", "y", "z"), means, rtol=1e-13)
    assert model.score(df) == pytest.approx(-model.inertia, rel=1e-14)


def test_struct_output_holds_exact_distances(df: pl.DataFrame) -> None:
    out = df.select(pk.kmeans(cs.numeric(), k=5, seed=3, output="struct")).unnest("cluster")
    centroids = pk.KMeans(k=5, seed=3).fit(df, cs.numeric()).centroids.select("x", "y", "z").to_numpy()
    distances = np.linalg.norm(df.to_numpy()[:, None] - centroids[None], axis=2)
    np.testing.assert_allclose(out["distance"], np.sort(distances)[:, 0], rtol=1e-12)
    np.testing.assert_allclose(out["second_distance"], np.sort(distances)[:, 1], rtol=1e-12)
    assert (out["cluster"].to_numpy() == distances.argmin(axis=1)).all()
    single = df.select(pk.kmeans("x", k=1, output="struct")).unnest("cluster")
    assert single["second_distance"].null_count() == df.height


def test_history(df: pl.DataFrame) -> None:
    model = pk.KMeans(k=5, seed=1, history="full").fit(df, ["x", "y"])
    history = model.history
    costs = ["settled", "rescored", "skipped", "groups", "passes", "seconds"]
    assert history.columns == ["iteration", "changed", "shift", "inertia", *costs]
    assert history["iteration"].to_list() == list(range(1, model.n_iter + 1))
    assert history["changed"][0] == df.height
    assert history["inertia"].is_sorted(descending=True)
    # Shares that depend on the device. The CPU does not count scores.
    assert history["settled"].is_between(0, 1).all()
    assert history["skipped"].is_null().all() if model.device == "cpu" else history["skipped"].is_between(0, 1).all()
    assert pk.KMeans(k=5).fit(df, ["x", "y"]).history["inertia"].null_count() > 0


def test_nulls(df: pl.DataFrame) -> None:
    hole = pl.DataFrame({"x": [None, 1.0, float("nan")], "y": [1.0, float("inf"), 2.0], "z": [0.0, 0.0, 0.0]})
    dirty = pl.concat([hole, df])
    with pytest.raises(ComputeError, match='column "x": expected finite values, got nulls: 1, NaNs: 1, infinities: 0'):
        dirty.select(pk.kmeans("x", "y", k=3))
    labels = dirty.select(pk.kmeans("x", "y", k=3, null_policy="skip"))["cluster"]
    assert labels.head(3).null_count() == 3
    assert labels.tail(-3).equals(df.select(pk.kmeans("x", "y", k=3))["cluster"])
    structs = dirty.select(pk.kmeans("x", "y", k=3, null_policy="skip", output="struct")).unnest("cluster")
    assert structs.head(3).null_count().row(0) == (3, 3, 3)
    model = pk.KMeans(k=3).fit(df, ["x", "y"])
    assert dirty.select(model.predict())["cluster"].equals(labels)


def test_weights_and_starting_centroids(df: pl.DataFrame) -> None:
    twice = pl.concat([df, df.head(300)])
    weighted = df.with_row_index().with_columns(w=pl.when(pl.col("index") < 300).then(2.0).otherwise(1.0))
    start = df.head(4).select("x", "y")
    repeated = pk.KMeans(k=4, init=start, tol=0).fit(twice, ["x", "y"])
    expr = pl.when(pl.col("index") < 300).then(2).otherwise(1)
    for weight in ("w", pl.col("w"), expr):
        model = pk.KMeans(k=4, init=start, tol=0, weight=weight).fit(weighted, ["x", "y"])
        np.testing.assert_allclose(model.centroids.select("x", "y"), repeated.centroids.select("x", "y"), rtol=1e-12)
        assert model.inertia == pytest.approx(repeated.inertia, rel=1e-12)
    array = pk.KMeans(k=4, init=start.to_numpy(), tol=0).fit(twice, ["x", "y"])
    assert array.centroids.equals(repeated.centroids)
    swapped = pk.KMeans(k=4, init=start.select("y", "x"), tol=0).fit(twice, ["x", "y"])
    assert swapped.centroids.equals(repeated.centroids), "a frame is matched by name"


def test_dtypes(df: pl.DataFrame) -> None:
    narrow = pl.DataFrame({"a": [1, 2, 8, 9], "b": [True, False, True, False]}, schema={"a": pl.Int16, "b": pl.Boolean})
    assert pk.KMeans(k=2).fit(narrow, ["a", "b"]).centroids.schema["a"] == pl.Float32
    wide = narrow.with_columns(pl.col("a").cast(pl.Int64))
    assert pk.KMeans(k=2).fit(wide, ["a", "b"]).centroids.schema["a"] == pl.Float64
    with pytest.raises(
        ComputeError,
        match='column "s": expected numbers or booleans, or a single Array or List column of them, got str',
    ):
        pl.DataFrame({"s": ["a"]}).select(pk.kmeans("s", k=1))


def test_refusals_in_the_query(df: pl.DataFrame) -> None:
    with pytest.raises(ComputeError, match=r"TooFewRowsError: .*at most as many clusters as distinct rows"):
        df.select(pk.kmeans("x", k=2_001))
    with pytest.raises(ComputeError, match='may not be named "size"'):
        df.rename({"x": "size"}).select(pk.centroids("size", k=2))
    with pytest.raises(pk.InvalidParameterError, match=r"k: expected an integer, got 2\.5"):
        pk.kmeans("x", k=2.5)  # type: ignore[arg-type]
    with pytest.raises(pk.InvalidColumnError, match="at least one column"):
        pk.kmeans(k=2)


def test_too_few(df: pl.DataFrame) -> None:
    same = pl.DataFrame({"x": [1.0] * 5})
    with pytest.raises(ComputeError, match="distinct rows"):
        same.select(pk.kmeans("x", k=2))
    assert same.select(pk.kmeans("x", k=2, too_few="null"))["cluster"].null_count() == 5
    nulls = same.select(pk.kmeans("x", k=2, too_few="null", output="struct")).unnest("cluster")
    assert nulls["distance"].null_count() == 5


@pytest.mark.filterwarnings("ignore::polars_kmeans.ConvergenceWarning")  # it stops early
def test_large_seeds(df: pl.DataFrame) -> None:
    seeds = [0, 2**63, 2**64 - 1]
    inertias = {pk.KMeans(k=7, init="random", n_init=1, seed=seed, max_iter=1).fit(df, ["x"]).inertia for seed in seeds}
    assert len(inertias) == 3


def test_in_a_group(df: pl.DataFrame) -> None:
    grouped = df.with_columns(g=pl.int_range(pl.len()) % 3)
    over = grouped.with_columns(pk.kmeans("x", "y", k=3).over("g"))
    for (_,), group in over.group_by("g"):
        assert group["cluster"].equals(group.select(pk.kmeans("x", "y", k=3))["cluster"])


def test_rows_skipped_for_their_weight_are_null_in_structs_too() -> None:
    df = pl.DataFrame({"x": [0.0, 1.0, 10.0, 11.0], "w": [1.0, 1.0, 1.0, None]})
    options = {"k": 2, "null_policy": "skip", "weight": "w"}
    assert df.select(pk.kmeans("x", **options))["cluster"].is_null().to_list() == [False, False, False, True]
    structs = df.select(pk.kmeans("x", output="struct", **options)).unnest("cluster")
    assert structs.null_count().row(0) == (1, 1, 1)
    assert structs.row(3) == (None, None, None)


def test_starting_centroids_are_matched_by_name_and_checked(df: pl.DataFrame) -> None:
    start = df.head(4).select("x", "y")
    by_name = df.select(pk.kmeans("x", "y", k=4, init=start.select("y", "x")))
    assert by_name.equals(df.select(pk.kmeans("x", "y", k=4, init=start)))
    model = pk.KMeans(k=4, init=start).fit(df, ["x", "y"])
    again = pk.KMeans(k=4, init=model.centroids).fit(df, ["x", "y"])
    assert again.n_iter == 1, "a centroid frame is a starting frame"
    with pytest.raises(ComputeError, match='a frame with a column "z"'):
        df.select(pk.kmeans("x", "z", k=4, init=start))
    with pytest.raises(ComputeError, match="starting centroids: expected 3 features, got 2"):
        df.select(pk.kmeans("x", "y", "z", k=2, init=[[1.0, 2.0], [3.0, 4.0]]))
    with pytest.raises(ValueError, match="rows of one width"):
        pk.kmeans("x", "y", k=2, init=[[1.0, 2.0, 3.0], [4.0]])
    with pytest.raises(ValueError, match="several"):
        pk.kmeans("x", k=2, weight=pl.col("y", "z"))


def test_a_model_of_expressions_asks_for_columns(df: pl.DataFrame, tmp_path: Path) -> None:
    """Polars names `(x - mean) / std` "x". A model that was fitted to it must not use the column x instead."""
    scaled = [(pl.col(c) - pl.col(c).mean()) / pl.col(c).std() for c in ("x", "y")]
    model = pk.KMeans(k=3).fit(df, scaled)
    labels = df.select(pk.kmeans(*scaled, k=3))
    assert df.select(model.predict(scaled)).equals(labels)
    model.save(tmp_path / "model.parquet")
    for asked in (model, pk.KMeansModel.load(tmp_path / "model.parquet")):
        for use in (asked.predict, asked.transform, partial(asked.score, df)):
            with pytest.raises(pk.InvalidColumnError, match="fitted to expressions"):
                use()
    assert df.select(pk.KMeans(k=3).fit(df, cs.by_name("x", "y")).predict()).height == df.height


def test_models(df: pl.DataFrame, tmp_path: Path) -> None:
    model = pk.KMeans(k=3, seed=4, weight="z", tol=1e-3).fit(df.with_columns(pl.col("z").abs()), "x", "y")
    path = tmp_path / "model.parquet"
    model.save(path)
    loaded = pk.KMeansModel.load(path)
    assert loaded == model and pickle.loads(pickle.dumps(model)) == model
    assert model != pk.KMeans(k=3, seed=4, tol=1e-3).fit(df, "x", "y")
    assert loaded.parameters == model.parameters
    assert (model.parameters["seed"], model.parameters["weighted"], model.parameters["tol"]) == (4, True, 1e-3)
    costs = ("settled", "rescored", "skipped", "groups", "passes", "seconds")
    assert loaded.history.drop(costs).equals(model.history.drop(costs))
    assert all(loaded.history[name].is_null().all() for name in costs)
    assert pl.read_parquet(path).equals(model.centroids)
    if hasattr(pl, "read_parquet_metadata"):  # Polars 1.30
        facts = json.loads(pl.read_parquet_metadata(path)["polars-kmeans"])
        assert (facts["inertia"], facts["n_iter"]) == (model.inertia, model.n_iter)
        assert {**facts["parameters"], "scale": None} == model.parameters
    assert df.select(loaded.predict(), loaded.transform()).equals(df.select(model.predict(), model.transform()))


def test_transform(df: pl.DataFrame) -> None:
    model = pk.KMeans(k=4).fit(df, "x", "y")
    distances = df.select(model.transform())["distances"]
    assert distances.dtype == pl.Array(pl.Float64, 4)
    squared = df.select(model.transform(squared=True)).to_series()
    assert df.select(model.predict())["cluster"].equals(squared.arr.arg_min().alias("cluster"))
    holes = pl.DataFrame({"x": [None, 1.0], "y": [1.0, 2.0]})
    assert holes.select(model.transform())["distances"].is_null().to_list() == [True, False]
    assert holes.clear().select(model.transform()).schema == {"distances": pl.Array(pl.Float64, 4)}
    swapped = model.transform(pl.col("y").alias("x"), pl.col("x").alias("y"))
    lazy = df.lazy().select(swapped)
    assert lazy.collect_schema() == {"distances": pl.Array(pl.Float64, 4)}
    assert lazy.collect(engine="streaming").equals(df.select(swapped))


def test_texts_of_expressions_show_no_bytes_of_a_model() -> None:
    rows = pl.DataFrame({"x": [0.0, 1.0, 5.0], "y": [1.0, 2.0, None]})
    model = pk.KMeans(2, keep_sums=True).fit(rows, "x")
    both = pk.KMeans(2, null_policy="skip").fit(rows, "x", "y")
    exprs = (model.predict(), model.transform(), model.nearest_clusters(1), model.sums(), both.predict("x", "y"))
    errors = []
    for query in (
        rows.lazy().select(model.sums(pl.col("y").alias("x"))),
        rows.lazy().select(both.predict(pl.col("x"), pl.col("y").head(2))),
        rows.lazy().select(model.predict().cast(pl.String).str.to_date("%Y")),
    ):
        with pytest.raises(pl.exceptions.PolarsError) as raised:
            query.collect(engine="in-memory")
        errors.append(str(raised.value))
    # Polars names the library of an installed package from the folder of the environment on.
    package = Path(pk.__file__).parent
    folders = [package, *([package.relative_to(sys.prefix)] if package.is_relative_to(sys.prefix) else [])]
    for text in (*map(str, exprs), *errors, rows.lazy().select(model.predict()).explain()):
        shown = text
        for folder in folders:
            shown = shown.replace(str(folder), "")
        assert "polars-kmeans" not in shown, shown
        assert len(shown) < 500, shown
