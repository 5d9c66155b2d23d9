"""The estimator of scikit-learn."""

import io
import os
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import clone
from sklearn.cluster import KMeans as Theirs
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris, make_blobs
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.fixes import parse_version

import polars_kmeans as pk
from polars_kmeans import _arrays
from polars_kmeans.sklearn import KMeans

X = np.random.default_rng(0).normal(size=(300, 4)) + np.random.default_rng(1).integers(0, 3, size=(300, 1)) * 9.0
FRAME = pl.DataFrame(X, schema=["a", "b", "c", "d"])
PANDAS = pd.DataFrame(X, columns=FRAME.columns)
# Older versions of scikit-learn ask frames for `__dataframe__`, which Polars 2 does not have.
NAMES_OF_POLARS = hasattr(pl.DataFrame, "__dataframe__") or parse_version(sklearn.__version__) >= parse_version("1.9")


def run(code: str, **environment: str) -> str:
    """Run code in an interpreter of its own, and return what it prints."""
    command, settings = [sys.executable, "-W", "ignore", "-c", code], os.environ | environment
    return subprocess.run(command, env=settings, capture_output=True, text=True, check=True).stdout


def expected_failures(estimator: Any) -> dict[str, str]:
    """Scikit-learn expects the same failure of its own KMeans. With `row_order="values"`, ours has none."""
    if estimator.row_order == "values":
        return {}
    return {"check_sample_weight_equivalence_on_dense_data": "k-means++ draws other rows if rows are shuffled"}


@parametrize_with_checks(
    [KMeans(), KMeans(row_order="values"), KMeans(2, n_init=2, max_iter=5, row_order="values")],
    expected_failed_checks=expected_failures,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_checks_of_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_the_checks_that_need_a_setting_of_scipy_pass_too() -> None:
    code = """
from sklearn.utils.estimator_checks import check_estimator
from polars_kmeans.sklearn import KMeans
results = check_estimator(KMeans(row_order="values"))
print(len(results) > 40, {result["status"] for result in results})
"""
    assert run(code, SCIPY_ARRAY_API="1").strip() == "True {'passed'}"


# ---- the surface ----------------------------------------------------------------------------------------------------


def test_parameters_are_those_of_scikit_learn_and_three_more() -> None:
    theirs, ours = Theirs().get_params(), KMeans().get_params()
    own = {"metric": "euclidean", "device": "auto", "row_order": "given"}
    assert ours == theirs | own
    assert list(ours) == sorted(ours)


def test_attributes() -> None:
    kmeans = KMeans(3, random_state=1).fit(PANDAS)
    assert kmeans.labels_.shape == (300,)
    assert kmeans.labels_.dtype == np.int32
    assert kmeans.cluster_centers_.shape == (3, 4)
    assert isinstance(kmeans.inertia_, float)
    assert isinstance(kmeans.n_iter_, int)
    assert kmeans.n_features_in_ == 4
    assert kmeans.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert kmeans.get_feature_names_out().tolist() == ["kmeans0", "kmeans1", "kmeans2"]
    assert not hasattr(kmeans.fit(X), "feature_names_in_")


def test_results_are_those_of_the_package() -> None:
    kmeans = KMeans(5, random_state=7).fit(X)
    model = pk.KMeans(5, seed=7).fit(X)
    assert np.array_equal(kmeans.cluster_centers_, model.centroids.drop("cluster", "size", "inertia").to_numpy())
    assert np.array_equal(kmeans.labels_, model.predict(X))
    assert np.array_equal(kmeans.transform(X), model.transform(X))
    assert (kmeans.inertia_, kmeans.n_iter_) == (model.inertia, model.n_iter)
    weights = np.arange(300.0)
    assert kmeans.score(X, sample_weight=weights) == model.score(X, sample_weight=weights)
    weighted = KMeans(5, random_state=7, metric="cosine").fit(X, sample_weight=weights)
    assert weighted.inertia_ == pk.KMeans(5, seed=7, metric="cosine").fit(X, sample_weight=weights).inertia


def test_given_centers_end_where_those_of_scikit_learn_do() -> None:
    x = load_iris().data
    ours = KMeans(3, init=x[[0, 60, 110]], tol=0).fit(x)
    theirs = Theirs(3, init=x[[0, 60, 110]], tol=0).fit(x)
    assert np.array_equal(ours.labels_, theirs.labels_)
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_)
    assert ours.inertia_ == pytest.approx(theirs.inertia_)
    assert ours.n_iter_ == theirs.n_iter_
    np.testing.assert_allclose(ours.transform(x), theirs.transform(x))
    assert ours.score(x) == pytest.approx(theirs.score(x))


