"""choose_k and silhouettes beside scikit-learn and NumPy."""

import itertools
import math
import random
import time
import warnings
from typing import Any

import numpy as np
import polars as pl
import pytest
from helpers import counted, in_threads
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import make_blobs
from sklearn.metrics import calinski_harabasz_score, davies_bouldin_score, silhouette_score
from sklearn.mixture import GaussianMixture

import polars_kmeans as pk
from polars_kmeans import _measures, _rows

X, _ = make_blobs(n_samples=400, n_features=3, centers=4, cluster_std=1.5, random_state=3)
DF = pl.DataFrame(X, schema=["a", "b", "c"])
MEASURES = ["inertia", "silhouette", "calinski_harabasz", "davies_bouldin", "bic"]


def labels(model: pk.KMeansModel, frame: pl.DataFrame = DF) -> np.ndarray:
    return frame.select(model.predict()).to_series().to_numpy()


def check_measures(row: dict, points: np.ndarray, mine: np.ndarray, rel: float = 1e-12) -> None:
    assert row["calinski_harabasz"] == pytest.approx(calinski_harabasz_score(points, mine), rel=rel)
    assert row["davies_bouldin"] == pytest.approx(davies_bouldin_score(points, mine), rel=rel)


def direct_silhouette(points: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    distances = np.sort(np.linalg.norm(points[:, None] - centroids[None], axis=2), axis=1)
    return (distances[:, 1] - distances[:, 0]) / distances[:, 1]


def centroids(model: pk.KMeansModel) -> np.ndarray:
    return model.centroids.drop("cluster", "size", "inertia").to_numpy()


# With a large tol, fits end early: then the centroids are not the means of the labels.
@pytest.mark.parametrize("tol", [0.0, 1e-4, 0.5])
def test_measures_agree_with_scikit_learn_and_numpy(tol: float) -> None:
    found = pk.choose_k(DF, "a", ["b", "c"], k=range(1, 9), seed=4, tol=tol)
    assert found["k"].to_list() == list(range(1, 9))
    assert found["seconds"].min() > 0
    for row in found.iter_rows(named=True):
        model = pk.KMeans(row["k"], seed=4, tol=tol).fit(DF, "a", "b", "c")
        assert row["inertia"] == model.inertia
        if row["k"] == 1:
            assert row["silhouette"] is row["calinski_harabasz"] is row["davies_bouldin"] is None
            continue
        mine = labels(model)
        check_measures(row, X, mine)
        assert row["silhouette"] == pytest.approx(direct_silhouette(X, centroids(model)).mean(), rel=1e-12)


def test_bic_is_that_of_round_clusters() -> None:
    """Beside a direct sum of log densities, and above that of a mixture, whose likelihood is the largest."""
    found = pk.choose_k(DF, "a", "b", "c", k=[1, 4])
    for k, bic in found.select("k", "bic").iter_rows():
        mine = labels(pk.KMeans(k).fit(DF, "a", "b", "c"))
        means = np.array([X[mine == label].mean(axis=0) for label in range(k)])
        variance = ((X - means[mine]) ** 2).mean()
        shares = np.bincount(mine) / len(X)
        density = np.exp(-((X - means[mine]) ** 2).sum(axis=1) / (2 * variance)) / (2 * math.pi * variance) ** 1.5
        direct = (k - 1 + 3 * k + 1) * math.log(len(X)) - 2 * np.log(shares[mine] * density).sum()
        assert bic == pytest.approx(direct, rel=1e-12)
    one = GaussianMixture(1, covariance_type="spherical", reg_covar=0).fit(X)
    assert found["bic"][0] == pytest.approx(one.bic(X), rel=1e-9)


def test_measures_find_well_separated_clusters() -> None:
    apart, _ = make_blobs(n_samples=600, centers=[[0, 0], [20, 0], [0, 20], [20, 20], [10, 40]], random_state=0)
    found = pk.choose_k(pl.DataFrame(apart), pl.all(), n_init=5)
    assert found["k"][found["silhouette"].arg_max()] == 5
    assert found["k"][found["calinski_harabasz"].arg_max()] == 5
    assert found["k"][found["davies_bouldin"].arg_min()] == 5
    assert found["k"][found["bic"].arg_min()] == 5
    # The inertia falls on and on.
    assert found["inertia"].arg_min() == len(found) - 1


def test_simplified_silhouettes_are_close_to_those_of_all_pairs() -> None:
    found = pk.choose_k(DF, "a", "b", "c", k=range(2, 8), seed=4)
    models = [pk.KMeans(k, seed=4).fit(DF, "a", "b", "c") for k in range(2, 8)]
    pairs = [silhouette_score(X, labels(model)) for model in models]
    assert found["silhouette"].arg_max() == np.argmax(pairs)
    assert np.abs(found["silhouette"].to_numpy() - pairs).max() < 0.15


def test_scaled_rows() -> None:
    frame = DF.with_columns(pl.col("a") * 1000)
    found = pk.choose_k(frame, "a", "b", "c", k=[3], scale="standard")
    model = pk.KMeans(3, scale="standard").fit(frame, "a", "b", "c")
    factors = np.array(list(model.factors.values()))
    scaled = frame.to_numpy() * factors
    mine = labels(model, frame)
    check_measures(found.row(0, named=True), scaled, mine)
    direct = direct_silhouette(scaled, centroids(model) * factors)
    np.testing.assert_allclose(frame.select(model.silhouette()).to_series(), direct, rtol=1e-9)
    assert found["silhouette"].item() == pytest.approx(direct.mean(), rel=1e-12)


def test_directions() -> None:
    found = pk.choose_k(DF, "a", "b", "c", k=[3], metric="cosine")
    model = pk.KMeans(3, metric="cosine").fit(DF, "a", "b", "c")
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    mine = labels(model)
    check_measures(found.row(0, named=True), unit, mine, rel=1e-10)
    assert found["silhouette"].item() == pytest.approx(direct_silhouette(unit, centroids(model)).mean(), rel=1e-10)
    assert found["bic"].item() is None


def test_array_and_list_columns_are_measured_as_columns() -> None:
    expected = pk.choose_k(DF, "a", "b", "c", k=[2, 3], scale="standard").drop("seconds")
    arrays = DF.select(e=pl.concat_arr("a", "b", "c"))
    assert pk.choose_k(arrays, "e", k=[2, 3], scale="standard").drop("seconds").equals(expected)
    lists = arrays.cast({"e": pl.List(pl.Float64)})
    assert pk.choose_k(lists, "e", k=[2, 3], scale="standard").drop("seconds").equals(expected)


def test_weights_count_as_repeated_rows() -> None:
    weights = np.random.default_rng(0).integers(0, 4, len(X))
    weighted = DF.with_columns(w=pl.Series(weights))
    found = pk.choose_k(weighted, "a", "b", "c", k=[3, 5], weight="w", seed=1)
    repeated = np.repeat(X, weights, axis=0)
    for k, row in zip([3, 5], found.iter_rows(named=True), strict=True):
        model = pk.KMeans(k, weight="w", seed=1).fit(weighted, "a", "b", "c")
        mine = np.repeat(labels(model, weighted), weights)
        check_measures(row, repeated, mine)
        assert row["silhouette"] == pytest.approx(direct_silhouette(repeated, centroids(model)).mean(), rel=1e-12)
    same = pk.choose_k(weighted, "a", "b", "c", k=[3, 5], weight=pl.col("w") * 1.0, seed=1)
    assert same.select(MEASURES).equals(found.select(MEASURES))


def test_rows_with_nulls_are_left_out() -> None:
    holes = pl.concat(
        [DF, pl.DataFrame({"a": [None, 1.0, 2.0], "b": [1.0, math.nan, 2.0], "c": [1.0, 1.0, math.inf]})]
    ).sample(fraction=1.0, shuffle=True, seed=1)
    clean = holes.filter(pl.all_horizontal(pl.all().is_finite()))
    found = pk.choose_k(holes, "a", "b", "c", k=[2, 3], null_policy="skip")
    assert found.select(MEASURES).equals(pk.choose_k(clean, "a", "b", "c", k=[2, 3]).select(MEASURES))
    with pytest.raises(pk.InvalidDataError, match='column "a": expected finite values, got nulls: 1'):
        pk.choose_k(holes, "a", "b", "c")
    weighted = DF.with_columns(w=pl.when(pl.col("a") > 0).then(1.0))
    found = pk.choose_k(weighted, "a", "b", "c", k=[2], weight="w", null_policy="skip")
    positive = pk.choose_k(DF.filter(pl.col("a") > 0), "a", "b", "c", k=[2])
    assert found.select(MEASURES).equals(positive.select(MEASURES))


def test_float32_and_integers() -> None:
    small = DF.cast(pl.Float32)
    mine = labels(pk.KMeans(4).fit(small, "a", "b", "c"), small)
    row = pk.choose_k(small, "a", "b", "c", k=[4]).row(0, named=True)
    exact = small.to_numpy().astype("float64")
    check_measures(row, exact, mine)
    whole = DF.select((pl.all() * 10).cast(pl.Int16))
    mine = labels(pk.KMeans(4).fit(whole, "a", "b", "c"), whole)
    row = pk.choose_k(whole, "a", "b", "c", k=[4]).row(0, named=True)
    assert row["davies_bouldin"] == pytest.approx(davies_bouldin_score(whole.to_numpy(), mine), rel=1e-12)


@pytest.mark.parametrize("factor", [1e-130, 1e-30, 1e30, 1e130])
def test_large_and_small_values(factor: float) -> None:
    mine = labels(pk.KMeans(3).fit(DF, "a", "b", "c"))
    row = pk.choose_k(DF * factor, "a", "b", "c", k=[3]).row(0, named=True)
    assert row["davies_bouldin"] == pytest.approx(davies_bouldin_score(X, mine), rel=1e-9)


def test_an_outlier_does_not_hide_the_spread_of_the_rest() -> None:
    far = pl.concat([DF, pl.DataFrame({"a": [1e9], "b": [0.0], "c": [0.0]})])
    mine = labels(pk.KMeans(5).fit(far, "a", "b", "c"), far)
    row = pk.choose_k(far, "a", "b", "c", k=[5]).row(0, named=True)
    check_measures(row, far.to_numpy(), mine, rel=1e-9)


@pytest.mark.filterwarnings("ignore::polars_kmeans.NoClearKWarning")
@pytest.mark.filterwarnings("ignore::polars_kmeans.ConvergenceWarning")  # it stops early
def test_the_bits_do_not_depend_on_chunks_engines_or_threads() -> None:
    frame = pl.DataFrame(np.random.default_rng(5).normal(size=(60_000, 3)).astype("float32"))
    expected = pk.choose_k(frame, pl.all(), k=[3, 4], max_iter=4).drop("seconds")
    chunks = pl.concat([frame[at : at + 777] for at in range(0, frame.height, 777)], rechunk=False)
    for engine in ("streaming", "in-memory"):
        with pl.Config() as config:
            config.set_engine_affinity(engine)
            assert pk.choose_k(chunks, pl.all(), k=[3, 4], max_iter=4).drop("seconds").equals(expected)
            assert pk.choose_k(frame.lazy(), pl.all(), k=[3, 4], max_iter=4).drop("seconds").equals(expected)
    found = []
    in_threads(lambda _: found.append(pk.choose_k(frame, pl.all(), k=[3, 4], max_iter=4).drop("seconds")), 3)
    assert [frame.equals(expected) for frame in found] == [True] * 3


def test_extreme_clusterings_have_scikit_learns_measures() -> None:
    """Every row is its own centroid: nothing is left within the clusters."""
    three = pl.DataFrame({"x": [0.0, 0.0, 1.0, 5.0]})
    row = pk.choose_k(three, "x", k=[3]).row(0, named=True)
    mine = labels(pk.KMeans(3).fit(three, "x"), three)
    assert row["calinski_harabasz"] == calinski_harabasz_score(three.to_numpy(), mine) == 1.0
    assert row["davies_bouldin"] == davies_bouldin_score(three.to_numpy(), mine) == 0.0
    assert row["silhouette"] == 1.0
    assert row["bic"] == -math.inf
    assert pk.choose_k(three.unique(), "x", k=[3])["calinski_harabasz"].item() is None


def test_too_few_rows() -> None:
    few = pl.DataFrame({"x": [0.0, 1.0, 2.0]})
    with pytest.raises(pk.TooFewRowsError):
        pk.choose_k(few, "x", k=[2, 4], too_few="raise")
    with pytest.warns(pk.TooFewRowsWarning, match="k = 4, 5: there are fewer distinct rows than clusters") as caught:
        found = pk.choose_k(few, "x", k=[4, 2, 5])
    assert len(caught) == 1 and caught[0].filename == __file__
    assert found["k"].to_list() == [4, 2, 5]
    for name in ("inertia", "silhouette", "davies_bouldin", "seconds"):
        assert found[name].is_null().to_list() == [True, False, True]
    assert found.select(MEASURES)[1].equals(pk.choose_k(few, "x", k=[2]).select(MEASURES))
    # Also where the rows are there and are not distinct, and where no k can be fitted.
    with pytest.warns(pk.TooFewRowsWarning):
        assert pk.choose_k(pl.concat([few] * 9), "x", k=[3, 4])["inertia"].to_list() == [0.0, None]
    with pytest.warns(pk.TooFewRowsWarning):
        assert pk.choose_k(few, "x", k=[4])["inertia"].to_list() == [None]
    with pytest.warns(pk.TooFewRowsWarning):
        assert pk.choose_k(few, "x", k=[4, 5])["inertia"].to_list() == [None, None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pk.choose_k(few, "x", k=[2, 4], too_few="null")["inertia"].is_null().to_list() == [False, True]
        assert pk.choose_k(few, "x", k=[4], too_few="null")["inertia"].to_list() == [None]
    with pytest.raises(pk.InvalidDataError):
        pk.choose_k(few.clear(), "x", k=[4, 5])


def test_seconds_are_those_of_the_fit_and_the_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    measures = _measures.measures

    def slow(*arguments: Any) -> dict[str, float | None]:
        time.sleep(0.2)
        return measures(*arguments)

    monkeypatch.setattr(_measures, "measures", slow)
    start = time.perf_counter()
    found = pk.choose_k(DF, "a", "b", "c", k=[2, 3])
    assert found["seconds"].min() > 0.2
    assert found["seconds"].sum() < time.perf_counter() - start


def test_a_query_runs_once() -> None:
    query, runs = counted(DF)
    pk.choose_k(query, "a", pl.col("b") * 2, k=[2, 3])
    assert runs == [DF.height]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 3}, r"k: expected numbers of clusters, such as range\(2, 11\), got 3"),
        ({"k": "34"}, "k: expected numbers of clusters"),
        ({"k": [2, 2.5]}, "k: expected numbers of clusters"),
        ({"k": [2, True]}, "k: expected numbers of clusters"),
        ({"k": []}, "k: expected numbers of clusters.*, got none"),
        ({"k": [2, 0]}, "k: expected"),
        ({"init": [[0.0], [1.0]]}, "init: expected a method, got starting centroids: they belong to one k"),
        ({"weight": 3}, "weight: expected a column name or an expression"),
        ({"metric": "manhattan"}, "metric: expected"),
    ],
)
def test_bad_parameters(arguments: dict, message: str) -> None:
    with pytest.raises(pk.InvalidParameterError, match=message):
        pk.choose_k(DF, "a", **arguments)


