"""Frames of other libraries come as Arrow streams. They give the bits of Polars frames, and columns are not copied."""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import polars_kmeans as pk
from polars_kmeans import _frames

RANDOM = np.random.default_rng(5)
DF = pl.DataFrame(
    {
        "x": RANDOM.normal(size=4000) + RANDOM.integers(0, 3, size=4000) * 9,
        "y": RANDOM.normal(size=4000).astype(np.float32),
        "i": RANDOM.integers(-50, 50, size=4000).astype(np.int16),
        "w": RANDOM.uniform(0.5, 2, size=4000),
        "g": RANDOM.integers(0, 3, size=4000),
        "s": ["text"] * 4000,
    }
)
FEATURES = ["x", "y", "i"]


class Stream:
    """A frame of an unknown library."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame = frame
        self.calls = 0

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        self.calls += 1
        return self.frame.__arrow_c_stream__(requested_schema)


class Batch:
    """One record batch."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return DF.to_arrow().combine_chunks().to_batches()[0].__arrow_c_array__(requested_schema)


def pandas(frame: pl.DataFrame) -> Any:
    pytest.importorskip("pandas")
    return frame.to_pandas()


def duckdb(frame: pl.DataFrame) -> Any:
    connection = pytest.importorskip("duckdb").connect()
    connection.register("points", frame.to_arrow())
    # One thread keeps the order of the rows.
    connection.execute("SET threads = 1")
    return connection.sql("SELECT * FROM points")


def datafusion(frame: pl.DataFrame) -> Any:
    module = pytest.importorskip("datafusion")
    context = module.SessionContext(module.SessionConfig().with_target_partitions(1))
    return context.from_arrow(frame.to_arrow())


KINDS: dict[str, Callable[[pl.DataFrame], Any]] = {
    "pyarrow": lambda frame: frame.to_arrow(),
    "chunks": lambda frame: pa.concat_tables([frame[:999].to_arrow(), frame[999:].to_arrow()]),
    "unknown": Stream,
    "a batch": lambda _: Batch(),
    "pandas": pandas,
    "duckdb": duckdb,
    "datafusion": datafusion,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_library_has_the_bits_of_polars(kind: str) -> None:
    make, estimator = KINDS[kind], pk.KMeans(4, seed=3, weight="w")
    expected = estimator.fit(DF, FEATURES)
    labels, distances = DF.select(expected.predict(), expected.transform())
    model = estimator.fit(make(DF), FEATURES)
    assert model == expected
    assert model.feature_names == FEATURES
    assert estimator.fit(make(DF), *map(pl.col, FEATURES)) == expected
    assert model.predict(make(DF)).equals(labels)
    assert model.predict(make(DF), *FEATURES, output="struct").struct.field("cluster").equals(labels)
    assert model.transform(make(DF)).equals(distances)
    assert model.score(make(DF), weight="w") == expected.score(DF, weight="w")
    assert model.label(make(DF), name="c")["c"].equals(labels.alias("c"))
    assert estimator.fit_predict(make(DF), FEATURES).equals(labels)
    assert estimator.fit(make(DF), FEATURES, by="g") == estimator.fit(DF, FEATURES, by="g")


def test_a_stream_is_read_once() -> None:
    stream = Stream(DF)
    model = pk.KMeans(3).fit(stream, "x")
    assert stream.calls == 1
    model.predict(stream)
    assert stream.calls == 2


def test_columns_are_not_copied() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = np.arange(1000.0), np.arange(1000.0) % 7
    chunks = [x[:400], x[400:]]
    table = pa.table({"x": pa.chunked_array(chunks), "y": y})
    frame = _frames.polars_frame(table)
    assert isinstance(frame, pl.DataFrame)
    where = [chunk.to_numpy(allow_copy=False).ctypes.data for chunk in frame["x"].get_chunks()]
    assert where == [chunk.ctypes.data for chunk in chunks]
    block = pandas.DataFrame({"x": x, "y": y, "s": "text"})
    for columns in (("x", "y"), (pl.col("x"), "y")):
        taken = _frames.polars_frame(block, *columns)
        assert isinstance(taken, pl.DataFrame)
        assert taken["x"].to_numpy(allow_copy=False).ctypes.data == block["x"].to_numpy().ctypes.data


def test_pandas_frames_may_hold_anything_beside_the_features() -> None:
    frame = DF.to_pandas() if pytest.importorskip("pandas") else None
    frame["mixed"] = [1, "a"] * 2000
    frame[3] = 1.0
    model = pk.KMeans(4, weight="w").fit(frame, "x", ["y"])
    assert model == pk.KMeans(4, weight="w").fit(DF, "x", "y")
    assert model.predict(frame).equals(DF.select(model.predict()).to_series())
    assert model.score(frame) == model.score(DF)
    with pytest.raises(pl.exceptions.ColumnNotFoundError, match="z"):
        pk.KMeans(4).fit(frame, "z", "x")


def test_the_index_of_pandas_is_no_column() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [0.0, 1.0, 5.0], "y": [1.0, 1.0, 2.0]}, index=[7, 8, 9])
    for named in (frame, frame.rename_axis("z")):
        model = pk.KMeans(2).fit(named, pl.all())
        assert model.feature_names == ["x", "y"]
        assert model.label(named).columns == ["x", "y", "cluster"]
        assert named.index.tolist() == [7, 8, 9]


def test_missing_values_of_pandas_are_nulls() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [0.0, None, 5.0, 5.5]})
    with pytest.raises(pk.InvalidDataError, match="null_policy"):
        pk.KMeans(2).fit(frame, "x")
    model = pk.KMeans(2, null_policy="skip").fit(frame, "x")
    assert model.predict(frame).is_null().to_list() == [False, True, False, False]


def test_starting_centroids_of_other_frames_are_found_by_name() -> None:
    start = pl.DataFrame({"y": [1.0, 0.0], "x": [0.0, 20.0]})
    expected = pk.KMeans(2, init=start).fit(DF, "x", "y")
    for other in (start.to_arrow(), Stream(start), pandas(start)):
        assert pk.KMeans(2, init=other).fit(DF, "x", "y") == expected
        assert pk.KMeansModel.from_centroids(other) == pk.KMeansModel.from_centroids(start)


def test_one_column_is_no_frame() -> None:
    for column in (pa.chunked_array([[1.0, 2.0]]), Stream(DF["x"]), pandas(DF)["x"]):  # type: ignore[arg-type]
        with pytest.raises(pk.InvalidParameterError, match=r"expected a frame, got one column .*: call to_frame\(\)"):
            pk.KMeans(2).fit(column, "x")
    with pytest.raises(pk.InvalidParameterError, match=r"got polars.series.series.Series: call to_frame\(\) on it"):
        pk.KMeans(2).fit(DF["x"], "x")  # type: ignore[call-overload]


def test_what_belongs_to_arrays_is_refused() -> None:
    with pytest.raises(pk.InvalidParameterError, match="takes a column or an expression"):
        pk.KMeans(2).fit(DF.to_arrow(), "x", weight=DF["w"].to_numpy())  # type: ignore[call-overload]
