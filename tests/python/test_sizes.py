"""Clusters of bounded size: every way in, the best assignment, and refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.optimize import linear_sum_assignment

import polars_kmeans as pk

RNG = np.random.default_rng(5)
FRAME = pl.DataFrame({"x": RNG.normal(size=600), "y": RNG.normal(size=600), "shop": ["a", "b", "c"] * 200})


def counts(labels: pl.Series) -> list[int]:
    """Return the sizes of the clusters, by number."""
    return labels.value_counts().sort(labels.name)["count"].to_list()


def test_every_way_in_keeps_the_bounds_and_agrees() -> None:
    options = {"k": 6, "min_size": 80, "max_size": 120, "seed": 3}
    labels = pk.KMeans(**options).fit_predict(FRAME, "x", "y")
    assert all(80 <= size <= 120 for size in counts(labels))
    model = pk.KMeans(**options).fit(FRAME, "x", "y")
    assert model.centroids["size"].to_list() == counts(labels)
    expression = pk.kmeans("x", "y", **options)
    assert FRAME.select(expression).to_series().to_list() == labels.to_list()
    assert FRAME.lazy().select(expression).collect(engine="streaming").to_series().to_list() == labels.to_list()
    centroids = FRAME.select(pk.centroids("x", "y", **options)).to_series().explode().struct.unnest()
    assert centroids["size"].to_list() == model.centroids["size"].to_list()
    assert model.device == "cpu"
    assert model.history["passes"].max() > 1
    plain = pk.KMeans(k=6, seed=3).fit(FRAME, "x", "y")
    assert plain.history["passes"].null_count() == plain.history.height


def test_groups_have_bounds_of_their_own() -> None:
    per_shop = FRAME.select("shop", cluster=pk.kmeans("x", "y", k=4, balanced=True).over("shop"))
    assert per_shop.group_by("shop", "cluster").len()["len"].to_list() == [50] * 12
    models = pk.KMeans(k=4, balanced=True).fit(FRAME, "x", "y", by="shop")
    assert all(model.centroids["size"].to_list() == [50] * 4 for model in models.values())


def test_rows_without_weight_do_not_count() -> None:
    frame = FRAME.with_columns(w=pl.int_range(600) % 4)
    labels = pk.KMeans(k=5, balanced=True, seed=1, weight="w").fit_predict(frame, "x", "y")
    assert counts(labels.filter(frame["w"] > 0)) == [90] * 5
    assert labels.null_count() == 0


def test_distances_are_those_to_the_own_cluster() -> None:
    struct = FRAME.select(pk.kmeans("x", "y", k=6, balanced=True, seed=3, output="struct").alias("s")).unnest("s")
    model = pk.KMeans(k=6, balanced=True, seed=3).fit(FRAME, "x", "y")
    every = np.array(FRAME.select(model.transform()).to_series().to_list())
    own = struct["cluster"].to_numpy()
    assert np.array_equal(struct["distance"].to_numpy(), every[np.arange(600), own])
    every[np.arange(600), own] = np.inf
    assert np.array_equal(struct["second_distance"].to_numpy(), every.min(axis=1))
    assert (struct["distance"] > struct["second_distance"]).any()


@pytest.mark.filterwarnings("ignore::polars_kmeans.ConvergenceWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_assignments_cost_what_a_linear_assignment_costs(dtype: type) -> None:
    for case in range(1_000):
        rng = np.random.default_rng(case)
        k, d = int(rng.integers(1, 5)), int(rng.integers(1, 4))
        n = int(rng.integers(2 * k, 25))
        copies = rng.normal(size=(5, d))[rng.integers(0, 5, n)]
        x = [rng.normal(size=(n, d)), rng.integers(0, 3, size=(n, d)), copies][case % 3].astype(dtype)
        weights = rng.integers(1, 4, n).astype(float) if case % 4 == 0 else np.ones(n)
        least, most = int(rng.integers(1, n // k + 1)), math.ceil(n / k) + int(rng.integers(0, 3))
        frame = pl.DataFrame(x, schema=[f"f{f}" for f in range(d)]).with_columns(w=weights)
        options = {"k": k, "min_size": least, "max_size": most, "max_iter": 2, "seed": case, "weight": "w"}
        try:
            model = pk.KMeans(**options).fit(frame, pl.exclude("w"))
        except pk.TooFewRowsError:
            continue
        labels = pk.KMeans(**options).fit_predict(frame, pl.exclude("w")).to_numpy()
        centroids = model.centroids_array().astype(float)
        squares = ((x.astype(float)[:, None, :] - centroids) ** 2).sum(axis=2) * weights[:, None]
        # The first places of a cluster have a bonus, so that they are filled.
        places = np.repeat(np.arange(k), most)
        bonus = np.where(np.tile(np.arange(most), k) < least, squares.sum() + 1.0, 0.0)
        cost = squares[:, places] - bonus
        best = places[linear_sum_assignment(cost)[1]]
        rows = np.arange(n)
        assert squares[rows, labels].sum() <= squares[rows, best].sum() * (1 + 1e-12) + 1e-30, case
        assert all(least <= size <= most for size in np.bincount(labels, minlength=k))


def test_sizes_that_cannot_be_are_refused() -> None:
    def message(**options: object) -> str:
        with pytest.raises(pk.InvalidParameterError) as error:
            pk.KMeans(k=4, **options).fit(FRAME, "x", "y")  # type: ignore[arg-type]
        return str(error.value)

    assert message(max_size=1.25) == "max_size: expected rows, not a share: 1.25 n / k is 187.5, got 1.25"
    assert message(min_size=151).startswith("sizes: expected min_size k <= n <= max_size k, got min_size = 151")
    assert message(max_size=149).startswith("sizes: ")
    assert message(max_size=0) == "max_size: expected an integer of at least 1, or none, got 0"
    assert message(balanced=True, min_size=3) == "balanced: expected no min_size or max_size beside it, got both"
    assert "bounds on their sizes" in message(balanced=True, device="cuda:all")
    few = FRAME.head(7).with_columns(pk.kmeans("x", "y", k=4, min_size=2, too_few="null"))
    assert few["cluster"].null_count() == 7


def test_fit_predict_warns_of_a_fit_that_goes_on() -> None:
    with pytest.warns(pk.ConvergenceWarning):
        labels = pk.KMeans(k=9, balanced=True, max_iter=1, tol=0.0, seed=1).fit_predict(FRAME, "x", "y")
    assert labels.name == "cluster"
    assert labels.value_counts()["count"].max() == 67
    few = pk.KMeans(k=4, min_size=2, too_few="null").fit_predict(FRAME.head(3), "x", "y")
    assert few.null_count() == 3


@pytest.mark.parametrize("dtype", [pl.Float32, pl.Float64])
def test_rows_are_assigned_within_bounds_under_a_model(dtype: type[pl.DataType]) -> None:
    frame = FRAME.with_columns(pl.col("x", "y").cast(dtype), w=pl.int_range(600) % 4)
    both: dict[str, Any] = {"scale": {"x": 3.0}, "metric": "cosine"}
    for options in ({}, {"scale": "standard"}, {"metric": "cosine"}, both):
        for weight in (None, "w"):
            bounds: dict[str, Any] = (
                {"min_size": 100, "max_size": 160} if weight is None else {"min_size": 90, "max_size": 125}
            )
            estimator = pk.KMeans(k=4, seed=2, weight=weight, **bounds, **options)
            labels = estimator.fit_predict(frame, "x", "y")
            model = estimator.fit(frame, "x", "y")
            assigned = model.assign(frame, weight=weight, name="a", **bounds)
            assert assigned["a"].to_list() == labels.to_list(), (options, weight)
            assert assigned.drop("a").equals(frame)


def test_few_rows_and_many_kinds_of_them_are_assigned() -> None:
    model = pk.KMeans(k=3, init=[0.0, 5.0, 9.0]).fit(pl.DataFrame({"x": [0.0, 5.0, 9.0]}), "x")
    rows = pl.DataFrame({"x": [0.0, 0.1, None, 0.2, float("nan")]})
    assert model.assign(rows, max_size=1)["cluster"].to_list() == [0, 1, None, 2, None]
    assert model.assign(rows.lazy(), max_size=2).collect()["cluster"].to_list() == [0, 0, None, 1, None]
    assert model.assign(rows.head(2), balanced=True)["cluster"].to_list() == [0, 1]
    assert model.assign(rows.head(0), max_size=2)["cluster"].to_list() == []
    assert model.assign(rows)["cluster"].to_list() == model.label(rows)["cluster"].to_list()
    values = [[0.0, 1.0], [0.1, 1.0], [9.0, 0.0], [9.0, 1.0]]
    arrays = pl.DataFrame({"e": values}, schema={"e": pl.Array(pl.Float32, 2)})
    of_arrays = pk.KMeans(k=2, seed=0).fit(arrays, "e")
    assert sorted(counts(of_arrays.assign(arrays, balanced=True)["cluster"])) == [2, 2]
    with pytest.raises(pk.InvalidParameterError, match="sizes: expected min_size k <= n <= max_size k"):
        model.assign(rows, min_size=2)
    with pytest.raises(pk.InvalidParameterError, match="rows, not a share"):
        model.assign(rows, max_size=1.25)  # type: ignore[arg-type]
    with pytest.raises(pk.InvalidColumnError, match="not in the frame"):
        model.assign(rows, max_size=2, name="x")