def test_bad_columns() -> None:
    with pytest.raises(pk.InvalidColumnError, match="expected at least one column, got none"):
        pk.choose_k(DF)
    with pytest.raises(pk.InvalidColumnError, match="columns: expected different names, got one twice"):
        pk.choose_k(DF, pl.all(), pl.col("a").alias("b"))
    with pytest.raises(pk.InvalidColumnError, match='column "s": expected numbers'):
        pk.choose_k(DF.with_columns(s=pl.lit("a")), "s")
    with pytest.raises(pk.InvalidParameterError, match="columns: expected none beside an array, got 1"):
        pk.choose_k(X, "a")
    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        pk.choose_k(DF, "nothing")
    with pytest.raises(TypeError, match="n_clusters"):
        pk.choose_k(DF, "a", n_clusters=3)


def test_odd_names_of_features() -> None:
    names = ["label", "weight", "^a.*$"]
    odd = DF.rename(dict(zip(DF.columns, names, strict=True)))
    expected = pk.choose_k(DF, "a", "b", "c", k=[3]).drop("seconds")
    assert pk.choose_k(odd, names, k=[3]).drop("seconds").equals(expected)
    assert pk.choose_k(odd.rename({"label": "__weight__"}), pl.all(), k=[3]).drop("seconds").equals(expected)


