"""One hash of a fit for all Polars engines, chunks and numbers of threads."""

import hashlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import polars_kmeans as pk

GOLDEN = Path(__file__).parents[1] / "golden" / "python.txt"


def data(dtype: pl.DataType) -> pl.DataFrame:
    """Integers mixed by arithmetic that is the same in every library version."""
    i = np.arange(30_000, dtype=np.uint64)
    columns = {}
    for f, name in enumerate(["x", "y", "z"]):
        mixed = (i + np.uint64(f * 1_000_003)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        columns[name] = (mixed >> np.uint64(40)).astype(np.float64) / 2.0**20 + (i % np.uint64(7)).astype(
            np.float64
        ) * 4
    return pl.DataFrame(columns).cast(dtype).with_columns(w=pl.Series(i % np.uint64(5)).cast(pl.Float64) / 4)


def digest(labels: pl.Series, model: pk.KMeansModel, centroids: pl.DataFrame | None = None) -> str:
    h = hashlib.sha256()
    h.update(labels.to_numpy().astype("<u4").tobytes())
    for column in (model.centroids if centroids is None else centroids).drop("cluster").iter_columns():
        h.update(column.to_numpy().astype("<f8").tobytes())
    h.update(np.array([model.inertia, model.n_iter], "<f8").tobytes())
    h.update(model.history.drop("seconds").fill_null(0).cast(pl.Float64).to_numpy().astype("<f8").tobytes())
    return h.hexdigest()[:16]


def one(frame: pl.DataFrame | pl.LazyFrame, weight: str | None, engine: str = "in-memory") -> str:
    lazy = frame.lazy()
    options = {"k": 9, "seed": 5, "weight": weight}
    labels = lazy.select(pk.kmeans("x", "y", "z", **options)).collect(engine=engine)["kmeans"]
    model = pk.KMeans(**options, history="full").fit(frame, ["x", "y", "z"])
    predicted = lazy.select(model.predict()).collect(engine=engine)["kmeans"]
    assert predicted.equals(labels), "fit then predict gives the same labels"
    return digest(labels, model)


CASES = [(dtype, weight) for dtype in (pl.Float32, pl.Float64) for weight in (None, "w")]


def report() -> str:
    return "".join(f"{dtype} {weight} {one(data(dtype()), weight)}\n" for dtype, weight in CASES)


def test_golden() -> None:
    if "WRITE_GOLDEN" in os.environ:
        GOLDEN.write_text(report())
    assert report() == GOLDEN.read_text()


@pytest.mark.parametrize("threads", ["1", "2"])
def test_threads_and_processes(threads: str) -> None:
    env = {**os.environ, "RAYON_NUM_THREADS": threads, "POLARS_MAX_THREADS": threads}
    run = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True, check=True)
    assert run.stdout == GOLDEN.read_text()


@pytest.mark.parametrize(("dtype", "weight"), CASES)
def test_engines_and_chunks(dtype: type[pl.DataType], weight: str | None) -> None:
    df = data(dtype())
    expected = one(df, weight)
    rng = np.random.default_rng(1)
    for _ in range(20):
        cuts = [0, *np.sort(rng.integers(0, df.height, 6)).tolist(), df.height]
        pieces = [df.slice(a, b - a) for a, b in itertools.pairwise(cuts)]
        assert one(pl.concat(pieces, rechunk=False), weight) == expected
    assert one(df.lazy(), weight, "in-memory") == expected
    assert one(df.lazy(), weight, "streaming") == expected
    assert one(pl.concat([df.head(11_111), df.tail(-11_111)], rechunk=False).lazy(), weight, "streaming") == expected


@pytest.mark.parametrize(("dtype", "weight"), CASES)
def test_ways_in(dtype: type[pl.DataType], weight: str | None, tmp_path: Path) -> None:
    """Array and List columns, groups, and a model from a file. tests/ways.rs checks the same hash in Rust."""
    df = data(dtype())
    expected = one(df, weight)
    options = {"k": 9, "seed": 5, "weight": weight}
    array, lists = pl.concat_arr("x", "y", "z").alias("e"), pl.concat_list("x", "y", "z").alias("e")
    for rows in (df.with_columns(array), df.with_columns(lists)):
        labels = rows.select(pk.kmeans("e", **options))["kmeans"]
        model = pk.KMeans(**options, history="full").fit(rows.lazy(), "e")
        columns = model.centroids.with_columns(pl.col("e").arr.to_struct(fields=["x", "y", "z"])).unnest("e")
        assert digest(labels, model, columns) == expected
        model.save(tmp_path / "model.parquet")
        loaded = pk.KMeansModel.load(tmp_path / "model.parquet")
        split = loaded.centroids.with_columns(pl.col("e").arr.to_struct(fields=["x", "y", "z"])).unnest("e")
        assert digest(df.select(loaded.predict("x", "y", "z"))["kmeans"], loaded, split) == expected
    both = pl.concat([df.with_columns(g=0), df.with_columns(g=1)])
    twice = both.select("g", pk.kmeans("x", "y", "z", **options).over("g"))
    assert twice.filter(g=0)["kmeans"].equals(labels) and twice.filter(g=1)["kmeans"].equals(labels)
    frames = both.group_by("g", maintain_order=True).agg(pk.centroids("x", "y", "z", **options))["centroids"]
    assert all(frame.struct.unnest().equals(columns) for frame in frames)


if __name__ == "__main__":
    print(report(), end="")
