"""The cut points of a model of one feature, beside its own labels."""

import numpy as np
import polars as pl
import pytest

import polars_kmeans as pk


def labels(model: pk.KMeansModel, values: np.ndarray) -> list[int]:
    rows = pl.Series(model.feature_names[0], values)
    rows = rows.reshape((-1, 1)) if model.centroids.dtypes[-1].is_nested() else rows
    return model.predict(rows.to_frame(), model.feature_names[0]).to_list()


def check(model: pk.KMeansModel, kind: type) -> pl.DataFrame:
    """Limits agree with labels at the limits, at the next floats, and everywhere else."""
    limits = model.limits()
    assert limits.columns == ["cluster", "from", "to"]
    clusters, cuts = limits["cluster"].to_list(), limits["to"].drop_nulls().to_numpy()
    assert limits.dtypes == [pl.UInt32, *[pl.Series(cuts).dtype] * 2] and cuts.dtype == kind
    assert limits["from"].to_list() == [None, *cuts.tolist()] and limits["to"][-1] is None
    assert sorted(clusters) == list(range(model.k))
    assert labels(model, cuts) == labels(model, np.nextafter(cuts, kind(-np.inf))) == clusters[:-1]
    assert labels(model, np.nextafter(cuts, kind(np.inf))) == clusters[1:]
    reach = max(abs(cuts).max(), np.ptp(cuts))
    values = np.random.default_rng(1).uniform(cuts[0] - 9 * reach, cuts[-1] + 9 * reach, 5000).astype(kind)
    expected = np.array(clusters)[np.searchsorted(cuts, values, side="left")]
    assert labels(model, values) == expected.tolist()
    return limits


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [None, "standard", {"x": 0.1}, {"x": 1e3}])
@pytest.mark.parametrize("k", [2, 7, 60])
def test_limits_agree_with_labels(kind: type, scale: object, k: int) -> None:
    rng = np.random.default_rng(k)
    for size, whole in ((1e-12, False), (1.0, False), (1.0, True), (1e12, False)):
        values = rng.integers(-99, 99, 300) if whole else rng.normal(size=300) * size
        frame = pl.DataFrame({"x": np.concatenate([values, -values]).astype(kind)})
        check(pk.KMeans(k, scale=scale, seed=k).fit(frame, "x"), kind)


def test_a_value_between_two_belongs_to_the_smaller_number() -> None:
    assert check(pk.KMeansModel.from_centroids([2.0, 4.0, 8.0]), np.float64).rows() == [
        (0, None, 3.0),
        (1, 3.0, 6.0),
        (2, 6.0, None),
    ]
    down = check(pk.KMeansModel.from_centroids([8.0, 4.0, 2.0]), np.float64)
    assert down["to"].to_list() == [np.nextafter(3.0, 0.0), np.nextafter(6.0, 0.0), None]
    around_zero = check(pk.KMeansModel.from_centroids([[-1.0], [1.0]]), np.float64)
    assert 0 <= around_zero["to"][0] < 1e-15


def test_models_of_other_kinds() -> None:
    array = pl.DataFrame({"e": [[0.0], [1.0], [8.0]]}, schema={"e": pl.Array(pl.Float32, 1)})
    assert check(pk.KMeans(2).fit(array, "e"), np.float32)["to"].to_list() == [4.25, None]
    logs = pk.KMeans(2).fit(pl.DataFrame({"x": [1.0, 2.0, 90.0]}), pl.col("x").log())
    assert check(logs, np.float64)["to"][0] == pytest.approx((np.log(2) / 2 + np.log(90)) / 2)
    one = pk.KMeansModel.from_centroids([[3.0]]).limits()
    assert one.rows() == [(0, None, None)]
    for model in (
        pk.KMeansModel.from_centroids([[1.0, 2.0], [2.0, 3.0]]),
        pk.KMeansModel.from_centroids([[1.0], [-1.0]], metric="cosine"),
    ):
        with pytest.raises(pk.InvalidParameterError, match='model: expected one of one feature and metric="euclidean"'):
            model.limits()


def test_of_equal_centroids_the_smallest_number_has_the_interval() -> None:
    start = pk.KMeansModel.from_centroids([[1.0], [2.0], [3.0]], ["x"])
    rows = pl.DataFrame({"x": [7.0, 7.0, 9.0]})
    below = float(np.nextafter(8.0, 0.0))
    for labels, expected in (
        ([0, 1, 2], [(0, None, 8.0), (1, 8.0, 8.0), (2, 8.0, None)]),
        # A tie goes to the smallest number, which is above here.
        ([2, 1, 0], [(1, None, below), (2, below, below), (0, below, None)]),
    ):
        table = rows.with_columns(c=pl.Series(labels)).select(start.sums("x", labels="c", extents=[9.0]))
        model = start.updated(table, start="zero", extents=[9.0])
        assert model.limits().rows() == expected
        found = model.predict(pl.DataFrame({"x": [-1e3, 8.0, 8.1, 1e3]})).to_list()
        assert found == [expected[0][0], min(expected[0][0], expected[2][0]), expected[2][0], expected[2][0]]
    two = pk.KMeansModel.from_centroids([[1.0], [2.0]], ["x"])
    both = rows.head(2).with_columns(c=pl.Series([0, 1])).select(two.sums("x", labels="c", extents=[9.0]))
    ends = two.updated(both, start="zero", extents=[9.0]).limits().rows()
    assert ends == [(0, None, float("inf")), (1, float("inf"), None)]
