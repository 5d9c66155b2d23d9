"""What only the SQL of DuckDB has: lists, the table macro, cursors, files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from sql_engines import data, direct, same

import polars_kmeans as pk


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
            unnest(kmeans_fit(list([x, y] ORDER BY id), least(k, count(*)))) AS cluster
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
    assert found.columns == [*frame.columns, "cluster"]
    labels = direct(frame, 3, "features", "k", weight="weight")
    assert same(found.select("id", "cluster"), labels)
    assert found.sort("id").drop("cluster").equals(frame)
    every = connection.sql("WITH q AS (SELECT features, k, id FROM points) FROM kmeans('q', k := 3)").pl()
    assert same(every.select("id", "cluster"), direct(frame, 3, "features", "k", "id"))


@pytest.mark.parametrize("name", ["cluster", "Cluster"])
@pytest.mark.parametrize("rest", ["k := 2", "[x], k := 2", "[x], k := 2, weight := x"])
def test_a_table_with_a_column_of_the_labels_name_is_refused(
    connection: duckdb.DuckDBPyConnection, name: str, rest: str
) -> None:
    connection.execute(f'CREATE TABLE old AS SELECT 7 AS "{name}", x FROM (VALUES (1.0), (5.0)) AS t(x)')
    shown = rf'no column "{name}", since .* as in WITH others AS \(SELECT \* EXCLUDE \("{name}"\) FROM points\) [^\n]*$'
    # DuckDB refuses it when it plans the query.
    for query in (f"FROM kmeans('old', {rest})", f"EXPLAIN FROM kmeans('old', {rest})"):
        with pytest.raises(pk.InvalidColumnError, match=shown), pk.typed_errors():
            connection.sql(query)
    found = connection.sql(f"WITH others AS (SELECT * EXCLUDE (cluster) FROM old) FROM kmeans('others', {rest})").pl()
    assert found.columns == ["x", "cluster"] and found["cluster"].n_unique() == 2
    connection.execute("DELETE FROM old")
    with pytest.raises(duckdb.Error, match="EXCLUDE"):
        connection.sql(f"FROM kmeans('old', {rest})")


def test_cursors_have_their_own_functions(connection: duckdb.DuckDBPyConnection) -> None:
    frame = data().filter(pl.col("x").is_not_null())
    one, two = (pk.KMeans(k, seed=3).fit(frame, "x") for k in (2, 5))
    with connection.cursor() as cursor:
        with pytest.raises(duckdb.CatalogException, match="zone"):
            cursor.sql("SELECT zone(1)")
        pk.sql.register(connection, models={"zone": one})
        pk.sql.register(cursor, models={"zone": two})
        query = "SELECT zone(x) AS cluster FROM points"
        for where, model in ((connection, one), (cursor, two)):
            where.register("points", frame.to_arrow())
            assert where.sql(query).pl().equals(frame.select(model.predict()))
        pk.sql.register(connection, models={"zone": two})
        assert connection.sql(query).pl().equals(frame.select(two.predict()))
    count = "SELECT count(*) FROM duckdb_functions() WHERE function_name LIKE '%polars_kmeans_zone%'"
    assert connection.sql(count).fetchall() == [(2,)]


def test_names_that_differ_only_in_case(connection: duckdb.DuckDBPyConnection) -> None:
    """DuckDB takes them for one name. It knows the case of ASCII letters only."""
    frame = pl.DataFrame({"x": [0.0, 1.0, 5.0], "X": [0.0, 9.0, 9.0]})
    model = pk.KMeans(3, seed=3).fit(frame, "x", "X")
    with pytest.raises(pk.InvalidColumnError, match=r"got 'x' and 'X': fit frame.rename\(\{'X': 'X_2'\}\)"):
        pk.sql.register(connection, models={"zone": model})
    for names in ({"X": "X_2"}, {"x": "é", "X": "É"}, {"x": "ß", "X": "SS"}):
        renamed = frame.rename(names)
        model = pk.KMeans(3, seed=3).fit(renamed, *renamed.columns)
        pk.sql.register(connection, models={"zone": model})
        connection.register("renamed", renamed.to_arrow())
        columns = ", ".join(f'"{name}"' for name in renamed.columns)
        found = connection.sql(f"SELECT zone({columns}) AS cluster FROM renamed").pl()
        assert found.equals(renamed.select(model.predict()))


def test_nothing_is_written_to_the_database(tmp_path: Path) -> None:
    path = tmp_path / "points.duckdb"
    model = pk.KMeans(2).fit(pl.DataFrame({'a "b"': [0.0, 5.0]}), 'a "b"')
    with duckdb.connect(path) as connection:
        connection.execute("CREATE TABLE points AS SELECT 1.0 AS x")
    for _ in range(2):
        with duckdb.connect(path, read_only=True) as connection:
            pk.sql.register(connection, models={"zone": model})
            assert len(connection.sql("SELECT zone(x) FROM points").fetchall()) == 1
