"""Errors of the SQL functions, on both engines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pytest
from sql_engines import ENGINES, DuckDB, Engine, data

import polars_kmeans as pk


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with closing(request.param()) as engine:
        yield engine


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        pk.sql.register(connection, seed=3)
        yield connection


@pytest.mark.parametrize(
    ("query", "error", "message"),
    [
        ("SELECT kmeans_centroids([x, y], 0) FROM points", pk.InvalidParameterError, "k: expected"),
        ("SELECT kmeans_centroids([x, y], NULL) FROM points", pk.InvalidParameterError, "k: expected an integer"),
        ("SELECT kmeans_centroids([x, y], 9999) FROM points", pk.TooFewRowsError, "k = 9999"),
        ("SELECT kmeans_centroids([1e300, y], 2) FROM points", pk.InvalidDataError, "features"),
    ],
)
def test_errors_of_both_engines(engine: Engine, query: str, error: type[Exception], message: str) -> None:
    engine.table("points", data())
    pk.sql.register(engine.connection)
    with pytest.raises(error, match=re.escape(message)) as raised, pk.typed_errors():
        engine.query(query)
    assert "Traceback" not in str(raised.value) and "PyErr" not in str(raised.value)
    with pytest.raises(Exception, match=re.escape(message)):
        engine.query(query)


def test_errors_of_duckdb(connection: duckdb.DuckDBPyConnection) -> None:
    cases: list[tuple[str, type[Exception], str]] = [
        ("kmeans_fit([[0.0], [1.0]], 2.5)", pk.InvalidParameterError, "k: expected an integer, got Decimal"),
        ("kmeans_fit([[0.0], [1.0]], NULL)", pk.InvalidParameterError, "k: expected an integer"),
        ("kmeans_fit(3.5, 1)", pk.InvalidColumnError, "rows: expected a list, as list([x, y])"),
        ("kmeans_fit([[1.0]], 1, 3.5)", pk.InvalidColumnError, "weight: expected a list"),
        (
            "kmeans_fit([[1.0]], 1, [1, 2])",
            pk.InvalidDataError,
            "weight: expected one for each row of the list, got 2",
        ),
        ("kmeans_fit([[1.0], [1.0, 2.0]], 1)", pk.InvalidParameterError, "expected"),
        ("kmeans_fit([['a']], 1)", pk.InvalidColumnError, "expected numbers"),
        ("kmeans_fit([[1.0]], 1, [-1])", pk.InvalidDataError, "weight"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=re.escape(message)), pk.typed_errors():
            connection.sql(f"SELECT {call}").fetchall()


def test_errors_of_datafusion() -> None:
    context = datafusion.SessionContext()
    context.from_arrow(data(), name="points")
    pk.sql.register(context)
    with pytest.raises(pk.InvalidParameterError, match="one number for all rows"), pk.typed_errors():
        context.sql("SELECT kmeans([x, y], id) OVER () FROM points").collect()
    with pytest.raises(pk.TooFewRowsError, match="k = 99"), pk.typed_errors():
        context.sql("SELECT kmeans([x, y], 99) OVER (PARTITION BY id) FROM points").collect()


def test_wrong_numbers_of_arguments_name_the_function(engine: Engine) -> None:
    frame = data().filter(pl.col("x").is_not_null())
    engine.table("points", frame)
    pk.sql.register(engine.connection, models={"zone": pk.KMeans(2).fit(frame, "x", "id")})
    for call in ("zone(x)", "zone(x, id, id)", "zone()", "kmeans_centroids([x, id])"):
        # The engine's own error, when it plans the query: also without rows.
        with pytest.raises((duckdb.BinderException, ValueError), match=call.partition("(")[0]):
            engine.query(f"SELECT {call} FROM points WHERE id < 0")
    if isinstance(engine, DuckDB):
        with pytest.raises(duckdb.BinderException, match=r'zone"?\(x, id\)'):
            engine.query("SELECT zone(x) FROM points")


@pytest.mark.parametrize(("other", "shown"), [("'text'", r"str|Utf8"), ("DATE '2026-01-02'", r"date|Date32")])
def test_other_types_are_refused(engine: Engine, other: str, shown: str) -> None:
    frame = data().filter(pl.col("x").is_not_null())
    engine.table("points", frame)
    pk.sql.register(engine.connection, models={"zone": pk.KMeans(2).fit(frame, "x", "id")})
    with pytest.raises((pk.InvalidColumnError, ValueError), match=shown), pk.typed_errors():
        engine.query(f"SELECT zone(x, {other}) FROM points")


def test_errors_of_others_stay_as_they_are(engine: Engine) -> None:
    with pytest.raises(Exception, match="nothing") as raised, pk.typed_errors():
        engine.query("SELECT nothing(1)")
    assert not isinstance(raised.value, pk.KMeansError)


def test_too_few_rows_and_nulls_by_option(engine: Engine) -> None:
    frame = data()
    engine.table("points", frame)
    pk.sql.register(engine.connection, too_few="null")
    assert engine.query(engine.unweighted.format(features="x, y", k=9999))["cluster"].null_count() == frame.height
    assert engine.query("SELECT kmeans_centroids([x, y], 9999) AS c FROM points")["c"].to_list() == [[]]
    pk.sql.register(engine.connection, null_policy="raise")
    with pytest.raises(pk.InvalidDataError, match="nulls: "), pk.typed_errors():
        engine.query(engine.unweighted.format(features="x, y", k=2))


def test_registrations_that_are_refused(engine: Engine) -> None:
    model = pk.KMeans(1).fit(pl.DataFrame({"x": [1.0]}), "x")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"models": {"Zone": model}}, "models: expected names of lower-case letters"),
        ({"models": {"": model}}, "models: expected names"),
        ({"models": {3: model}}, "models: expected names"),
        ({"models": {"kmeans": model}}, "models: expected names other than"),
        ({"models": {"abs": model}}, "models: expected names of new functions, got 'abs', which"),
        ({"models": {"zone": 3}}, "models['zone']: expected a KMeansModel or a KMeansTree, got int"),
        ({"models": model}, "models: expected a dict"),
        ({"sed": 1}, "options: expected some of init, "),
        ({"row_order": "given"}, "options: expected some of"),
        ({"seed": -1}, "seed: expected"),
        ({"init": [[1.0]]}, "init: expected a method, got list"),
        ({"scale": {"x": 1.0}}, 'scale: expected "standard", "robust" or None, got dict'),
    ]
    for arguments, message in cases:
        with pytest.raises(pk.InvalidParameterError, match=re.escape(message)):
            pk.sql.register(engine.connection, **arguments)
    with pytest.raises(pk.InvalidParameterError, match="connection: expected one of DuckDB or a SessionContext"):
        pk.sql.register(pa)  # type: ignore[arg-type]
