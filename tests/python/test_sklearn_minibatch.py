"""MiniBatchKMeans: what it promises. `test_sklearn_own.py` has scikit-learn's own tests."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import load_digits, make_blobs

import polars_kmeans as pk
from polars_kmeans.sklearn import MiniBatchKMeans


def blobs(n: int = 3_000, d: int = 4, k: int = 8) -> Any:
    return make_blobs(n, d, centers=k, random_state=1)[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_labels_are_those_of_predict(dtype: Any, weighted: bool) -> None:
    X = blobs().astype(dtype)
    weights = np.random.default_rng(0).integers(0, 4, len(X)) / 2 if weighted else None
    whole = MiniBatchKMeans(8, random_state=3).fit(X, sample_weight=weights)
    assert (whole.labels_ == whole.predict(X)).all()
    assert whole.inertia_ == pytest.approx(-whole.score(X, sample_weight=weights))
    parts = MiniBatchKMeans(8, random_state=3)
    for start in range(0, 3_000, 500):
        some = slice(start, start + 500)
        parts.partial_fit(X[some], sample_weight=None if weights is None else weights[some])
        assert (parts.labels_ == parts.predict(X[some])).all()
        assert parts.cluster_centers_.dtype == dtype
    assert parts.n_steps_ == 6
    assert parts.model_.centroids["size"].sum() >= (3_000 if weights is None else (weights > 0).sum())


def test_rows_of_a_batch_may_come_in_any_order() -> None:
    X = blobs()
    first, second = (MiniBatchKMeans(8, random_state=0).partial_fit(X[:1_000]) for _ in range(2))
    order = np.random.default_rng(0).permutation(1_000)
    first.partial_fit(X[1_000:2_000])
    second.partial_fit(X[1_000:2_000][order])
    assert first.model_ == second.model_
    assert np.array_equal(first.labels_[order], second.labels_)


def test_the_same_seed_gives_the_same_bits() -> None:
    X = blobs()
    models = [MiniBatchKMeans(8, random_state=7, batch_size=200).fit(X).model_ for _ in range(2)]
    assert models[0] == models[1]
    assert MiniBatchKMeans(8, random_state=8, batch_size=200).fit(X).model_ != models[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_far_beyond_the_first_batch_are_taken(dtype: Any) -> None:
    X = blobs().astype(dtype)
    batches = [X[:1_000], X[1_000:2_000] * 1e3, X[2_000:]]
    known = [MiniBatchKMeans(4, random_state=0, reassignment_ratio=0.0) for _ in range(2)]
    for batch in batches:
        for estimator in known:
            estimator.partial_fit(batch)
            assert (estimator.labels_ == estimator.predict(batch)).all()
    assert known[0].model_ == known[1].model_
    wide = MiniBatchKMeans(4, random_state=0, extents=[1e5] * 4, reassignment_ratio=0.0)
    for batch in batches:
        wide.partial_fit(batch)
    assert wide.cluster_centers_ == pytest.approx(known[0].cluster_centers_, rel=1e-6)
    with pytest.raises(pk.InvalidDataError, match="beside which the sums of earlier rows keep their digits"):
        known[0].partial_fit(np.full((1, 4), 1e37, dtype=dtype))


def test_a_column_of_zeros_in_the_first_batch_takes_later_values() -> None:
    X = load_digits().data
    assert (X[:200] == 0).all(axis=0).any()
    found = []
    for _ in range(2):
        estimator = MiniBatchKMeans(10, random_state=0)
        for start in range(0, len(X), 200):
            estimator.partial_fit(X[start : start + 200])
        found.append(estimator)
    assert found[0].model_ == found[1].model_
    assert (found[0].labels_ == found[0].predict(X[1600:])).all()


def test_extents_by_feature() -> None:
    X = blobs()
    frame = pl.from_numpy(X, ["a", "b", "c", "d"])
    named = MiniBatchKMeans(4, random_state=0, extents={"b": 1e6}).partial_fit(frame)
    largest = [*np.abs(X).max(axis=0)]
    in_order = MiniBatchKMeans(4, random_state=0, extents=[largest[0], 1e6, *largest[2:]]).partial_fit(frame)
    assert named.model_ == in_order.model_
    with pytest.raises(ValueError, match="a largest magnitude for each of 4 features"):
        MiniBatchKMeans(4, extents=[1.0]).partial_fit(X)
    with pytest.raises(ValueError, match=r"expected features of the model, .*got 'x'"):
        MiniBatchKMeans(4, extents={"x": 1.0}).partial_fit(frame)


def test_light_clusters_take_far_rows() -> None:
    X = np.concatenate([np.random.default_rng(0).normal(size=(500, 2)), [[500.0, 500.0]]])
    start = np.array([[0.0, 0.0], [1.0, 1.0], [-1e4, -1e4]])
    moved = MiniBatchKMeans(3, init=start, extents=[1e4, 1e4]).partial_fit(X)
    assert [500.0, 500.0] in moved.cluster_centers_.tolist()
    stays = MiniBatchKMeans(3, init=start, extents=[1e4, 1e4], reassignment_ratio=0.0).partial_fit(X)
    assert stays.cluster_centers_[2].tolist() == [-1e4, -1e4]


def test_weights_and_values_far_beyond_the_first_batch() -> None:
    X = np.random.default_rng(0).normal(size=(200, 2))
    # A product that is infinite, and a weight above the largest that a fit takes, leave the estimator as it was.
    for values, weight in (([1e300, 0.0], 2.0**29), ([1.0, 1.0], 2.0**70)):
        known = MiniBatchKMeans(3, random_state=0).partial_fit(X, sample_weight=np.ones(200))
        before = known.model_, known.n_steps_, known.labels_.tolist()
        with pytest.raises(pk.KMeansError):
            known.partial_fit([values], sample_weight=[weight])
        assert (known.model_, known.n_steps_, known.labels_.tolist()) == before
    # The rule of a fit: one value must not make all others of its column vanish.
    zeros = MiniBatchKMeans(2, random_state=0).partial_fit(np.array([[1.0, 0], [2, 0], [10, 0], [11, 0]]))
    with pytest.raises(pk.InvalidDataError, match="not tiny beside the largest"):
        zeros.partial_fit(np.array([[1.0, 1e37], [10, 5.0], [11, 7.0]]))
    # A light row far out is the mean of no cluster whose sums have no room for it.
    known = MiniBatchKMeans(3, random_state=0, reassignment_ratio=0.9).partial_fit(X, sample_weight=np.ones(200))
    known.partial_fit(X[:20] * 2.0**30, sample_weight=np.full(20, 2.0**-40))
    known.partial_fit([[1e3, 1e3]], sample_weight=[2.0**-60])
    assert pk.KMeansModel.from_bytes(known.model_.to_bytes()) == known.model_