@given(
    values=st.lists(
        st.floats(-1e150, 1e150) | st.floats(-10, 10) | st.floats(-1e-290, 1e-290) | st.none(), min_size=1, max_size=30
    ),
    order=st.randoms(use_true_random=False),
)
def test_sums_are_exact_for_the_largest_values_and_in_every_order(values: list, order: random.Random) -> None:
    """Beside fsum, which rounds once. What is lost is below 2^-80 of the largest value, for each value."""
    rows = [(at % 3, value) for at, value in enumerate(values)]
    frame = pl.DataFrame(rows, schema={"g": pl.UInt32, "v": pl.Float64}, orient="row")
    found = _rows.totals(frame.lazy(), "g", {"v": pl.col("v")})
    for group, total in found.iter_rows():
        mine = [value for at, value in rows if at == group and value is not None]
        bound = len(mine) * max(map(abs, mine), default=0.0) * 2.0**-79
        assert abs(total - math.fsum(mine)) <= bound + abs(math.fsum(mine)) * 2.0**-52
    order.shuffle(rows)
    shuffled = pl.DataFrame(rows, schema=frame.schema, orient="row")
    assert _rows.totals(shuffled.lazy(), "g", {"v": pl.col("v")}).equals(found)


def test_silhouettes_of_rows() -> None:
    frame = pl.DataFrame({"x": [0.0, 1.0, 2.0, 4.0, None, math.nan, math.inf]})
    model = pk.KMeans(2, init=[[0.0], [4.0]], max_iter=1, tol=1e9).fit(pl.DataFrame({"x": [0.0, 4.0]}), "x")
    assert frame.select(model.silhouette()).to_series().to_list() == [1.0, (3 - 1) / 3, 0.0, 1.0, None, None, None]
    assert frame.select(model.silhouette("x")).columns == ["silhouette"]
    one = pk.KMeans(1).fit(frame.head(3), "x")
    assert frame.select(one.silhouette()).to_series().to_list() == [None] * 7
    assert model.silhouette(frame.head(4).to_numpy()).tolist() == [1.0, (3 - 1) / 3, 0.0, 1.0]


