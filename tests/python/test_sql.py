"""The SQL of DuckDB and DataFusion gives the answers of the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from helpers import run
from sql_engines import ENGINES, OPTIONS, DataFusion, DuckDB, Engine, data, direct, same

import polars_kmeans as pk
from polars_kmeans.sql._models import Predictor


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with closing(request.param()) as engine:
        yield engine


def test_predictions_are_those_of_the_model(engine: Engine) -> None:
    frame = data(20_000)
    model = pk.KMeans(4, **OPTIONS).fit(frame, "x", "y")
    engine.table("points", frame)
    pk.sql.register(engine.connection, models={"zone": model})
    found = engine.query("SELECT id, zone(x, y) AS zone FROM points")
    assert same(found, frame.select("id", zone=model.predict()))
    assert found["zone"].null_count() > 0
    swapped = engine.query("SELECT id, zone(y, x) AS zone FROM points")
    assert same(
        swapped, frame.select("id", zone=model.predict(pl.col("y").alias("first"), pl.col("x").alias("second")))
    )
    assert engine.query("SELECT zone(x, y) AS zone FROM points WHERE id < 0").is_empty()


def test_fits_are_those_of_the_package(engine: Engine) -> None:
    frame = data()
    engine.table("points", frame)
    pk.sql.register(engine.connection, seed=3)
    assert same(engine.query(engine.unweighted.format(features="x, y", k=5)), direct(frame, 5, "x", "y"))
    weighted = direct(frame, 5, "x", "y", weight="w")
    assert same(engine.query(engine.labels.format(features="x, y", k=5, weight="w")), weighted)
    assert weighted.filter(frame["w"].is_null())["cluster"].null_count() == frame["w"].null_count() > 0
    in_groups = frame.select("id", pk.kmeans("x", "y", k=4, **OPTIONS).over("g"))
    assert same(engine.query(engine.groups.format(features="x, y", k=4)), in_groups)


def test_centroids_are_those_of_the_package(engine: Engine) -> None:
    frame = data()
    engine.table("points", frame)
    pk.sql.register(engine.connection, seed=3)
    found = engine.query(engine.centroids.format(features="x, y", k=3, weight="w"))
    found = found.explode("c").unnest("c").sort("g", "cluster")
    expected = frame.group_by("g").agg(c=pk.centroids("x", "y", k=3, weight="w", **OPTIONS))
    expected = expected.explode("c").unnest("c").sort("g", "cluster")
    assert found.drop("centroid").equals(expected.drop("x", "y"))
    assert found["centroid"].to_list() == [list(row) for row in expected.select("x", "y").rows()]
    whole = engine.query("SELECT kmeans_centroids([x, y], 3) AS c FROM points").explode("c").unnest("c")
    model = pk.KMeans(3, **OPTIONS).fit(frame, "x", "y")
    assert whole["inertia"].equals(model.centroids["inertia"])
    assert engine.query("SELECT kmeans_centroids([x, y], 3) AS c FROM points WHERE id < 0")["c"].to_list() == [[]]


def test_options_reach_the_fits(engine: Engine) -> None:
    frame = data()
    engine.table("points", frame)
    pk.sql.register(engine.connection, seed=3, scale="standard", init="kmeans-parallel", max_iter=2)
    found = engine.query(engine.unweighted.format(features="x, y", k=5))
    expected = direct(frame, 5, "x", "y", scale="standard", init="kmeans-parallel", max_iter=2)
    assert same(found, expected) and not expected.equals(direct(frame, 5, "x", "y"))


def test_options_that_a_call_does_not_name_keep_their_values(engine: Engine) -> None:
    frame = data().filter(pl.col("x").is_not_null() & pl.col("y").is_finite())
    engine.table("points", frame)
    two, three = (pk.KMeans(k, **OPTIONS).fit(frame, "x", "y") for k in (2, 3))

    def found(**options: Any) -> bool:
        expected = frame.select("id", pk.kmeans("x", "y", k=4, row_order="values", **options))
        return same(engine.query(engine.unweighted.format(features="x, y", k=4)), expected)

    pk.sql.register(engine.connection, models={"zone": two}, seed=np.uint64(5), tol=np.float32(0.5), scale="standard")
    assert found(seed=5, tol=0.5, scale="standard") and not found(seed=5, tol=0.5) and not found(seed=5)
    pk.sql.register(engine.connection, models={"area": three})
    assert found(seed=5, tol=0.5, scale="standard")
    query = "SELECT id, zone(x, y) AS zone, area(x, y) AS area FROM points"
    assert same(engine.query(query), frame.select("id", zone=two.predict(), area=three.predict()))
    # A call that is refused changes nothing.
    with pytest.raises(pk.InvalidParameterError, match="zone"):
        pk.sql.register(engine.connection, models={"zone": "two"}, seed=9)  # type: ignore[dict-item]
    pk.sql.register(engine.connection, scale=None)
    assert found(seed=5, tol=0.5)
    pk.sql.register(engine.connection, device=["cpu"], tol=1e-4)
    pk.sql.register(engine.connection)
    assert found(seed=5) and not found(seed=0)


def test_ten_runs_over_shuffled_rows_give_one_answer(engine: Engine) -> None:
    # DuckDB shares rows among threads in blocks of 122,880.
    frame = data(150_000)
    pk.sql.register(engine.connection, seed=3, max_iter=3)
    labels, centroids = [], []
    for seed in range(10):
        engine.table("points", frame.sample(fraction=1.0, shuffle=True, seed=seed))
        labels.append(engine.query(engine.unweighted.format(features="x, y", k=4)).sort("id"))
        centroids.append(engine.query("SELECT kmeans_centroids([x, y], 4) AS c FROM points"))
    assert all(other.equals(labels[0]) for other in labels)
    assert all(other.equals(centroids[0]) for other in centroids)
    assert labels[0].equals(direct(frame, 4, "x", "y", max_iter=3))


# Types

TYPES: dict[str, tuple[Any, Callable[[float], Any]]] = {
    "float32": (pl.Float32, float),
    "int8": (pl.Int8, int),
    "int64": (pl.Int64, lambda value: int(value * 1e12)),
    "uint16": (pl.UInt16, lambda value: int(abs(value) * 100)),
    "decimal": (pl.Decimal(18, 3), lambda value: Decimal(int(value * 1000)).scaleb(-3)),
}


def typed(name: str) -> pl.DataFrame:
    dtype, convert = TYPES[name]
    values = data(500).filter(pl.col("x").is_finite() & pl.col("y").is_finite())
    columns = {c: pl.Series([convert(v * 10) for v in values[c]] + [None], dtype=dtype) for c in ("x", "y")}
    return pl.DataFrame(columns).with_row_index("id")


@pytest.mark.parametrize("name", TYPES)
def test_types_are_converted_as_in_the_package(engine: Engine, name: str) -> None:
    frame = typed(name)
    if isinstance(engine, DataFusion):
        expected = frame.with_columns(pl.col("x", "y").cast(pl.Float64))
    else:
        expected = frame
    model = pk.KMeans(3, **OPTIONS).fit(expected, "x", "y")
    engine.table("points", frame)
    pk.sql.register(engine.connection, models={"zone": model}, seed=3)
    found = engine.query("SELECT id, zone(x, y) AS zone FROM points").cast({"id": pl.UInt32})
    assert same(found, expected.select("id", zone=model.predict()))
    found = engine.query(engine.unweighted.format(features="x, y", k=3)).cast({"id": pl.UInt32})
    assert same(found, direct(expected, 3, "x", "y"))
    assert found["cluster"].null_count() == 1


def test_arguments_of_different_types(engine: Engine) -> None:
    frame = data().with_columns(pl.col("y").cast(pl.Float32), i=pl.col("g").cast(pl.Int16))
    model = pk.KMeans(3, **OPTIONS).fit(frame, "y", "i")
    engine.table("points", frame)
    pk.sql.register(engine.connection, models={"zone": model})
    found = engine.query("SELECT id, zone(y, i) AS zone FROM points")
    assert same(found, frame.select("id", zone=model.predict()))
    query = "SELECT id, zone(1.5, i) AS zone FROM points"
    assert same(engine.query(query), frame.select("id", zone=model.predict(pl.lit(1.5), "i")))
    assert engine.query("SELECT zone(1, 2) AS zone, zone(NULL, 2) AS nothing").row(0) == (
        pl.select(model.predict(pl.lit(1.0), pl.lit(2.0))).item(),
        None,
    )


def test_booleans(engine: Engine) -> None:
    frame = data().select("id", b=pl.col("id") % 3 == 0)
    model = pk.KMeans(2, **OPTIONS).fit(frame, "b")
    engine.table("points", frame)
    pk.sql.register(engine.connection, models={"zone": model}, seed=3)
    assert same(engine.query(engine.unweighted.format(features="b", k=2)), direct(frame, 2, "b"))
    value = "b" if isinstance(engine, DuckDB) else "CAST(b AS INT)"
    found = engine.query(f"SELECT id, zone({value}) AS zone FROM points")
    assert same(found, frame.select("id", zone=model.predict()))


def test_models_of_lists(engine: Engine) -> None:
    frame = data().filter(pl.col("x").is_not_null() & pl.col("y").is_finite())
    frame = frame.with_columns(e=pl.concat_list("x", "y").list.to_array(2))
    model = pk.KMeans(3, **OPTIONS).fit(frame, "e")
    engine.table("points", frame)
    pk.sql.register(engine.connection, models={"zone": model}, seed=3)
    expected = frame.select("id", zone=model.predict())
    assert same(engine.query("SELECT id, zone([x, y]) AS zone FROM points"), expected)
    assert same(engine.query("SELECT id, zone(e) AS zone FROM points"), expected)
    found = engine.query("SELECT kmeans_centroids(e, 3) AS c FROM points").explode("c").unnest("c")
    assert found["centroid"].to_list() == model.centroids["e"].to_list()


def test_chunks_are_passed_whole(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = data(100_000)
    model = pk.KMeans(4, **OPTIONS).fit(frame, "x", "y")
    engine.table("points", frame)
    pk.sql.register(engine.connection, models={"zone": model})
    lengths = []
    label = Predictor.__call__

    def spy(self: Predictor, *columns: Any) -> Any:
        lengths.append(len(columns[0]))
        return label(self, *columns)

    monkeypatch.setattr(Predictor, "__call__", spy)
    engine.query("SELECT id, zone(x, y) AS zone FROM points")
    assert sum(lengths) == frame.height
    assert len(lengths) <= 100


def test_the_module_of_duckdb_is_its_default_connection() -> None:
    pk.sql.register(duckdb, models={"zone": pk.KMeans(1).fit(pl.DataFrame({"x": [1.0]}), "x")})
    assert duckdb.sql("SELECT zone(3)").fetchall() == [(0,)]


def test_engines_are_imported_only_when_asked_for() -> None:
    code = """
import sys
import polars_kmeans as pk
assert not {"polars_kmeans.sql", "duckdb", "datafusion", "pyarrow"} & set(sys.modules)
try:
    pk.sql.register(3)
except pk.InvalidParameterError as error:
    print(error)
assert "polars_kmeans.sql" in sys.modules and not {"duckdb", "datafusion"} & set(sys.modules)
try:
    pk.nothing
except AttributeError as error:
    print(error)
"""
    assert run(code).splitlines() == [
        "connection: expected one of DuckDB or a SessionContext of DataFusion, got int",
        "module 'polars_kmeans' has no attribute 'nothing'",
    ]


def test_what_is_missing_is_named() -> None:
    code = """
import sys
sys.modules["pyarrow"] = None
import polars_kmeans as pk
try:
    pk.sql
except ModuleNotFoundError as error:
    print(error)
"""
    said = run(code)
    assert said.endswith(": pip install duckdb, or datafusion, and numpy and pyarrow\n")
    assert "pyarrow" in said
