"""Columns of extension types are read by their storage, wherever columns are read."""

from typing import Any

import numpy as np
import polars as pl
import pytest

import polars_kmeans as pk

X = np.random.default_rng(3).normal(size=(300, 2))
PLAIN = pl.DataFrame({"x": X[:, 0], "y": X[:, 1], "w": np.arange(300) % 5 + 1, "g": np.arange(300) % 2})


class Metres(pl.BaseExtension):
    """A unit of length."""

    def __init__(self, storage: Any = pl.Float64) -> None:
        super().__init__("polars_kmeans.tests.metres", storage)


def typed(frame: pl.DataFrame, *names: str) -> pl.DataFrame:
    return frame.with_columns(pl.col(name).ext.to(Metres(frame.schema[name])) for name in names)


ROWS = typed(PLAIN, "x", "y", "w")


@pytest.mark.parametrize("lazy", [False, True])
def test_features_and_weights(lazy: bool) -> None:
    rows: Any = ROWS.lazy() if lazy else ROWS
    expected = pk.KMeans(3, weight="w").fit(PLAIN, "x", "y")
    model = pk.KMeans(3, weight="w").fit(rows, "x", "y")
    assert model == expected
    for engine in ("in-memory", "streaming"):
        labels = ROWS.lazy().select(pk.kmeans("x", "y", k=3, weight="w")).collect(engine=engine)
        assert labels.equals(PLAIN.select(pk.kmeans("x", "y", k=3, weight="w")))
        assert ROWS.lazy().select(model.predict()).collect(engine=engine).equals(labels)
    assert model.label(rows).lazy().collect()["cluster"].equals(labels["cluster"])
    assert model.score(rows, weight="w") == expected.score(PLAIN, weight="w")
    assert ROWS.select(model.transform()).equals(PLAIN.select(model.transform()))
    assert ROWS.select(model.nearest_clusters(2)).equals(PLAIN.select(model.nearest_clusters(2)))
    assert ROWS.select(pk.centroids("x", "y", k=3)).equals(PLAIN.select(pk.centroids("x", "y", k=3)))


def test_sums_groups_plans_and_starting_centroids() -> None:
    model = pk.KMeans(3, keep_sums=True).fit(PLAIN, "x", "y")
    assert ROWS.select(model.sums()).equals(PLAIN.select(model.sums()))
    assert pk.KMeans(2).fit(ROWS, "x", by="g") == pk.KMeans(2).fit(PLAIN, "x", by="g")
    start = PLAIN.select("x", "y").head(3)
    expected = pk.KMeans(3, init=start).fit(PLAIN, "x", "y")
    assert pk.KMeans(3, init=typed(start, "x", "y")).fit(ROWS, "x", "y") == expected
    assert pk.KMeans(3).plan(ROWS, "x", "y").host_bytes == pk.KMeans(3).plan(PLAIN, "x", "y").host_bytes


def test_what_is_said_of_clusters() -> None:
    model = pk.KMeans(3).fit(PLAIN, "x", "y")
    for rows in (ROWS, ROWS.lazy()):
        assert model.profile(rows).equals(model.profile(PLAIN))
        assert model.profile(rows, weight="w").equals(model.profile(PLAIN, weight="w"))
        assert model.silhouette(rows, "x", "y").equals(model.silhouette(PLAIN, "x", "y"))
    chosen = [pk.choose_k(rows, "x", "y", k=[2, 3]).drop("seconds", strict=False) for rows in (ROWS, PLAIN)]
    assert chosen[0]["inertia"].equals(chosen[1]["inertia"])


def test_lists_and_arrays_of_extension_types() -> None:
    tensors = pl.DataFrame({"e": pl.Series(X, dtype=pl.Array(pl.Float64, 2))})
    expected = pk.KMeans(3).fit(tensors, "e")
    lists = tensors.cast({"e": pl.List(pl.Float64)})
    for frame in (typed(tensors, "e"), typed(lists, "e")):
        for rows in (frame, frame.lazy()):
            model = pk.KMeans(3).fit(rows, "e")
            assert model.centroids["cluster", "size"].equals(expected.centroids["cluster", "size"])
            assert model.label(frame)["cluster"].equals(expected.label(tensors)["cluster"])
        assert frame.select(pk.kmeans("e", k=3)).equals(tensors.select(pk.kmeans("e", k=3)))


def test_tensors_of_arrow() -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"e": pa.FixedShapeTensorArray.from_numpy_ndarray(X)})
    expected = pk.KMeans(3).fit(pl.DataFrame({"e": pl.Series(X, dtype=pl.Array(pl.Float64, 2))}), "e")
    assert pk.KMeans(3).fit(table, "e") == expected
    assert expected.label(table)["cluster"].equals(pl.from_arrow(table).select(expected.predict())["cluster"])


def test_storage_that_holds_no_numbers_is_refused() -> None:
    texts = typed(pl.DataFrame({"x": ["a", "b"]}), "x")
    with pytest.raises(pk.InvalidColumnError, match="expected numbers or booleans"):
        pk.KMeans(1).fit(texts, "x")
