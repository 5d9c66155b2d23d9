"""The estimator of scikit-learn: its checks, its parameters and attributes, its errors."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from helpers import run
from sklearn.base import clone
from sklearn.cluster import KMeans as Theirs
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks
from sklearn_rows import FRAME, PANDAS, X

import polars_kmeans as pk
from polars_kmeans.sklearn import BisectingKMeans, KMeans


def expected_failures(estimator: Any) -> dict[str, str]:
    """Scikit-learn expects the same failure of its own KMeans. With `row_order="values"`, ours has none."""
    if getattr(estimator, "row_order", "given") == "values":
        return {}
    return {"check_sample_weight_equivalence_on_dense_data": "k-means++ draws other rows if rows are shuffled"}


@parametrize_with_checks(
    [KMeans(), KMeans(row_order="values"), KMeans(2, n_init=2, max_iter=5, row_order="values"), BisectingKMeans()],
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


def test_parameters_are_those_of_scikit_learn_and_some_more() -> None:
    theirs, ours = Theirs().get_params(), KMeans().get_params()
    own = {"metric": "euclidean", "device": "auto", "row_order": "given"}
    own |= {"scale": None, "null_policy": "raise", "sort_by": None}
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
    expected = "polars_kmeans.sklearn needs scikit-learn 1.6 or newer: pip install -U scikit-learn"
    assert run(code).strip() == expected


# ---- options of the engine, and its model ---------------------------------------------------------------------------


def test_the_model_of_the_fit() -> None:
    kmeans = KMeans(3, random_state=1, scale="standard", sort_by="size").fit(X)
    engine = pk.KMeans(3, seed=1, scale="standard", sort_by="size", tol=1e-4, too_few="fewer").fit(X)
    assert kmeans.model_ == engine
    assert kmeans.labels_.tolist() == engine.predict(X).tolist() == kmeans.predict(X).tolist()
    np.testing.assert_array_equal(kmeans.cluster_centers_, engine.centroids_array())
    np.testing.assert_array_equal(kmeans.transform(X), engine.transform(X))
    assert kmeans.score(X) == engine.score(X) == -kmeans.inertia_
    sizes = np.bincount(kmeans.labels_)
    assert sizes.tolist() == sorted(sizes)
    frame = pl.DataFrame(X, schema=list("abcd"))
    assert frame.select(kmeans.model_.predict(*"abcd")).to_series().to_list() == kmeans.labels_.tolist()
    few = KMeans(3)
    with pytest.warns(ConvergenceWarning):
        few.fit([[0.0], [1.0], [1.0]])
    assert few.model_.k == 2 and len(few.cluster_centers_) == 3


def test_options_name_features_of_the_data() -> None:
    for data, names in ((PANDAS, list(PANDAS.columns)), (X, [f"column_{at}" for at in range(4)])):
        kmeans = KMeans(3, random_state=1, scale={names[1]: 0.5}, sort_by=names[2]).fit(data)
        assert kmeans.model_.factors == {"column_0": 1.0, "column_1": 0.5, "column_2": 1.0, "column_3": 1.0}
        assert kmeans.cluster_centers_[:, 2].tolist() == sorted(kmeans.cluster_centers_[:, 2])
        again = clone(KMeans(3, random_state=7, sort_by=kmeans.model_, scale={names[1]: 0.5})).fit(data)
        assert again.model_.match(kmeans.model_)["matched"].to_list() == [0, 1, 2]
        assert clone(kmeans).fit(data).model_ == kmeans.model_
        assert pickle.loads(pickle.dumps(kmeans)).model_ == kmeans.model_
    kmeans.cluster_centers_ = kmeans.cluster_centers_[::-1].copy()
    assert (2 - kmeans.predict(X)).tolist() == kmeans.labels_.tolist()
    with pytest.raises(pk.InvalidParameterError, match="sort_by"):
        KMeans(2, sort_by="nothing").fit(X)


def test_rows_that_are_left_out() -> None:
    gaps = X.copy()
    gaps[3, 1], gaps[7, 0] = np.nan, -np.inf
    kept = np.isfinite(gaps).all(axis=1)
    with pytest.raises(ValueError, match="contains NaN"):
        KMeans(3).fit(gaps)
    kmeans, whole = (KMeans(3, random_state=1, null_policy="skip").fit(rows) for rows in (gaps, X[kept]))
    np.testing.assert_array_equal(kmeans.cluster_centers_, whole.cluster_centers_)
    assert kmeans.labels_[~kept].tolist() == [-1, -1] and (kmeans.labels_[kept] == whole.labels_).all()
    assert (kmeans.predict(gaps) == kmeans.labels_).all()
    assert np.isnan(kmeans.transform(gaps)[~kept]).all() and np.isfinite(kmeans.transform(gaps)[kept]).all()
    assert kmeans.score(gaps) == whole.score(X[kept])
    kmeans.cluster_centers_ = kmeans.cluster_centers_[[0, 0, 1]]
    assert kmeans.predict(gaps)[~kept].tolist() == [-1, -1] and kmeans.predict(gaps).max() == 2
    assert kmeans.__sklearn_tags__().input_tags.allow_nan and not KMeans().__sklearn_tags__().input_tags.allow_nan
    zeros = np.concatenate([[[0.0] * 4], X])
    directions = KMeans(2, metric="cosine", null_policy="skip").fit(zeros)
    assert directions.labels_[0] == directions.predict(zeros)[0] == -1


@pytest.mark.parametrize("options", [{"scale": "standard"}, {"sort_by": "size"}, {"null_policy": "skip"}])
def test_checks_of_scikit_learn_with_options_of_the_engine(options: dict[str, Any]) -> None:
    # Standard deviations and sizes count rows, not their weights.
    fails = {} if "null_policy" in options else {"check_sample_weight_equivalence_on_dense_data": "rows are counted"}
    kmeans = KMeans(row_order="values", **options)
    check_estimator(kmeans, on_fail="raise", on_skip=None, expected_failed_checks=fails)


def test_features_may_have_the_names_of_words() -> None:
    frame = pl.DataFrame({"standard": [0.0, 1.0, 9.0], "size": [5.0, 1.0, 2.0]})
    for options in ({"scale": "standard"}, {"sort_by": "size"}, {"scale": {"standard": 2.0}, "sort_by": "standard"}):
        plain = frame.rename({"standard": "a", "size": "b"})
        renamed = {"scale": {"a": 2.0}, "sort_by": "a"} if "scale" in options and "sort_by" in options else options
        found, expected = (
            KMeans(2, random_state=0, **options).fit(frame),
            KMeans(2, random_state=0, **renamed).fit(plain),
        )
        assert (found.labels_ == expected.labels_).all()
