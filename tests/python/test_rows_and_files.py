"""Array and List columns with nulls, decimals, shapes of starting centroids, and what saving does to files."""

from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

import polars_kmeans as pk


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_null_rows_of_sliced_and_chunked_arrays(engine: str) -> None:
    rows = [[0.0, 0.0], None, [1.0, 1.0], [9.0, None], [9.0, 9.0], [8.0, 8.0]] * 50
    array = pl.DataFrame({"e": pl.Series(rows, dtype=pl.Array(pl.Float64, 2))})
    lists = array.cast({"e": pl.List(pl.Float64)})
    columns = array.select(pl.col("e").arr.to_struct(fields=["x", "y"])).unnest("e")
    options = {"k": 2, "null_policy": "skip"}
    for cut in (0, 1, 3, 9):
        expected = columns.slice(cut).select(pk.kmeans("x", "y", **options))
        for frame in (array, lists):
            whole = frame.slice(cut)
            pieces = pl.concat([whole.slice(0, 5), whole.clear(), whole.slice(5)], rechunk=False)
            for rows_of in (whole, pieces):
                out = rows_of.lazy().select(pk.kmeans("e", **options)).collect(engine=engine)
                assert out.equals(expected)
                model = pk.KMeans(**options).fit(rows_of, "e")
                assert rows_of.lazy().select(model.predict()).collect(engine=engine).equals(expected)


def test_decimals_are_rounded_once() -> None:
    """As Python rounds them, in columns, Arrays and Lists; Polars' own cast rounds twice."""
    texts = ["1.23456789012345678901", "-7.00000000000000000001", "0.10000000000000000001", "12345678.9"]
    column = pl.DataFrame({"x": pl.Series([Decimal(text) for text in texts], dtype=pl.Decimal(38, 20))})
    lists = column.select(pl.col("x").implode().over(pl.int_range(pl.len())))
    for frame in (column, lists, lists.cast({"x": pl.Array(pl.Decimal(38, 20), 1)})):
        centroids = pk.KMeans(k=4, tol=0).fit(frame, "x").centroids["x"]
        got = centroids.explode() if centroids.dtype.is_nested() else centroids
        assert sorted(got.to_list()) == sorted(map(float, texts))


def test_struct_output_has_null_fields() -> None:
    nulls = pl.DataFrame({"x": [1.0, 1.0]}).select(pk.kmeans("x", k=2, too_few="null", output="struct"))["kmeans"]
    assert nulls.struct.unnest().null_count().row(0) == (2, 2, 2)
    assert nulls.is_null().sum() == 0


def test_starting_centroids_of_lists_have_their_shape() -> None:
    df = pl.DataFrame({"e": [[0.0] * 3, [1.0] * 3, [9.0] * 3, [10.0] * 3]})
    good = pl.DataFrame({"e": [[0.0, 0.0, 0.0], [9.0, 9.0, 9.0]]})
    model = pk.KMeans(2, init=good).fit(df, "e")
    assert model.centroids["e"].to_list() == [[0.5] * 3, [9.5] * 3]
    assert pk.KMeans(2, init=model).fit(df, "e").n_iter == 1
    for bad in ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[1.0] * 6], [[1.0]] * 6):
        with pytest.raises(pk.InvalidParameterError, match="starting centroids"):
            pk.KMeans(2, init=bad).fit(df, "e")
    # What is not asked for may be anything.
    extra = pl.DataFrame({"x": [1.0, 2.0], "ragged": [[1.0, 2.0], [1.0]], "s": ["a", "b"]})
    assert pk.KMeans(2, init=extra).fit(pl.DataFrame({"x": [0.0, 1.0, 5.0]}), "x").n_clusters == 2


def test_saving_keeps_what_is_there(tmp_path: Path) -> None:
    model = pk.KMeans(2).fit(pl.DataFrame({"x": [0.0, 1.0, 5.0]}), "x")
    path, link = tmp_path / "model.parquet", tmp_path / "link.parquet"
    model.save(path)
    path.chmod(0o600)
    link.symlink_to(path)
    model.save(link)
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o600
    assert pk.KMeansModel.load(link) == model
    assert sorted(tmp_path.iterdir()) == [link, path]
    for device in ("/dev/null", "/dev/zero"):
        with pytest.raises(pk.ModelFileError):
            model.save(device)
        with pytest.raises(pk.ModelFileError):
            pk.KMeansModel.load(device)
