"""`sort_by` and `too_few="fewer"`: in expressions, the estimator, models per group and choose_k."""

import itertools

import numpy as np
import polars as pl
import pytest

import polars_kmeans as pk


def grid(n: int = 3_000, seed: int = 1) -> pl.DataFrame:
    """Rows of small whole numbers: many are equally near to several centroids."""
    random = np.random.default_rng(seed)
    return pl.DataFrame({"x": random.integers(0, 5, n), "y": random.integers(0, 4, n), "g": random.integers(0, 3, n)})


def blobs() -> pl.DataFrame:
    random = np.random.default_rng(2)
    x = np.concatenate([random.normal(c, 0.5, n) for c, n in [(9.0, 40), (0.0, 300), (4.0, 90)]])
    return pl.DataFrame({"x": x, "y": -x}).sample(fraction=1.0, shuffle=True, seed=3)


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
@pytest.mark.parametrize("sort_by", ["size", "x", "y"])
def test_centroids_sizes_and_labels_change_together(sort_by: str, engine: str) -> None:
    df = blobs()
    options = {"k": 3, "seed": 5, "sort_by": sort_by}
    model = pk.KMeans(**options).fit(df, "x", "y")
    assert model.centroids[sort_by].is_sorted()
    assert model.parameters["sort_by"] == sort_by
    plain = pk.KMeans(3, seed=5).fit(df, "x", "y")
    assert model.centroids.drop("cluster").sort("x").equals(plain.centroids.drop("cluster").sort("x"))
    assert model.inertia == plain.inertia
    query = df.lazy().select(
        pk.kmeans("x", "y", **options).alias("fit"),
        model.predict().alias("predicted"),
        pk.kmeans("x", "y", **options, output="struct").struct.field("cluster").alias("struct"),
    )
    labels = query.collect(engine=engine)
    assert labels["fit"].equals(labels["predicted"])
    assert labels["fit"].equals(labels["struct"])
    counts = labels["fit"].value_counts().sort("fit")["count"].to_list()
    assert counts == model.centroids["size"].to_list()
    assert pk.KMeans(**options).fit_predict(df, "x", "y").equals(labels["fit"])
    aggregated = df.select(pk.centroids("x", "y", **options).explode()).to_series().struct.unnest()
    assert aggregated.equals(model.centroids)


def test_models_per_group_arrays_and_the_order_of_rows() -> None:
    df = grid()
    models = pk.KMeans(3, seed=1, sort_by="size").fit(blobs().with_columns(g=pl.lit("a")), "x", "y", by="g")
    assert models["a"].centroids["size"].is_sorted()
    over = df.select(pk.kmeans("x", "y", k=4, seed=1, sort_by="y").over("g")).to_series()
    by_group = pk.KMeans(4, seed=1, sort_by="y").fit(df, "x", "y", by="g")
    assert over.equals(df.select(by_group.predict()).to_series())
    array = blobs().select(e=pl.concat_arr("x", "y"))
    model = pk.KMeans(3, sort_by="e[1]").fit(array, "e")
    assert model.centroids["e"].arr.get(1).is_sorted()
    assert pk.KMeans(3, sort_by="column_1").fit(blobs().to_numpy()).centroids["column_1"].is_sorted()
    shuffled = [df.sample(fraction=1.0, shuffle=True, seed=seed) for seed in range(3)]
    options = {"k": 5, "row_order": "values", "sort_by": "size"}
    fits = [pk.KMeans(**options)._fit(rows, ("x", "y"), None) for rows in shuffled]
    assert all(one == other for one, other in itertools.pairwise(fits))


def test_a_model_with_sorted_clusters_is_saved(tmp_path: object) -> None:
    model = pk.KMeans(3, sort_by="x").fit(blobs(), "x", "y")
    again = pk.KMeansModel.from_bytes(model.to_bytes())
    assert again == model
    assert again.parameters["sort_by"] == "x"
    assert "sort_by" not in pk.KMeans(3).fit(blobs(), "x", "y").parameters


@pytest.mark.parametrize("init", ["k-means++", "random", "kmeans-parallel", "afk-mc2"])
def test_fewer_clusters_are_the_distinct_rows(init: str) -> None:
    df = pl.DataFrame({"x": [3.0, 1.0, 3.0, 7.0, 1.0], "y": [0, 1, 0, 2, 1]})
    options = {"k": 4, "init": init, "too_few": "fewer"}
    model = pk.KMeans(**options).fit(df, "x", "y")
    assert model.centroids.select("x", "y").rows() == [(3, 0), (1, 1), (7, 2)]
    assert model.centroids["size"].to_list() == [2, 2, 1]
    assert (model.inertia, model.n_iter, model.converged, model.parameters["k"]) == (0.0, 1, True, 3)
    labels = df.select(pk.kmeans("x", "y", **options), model.predict().alias("predicted"))
    assert labels["cluster"].to_list() == labels["predicted"].to_list() == [0, 1, 0, 2, 1]
    structs = df.select(pk.kmeans("x", "y", **options, output="struct")).unnest("cluster")
    assert structs["cluster"].to_list() == [0, 1, 0, 2, 1]
    assert structs["distance"].to_list() == [0.0] * 5
    assert structs["second_distance"].null_count() == 0
    assert df.select(pk.centroids("x", "y", **options).list.len()).item() == 3
    by_x = pk.KMeans(**options, sort_by="x").fit(df, "x", "y")
    assert by_x.centroids["x"].to_list() == [1, 3, 7]
    assert by_x.predict(df).to_list() == [1, 0, 1, 2, 0]


