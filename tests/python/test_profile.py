"""What profiles, nearest rows and notebooks show of a model, beside NumPy and plain Polars."""

import math
import warnings

import numpy as np
import polars as pl
import pytest
from helpers import counted

import polars_kmeans as pk

RNG = np.random.default_rng(2)
X = np.vstack(
    [RNG.normal(centre, 1.0, size=(count, 2)) for centre, count in (([0, 0], 50), ([8, 0], 30), ([0, 90], 20))]
)
DF = pl.DataFrame(X, schema=["x", "y"]).with_columns(
    spent=pl.Series(RNG.exponential(10, 100)), flag=pl.Series(RNG.random(100) < 0.3), name=pl.lit("n")
)
MODEL = pk.KMeans(3, seed=1, scale="standard").fit(DF, "x", "y")
LABELS = DF.select(MODEL.predict()).to_series().to_numpy()


def test_profiles_agree_with_numpy() -> None:
    found = MODEL.profile(DF, quantiles=[0.0, 0.1, 0.5, 1.0])
    assert found.columns == [
        *["cluster", "size", "share", "feature", "mean", "std", "0%", "10%", "50%", "100%"],
        *["overall_mean", "overall_std", "difference", "rank"],
    ]
    assert found["cluster"].to_list() == [0, 0, 1, 1, 2, 2]
    assert found["feature"].to_list() == ["x", "y"] * 3
    assert found["size"].gather_every(2).to_list() == MODEL.centroids["size"].to_list()
    for row in found.iter_rows(named=True):
        column = X[:, int(row["feature"] == "y")]
        values = column[LABELS == row["cluster"]]
        assert row["share"] == pytest.approx(len(values) / 100)
        assert row["mean"] == pytest.approx(values.mean(), rel=1e-13)
        assert row["std"] == pytest.approx(values.std(), rel=1e-12)
        for name, share in (("0%", 0), ("10%", 0.1), ("50%", 0.5), ("100%", 1)):
            assert row[name] == np.quantile(values, share, method="inverted_cdf")
        assert row["overall_mean"] == pytest.approx(column.mean(), rel=1e-13)
        assert row["overall_std"] == pytest.approx(column.std(), rel=1e-12)
        assert row["difference"] == pytest.approx((values.mean() - column.mean()) / column.std(), rel=1e-9)


def test_the_first_rank_is_the_feature_that_sets_a_cluster_apart() -> None:
    found = MODEL.profile(DF)
    means = MODEL.centroids.select("cluster", "x", "y")
    right, far = means["x"].arg_max(), means["y"].arg_max()
    first = dict(found.filter(pl.col("rank") == 1).select("cluster", "feature").iter_rows())
    assert first[right] == "x"
    assert first[far] == "y"
    assert found["rank"].sort().to_list() == [1, 1, 1, 2, 2, 2]


def test_profiles_by_other_columns() -> None:
    found = MODEL.profile(DF, by=["spent", "flag", (pl.col("x") - pl.col("y")).alias("d")])
    assert found["feature"].unique(maintain_order=True).to_list() == ["spent", "flag", "d"]
    plain = DF.group_by(pl.Series("cluster", LABELS)).agg(pl.col("spent", "flag").mean()).sort("cluster")
    for name in ("spent", "flag"):
        mine = found.filter(pl.col("feature") == name)["mean"].to_numpy()
        np.testing.assert_allclose(mine, plain[name], rtol=1e-13)
    again = MODEL.profile(DF.rename({"x": "x2", "y": "y2"}), "x2", "y2", by=pl.col("spent"))
    assert again.equals(found.filter(pl.col("feature") == "spent").with_columns(rank=pl.lit(1, pl.UInt32)))


def test_weights_count_as_repeated_rows() -> None:
    weights = RNG.integers(0, 4, 100)
    frame = DF.with_columns(w=pl.Series(weights))
    found = MODEL.profile(frame, by=["x", "spent"], weight="w")
    repeated = MODEL.profile(DF[np.repeat(np.arange(100), weights)], by=["x", "spent"])
    assert found["size"].sum() == 2 * np.count_nonzero(weights)
    exact = ["cluster", "feature", "25%", "50%", "75%", "rank"]
    assert found.select(exact).equals(repeated.select(exact))
    for name in ("share", "mean", "std", "overall_mean", "overall_std", "difference"):
        np.testing.assert_allclose(found[name], repeated[name], rtol=1e-10)
    ones = MODEL.profile(DF, by=["x", "spent"], weight=pl.lit(1))
    assert ones.equals(MODEL.profile(DF, by=["x", "spent"]))