def test_fit_predict_and_fit_transform() -> None:
    weights = np.random.default_rng(2).uniform(size=300)
    kmeans = KMeans(3, random_state=1).fit(X, sample_weight=weights)
    assert np.array_equal(KMeans(3, random_state=1).fit_predict(X, sample_weight=weights), kmeans.labels_)
    distances = KMeans(3, random_state=1).fit_transform(X, sample_weight=weights)
    assert np.array_equal(distances, kmeans.transform(X))


def test_errors_of_scikit_learn() -> None:
    with pytest.raises(NotFittedError):
        KMeans().predict(X)
    with pytest.raises(
        ValueError, match=r"The 'n_clusters' parameter of KMeans must be an int in the range \[1, inf\)"
    ):
        KMeans(0).fit(X)
    with pytest.raises(ValueError, match="The 'init' parameter of KMeans must be"):
        KMeans(init="furthest").fit(X)
    with pytest.raises(ValueError, match="Input X contains NaN"):
        KMeans().fit(np.where(X > 9, np.nan, X))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        KMeans().fit(FRAME.with_columns(a=pl.when(pl.col("a") < 9).then("a")))
    with pytest.raises(ValueError, match="X has 3 features, but KMeans is expecting 4"):
        KMeans().fit(X).predict(X[:, :3])
    with pytest.raises(ValueError, match="The feature names should match"):
        KMeans().fit(PANDAS).predict(PANDAS[["b", "a", "c", "d"]])
    with pytest.raises(ValueError, match=r"n_samples=300 should be >= n_clusters=301"):
        KMeans(301).fit(X)


def test_errors_of_the_engine_are_value_errors() -> None:
    with pytest.raises(ValueError, match="weights: expected non-negative values, got -1 in row 0") as error:
        KMeans().fit(X, sample_weight=np.full(300, -1.0))
    assert isinstance(error.value, pk.InvalidDataError)
    with pytest.raises(ValueError, match='device: expected "auto"'):
        KMeans(device="gpu").fit(X)
    with pytest.raises(pk.InvalidParameterError, match="got the query of a LazyFrame: collect it first"):
        KMeans().fit(FRAME.lazy())


def test_rows_without_a_direction_are_refused() -> None:
    zero = np.zeros((2, 4))
    with pytest.raises(pk.InvalidDataError, match="got 2 rows with others"):
        KMeans(metric="cosine").fit(np.vstack([X, zero]))
    kmeans = KMeans(3, metric="cosine").fit(X)
    for method in (kmeans.predict, kmeans.transform, kmeans.score):
        with pytest.raises(pk.InvalidDataError, match="got 2 rows with others"):
            method(zero)


def test_values_that_scikit_learn_is_told_to_trust_are_checked_all_the_same() -> None:
    bad = X.copy()
    bad[5, 1] = np.nan
    kmeans = KMeans(3).fit(X)
    with sklearn.config_context(assume_finite=True):
        with pytest.raises(pk.InvalidDataError, match="NaNs: 1"):
            KMeans().fit(bad)
        for method in (kmeans.predict, kmeans.transform):
            with pytest.raises(pk.InvalidDataError, match="got 1 rows with others"):
                method(bad)


