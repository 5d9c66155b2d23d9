"""What the estimator of scikit-learn takes: arrays, frames, types of numbers, and values that it refuses."""

from typing import Any

import numpy as np
import polars as pl
import pytest
import sklearn
from sklearn.compose import make_column_transformer
from sklearn.utils.fixes import parse_version
from sklearn_rows import FRAME, PANDAS, X

import polars_kmeans as pk
from polars_kmeans import _arrays
from polars_kmeans.sklearn import KMeans

# Older versions of scikit-learn ask frames for `__dataframe__`, which Polars 2 does not have.
NAMES_OF_POLARS = hasattr(pl.DataFrame, "__dataframe__") or parse_version(sklearn.__version__) >= parse_version("1.9")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", ["C", "F", "part"])
def test_arrays_are_read_where_they_are(layout: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.repeat(X, 2, axis=1).astype(dtype)[:, ::2] if layout == "part" else np.array(X, dtype=dtype, order=layout)
    x.flags.writeable = False
    seen: list[Any] = []

    def watch(name: str, position: int) -> None:
        call = getattr(_arrays, name)

        def watched(*arguments: Any, **keywords: Any) -> Any:
            seen.append(arguments[position])
            return call(*arguments, **keywords)

        monkeypatch.setattr(_arrays, name, watched)

    for name, position in (("fit", 0), ("predict", 1), ("transform", 1), ("score", 1)):
        watch(name, position)
    kmeans = KMeans(3, random_state=1, copy_x=True).fit(x)
    kmeans.predict(x)
    assert kmeans.transform(x).dtype == dtype
    kmeans.score(x)
    # The fit labels its rows itself.
    assert len(seen) == 4
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
