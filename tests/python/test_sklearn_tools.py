"""The estimator with the tools of scikit-learn: copies, frames as output, searches, routed weights, callbacks."""

import io
import pickle
from collections.abc import Iterator
from typing import Any

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import clone
from sklearn.cluster import KMeans as Theirs
from sklearn.datasets import make_blobs
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn_rows import FRAME, X

import polars_kmeans as pk
from polars_kmeans.sklearn import KMeans


def test_clone_and_pickle() -> None:
    kmeans = KMeans(3, random_state=1, metric="cosine").fit(FRAME)
    assert clone(kmeans).get_params() == kmeans.get_params()
    assert not hasattr(clone(kmeans), "labels_")
    file = io.BytesIO()
    joblib.dump(kmeans, file)
    for copy in (pickle.loads(pickle.dumps(kmeans)), joblib.load(file)):
        assert np.array_equal(copy.labels_, kmeans.labels_)
        assert np.array_equal(copy.predict(FRAME), kmeans.predict(FRAME))
        assert np.array_equal(copy.transform(FRAME), kmeans.transform(FRAME))
        assert copy.inertia_ == kmeans.inertia_


def test_set_output() -> None:
    kmeans = KMeans(2, random_state=1)
    expected = kmeans.fit_transform(X)
    polars = kmeans.set_output(transform="polars").fit_transform(FRAME)
    assert isinstance(polars, pl.DataFrame)
    assert polars.columns == ["kmeans0", "kmeans1"]
    assert np.array_equal(polars.to_numpy(), expected)
    assert kmeans.transform(FRAME).equals(polars)
    frame = pd.DataFrame(X, index=np.arange(300) + 7)
    pandas = kmeans.set_output(transform="pandas").fit_transform(frame)
    assert pandas.index.equals(frame.index)
    assert np.array_equal(pandas.to_numpy(), expected)


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_grid_search_over_k_in_a_pipeline(n_jobs: int | None) -> None:
    x, _ = make_blobs(400, centers=4, random_state=3)
    pipeline = Pipeline([("scale", StandardScaler()), ("kmeans", KMeans(random_state=0))])
    search = GridSearchCV(pipeline, {"kmeans__n_clusters": [2, 3, 4]}, cv=3, n_jobs=n_jobs).fit(x)
    assert search.best_params_ == {"kmeans__n_clusters": 4}
    scores = search.cv_results_["mean_test_score"]
    assert (np.diff(scores) > 0).all()
    theirs = GridSearchCV(
        Pipeline([("scale", StandardScaler()), ("kmeans", Theirs(random_state=0, n_init=10))]),
        {"kmeans__n_clusters": [4]},
        cv=3,
    ).fit(x)
    assert scores[2] == pytest.approx(theirs.best_score_, rel=1e-3)


@pytest.fixture
def routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_weights_are_routed(routing: None) -> None:
    weights = np.random.default_rng(2).uniform(size=300)
    scaled = StandardScaler().fit_transform(X)
    expected = KMeans(3, random_state=1).fit(scaled, sample_weight=weights)
    asking = KMeans(3, random_state=1).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
    pipeline = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), asking)
    pipeline.fit(X, sample_weight=weights)
    assert np.array_equal(pipeline[-1].cluster_centers_, expected.cluster_centers_)
    assert pipeline.score(X, sample_weight=weights) == expected.score(scaled, sample_weight=weights)
    search = GridSearchCV(asking, {"n_clusters": [2]}, cv=2, refit=False).fit(scaled, sample_weight=weights)
    halves = [(slice(150, 300), slice(0, 150)), (slice(0, 150), slice(150, 300))]
    scores = [
        KMeans(2, random_state=1)
        .fit(scaled[fit], sample_weight=weights[fit])
        .score(scaled[test], sample_weight=weights[test])
        for fit, test in halves
    ]
    assert search.cv_results_["mean_test_score"][0] == np.mean(scores)
    with pytest.raises(ValueError, match=r"sample_weight.* are passed but are not explicitly set as requested or not"):
        make_pipeline(StandardScaler(), KMeans()).fit(X, sample_weight=weights)


def test_callbacks() -> None:
    pytest.importorskip("sklearn.callback")
    events: list[tuple[str, str, bool]] = []

    class Watch:
        def setup(self, estimator: Any, context: Any) -> None:
            events.append(("setup", context.task_name, hasattr(estimator, "labels_")))

        def teardown(self, estimator: Any, context: Any) -> None:
            events.append(("teardown", context.task_name, hasattr(estimator, "labels_")))

        def on_fit_task_begin(self, estimator: Any, context: Any, *, X: Any, metadata: Any) -> None:
            assert X.shape == (300, 4)
            assert metadata == {"sample_weight": None}
            events.append(("begin", context.task_name, hasattr(estimator, "labels_")))

        def on_fit_task_end(self, estimator: Any, context: Any, *, fitted_estimator: Any) -> None:
            assert np.array_equal(fitted_estimator.predict(X), estimator.labels_)
            events.append(("end", context.task_name, hasattr(estimator, "labels_")))

    KMeans(3, random_state=1).set_callbacks(Watch()).fit(X)
    assert events == [
        ("setup", "fit", False),
        ("begin", "fit", False),
        ("end", "fit", True),
        ("teardown", "fit", True),
    ]
    events.clear()
    with pytest.raises(ValueError, match="n_samples"):
        KMeans(999).set_callbacks(Watch()).fit(X)
    assert events == []
    with pytest.raises(pk.InvalidParameterError):
        KMeans(device="gpu").set_callbacks(Watch()).fit(X)
    assert [event for event, _, _ in events] == ["setup", "begin", "teardown"]
