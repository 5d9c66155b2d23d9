"""Centers of the estimator of scikit-learn: how they start, too few rows for them, and centers that are set."""

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn_rows import X

import polars_kmeans as pk
from polars_kmeans.sklearn import KMeans


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


def test_every_restart_prints_while_it_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    KMeans(3, random_state=1, n_init=3, init="random", tol=0, verbose=1).fit(X)
    out = capsys.readouterr().out
    assert out.count("Initialization complete") == 3
    assert out.count("strict convergence") == 3
    # Labels come from the fit: no model predicts them.
    monkeypatch.setattr("polars_kmeans.model.KMeansModel.predict", None)
    labels = KMeans(3, random_state=1).fit(X).labels_
    monkeypatch.undo()
    assert np.array_equal(labels, KMeans(3, random_state=1).fit(X).predict(X))
