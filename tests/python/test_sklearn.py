"""The estimator of scikit-learn: its checks, its parameters and attributes, its errors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from helpers import run
from sklearn.cluster import KMeans as Theirs
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn_rows import FRAME, PANDAS, X

import polars_kmeans as pk
from polars_kmeans.sklearn import KMeans


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
    assert kmeans.score(X, sample_weight=weights) == model.score(X, weight=weights)
    weighted = KMeans(5, random_state=7, metric="cosine").fit(X, sample_weight=weights)
    assert weighted.inertia_ == pk.KMeans(5, seed=7, metric="cosine").fit(X, weight=weights).inertia


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
    with pytest.raises(ValueError, match="weight: expected non-negative values, got -1 in row 0") as error:
        KMeans().fit(X, sample_weight=np.full(300, -1.0))
    assert isinstance(error.value, pk.InvalidDataError)
    with pytest.raises(ValueError, match='device: expected "auto"'):
        KMeans(device="gpu").fit(X)
    with pytest.raises(pk.InvalidParameterError, match="got the query of a LazyFrame: collect it first"):
        KMeans().fit(FRAME.lazy())


# ---- an extra --------------------------------------------------------------------------------------------------------


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
