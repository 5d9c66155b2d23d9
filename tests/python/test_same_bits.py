"""One hash of a fit for all Polars engines, chunks and numbers of threads."""

import hashlib
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

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
    history = (
        model.history.drop("settled", "rescored", "skipped", "groups", "passes", "seconds")
        .fill_null(0)
        .cast(pl.Float64)
    )
    h.update(history.to_numpy().astype("<f8").tobytes())
    return h.hexdigest()[:16]


# The options of a golden line by its name. tests/ways.rs has the same.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cosine": {"metric": "cosine"},
    "standard": {"scale": "standard"},
    "robust-cosine": {"scale": "robust", "metric": "cosine"},
    "factors": {"scale": {"x": 0.25, "z": 3.0}},
    "kmeans-parallel": {"init": "kmeans-parallel", "rounds": 3},
    "afk-mc2": {"init": "afk-mc2", "chain_length": 50},
    "optimal": {"init": "optimal"},
    "init-sample": {"init_sample": 2000},
    "order-of-values": {"row_order": "values"},
    "sorted-by-size": {"sort_by": "size"},
}


class Case(NamedTuple):
    dtype: type[pl.DataType]
    weight: str | None
    name: str = "plain"

    def features(self) -> list[str]:
        return ["x"] if self.name == "optimal" else ["x", "y", "z"]

    def options(self) -> dict[str, Any]:
        return {"k": 9, "seed": 5, "weight": self.weight, **OPTIONS[self.name]}


def one(frame: pl.DataFrame | pl.LazyFrame, case: Case, engine: str = "in-memory") -> str:
    lazy = frame.lazy()
    labels = lazy.select(pk.kmeans(*case.features(), **case.options())).collect(engine=engine)["cluster"]
    model = pk.KMeans(**case.options(), history="full").fit(frame, case.features())
    predicted = lazy.select(model.predict()).collect(engine=engine)["cluster"]
    assert predicted.equals(labels), "fit then predict gives the same labels"
    return digest(labels, model)


PLAIN = [Case(dtype, weight) for dtype in (pl.Float32, pl.Float64) for weight in (None, "w")]
OTHERS = [Case(*kind, name) for name in list(OPTIONS)[1:] for kind in ((pl.Float32, None), (pl.Float64, "w"))]
CASES = PLAIN + OTHERS


def report() -> str:
    def line(case: Case) -> str:
        words = [str(case.dtype), str(case.weight), *([] if case.name == "plain" else [case.name])]
        return " ".join([*words, one(data(case.dtype()), case)]) + "\n"

    return "".join(line(case) for case in CASES)


def test_golden() -> None:
    if "WRITE_GOLDEN" in os.environ:
        GOLDEN.write_text(report())
    assert report() == GOLDEN.read_text()


@pytest.mark.parametrize("threads", ["1", "2"])
def test_threads_and_processes(threads: str) -> None:
    env = {**os.environ, "RAYON_NUM_THREADS": threads, "POLARS_MAX_THREADS": threads}
    run = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True, check=True)
    assert run.stdout == GOLDEN.read_text()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_engines_and_chunks(case: Case) -> None:
    df = data(case.dtype())
    expected = one(df, case)
    rng = np.random.default_rng(1)
    for _ in range(20 if case.name == "plain" else 3):
        cuts = [0, *np.sort(rng.integers(0, df.height, 6)).tolist(), df.height]
        pieces = [df.slice(a, b - a) for a, b in itertools.pairwise(cuts)]
        assert one(pl.concat(pieces, rechunk=False), case) == expected
    assert one(df.lazy(), case, "in-memory") == expected
    assert one(df.lazy(), case, "streaming") == expected
    assert one(pl.concat([df.head(11_111), df.tail(-11_111)], rechunk=False).lazy(), case, "streaming") == expected


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ways_in(case: Case, tmp_path: Path) -> None:
    """Array and List columns, groups, and a model from a file. tests/ways.rs checks the same hash in Rust."""
    df, names, options = data(case.dtype()), case.features(), case.options()
    expected = one(df, case)
    labels = df.select(pk.kmeans(*names, **options))["cluster"]
    model = pk.KMeans(**options, history="full").fit(df, names)
    model.save(tmp_path / "columns.parquet")
    loaded = pk.KMeansModel.load(tmp_path / "columns.parquet")
    assert digest(df.select(loaded.predict())["cluster"], loaded) == expected

    def split(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(pl.col("e").arr.to_struct(fields=names)).unnest("e")

    # A factor is given for a column by its name.
    for wide in (pl.concat_arr(names), pl.concat_list(names)) if case.name != "factors" else ():
        rows = df.with_columns(wide.alias("e"))
        assert rows.select(pk.kmeans("e", **options))["cluster"].equals(labels)
        model = pk.KMeans(**options, history="full").fit(rows.lazy(), "e")
        assert digest(labels, model, split(model.centroids)) == expected
        model.save(tmp_path / "model.parquet")
        loaded = pk.KMeansModel.load(tmp_path / "model.parquet")
        assert digest(df.select(loaded.predict(*names))["cluster"], loaded, split(loaded.centroids)) == expected
    both = pl.concat([df.with_columns(g=0), df.with_columns(g=1)])
    twice = both.select("g", pk.kmeans(*names, **options).over("g"))
    assert twice.filter(g=0)["cluster"].equals(labels) and twice.filter(g=1)["cluster"].equals(labels)
    frames = both.group_by("g", maintain_order=True).agg(pk.centroids(*names, **options))["centroids"]
    columns = pk.KMeans(**options).fit(df, names).centroids
    assert all(frame.struct.unnest().equals(columns) for frame in frames)


if __name__ == "__main__":
    print(report(), end="")