def test_silhouettes_stream_and_label_once() -> None:
    model = pk.KMeans(4).fit(DF, "a", "b", "c")
    plan = DF.lazy().select(model.silhouette()).explain(engine="streaming")
    assert plan.count("_internal") == 1
    results = [DF.lazy().select(model.silhouette()).collect(engine=engine) for engine in ("streaming", "in-memory")]
    assert all(one.equals(other) for one, other in itertools.pairwise(results))


def test_fits_that_do_not_end_warn_the_caller() -> None:
    with pytest.warns(pk.ConvergenceWarning, match="used all 1 iterations") as caught:
        pk.choose_k(DF, "a", k=[2, 3], max_iter=1, tol=0.0)
    assert {warning.filename for warning in caught} == {__file__}


RNG = np.random.default_rng(8)
# Rows without clusters, in shapes that k-means cuts in various ways.
SHAPELESS = {
    "uniform, 1 feature": RNG.uniform(size=(900, 1)),
    "uniform, 2 features": RNG.uniform(size=(900, 2)),
    "uniform, long": RNG.uniform(size=(900, 2)) * [10, 1],
    "uniform, 20 features": RNG.uniform(size=(900, 20)),
    "one blob": RNG.normal(size=(900, 2)),
    "one long blob": RNG.normal(size=(900, 3)) * [10, 1, 1],
    "one blob, 20 features": RNG.normal(size=(900, 20)),
    "exponential": RNG.exponential(size=(900, 2)),
}


