"""Queries inside queries, plans in other processes, many files, memory maps and archives give the plain answers."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from helpers import run

import polars_kmeans as pk

N, K = 400, 3
OPTIONS: dict[str, Any] = {"k": K, "seed": 1}
ENGINES = pytest.mark.parametrize("engine", ["in-memory", "streaming"])


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    rng = np.random.default_rng(1)
    groups = rng.integers(0, 3, N)
    return pl.DataFrame({"t": np.arange(N), "g": groups, "x": rng.normal(size=N) + 3 * groups, "y": rng.normal(size=N)})


@pytest.fixture(scope="module")
def model(frame: pl.DataFrame) -> pk.KMeansModel:
    return pk.KMeans(**OPTIONS).fit(frame, "x", "y")


def label() -> pl.Expr:
    return pk.kmeans("x", "y", **OPTIONS).alias("label")


def labelled(frame: pl.DataFrame, model: pk.KMeansModel) -> pl.DataFrame:
    """The rows with the labels of all, of those of their group, and the centroids of the group."""
    frame = frame.with_columns(model.predict(frame).alias("label"))
    parts = []
    for part in frame.partition_by("g"):
        own = pk.KMeans(**OPTIONS).fit(part, "x", "y")
        dtype = pl.List(pl.Struct(own.centroids.schema))
        centroids = pl.Series("centroids", [own.centroids.to_dicts()] * part.height, dtype=dtype)
        parts.append(part.with_columns(own.predict(part).alias("in_group"), centroids))
    return pl.concat(parts).sort("t")


def query(frame: pl.LazyFrame, model: pk.KMeansModel) -> pl.LazyFrame:
    """The same by one query."""
    own = pk.centroids("x", "y", **OPTIONS).alias("centroids")
    return frame.with_columns(model.predict().alias("label"), label().over("g").alias("in_group"), own.over("g"))


# Queries inside queries

INSIDE = """
import json, sys
import polars as pl
import polars_kmeans as pk

frame = pl.read_parquet(sys.argv[1])
options = {"k": 3, "seed": 1}
schema = {"label": pl.UInt32}
model = pk.KMeans(**options).fit(frame, "x", "y")

def labels(rows):
    fit = rows.lazy().select(pk.kmeans("x", "y", **options).alias("label"))
    return fit.collect(engine=sys.argv[2])

def series(structs):
    return labels(structs.struct.unnest()).to_series()

def shown(query):
    found = query.collect(engine=sys.argv[2]) if isinstance(query, pl.LazyFrame) else query
    print(json.dumps(found.to_series().to_list()))

points = pl.struct("x", "y")
shown(frame.lazy().map_batches(labels, schema=schema))
shown(frame.lazy().select(points.map_batches(series, return_dtype=pl.UInt32)))
named = frame.lazy().map_batches(lambda rows: model.label(rows, name="label"), schema={**frame.schema, **schema})
shown(named.select("label"))
shown(frame.lazy().select(points.map_elements(lambda row: model.predict(pl.DataFrame([row]))[0], pl.UInt32)))
shown(frame.lazy().select(points.map_batches(series, return_dtype=pl.UInt32).over("g")))
groups = frame.group_by("g", maintain_order=True).map_groups(lambda rows: rows.with_columns(labels(rows)))
shown(groups.sort("t").select("label"))
print(pk.KMeans(**options).fit(named.filter(pl.col("label") >= 0), "x", "y") == model)
fits = [frame.lazy().select(pk.kmeans("x", "y", k=k, seed=1).max()) for k in range(1, 9)]
print([found.item() for found in pl.collect_all(fits)])
print(pl.thread_pool_size())
"""


@pytest.mark.parametrize("threads", ["1", "2"])
@ENGINES
def test_queries_inside_queries(
    frame: pl.DataFrame, model: pk.KMeansModel, tmp_path: Path, engine: str, threads: str
) -> None:
    """Functions in Python run queries with fits while another query waits for them, also with one thread."""
    path = tmp_path / "rows.parquet"
    frame.write_parquet(path)
    *lists, same, largest, pool = run(INSIDE, path, engine, POLARS_MAX_THREADS=threads).splitlines()
    expected = labelled(frame, model)
    whole, in_group = expected["label"].to_list(), expected["in_group"].to_list()
    assert [json.loads(line) for line in lists] == [whole] * 4 + [in_group] * 2
    assert (same, largest, pool) == ("True", str(list(range(8))), threads)


# Plans that travel

ELSEWHERE = """
import pickle, sys
from pathlib import Path
import polars as pl