# ---- data -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", ["C", "F", "part"])
def test_arrays_are_read_where_they_are(layout: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.repeat(X, 2, axis=1).astype(dtype)[:, ::2] if layout == "part" else np.array(X, dtype=dtype, order=layout)
    x.flags.writeable = False
    seen: list[Any] = []

    def watch(name: str, position: int) -> None:
        call = getattr(_arrays, name)

        def watched(*arguments: Any) -> Any:
            seen.append(arguments[position])
            return call(*arguments)

        monkeypatch.setattr(_arrays, name, watched)

    for name, position in (("fit", 0), ("predict", 1), ("transform", 1), ("score", 1)):
        watch(name, position)
    kmeans = KMeans(3, random_state=1, copy_x=True).fit(x)
    kmeans.predict(x)
    assert kmeans.transform(x).dtype == dtype
    kmeans.score(x)
    assert len(seen) == 5
    for rows in seen:
        assert rows.__array_interface__["data"][0] == x.__array_interface__["data"][0]
        assert rows.strides == x.strides
    assert kmeans.cluster_centers_.dtype == dtype


def test_frames_of_pandas_and_polars() -> None:
    expected = KMeans(3, random_state=1).fit(X)
    for frame in (FRAME, PANDAS):
        kmeans = KMeans(3, random_state=1).fit(frame)
        assert np.array_equal(kmeans.labels_, expected.labels_)
        assert np.array_equal(kmeans.predict(frame), expected.labels_)
        assert np.array_equal(kmeans.transform(frame), expected.transform(X))


@pytest.mark.skipif(not NAMES_OF_POLARS, reason="this scikit-learn does not see the names of this Polars' frames")
def test_names_of_polars_frames() -> None:
    kmeans = KMeans(2, random_state=1).fit(FRAME)
    assert kmeans.feature_names_in_.tolist() == FRAME.columns
    with pytest.raises(ValueError, match="The feature names should match"):
        kmeans.predict(FRAME.select("b", "a", "c", "d"))
    columns = make_column_transformer((KMeans(2, random_state=1), ["a", "b"]), remainder="drop")
    assert columns.set_output(transform="polars").fit_transform(FRAME).columns == ["kmeans__kmeans0", "kmeans__kmeans1"]


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16, bool, np.float16])
def test_other_types_become_float64(dtype: Any) -> None:
    x = np.random.default_rng(3).integers(0, 2 if dtype is bool else 90, size=(100, 3)).astype(dtype)
    kmeans = KMeans(3, random_state=1).fit(x)
    assert kmeans.cluster_centers_.dtype == np.float64
    assert np.array_equal(kmeans.labels_, KMeans(3, random_state=1).fit(x.astype(np.float64)).labels_)


# ---- starting centers, restarts, seeds -------------------------------------------------------------------------------


def test_random_states() -> None:
    def fit(random_state: Any) -> Any:
        return KMeans(8, init="random", n_init=1, random_state=random_state).fit(X).cluster_centers_

    assert np.array_equal(fit(5), fit(np.int64(5)))
    assert not np.array_equal(fit(5), fit(6))
    generator = np.random.RandomState(5)
    first, second = fit(generator), fit(generator)
    assert not np.array_equal(first, second)
    again = np.random.RandomState(5)
    assert np.array_equal(first, fit(again))
    assert np.array_equal(second, fit(again))
    np.random.seed(3)
    one = fit(None)
    np.random.seed(3)
    assert np.array_equal(one, fit(None))
    assert not np.array_equal(one, fit(None))


def test_a_function_gives_starting_centers() -> None:
    calls: list[np.ndarray] = []

    def draw(rows: Any, k: int, random_state: np.random.RandomState) -> Any:
        calls.append(random_state.choice(len(rows), k, replace=False))
        return rows[calls[-1]]

    kmeans = KMeans(6, init=draw, random_state=2).fit(X)
    assert len(calls) == 10
    fits = [KMeans(6, init=X[chosen]).fit(X) for chosen in calls]
    best = min(fits, key=lambda fit: fit.inertia_)
    assert kmeans.inertia_ == best.inertia_ < max(fit.inertia_ for fit in fits)
    assert np.array_equal(kmeans.labels_, best.labels_)


def test_given_centers_have_one_restart() -> None:
    with pytest.warns(RuntimeWarning, match="performing only one init in KMeans instead of n_init=4") as caught:
        kmeans = KMeans(3, init=X[:3], n_init=4).fit(X)
    assert caught[0].filename == __file__
    assert np.array_equal(kmeans.labels_, KMeans(3, init=X[:3]).fit(X).labels_)


@pytest.mark.parametrize("init", ["kmeans-parallel", "afk-mc2", "optimal"])
def test_seedings_of_the_engine(init: Any) -> None:
    x = X[:, :1]
    kmeans = KMeans(4, init=init, random_state=3).fit(x)
    model = pk.KMeans(4, init=init, seed=3).fit(x)
    assert kmeans.inertia_ == model.inertia
    assert np.array_equal(kmeans.labels_, model.predict(x))


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("init", ["k-means++", "random", "given"])
def test_too_few_distinct_rows(init: Any, metric: Any) -> None:
    x = np.array([[0.0, 1.0], [2.0, 1.0], [0.0, 1.0], [3.0, 0.5], [3.0, 0.5], [0.0, 1.0]])
    kmeans = KMeans(5, init=x[:5] if init == "given" else init, metric=metric, random_state=1)
    with pytest.warns(ConvergenceWarning, match=r"clusters \(3\) found smaller than n_clusters \(5\)") as caught:
        kmeans.fit(x)
    assert caught[0].filename == __file__
    assert set(kmeans.labels_) == {0, 1, 2}
    assert kmeans.cluster_centers_.shape == (5, 2)
    directions = x / np.linalg.norm(x, axis=1, keepdims=True) if metric == "cosine" else x
    np.testing.assert_allclose(kmeans.cluster_centers_[kmeans.labels_], directions, rtol=1e-15)
    assert kmeans.n_iter_ == 1
    assert kmeans.inertia_ == pytest.approx(0, abs=1e-15)
    assert np.array_equal(kmeans.predict(x), kmeans.labels_)
    distances = kmeans.transform(x)
    assert distances.shape == (6, 5)
    assert np.array_equal(distances.argmin(axis=1), kmeans.labels_)
    assert kmeans.score(x) == -kmeans.inertia_
    assert len(kmeans.get_feature_names_out()) == 5


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("distinct", range(1, 12))
def test_every_distinct_row_is_a_cluster(distinct: int) -> None:
    x = np.arange(30.0).reshape(-1, 1) % distinct
    kmeans = KMeans(11, random_state=0).fit(x)
    assert len(set(kmeans.labels_)) == distinct
    assert np.array_equal(kmeans.cluster_centers_[kmeans.labels_], x)


