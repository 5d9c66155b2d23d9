"""Array and List columns with nulls, decimals, starting centroids, options, null structs, and model files on disk."""

import os
import subprocess
import sys
from decimal import Decimal
from enum import Enum
from pathlib import Path

import numpy as np
import polars as pl
import polars.selectors as cs
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
    few = pl.DataFrame({"x": [1.0, 1.0]}).select(pk.kmeans("x", k=2, too_few="null", output="struct"))["kmeans"]
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
        assert out["kmeans"].is_null().to_list() == [False, True, False, True, False] * 20
        assert out.drop_nulls("kmeans").height == 60
        fields = out.unnest("kmeans").select("label", "distance", "second_distance")
        assert fields.null_count().row(0) == (40, 40, 40)
    # With one cluster there is no second distance. The rows still have an answer.
    one = df.select(pk.KMeans(1, null_policy="skip").fit(df, "x").predict(output="struct"))["kmeans"]
    assert one.null_count() == 40 and one.struct.field("second_distance").null_count() == 100
    all_null = df.select(pl.lit(None, pl.Float64).alias("x")).select(model.predict(output="struct"))["kmeans"]
    assert all_null.null_count() == all_null.len()
    assert df.clear().select(model.predict(output="struct"))["kmeans"].len() == 0


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


def test_tiny_centroids_are_centroids(tmp_path: Path) -> None:
    tiny = pl.DataFrame({"x": [2.0**-450, -(2.0**-451)]})
    nearly = pl.DataFrame({"x": [1e-120, -1e-120 * (1 + 2**-52)] * 500})
    for df, k in ((tiny, 1), (nearly, 1), (nearly, 2), (nearly.cast(pl.Float32), 1)):
        model = pk.KMeans(k).fit(df, "x")
        model.save(tmp_path / "tiny.parquet")
        loaded = pk.KMeansModel.load(tmp_path / "tiny.parquet")
        assert loaded == model and loaded.score(df) == -model.inertia
        labels = df.select(pk.kmeans("x", k=k))
        assert df.select(loaded.predict()).equals(labels)
        again = pk.KMeans(k, init=model).fit(df, "x")
        assert again.centroids.equals(model.centroids)


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


def test_damage_is_noticed(tmp_path: Path) -> None:
    model = pk.KMeans(2).fit(pl.DataFrame({"x": [0.0, 1.0, 5.0]}), "x")
    content, path = model.to_bytes(), tmp_path / "damaged.parquet"
    end = 42 + int.from_bytes(content[18:26], "little")
    damaged = [content[:cut] for cut in range(len(content))] + [content + b"\n"]
    for at in (*range(end), *range(len(content) - 4, len(content))):
        damaged.append(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
    damaged.append(content[:18] + (1 << 62).to_bytes(8, "little") + content[26:])
    for file in damaged:
        with pytest.raises(pk.InvalidModelError):
            pk.KMeansModel.from_bytes(file)
    path.write_bytes(damaged[-1])
    with pytest.raises(pk.InvalidModelError, match=r"expected a whole model, .* breaks off .*damaged\.parquet"):
        pk.KMeansModel.load(path)


def test_an_array_column_with_a_long_name(tmp_path: Path) -> None:
    name = "n" * 3_000
    df = pl.DataFrame({name: [[float(i * f % 7) for f in range(2_000)] for i in range(4)]})
    model = pk.KMeans(2).fit(df.cast(pl.Array(pl.Float64, 2_000)), cs.all())
    model.save(tmp_path / "long.parquet")
    assert pk.KMeansModel.load(tmp_path / "long.parquet") == model


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes_links_and_files_that_nobody_may_write(tmp_path: Path) -> None:
    model = pk.KMeans(2).fit(pl.DataFrame({"x": [0.0, 1.0, 5.0]}), "x")
    os.mkfifo(tmp_path / "pipe")
    for use in (model.save, pk.KMeansModel.load):
        with pytest.raises(pk.ModelFileError):
            use(tmp_path / "pipe")
    target, link = tmp_path / "target.parquet", tmp_path / "link.parquet"
    link.symlink_to("target.parquet")
    model.save(link)
    assert link.is_symlink() and not target.is_symlink() and pk.KMeansModel.load(target) == model
    before = target.read_bytes()
    target.chmod(0o444)
    with pytest.raises(pk.ModelFileError, match="permission denied"):
        model.save(link)
    assert target.read_bytes() == before


LOAD = """
import resource, sys, time
import polars_kmeans as pk
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
try:
    print(pk.KMeansModel.load(sys.argv[1]))
except pk.InvalidModelError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, time.monotonic() - start)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory as Linux does")
def test_a_sparse_file_costs_no_memory(tmp_path: Path) -> None:
    path, hole = tmp_path / "sparse.parquet", 2 << 30
    for footer in (0, 1_000, hole):
        with path.open("wb") as file:
            file.write(b"PAR1")
            file.seek(hole, os.SEEK_CUR)
            file.write(footer.to_bytes(4, "little") + b"PAR1")
        out = subprocess.run([sys.executable, "-c", LOAD, path], capture_output=True, text=True, timeout=60, check=True)
        said, cost = out.stdout.splitlines()
        assert "a Parquet file of another program" in said
        kilobytes, seconds = map(float, cost.split())
        assert kilobytes < 20_000 and seconds < 1