def test_missing_values() -> None:
    frame = pl.DataFrame(
        {"x": [0.0, 0.0, 0.0, 9.0, 9.0, None, math.nan], "z": [1.0, None, math.inf, math.nan, None, 7.0, 7.0]}
    )
    model = pk.KMeans(2, init=[[0.0], [9.0]], null_policy="skip").fit(frame, "x")
    found = model.profile(frame, by="z").row(0, named=True)
    assert (found["size"], found["share"], found["mean"], found["std"], found["50%"]) == (3, 0.6, 1.0, 0.0, 1.0)
    assert found["overall_mean"] == 1.0
    assert found["difference"] is None
    assert found["rank"] is None
    nothing = model.profile(frame, by="z").row(1, named=True)
    assert (nothing["size"], nothing["mean"], nothing["std"], nothing["50%"]) == (2, None, None, None)


def test_clusters_without_rows_and_frames_without_rows() -> None:
    found = MODEL.profile(DF.filter(pl.Series(LABELS) == 1))
    assert found.select("cluster", "size", "share").unique(maintain_order=True).rows() == [
        (0, 0, 0.0),
        (1, (LABELS == 1).sum(), 1.0),
        (2, 0, 0.0),
    ]
    assert found["mean"].is_null().to_list() == [True, True, False, False, True, True]
    empty = MODEL.profile(DF.clear())
    assert empty.schema == found.schema
    assert empty["size"].to_list() == [0] * 6
    assert empty["mean"].null_count() == empty["share"].null_count() == 6


def test_profiles_of_array_columns() -> None:
    arrays = DF.select(e=pl.concat_arr("x", "y"))
    for frame in (arrays, arrays.cast({"e": pl.List(pl.Float64)})):
        model = pk.KMeans(3, seed=1, scale="standard").fit(frame, "e")
        found = model.profile(frame.lazy())
        assert found["feature"].to_list() == ["e[0]", "e[1]"] * 3
        assert found.drop("feature").equals(MODEL.profile(DF).drop("feature"))


@pytest.mark.filterwarnings("ignore::polars_kmeans.ConvergenceWarning")  # it stops early
def test_profiles_have_the_same_bits_in_every_order_of_chunks() -> None:
    values = pl.DataFrame(np.random.default_rng(5).normal(size=(50_000, 2)), schema=["a", "b"])
    model = pk.KMeans(3, max_iter=3).fit(values, "a", "b")
    expected = model.profile(values)
    chunks = pl.concat([values[at : at + 777] for at in range(0, values.height, 777)], rechunk=False)
    for engine in ("streaming", "in-memory"):
        with pl.Config() as config:
            config.set_engine_affinity(engine)
            assert model.profile(chunks).equals(expected)
            assert model.profile(chunks.sample(fraction=1.0, shuffle=True, seed=1)).equals(expected)


def test_outliers_leave_the_spread_of_other_clusters_alone() -> None:
    frame = pl.DataFrame({"x": [1.0, 2.0, 4.0, 10.0], "y": [1.0, 2.0, 4.0, 1e100]})
    found = pk.KMeans(2, init=[[2.0], [10.0]]).fit(frame, "x").profile(frame, by="y")
    assert found["mean"].to_list() == [7 / 3, 1e100]
    assert found["std"].to_list() == pytest.approx([np.std([1, 2, 4]), 0.0], rel=1e-12)


def test_bad_profiles() -> None:
    with pytest.raises(pk.InvalidColumnError, match='column "name": expected numbers or booleans, got String'):
        MODEL.profile(DF, by="name")
    with pytest.raises(pk.InvalidColumnError, match="feature names must differ, got 'spent' twice"):
        MODEL.profile(DF, by=["spent", pl.col("x").alias("spent")])
    with pytest.raises(pk.InvalidColumnError, match="weight: expected numbers, got String"):
        MODEL.profile(DF, weight="name")
    with pytest.raises(pk.InvalidDataError, match="weight: expected non-negative values, got -1"):
        MODEL.profile(DF, weight=pl.lit(-1))
    with pytest.raises(
        pk.InvalidDataError, match=r"weight: expected a largest magnitude of at most about 1.8e19, got 1e\+20: divide"
    ):
        MODEL.profile(DF, weight=pl.lit(1e20))
    with pytest.raises(
        pk.InvalidDataError, match=r'column "spent": expected a largest magnitude of at most about 2.9e135, got'
    ):
        MODEL.profile(DF, by=pl.col("spent") * 1e150)
    for quantiles in ([1.5], [0.5, 0.5], "a", 3):
        with pytest.raises(pk.InvalidParameterError, match="quantiles: expected numbers from 0 to 1"):
            MODEL.profile(DF, quantiles=quantiles)
    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        MODEL.profile(DF, by="nothing")


def by_hand(frame: pl.DataFrame, m: int) -> pl.DataFrame:
    answers = frame.select(MODEL.predict(output="struct")).unnest("cluster")
    rows = frame.with_columns(cluster=answers["cluster"], distance=answers["distance"]).with_row_index("at")
    rows = rows.filter(pl.col("cluster").is_not_null()).sort("cluster", "distance", "at")
    rows = rows.group_by("cluster", maintain_order=True).head(m)
    rank = pl.int_range(1, pl.len() + 1, dtype=pl.UInt32).over("cluster").alias("rank")
    return rows.select("cluster", rank, "distance", *frame.columns)