@pytest.mark.parametrize("name", SHAPELESS)
def test_rows_without_clusters_have_no_clear_k(name: str) -> None:
    rule = "for every k, more than 5% of the rows lie near a border between clusters, less than a quarter of the way"
    with pytest.warns(pk.NoClearKWarning, match=f"^no clear k: {rule}") as caught:
        found = pk.choose_k(SHAPELESS[name], k=range(1, 8), n_init=3)
    assert [warning.filename for warning in caught] == [__file__]
    assert found["border"][0] is None and found["border"].min() > 0.05
    with warnings.catch_warnings():
        # One cluster has no borders.
        warnings.simplefilter("error")
        pk.choose_k(SHAPELESS[name], k=[1])


@pytest.mark.parametrize("features", [1, 2, 20])
@pytest.mark.parametrize("sizes", [(300, 300, 300), (700, 150, 50)])
def test_clusters_far_apart_have_a_clear_k(features: int, sizes: tuple[int, ...]) -> None:
    centers = np.eye(3, features) * 8 if features > 2 else np.array([[0, 0], [8, 0], [0, 16]])[:, -features:]
    centers = centers if features > 1 else np.array([[0.0], [8.0], [16.0]])
    points = np.concatenate([RNG.normal(size=(n, features)) + c for n, c in zip(sizes, centers, strict=True)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = pk.choose_k(points, k=range(1, 7), n_init=5, init="kmeans-parallel")
        weighted = pk.choose_k(pl.DataFrame(points).with_columns(w=2.0), pl.exclude("w"), k=[2, 3], weight="w")
    assert found["smallest"][2] == min(sizes) and found["smallest"][0] == sum(sizes)
    assert found["border"][2] < 0.02
    assert weighted["border"][1] == pytest.approx(found["border"][2], abs=1e-12) or weighted["smallest"][1] != min(
        sizes
    )


def test_borders_agree_with_projections() -> None:
    """The share of the rows near borders, from the line between two centroids."""
    for options in ({}, {"scale": "standard"}, {"metric": "cosine"}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = pk.choose_k(DF, "a", "b", "c", k=[3, 6], **options)
        for count, border in found.select("k", "border").iter_rows():
            model = pk.KMeans(count, **options).fit(DF, "a", "b", "c")
            points = X / X.std(axis=0) if "scale" in options else X
            points = points / np.linalg.norm(points, axis=1, keepdims=True) if "metric" in options else points
            middles = np.array(model._compared())
            first, second = np.argsort(np.linalg.norm(points[:, None] - middles, axis=2), axis=1)[:, :2].T
            line = middles[first] - middles[second]
            along = ((points - (middles[first] + middles[second]) / 2) * line).sum(axis=1) / (line**2).sum(axis=1)
            assert border == pytest.approx(np.mean(along < 0.125), abs=1e-12)