def test_too_few_rows_of_positive_weight() -> None:
    x = np.arange(6.0).reshape(-1, 1)
    with pytest.warns(ConvergenceWarning, match=r"\(2\) found smaller than n_clusters \(3\)"):
        kmeans = KMeans(3, random_state=0).fit(x, sample_weight=[0, 1, 0, 0, 1, 0])
    assert sorted(set(kmeans.cluster_centers_.ravel())) == [1.0, 4.0]
    assert kmeans.labels_.tolist() == [kmeans.labels_[0]] * 3 + [kmeans.labels_[5]] * 3


def test_enough_distinct_rows_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KMeans(3, random_state=0).fit([[0.0], [1.0], [2.0], [2.0]])


def test_verbose_prints_the_iterations(capsys: pytest.CaptureFixture[str]) -> None:
    kmeans = KMeans(3, random_state=1, tol=0, verbose=1).fit(X)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == kmeans.n_iter_ + 2
    assert lines[-1].endswith("strict convergence.")
    KMeans(3, random_state=1, max_iter=1, verbose=1).fit(X)
    assert "Converged" not in capsys.readouterr().out


# ---- centers that are set --------------------------------------------------------------------------------------------


def test_centers_that_are_set_are_used() -> None:
    kmeans = KMeans(3, random_state=1).fit(X[:, :2])
    kmeans.cluster_centers_ = np.array([[9.0, 9.0], [0.0, 0.0], [9.0, 9.0], [0.0, 3.0]])
    assert kmeans.predict([[1.0, 1.0], [8.0, 8.0], [0.0, 2.0]]).tolist() == [1, 0, 3]
    np.testing.assert_allclose(kmeans.transform([[0.0, 0.0]]), [[162**0.5, 0, 162**0.5, 3]])
    assert kmeans.score([[0.0, 1.0]]) == -1.0
    assert pickle.loads(pickle.dumps(kmeans)).predict([[8.0, 8.0]]).tolist() == [0]


def test_centers_that_are_changed_in_place_are_used() -> None:
    kmeans = KMeans(2, init=[[0.0], [4.0]]).fit([[0.0], [4.0]])
    kmeans.cluster_centers_[1] = 10.0
    assert kmeans.predict([[4.0], [6.0]]).tolist() == [0, 1]


def test_centers_that_a_model_cannot_hold_are_refused() -> None:
    kmeans = KMeans(2, random_state=1).fit(X[:, :1])
    kmeans.cluster_centers_ = np.array([[1e-15 / 3], [1e6]])
    with pytest.raises(
        pk.InvalidParameterError, match="cluster_centers_: expected values that a model can hold exactly"
    ):
        kmeans.predict(X[:, :1])


# ---- scikit-learn's tools --------------------------------------------------------------------------------------------


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


# ---- an extra, and its page ------------------------------------------------------------------------------------------


def test_the_package_does_not_import_scikit_learn() -> None:
    assert run("import polars_kmeans, sys; print('sklearn' in sys.modules)").strip() == "False"


def test_without_scikit_learn_the_error_says_what_to_install() -> None:
    code = """
import sys
sys.modules["sklearn"] = None
try:
    import polars_kmeans.sklearn
except ImportError as error:
    print(error)
"""
    expected = 'polars_kmeans.sklearn needs scikit-learn 1.6 or newer: pip install "polars-kmeans[sklearn]"'
    assert run(code).strip() == expected


def test_the_examples_of_the_page_run() -> None:
    page = Path(__file__).parents[2] / "docs" / "scikit-learn.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert names["search"].best_params_ == {"kmeans__n_clusters": 3}