def test_nearest_rows_are_those_of_a_sort() -> None:
    holes = pl.concat([DF, DF.head(3).with_columns(x=pl.lit(None, pl.Float64))])
    for m in (1, 4, 1000):
        assert MODEL.nearest(holes, m).equals(by_hand(holes, m))
        assert MODEL.nearest(holes.lazy(), m).equals(by_hand(holes, m))
    other = DF.rename({"x": "x2", "y": "y2"})
    assert MODEL.nearest(other, 2, "x2", "y2")["spent"].equals(by_hand(DF, 2)["spent"])


def test_nearest_rows_of_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are equally far come in their order, also across batches."""
    repeated = pl.concat([DF] * 5).with_row_index("row")
    monkeypatch.setattr("polars_kmeans._nearest._BATCH", 64)
    assert MODEL.nearest(repeated, 7).equals(by_hand(repeated, 7))
    assert MODEL.nearest(repeated.lazy(), 7).equals(by_hand(repeated, 7))


def test_nearest_rows_of_few_rows() -> None:
    assert MODEL.nearest(DF.clear(), 2).height == 0
    assert MODEL.nearest(DF.head(1).lazy(), 2).drop("cluster", "rank", "distance").equals(DF.head(1))


def test_queries_run_once() -> None:
    query, runs = counted(DF)
    assert MODEL.nearest(query, 3).equals(MODEL.nearest(DF, 3))
    assert runs == [100]
    assert MODEL.profile(query).equals(MODEL.profile(DF))
    assert runs == [100, 100]


def test_bad_nearest() -> None:
    for m in (0, -1, 1.5, True, "a"):
        with pytest.raises(pk.InvalidParameterError, match="m: expected a positive integer"):
            MODEL.nearest(DF, m)
    with pytest.raises(
        pk.InvalidColumnError, match='column "distance": the answer has a column of this name and other'
    ):
        MODEL.nearest(DF.with_columns(distance=1.0), 1)
    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        MODEL.nearest(DF.drop("x"), 1)


def test_notebooks_show_facts_and_centroids() -> None:
    shown = MODEL._repr_html_()
    assert "clusters: 3" in shown
    assert "scale: standard" in shown
    assert "device: cpu" in shown
    assert shown.count("<tr>") == 4
    for value in MODEL.centroids["x"]:
        assert f"<td>{value:.6g}</td>" in shown
    assert " more " not in shown


def test_notebooks_escape_names() -> None:
    frame = DF.rename({"x": "<script>alert(1)</script>"})
    shown = pk.KMeans(2).fit(frame, frame.columns[0])._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_notebooks_show_the_first_of_many() -> None:
    wide = pl.DataFrame(RNG.normal(size=(60, 40)))
    shown = pk.KMeans(30).fit(wide, pl.all())._repr_html_()
    assert shown.count("<tr>") == 21
    assert "and 10 more clusters and 28 more features" in shown
    arrays = wide.select(e=pl.concat_arr(pl.all()))
    shown = pk.KMeans(2).fit(arrays, "e")._repr_html_()
    assert shown.count("<td>") == 8
    assert ", …</td>" in shown


def test_a_loaded_model_has_no_device(tmp_path) -> None:
    MODEL.save(tmp_path / "model.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "device: unknown" in pk.KMeansModel.load(tmp_path / "model.parquet")._repr_html_()


@pytest.mark.parametrize("dtype", [pl.List(pl.Float64), pl.Array(pl.Float64, 2)])
def test_columns_beside_one_column_of_several_values(dtype: pl.DataType) -> None:
    """Columns that describe the clusters are not taken for the features."""
    frame = DF.select("spent", "x", e=pl.concat_list("x", "y").cast(dtype), u=pl.concat_list("y", "y", "y"))
    model = pk.KMeans(3, seed=1).fit(frame, "e")
    plain = pk.KMeans(3, seed=1).fit(DF, "x", "y")
    assert model.profile(frame, by="spent").equals(plain.profile(DF, by="spent"))
    assert model.profile(frame, by=["spent", "x"]).equals(plain.profile(DF, by=["spent", "x"]))
    names = model.profile(frame, by=["u", "e", "x"])["feature"].unique(maintain_order=True).to_list()
    assert names == ["u[0]", "u[1]", "u[2]", "e[0]", "e[1]", "x"]
    renamed = model.profile(frame.rename({"e": "z"}), "z")
    assert renamed.drop("feature").equals(plain.profile(DF).drop("feature"))
    assert model.profile(frame.clear())["feature"].to_list() == ["e[0]", "e[1]"] * 3
    ragged = frame.with_columns(u=pl.Series([[1.0]] * 99 + [[1.0, 2.0]]))
    with pytest.raises(pk.InvalidParameterError, match='every list of column "u": expected 1 values, got 2'):
        model.profile(ragged, by="u")