folder, engine = Path(sys.argv[1]), sys.argv[2]
pl.LazyFrame.deserialize(folder / "plan").collect(engine=engine).write_parquet(folder / "plan.parquet")
frame = pl.read_parquet(folder / "rows.parquet")
exprs = [pl.Expr.deserialize(file) for file in sorted(folder.glob("*.expr"))]
frame.lazy().select(exprs).collect(engine=engine).write_parquet(folder / "exprs.parquet")
assert "polars_kmeans" not in sys.modules
pickle.loads((folder / "pickle").read_bytes()).collect(engine=engine).write_parquet(folder / "pickle.parquet")
"""


@ENGINES
def test_plans_in_another_process(frame: pl.DataFrame, model: pk.KMeansModel, tmp_path: Path, engine: Any) -> None:
    """A plan carries the options of its fits and its models. The other process does not import the package."""
    frame.write_parquet(tmp_path / "rows.parquet")
    plan = query(pl.scan_parquet(tmp_path / "rows.parquet"), model)
    plan.serialize(tmp_path / "plan")
    (tmp_path / "pickle").write_bytes(pickle.dumps(query(frame.lazy(), model)))
    exprs = [label(), model.predict().alias("p"), model.transform(), pk.centroids("x", "y", **OPTIONS, weight="t")]
    for number, expr in enumerate(exprs):
        expr.meta.serialize(tmp_path / f"{number}.expr")
    run(ELSEWHERE, tmp_path, engine)
    expected = labelled(frame, model)
    assert pl.read_parquet(tmp_path / "plan.parquet").equals(expected)
    assert pl.read_parquet(tmp_path / "pickle.parquet").equals(expected)
    found = pl.read_parquet(tmp_path / "exprs.parquet")
    assert found["label"].equals(expected["label"]) and found["p"].equals(expected["label"], check_names=False)
    assert found["distances"].equals(model.transform(frame))
    weighted = pk.KMeans(**OPTIONS, weight="t").fit(frame, "x", "y")
    assert found["centroids"][0].to_list() == weighted.centroids.to_dicts()


# Many files

FORMATS: dict[str, tuple[Callable[..., Any], Callable[..., pl.LazyFrame]]] = {
    "parquet": (pl.DataFrame.write_parquet, pl.scan_parquet),
    "arrow": (pl.DataFrame.write_ipc, pl.scan_ipc),
    "csv": (pl.DataFrame.write_csv, lambda path: pl.scan_csv(path, schema=SCHEMA)),
    "ndjson": (pl.DataFrame.write_ndjson, lambda path: pl.scan_ndjson(path, schema=SCHEMA)),
}
SCHEMA = {"t": pl.Int64, "g": pl.Int64, "x": pl.Float64, "y": pl.Float64}


@ENGINES
@pytest.mark.parametrize("kind", FORMATS)
def test_many_files(frame: pl.DataFrame, model: pk.KMeansModel, tmp_path: Path, kind: str, engine: Any) -> None:
    """Files of different lengths, some without rows, are one frame."""
    write, scan = FORMATS[kind]
    cuts = [0, 0, 1, 2, 50, 51, 51, 51, *range(60, N, 17), N]
    for number, (start, end) in enumerate(pairwise(cuts)):
        write(frame[start:end], tmp_path / f"{number:03}.{kind}")
    rows = scan(tmp_path / f"*.{kind}")
    assert query(rows, model).collect(engine=engine).equals(labelled(frame, model))
    assert rows.select(label()).collect(engine=engine).to_series().equals(labelled(frame, model)["label"])
    assert pk.KMeans(**OPTIONS).fit(rows, "x", "y") == model
    assert (
        rows.filter(pl.col("t") >= 51)
        .select(label().head(2))
        .collect(engine=engine)
        .equals(frame.filter(pl.col("t") >= 51).select(label().head(2)))
    )
    assert model.score(rows) == model.score(frame)


@ENGINES
def test_folders_and_files_are_groups(frame: pl.DataFrame, model: pk.KMeansModel, tmp_path: Path, engine: Any) -> None:
    for (g,), part in frame.partition_by("g", as_dict=True).items():
        folder = tmp_path / f"g={g}"
        folder.mkdir()
        part.drop("g").write_parquet(folder / "rows.parquet")
    rows = pl.scan_parquet(tmp_path / "*" / "*.parquet", hive_partitioning=True, include_file_paths="file")
    expected = labelled(frame, model)
    found = query(rows, model).sort("t").drop("file").select(expected.columns).collect(engine=engine)
    assert found.equals(expected)
    by_file = rows.select("t", label().over("file")).sort("t").collect(engine=engine)
    assert by_file["label"].equals(expected["in_group"], check_names=False)
    one = rows.filter(pl.col("g") == 2).select(label()).collect(engine=engine).to_series()
    assert one.equals(expected.filter(g=2)["in_group"], check_names=False)


# Arrays in files


@pytest.fixture
def x(frame: pl.DataFrame) -> Any:
    return frame.select("x", "y").to_numpy(order="c")


def test_memory_maps(x: Any, tmp_path: Path) -> None:
    weights = np.linspace(0.5, 2.0, N)
    path, raw = tmp_path / "x.npy", tmp_path / "x.bin"
    np.save(path, x)
    np.save(tmp_path / "w.npy", weights)
    raw.write_bytes(b"four" * 2 + x.tobytes() + np.asfortranarray(x).tobytes(order="F"))
    shape: Any = {"dtype": "float64", "shape": x.shape}
    maps = [np.load(path, mmap_mode=mode) for mode in ("r", "c", "r+")]
    maps += [
        np.memmap(raw, mode="r", offset=8, **shape),
        np.memmap(raw, mode="r", offset=8 + x.nbytes, order="F", **shape),
    ]
    mapped_weights = np.load(tmp_path / "w.npy", mmap_mode="r")
    expected = pk.KMeans(**OPTIONS).fit(x, weight=weights)
    before = path.read_bytes()
    for mapped in maps:
        assert pk.KMeans(**OPTIONS).fit(mapped, weight=mapped_weights) == expected
        assert expected.predict(mapped).tolist() == expected.predict(x).tolist()
        assert (expected.transform(mapped) == expected.transform(x)).all()
        assert expected.score(mapped) == expected.score(x)
        some, same = mapped[7::3, ::-1], x[7::3, ::-1].copy()
        assert pk.KMeans(K, init=mapped[:K, ::-1]).fit(some) == pk.KMeans(K, init=x[:K, ::-1]).fit(same)
        frame = pl.from_numpy(mapped, schema=["column_0", "column_1"])
        assert pk.KMeans(**OPTIONS).fit(frame, "column_0", "column_1") == pk.KMeans(**OPTIONS).fit(x)
    assert path.read_bytes() == before


@pytest.mark.parametrize("dtype", [">f8", ">f4", ">f2"])
def test_big_endian_arrays(x: Any, dtype: str) -> None:
    """An array with the bytes of another machine is refused. A frame and starting centroids of such an array fit."""
    big = x.astype(dtype)
    native = big.astype(big.dtype.newbyteorder("="))
    model = pk.KMeans(**OPTIONS).fit(native)
    uses: list[Callable[[], Any]] = [
        lambda: pk.KMeans(**OPTIONS).fit(big),
        lambda: pk.KMeans(**OPTIONS).fit(native, weight=np.ones(N, ">f8")),
        lambda: model.predict(big),
        lambda: model.transform(big),
        lambda: model.score(big),
    ]
    for use in uses:
        with pytest.raises(pk.InvalidParameterError, match=r"got >f\d: convert it first"):
            use()
    assert pk.KMeans(K, init=big[:K]).fit(native) == pk.KMeans(K, init=native[:K]).fit(native)
    if dtype != ">f2":
        frame, same = (pl.DataFrame({"x": array[:, 0], "y": array[:, 1]}) for array in (big, native))
        assert pk.KMeans(**OPTIONS).fit(frame, "x", "y") == pk.KMeans(**OPTIONS).fit(same, "x", "y")


def test_arrays_in_archives(x: Any, tmp_path: Path) -> None:
    expected = pk.KMeans(**OPTIONS).fit(x)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", rows=x, turned=x.T)
        with np.load(tmp_path / "x.npz") as archive:
            assert pk.KMeans(**OPTIONS).fit(archive["rows"]) == expected
            assert expected.predict(archive["turned"].T).tolist() == expected.predict(x).tolist()
            with pytest.raises(pk.InvalidParameterError, match=r"got [^ ]*NpzFile"):
                pk.KMeans(**OPTIONS).fit(archive)


def test_files_in_archives(frame: pl.DataFrame, model: pk.KMeansModel, tmp_path: Path) -> None:
    """Models go into archives and come out of them. So do the rows of a fit."""
    table = io.BytesIO()
    frame.write_parquet(table)
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rows.parquet", table.getvalue())
        with archive.open("model.parquet", "w") as file:
            model.save(file)
        archive.writestr("model.pickle", pickle.dumps(model))
    with zipfile.ZipFile(path) as archive, archive.open("model.parquet") as file:
        assert pk.KMeansModel.load(file) == pickle.loads(archive.read("model.pickle")) == model
        rows = pl.read_parquet(archive.read("rows.parquet"))
        assert pk.KMeans(**OPTIONS).fit(rows, "x", "y") == model
    with gzip.open(tmp_path / "model.gz", "wb") as file:
        model.save(file)
    with gzip.open(tmp_path / "model.gz") as file:
        assert pk.KMeansModel.load(file) == model
    model.save(tmp_path / "model.parquet")
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "model.parquet", "model.parquet")
    with tarfile.open(tmp_path / "all.tar.gz") as tar:
        assert pk.KMeansModel.load(tar.extractfile("model.parquet")) == model
    for start in range(0, N, 150):
        with gzip.open(tmp_path / f"rows_{start:03}.csv.gz", "wb") as file:
            file.write(frame[start : start + 150].write_csv().encode())
    rows = pl.scan_csv(tmp_path / "rows_*.csv.gz", schema=SCHEMA)
    assert pk.KMeans(**OPTIONS).fit(rows, "x", "y") == model
