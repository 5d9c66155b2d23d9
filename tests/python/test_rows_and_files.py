"""Array and List columns with nulls, decimals, starting centroids, options, null structs, and model files on disk."""

from decimal import Decimal
from enum import Enum
from pathlib import Path

import numpy as np
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
    """Decimals are rounded as in Python, in columns, Arrays and Lists. Polars' own cast rounds twice."""
    texts = ["1.23456789012345678901", "-7.00000000000000000001", "0.10000000000000000001", "12345678.9"]
    column = pl.DataFrame({"x": pl.Series([Decimal(text) for text in texts], dtype=pl.Decimal(38, 20))})
    lists = column.select(pl.col("x").implode().over(pl.int_range(pl.len())))
    for frame in (column, lists, lists.cast({"x": pl.Array(pl.Decimal(38, 20), 1)})):
        centroids = pk.KMeans(k=4, tol=0).fit(frame, "x").centroids["x"]
        got = centroids.explode() if centroids.dtype.is_nested() else centroids
        assert sorted(got.to_list()) == sorted(map(float, texts))


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_a_row_without_an_answer_is_a_null_struct(engine: str) -> None:
    few = pl.DataFrame({"x": [1.0, 1.0]}).select(pk.kmeans("x", k=2, too_few="null", output="struct"))["cluster"]
    assert few.null_count() == 2 and few.struct.unnest().null_count().row(0) == (2, 2, 2)
    assert few.to_frame().drop_nulls().is_empty()
    df = pl.DataFrame({"x": [0.0, None, 5.0, float("nan"), 6.0] * 20, "g": [0] * 50 + [1] * 50})
    model = pk.KMeans(2, null_policy="skip").fit(df, "x")
    for expr in (
        pk.kmeans("x", k=2, null_policy="skip", output="struct"),
        pk.kmeans("x", k=2, null_policy="skip", output="struct").over("g"),
        model.predict(output="struct"),
    ):
        out = df.lazy().with_columns(expr).collect(engine=engine)
        assert out["cluster"].is_null().to_list() == [False, True, False, True, False] * 20
        assert out.drop_nulls("cluster").height == 60
        fields = out.unnest("cluster").select("cluster", "distance", "second_distance")
        assert fields.null_count().row(0) == (40, 40, 40)
    # With one cluster there is no second distance. The rows still have an answer.
    one = df.select(pk.KMeans(1, null_policy="skip").fit(df, "x").predict(output="struct"))["cluster"]
    assert one.null_count() == 40 and one.struct.field("second_distance").null_count() == 100
    all_null = df.select(pl.lit(None, pl.Float64).alias("x")).select(model.predict(output="struct"))["cluster"]
    assert all_null.null_count() == all_null.len()
    assert df.clear().select(model.predict(output="struct"))["cluster"].len() == 0


class Seeding(str, Enum):
    PLUS_PLUS = "k-means++"
    RANDOM = "random"


def test_options_may_be_strings_of_any_class() -> None:
    df = pl.DataFrame({"x": [0.0, 1.0, 5.0, 6.0, None], "w": [1.0, 2.0, 1.0, 1.0, 1.0]})
    text = np.str_
    options = {"null_policy": text("skip"), "too_few": text("null"), "device": text("cpu"), "weight": text("w")}
    plain = {name: str(value) for name, value in options.items()}
    for init in Seeding:
        model = pk.KMeans(2, init=init, history=text("full"), n_init=text("auto"), **options).fit(df, text("x"))
        assert model == pk.KMeans(2, init=init.value, history="full", **plain).fit(df, "x")
        expr = pk.kmeans(text("x"), k=np.int64(2), init=init, output=text("struct"), **options)
        assert df.select(expr).equals(df.select(pk.kmeans("x", k=2, init=init.value, output="struct", **plain)))
    rows = df.select(model.predict(output=text("struct"), device=text("cpu")), model.transform(device=text("cpu")))
    assert rows.equals(df.select(model.predict(output="struct"), model.transform()))
    assert model.score(df, text("x"), weight=text("w"), device=text("cpu")) == model.score(df, weight="w")


def test_masked_arrays_are_refused() -> None:
    values, mask = np.array([[0.0], [5.0]]), [[False], [True]]
    df = pl.DataFrame({"x": [0.0, 1.0, 5.0]})
    for init in (np.ma.array(values, mask=mask), [np.ma.array([0.0]), np.ma.array([5.0], mask=[True])]):
        with pytest.raises(pk.InvalidParameterError, match="masked"):
            pk.KMeans(2, init=init)
    whole = pk.KMeans(2, init=np.ma.array(values, mask=False)).fit(df, "x")
    assert whole == pk.KMeans(2, init=values).fit(df, "x")


def test_starting_centroids_of_lists_have_their_shape() -> None:
    df = pl.DataFrame({"e": [[0.0] * 3, [1.0] * 3, [9.0] * 3, [10.0] * 3]})
    good = pl.DataFrame({"e": [[0.0, 0.0, 0.0], [9.0, 9.0, 9.0]]})
    model = pk.KMeans(2, init=good).fit(df, "e")
    assert model.centroids["e"].to_list() == [[0.5] * 3, [9.5] * 3]
    assert pk.KMeans(2, init=model).fit(df, "e").n_iter == 1
    for bad in ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[1.0] * 6], [[1.0]] * 6):
        with pytest.raises(pk.InvalidParameterError, match="starting centroids"):
            pk.KMeans(2, init=bad).fit(df, "e")
    # Columns that the fit does not ask for may hold anything.
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


@pytest.mark.parametrize("kind", ["columns", "array"])
def test_other_programs_read_the_table_of_a_model(kind: str, tmp_path: Path) -> None:
    df = pl.DataFrame({"x": [0.1, 0.2, 5.1, 5.3, 9.7], "y": [1.0, 1.1, 9.0, 9.1, -3.3]})
    if kind == "array":
        df = df.select(e=pl.concat_list("x", "y").list.to_array(2)).cast({"e": pl.Array(pl.Float32, 2)})
    model = pk.KMeans(3, seed=7).fit(df, df.columns)
    path = tmp_path / "model.parquet"
    model.save(path)
    expected = model.centroids
    assert pl.read_parquet(path).equals(expected) and pl.read_parquet(path).schema == expected.schema
    assert pl.scan_parquet(path).select("cluster", "size").collect().equals(expected.select("cluster", "size"))
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(path)
    assert table.column_names == expected.columns and table.to_pydict() == expected.to_dict(as_series=False)
    # No column begins before the end of our own bytes.
    content = path.read_bytes()
    end = 42 + int.from_bytes(content[18:26], "little")
    assert parquet.read_metadata(path).row_group(0).column(0).data_page_offset >= end
    assert pk.KMeansModel.from_bytes(content) == model
