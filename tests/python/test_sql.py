"""k-means in the SQL of DuckDB and DataFusion. The statements of its page run in test_sql_page.py."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import datafusion
import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import polars_kmeans as pk
from polars_kmeans.sql._models import Predictor

OPTIONS: dict[str, Any] = {"seed": 3, "null_policy": "skip", "row_order": "values"}


class DuckDB:
    def __init__(self) -> None:
        self.connection = duckdb.connect()

    def table(self, name: str, frame: pl.DataFrame) -> None:
        table = frame.to_arrow()
        self.connection.register("given", table)
        self.connection.execute(f"CREATE OR REPLACE TABLE {name} AS FROM given")

    def query(self, query: str) -> pl.DataFrame:
        return self.connection.sql(query).pl()

    labels = "SELECT id, kmeans FROM kmeans('points', [{features}], k := {k}, weight := {weight})"
    unweighted = "SELECT id, kmeans FROM kmeans('points', [{features}], k := {k})"
    groups = """
        SELECT unnest(list(id ORDER BY id)) AS id, unnest(kmeans_fit(list([{features}] ORDER BY id), {k})) AS kmeans
        FROM points GROUP BY g
    """
    centroids = "SELECT g, kmeans_centroids([{features}], {k}, weight := {weight}) AS c FROM points GROUP BY g"


class DataFusion:
    def __init__(self) -> None:
        self.connection = datafusion.SessionContext()

    def table(self, name: str, frame: pl.DataFrame) -> None:
        self.connection.deregister_table(name)
        # Parts of their own are read at the same time.
        parts = [frame[start : start + 1000].to_arrow().to_batches() for start in range(0, frame.height, 1000)]
        self.connection.register_record_batches(name, parts or [frame.to_arrow().to_batches()])

    def query(self, query: str) -> pl.DataFrame:
        return pl.DataFrame(self.connection.sql(query))

    labels = "SELECT id, kmeans_weighted([{features}], {k}, {weight}) OVER () AS kmeans FROM points"
    unweighted = "SELECT id, kmeans([{features}], {k}) OVER () AS kmeans FROM points"
    groups = "SELECT id, kmeans([{features}], {k}) OVER (PARTITION BY g) AS kmeans FROM points"
    centroids = "SELECT g, kmeans_centroids_weighted([{features}], {k}, {weight}) AS c FROM points GROUP BY g"


Engine = DuckDB | DataFusion


@pytest.fixture(params=[DuckDB, DataFusion], ids=["duckdb", "datafusion"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = request.param()
    yield engine
    if isinstance(engine, DuckDB):
        engine.connection.close()


def data(n: int = 3_000) -> pl.DataFrame:
    """Rows with nulls, NaNs and infinities, in groups."""
    rng = np.random.default_rng(8)
    holes = rng.random((3, n)) < 0.02
    frame = pl.DataFrame({"id": np.arange(n), "g": rng.integers(0, 5, n), "w": rng.choice([0.0, 1.0, 2.5], n)})
    frame = frame.with_columns(x=pl.Series(rng.normal(size=n)), y=pl.Series(rng.normal(size=n)) * 3)
    return frame.with_columns(
        x=pl.when(~pl.Series(holes[0])).then("x"),
        y=pl.when(pl.Series(holes[1])).then(pl.lit(float("nan"))).when(pl.col("id") == 7).then(np.inf).otherwise("y"),
        w=pl.when(~pl.Series(holes[2])).then("w"),
    )


def direct(frame: pl.DataFrame, k: int, *features: str, **options: Any) -> pl.DataFrame:
    return frame.select("id", pk.kmeans(*features, k=k, **OPTIONS, **options))


def same(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    return one.sort("id").equals(other.sort("id"))


def test_predictions_are_those_of_the_model(engine: Engine) -> None:
    frame = data(20_000)
    model = pk.KMeans(4, **OPTIONS).fit(frame, "x", "y")
    engine.table("points", frame)
    pk.sql.register(engine.connection, models={"zone": model})
    found = engine.query("SELECT id, zone(x, y) AS zone FROM points")
    assert same(found, frame.select("id", zone=model.predict()))
    assert found["zone"].null_count() > 0
    swapped = engine.query("SELECT id, zone(y, x) AS zone FROM points")
    assert same(swapped, frame.select("id", zone=model.predict("y", "x")))
    assert engine.query("SELECT zone(x, y) AS zone FROM points WHERE id < 0").is_empty()


def test_fits_are_those_of_the_package(engine: Engine) -> None:
    frame = data()
    engine.table("points", frame)
    pk.sql.register(engine.connection, seed=3)
    assert same(engine.query(engine.unweighted.format(features="x, y", k=5)), direct(frame, 5, "x", "y"))
    weighted = direct(frame, 5, "x", "y", weight="w")
    assert same(engine.query(engine.labels.format(features="x, y", k=5, weight="w")), weighted)
    assert weighted.filter(frame["w"].is_null())["kmeans"].null_count() == frame["w"].null_count() > 0
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


def test_ten_runs_over_shuffled_rows_give_one_answer(engine: Engine) -> None:
    # DuckDB shares rows among threads in blocks of 122,880.
    frame = data(150_000)
    pk.sql.register(engine.connection, seed=3, max_iter=3)
    labels, centroids = [], []
    for run in range(10):
        engine.table("points", frame.sample(fraction=1.0, shuffle=True, seed=run))
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
    assert found["kmeans"].null_count() == 1


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


# DuckDB alone


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        pk.sql.register(connection, seed=3)
        yield connection


def test_lists_that_are_null_empty_or_of_nulls(connection: duckdb.DuckDBPyConnection) -> None:
    query = """
        SELECT kmeans_fit(rows, k) FROM (VALUES
            ([[0.0, 1.0], NULL, [5.0, 5.0], [0.0, NULL]], 2), (NULL, 2), ([], 1), ([[1.0, 1.0]], 1), (NULL, NULL)
        ) AS t(rows, k)
    """
    labels = [row[0] for row in connection.sql(query).fetchall()]
    assert labels[1:] == [None, [], [0], None]
    assert labels[0][1] is labels[0][3] is None and {labels[0][0], labels[0][2]} == {0, 1}

    def one(query: str) -> Any:
        return connection.sql(query).fetchall()[0][0]

    assert one("SELECT kmeans_fit(NULL, 2)") is None
    assert one("SELECT kmeans_fit([], 2)") == []
    assert one("SELECT kmeans_fit([[0, 1], [0, 1], [7, 7]], 2, [1, NULL, 1])")[1] is None
    found = one("SELECT kmeans_fit(list(v ORDER BY v), 2) FROM (VALUES (1), (1), (9)) t(v)")
    assert found[0] == found[1] != found[2]
    fixed = "[[0, 1], [0, 2], [7, 7]]::INTEGER[2][3]"
    assert one(f"SELECT kmeans_fit({fixed}, 2, [1, 1, 1]::DOUBLE[3])") == one(f"SELECT kmeans_fit({fixed}, 2)")


def test_many_groups_of_different_k(connection: duckdb.DuckDBPyConnection) -> None:
    frame = data(9_000).with_columns(g=pl.col("id") % 3_000, k=pl.col("id") % 3_000 % 2 + 1)
    frame = frame.filter(pl.col("x").is_not_null() & pl.col("y").is_finite())
    table = frame.to_arrow()
    connection.register("points", table)
    found = connection.sql(
        """
        SELECT
            unnest(list(id ORDER BY id)) AS id,
            unnest(kmeans_fit(list([x, y] ORDER BY id), least(k, count(*)))) AS kmeans
        FROM points GROUP BY g, k
        """
    ).pl()
    parts = [direct(part, min(k, part.height), "x", "y") for (_, k), part in frame.group_by("g", "k")]
    assert same(found, pl.concat(parts))


def test_table_macro_keeps_the_table_and_its_names(connection: duckdb.DuckDBPyConnection) -> None:
    # Names that the macro uses itself.
    frame = data().rename({"x": "features", "y": "k"}).with_columns(weight="w", given=pl.lit("text"), rows=[1, 2])
    table = frame.to_arrow()
    connection.register("points", table)
    found = connection.sql("FROM kmeans('points', [features, k], k := 3, weight := weight)").pl()
    assert found.columns == [*frame.columns, "kmeans"]
    labels = direct(frame, 3, "features", "k", weight="weight")
    assert same(found.select("id", "kmeans"), labels)
    assert found.sort("id").drop("kmeans").equals(frame)
    every = connection.sql("WITH q AS (SELECT features, k, id FROM points) FROM kmeans('q', k := 3)").pl()
    assert same(every.select("id", "kmeans"), direct(frame, 3, "features", "k", "id"))


def test_cursors_have_their_own_functions(connection: duckdb.DuckDBPyConnection) -> None:
    frame = data().filter(pl.col("x").is_not_null())
    one, two = (pk.KMeans(k, seed=3).fit(frame, "x") for k in (2, 5))
    with connection.cursor() as cursor:
        with pytest.raises(duckdb.CatalogException, match="zone"):
            cursor.sql("SELECT zone(1)")
        pk.sql.register(connection, models={"zone": one})
        pk.sql.register(cursor, models={"zone": two})
        query = "SELECT zone(x) AS kmeans FROM points"
        for where, model in ((connection, one), (cursor, two)):
            where.register("points", frame.to_arrow())
            assert where.sql(query).pl().equals(frame.select(model.predict()))
        pk.sql.register(connection, models={"zone": two})
        assert connection.sql(query).pl().equals(frame.select(two.predict()))
    count = "SELECT count(*) FROM duckdb_functions() WHERE function_name LIKE '%polars_kmeans_zone%'"
    assert connection.sql(count).fetchall() == [(2,)]


def test_names_that_differ_only_in_case(connection: duckdb.DuckDBPyConnection) -> None:
    frame = pl.DataFrame({"x": [0.0, 1.0, 5.0], "X": [0.0, 9.0, 9.0]})
    model = pk.KMeans(3, seed=3).fit(frame, "x", "X")
    pk.sql.register(connection, models={"zone": model})
    found = connection.sql("SELECT zone(a, b) AS kmeans FROM (VALUES (0, 0), (1, 9), (5, 9)) AS t(a, b)").pl()
    assert found.equals(frame.select(model.predict()))


def test_nothing_is_written_to_the_database(tmp_path: Path) -> None:
    path = tmp_path / "points.duckdb"
    model = pk.KMeans(2).fit(pl.DataFrame({'a "b"': [0.0, 5.0]}), 'a "b"')
    with duckdb.connect(path) as connection:
        connection.execute("CREATE TABLE points AS SELECT 1.0 AS x")
    for _ in range(2):
        with duckdb.connect(path, read_only=True) as connection:
            pk.sql.register(connection, models={"zone": model})
            assert len(connection.sql("SELECT zone(x) FROM points").fetchall()) == 1


# Errors


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
    with pytest.raises(error, match=re.escape(message)) as raised, pk.sql.typed_errors():
        engine.query(query)
    assert "Traceback" not in str(raised.value) and "PyErr" not in str(raised.value)
    with pytest.raises(Exception, match=re.escape(message)):
        engine.query(query)


def test_errors_of_duckdb(connection: duckdb.DuckDBPyConnection) -> None:
    cases: list[tuple[str, type[Exception], str]] = [
        ("kmeans_fit([[0.0], [1.0]], 2.5)", pk.InvalidParameterError, "k: expected an integer, got Decimal"),
        ("kmeans_fit([[0.0], [1.0]], NULL)", pk.InvalidParameterError, "k: expected an integer"),
        ("kmeans_fit(3.5, 1)", pk.InvalidColumnError, "rows: expected a list, as list([x, y])"),
        ("kmeans_fit([[1.0]], 1, 3.5)", pk.InvalidColumnError, "weights: expected a list"),
        (
            "kmeans_fit([[1.0]], 1, [1, 2])",
            pk.InvalidDataError,
            "weights: expected one for each row of the list, got 2",
        ),
        ("kmeans_fit([[1.0], [1.0, 2.0]], 1)", pk.InvalidParameterError, "expected"),
        ("kmeans_fit([['a']], 1)", pk.InvalidColumnError, "expected numbers"),
        ("kmeans_fit([[1.0]], 1, [-1])", pk.InvalidDataError, "weight"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=re.escape(message)), pk.sql.typed_errors():
            connection.sql(f"SELECT {call}").fetchall()


def test_errors_of_datafusion() -> None:
    context = datafusion.SessionContext()
    context.from_arrow(data(), name="points")
    pk.sql.register(context)
    with pytest.raises(pk.InvalidParameterError, match="one number for all rows"), pk.sql.typed_errors():
        context.sql("SELECT kmeans([x, y], id) OVER () FROM points").collect()
    with pytest.raises(pk.TooFewRowsError, match="k = 99"), pk.sql.typed_errors():
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
        with pytest.raises(duckdb.BinderException, match=r'"zone"\(x, id\)'):
            engine.query("SELECT zone(x) FROM points")


def test_texts_are_refused(engine: Engine) -> None:
    frame = data().filter(pl.col("x").is_not_null())
    engine.table("points", frame.with_columns(t=pl.lit("text")))
    pk.sql.register(engine.connection, models={"zone": pk.KMeans(2).fit(frame, "x", "id")})
    with pytest.raises((pk.InvalidColumnError, ValueError), match=r"str|Utf8"), pk.sql.typed_errors():
        engine.query("SELECT zone(x, t) FROM points")


def test_errors_of_others_stay_as_they_are(engine: Engine) -> None:
    with pytest.raises(Exception, match="nothing") as raised, pk.sql.typed_errors():
        engine.query("SELECT nothing(1)")
    assert not isinstance(raised.value, pk.KMeansError)


def test_too_few_rows_and_nulls_by_option(engine: Engine) -> None:
    frame = data()
    engine.table("points", frame)
    pk.sql.register(engine.connection, too_few="null")
    assert engine.query(engine.unweighted.format(features="x, y", k=9999))["kmeans"].null_count() == frame.height
    assert engine.query("SELECT kmeans_centroids([x, y], 9999) AS c FROM points")["c"].to_list() == [[]]
    pk.sql.register(engine.connection, null_policy="raise")
    with pytest.raises(pk.InvalidDataError, match="nulls: "), pk.sql.typed_errors():
        engine.query(engine.unweighted.format(features="x, y", k=2))


def test_registrations_that_are_refused(engine: Engine) -> None:
    model = pk.KMeans(1).fit(pl.DataFrame({"x": [1.0]}), "x")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"models": {"Zone": model}}, "models: expected names of lower-case letters"),
        ({"models": {"": model}}, "models: expected names"),
        ({"models": {3: model}}, "models: expected names"),
        ({"models": {"kmeans": model}}, "models: expected names other than"),
        ({"models": {"abs": model}}, "models: expected names of new functions, got 'abs', which"),
        ({"models": {"zone": 3}}, "models['zone']: expected a KMeansModel, got int"),
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
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [
        "connection: expected one of DuckDB or a SessionContext of DataFusion, got int",
        "module 'polars_kmeans' has no attribute 'nothing'",
    ]