def test_fewer_leaves_out_weightless_rows_and_works_per_group() -> None:
    df = pl.DataFrame({"x": [9.0, 1.0, 2.0, 2.0], "w": [0.0, 1.0, 2.0, 1.0]})
    model = pk.KMeans(4, weight="w", too_few="fewer").fit(df, "x")
    assert model.centroids["x"].to_list() == [1.0, 2.0]
    shops = pl.DataFrame({"s": ["a", "b", "a", "b", "c", "a"], "x": [1.0, 2.0, 5.0, 2.0, None, 5.5]})
    labels = shops.select(pk.kmeans("x", k=2, sort_by="x", too_few="fewer", null_policy="skip").over("s"))
    assert labels.to_series().to_list() == [0, 0, 1, 0, None, 1]
    lists = shops.group_by("s", maintain_order=True).agg(pk.centroids("x", k=2, too_few="fewer", null_policy="skip"))
    assert lists["centroids"].list.len().to_list() == [2, 1, None]
    with pytest.raises(pk.InvalidDataError, match="at least one row"):
        pk.KMeans(2, too_few="fewer", null_policy="skip").fit(shops.filter(s="c"), "x")
    models = pk.KMeans(2, too_few="fewer").fit(shops.filter(pl.col("s") != "c"), "x", by="s")
    assert {key: model.n_clusters for key, model in models.items()} == {"a": 2, "b": 1}


def test_fewer_of_an_array_and_enough_rows() -> None:
    array = np.array([[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]])
    model = pk.KMeans(3, too_few="fewer").fit(array)
    assert model.n_clusters == 2
    assert pk.KMeans(3, too_few="fewer").fit_predict(array).tolist() == [0, 0, 1]
    df = blobs()
    assert pk.KMeans(3, too_few="fewer").fit(df, "x", "y") == pk.KMeans(3).fit(df, "x", "y")


def test_columns_of_any_name_are_labelled() -> None:
    df = blobs().rename({"x": "size", "y": "cluster"}).with_columns(inertia=pl.lit(1.0))
    names = ["size", "cluster", "inertia"]
    labels = df.select(pk.kmeans(names, k=3, seed=4)).to_series()
    others = df.rename({name: f"{name}_" for name in names})
    assert labels.equals(others.select(pk.kmeans([f"{name}_" for name in names], k=3, seed=4)).to_series())
    structs = df.lazy().select(pk.kmeans(names, k=3, seed=4, output="struct")).collect(engine="streaming")
    assert structs.unnest("cluster")["cluster"].to_list() == labels.to_list()
    # The number of rows, not the feature.
    sizes = df.select(pk.kmeans(names, k=3, seed=4, sort_by="size")).to_series().value_counts(sort=True)
    assert sizes["cluster"].to_list() == [2, 1, 0]
    for refused in (lambda: pk.KMeans(3).fit(df, names), lambda: df.select(pk.centroids(names, k=3))):
        with pytest.raises(pl.exceptions.ComputeError, match="may not be named"):
            refused()


def test_seconds_of_a_fit() -> None:
    model = pk.KMeans(3).fit(blobs(), "x", "y")
    assert model.seconds is not None
    assert list(model.seconds) == ["rows", "seeding", "iterations"]
    assert all(seconds > 0 for seconds in model.seconds.values())
    assert model.seconds["iterations"] >= model.history["seconds"].sum() * 0.9
    assert pk.KMeansModel.from_bytes(model.to_bytes()).seconds is None


def test_predictions_that_must_be_complete() -> None:
    model = pk.KMeans(2).fit(pl.DataFrame({"x": [0.0, 1.0, 5.0], "y": [0.0, 1.0, 5.0]}), "x", "y")
    good, bad = (
        pl.DataFrame({"x": [0.0], "y": [1.0]}),
        pl.DataFrame({"x": [0.0, 1.0, 2.0], "y": [1.0, None, float("nan")]}),
    )
    assert model.predict(good, null_policy="raise").equals(model.predict(good))
    assert model.predict(bad).null_count() == 2
    for output in ("label", "struct"):
        # Each morsel has its own counts.
        message = 'column "y": expected finite values, got nulls: [01], NaNs: [01], infinities: 0'
        with pytest.raises(pk.InvalidDataError, match=message):
            model.predict(bad, output=output, null_policy="raise")  # type: ignore[call-overload]
        with pytest.raises(pl.exceptions.ComputeError, match=message):
            bad.lazy().select(model.predict(output=output, null_policy="raise")).collect(engine="streaming")  # type: ignore[call-overload]
    array = bad.to_numpy()
    assert model.predict(array).tolist()[1:] == [-1, -1]
    with pytest.raises(pk.InvalidDataError, match="got 2 rows"):
        model.predict(array, null_policy="raise")
    with pytest.raises(pk.InvalidParameterError, match="null_policy"):
        model.predict(good, null_policy="null")  # type: ignore[call-overload]
    directions = pk.KMeans(1, metric="cosine").fit(good.with_columns(x=1.0), "x", "y")
    with pytest.raises(pk.InvalidDataError, match="1 rows of zeros"):
        directions.predict(pl.DataFrame({"x": [0.0], "y": [0.0]}), null_policy="raise")


def test_labels_of_an_array_are_those_of_the_fit() -> None:
    array = np.random.default_rng(5).normal(size=(500, 3))
    for options in ({"k": 4}, {"k": 4, "sort_by": "size"}, {"k": 4, "n_init": 3}):
        estimator = pk.KMeans(**options)
        assert np.array_equal(estimator.fit_predict(array), estimator.fit(array).predict(array))
    array[7, 1] = np.nan
    labels = pk.KMeans(4, null_policy="skip").fit_predict(array)
    assert labels[7] == -1
    assert (np.delete(labels, 7) >= 0).all()
