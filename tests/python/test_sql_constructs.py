"""What SQL can put around the functions. The right value of each is a fit or a prediction of the plain frame."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import duckdb
import polars as pl
import pytest
from sql_engines import ENGINES, OPTIONS, DataFusion, DuckDB, Engine, data, same

import polars_kmeans as pk

FRAME = data(600)
NAMES = pl.DataFrame({"number": [0, 1, 2], "name": ["a", "b", "c"]})
MODEL = pk.KMeans(3, **OPTIONS).fit(FRAME, "x", "y")
ZONES = FRAME.with_columns(zone=MODEL.predict(FRAME))
# A query of the labels of a fit, with the columns id and label.
LABELLED = {
    DuckDB: "(SELECT id, label FROM kmeans('{table}', [{features}], k := {k}) AS t({columns}, label))",
    DataFusion: "(SELECT id, kmeans([{features}], {k}) OVER () AS label FROM {table})",
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with closing(request.param()) as engine:
        engine.table("points", FRAME)
        engine.table("names", NAMES)
        pk.sql.register(engine.connection, models={"zone": MODEL}, seed=3)
        yield engine


def labelled(
    engine: Engine, features: str = "x, y", k: int = 3, table: str = "points", columns: Any = FRAME.columns
) -> str:
    return LABELLED[type(engine)].format(features=features, k=k, table=table, columns=", ".join(columns))


def labels_of(frame: pl.DataFrame, *features: str, k: int = 3) -> pl.DataFrame:
    return frame.select("id", label=pk.KMeans(k, **OPTIONS).fit(frame, *features).predict(frame.select(features)))


def test_qualify(engine: Engine) -> None:
    found = engine.query(
        "SELECT id, zone(x, y) AS zone FROM points QUALIFY row_number() OVER (PARTITION BY zone(x, y) ORDER BY id) <= 2"
    )
    assert same(found, ZONES.group_by("zone").head(2).select("id", "zone"))
    found = engine.query(
        f"SELECT id FROM {labelled(engine)} AS t QUALIFY row_number() OVER (PARTITION BY label ORDER BY id DESC) = 1"
    )
    assert same(found, labels_of(FRAME, "x", "y").group_by("label").last().select("id"))


def test_joins_by_labels(engine: Engine) -> None:
    found = engine.query("SELECT id, name FROM points LEFT JOIN names ON number = zone(x, y)")
    expected = ZONES.join(NAMES, left_on="zone", right_on=pl.col("number").cast(pl.UInt32), how="left")
    assert same(found, expected.select("id", "name")) and found["name"].null_count() > 0
    found = engine.query(
        f"SELECT t.id, name FROM {labelled(engine)} AS t JOIN names ON number = t.label WHERE name <> 'b'"
    )
    expected = (
        labels_of(FRAME, "x", "y")
        .drop_nulls()
        .with_columns(name=pl.col("label").replace_strict([0, 1, 2], ["a", "b", "c"]))
    )
    assert same(found, expected.filter(pl.col("name") != "b").select("id", "name"))
    pairs = "SELECT count(*) AS n FROM points AS a JOIN points AS b ON zone(a.x, a.y) = zone(b.x, b.y) AND a.id < b.id"
    sizes = ZONES["zone"].drop_nulls().value_counts()["count"].to_list()
    assert engine.query(pairs).item() == sum(n * (n - 1) // 2 for n in sizes)


def test_joins_of_fits(engine: Engine) -> None:
    one, two = labelled(engine), labelled(engine, "x", 2)
    query = f"SELECT a.id, a.label, b.label AS other FROM {one} AS a JOIN {two} AS b ON a.id = b.id"
    expected = labels_of(FRAME, "x", "y").join(labels_of(FRAME, "x", k=2).rename({"label": "other"}), on="id")
    assert same(engine.query(query), expected)
    sizes = """
        WITH fitted AS (SELECT unnest(kmeans_centroids([x, y], 3)) AS c FROM points)
        SELECT id, c['size'] AS size FROM points JOIN fitted ON c['cluster'] = zone(x, y)
    """
    centroids = MODEL.centroids.select(pl.col("cluster").alias("zone"), "size")
    assert same(engine.query(sizes), ZONES.join(centroids, on="zone").select("id", "size"))


def test_fits_of_joins(engine: Engine) -> None:
    joined = FRAME.join(NAMES, left_on="g", right_on="number", maintain_order="left")
    engine.query("CREATE VIEW joined AS SELECT points.*, name FROM points JOIN names ON g = number")
    columns = [*FRAME.columns, "name"]
    assert same(
        engine.query(f"SELECT * FROM {labelled(engine, table='joined', columns=columns)} AS t"),
        labels_of(joined, "x", "y"),
    )
    found = engine.query(
        "SELECT name, kmeans_centroids([x, y], 2) AS c FROM joined GROUP BY name HAVING count(*) > 1 ORDER BY name"
    )
    for name, centroids in found.rows():
        model = pk.KMeans(2, **OPTIONS).fit(joined.filter(name=name), "x", "y")
        assert [(c["size"], c["centroid"]) for c in centroids] == [
            (size, [x, y]) for size, x, y in model.centroids.select("size", "x", "y").rows()
        ]
    assert found["name"].to_list() == ["a", "b", "c"]


def test_predictions_anywhere_in_a_query(engine: Engine) -> None:
    finite = "x IS NOT NULL AND NOT isnan(y) AND id <> 7"
    means = FRAME.filter(pl.col("x").is_not_null(), pl.col("y").is_finite()).group_by("g").agg(pl.col("x", "y").mean())
    found = engine.query(f"SELECT g AS id, zone(avg(x), avg(y)) AS zone FROM points WHERE {finite} GROUP BY g")
    # The engines add up in another order. No mean is near the border of two zones.
    assert same(found, means.select(pl.col("g").alias("id"), zone=MODEL.predict(means)))
    zone = pl.col("zone")
    cases = {
        "points WHERE zone(x, y) = (SELECT max(number) FROM names)": zone == 2,
        "points AS p WHERE EXISTS (SELECT 1 FROM names WHERE number = zone(p.x, p.y))": zone >= 0,
        "points WHERE zone(x, y) = 0 UNION ALL SELECT id FROM points WHERE zone(x, y) IN (1, NULL)": zone < 2,
        "(SELECT id, zone(x, y) AS z FROM points) AS t WHERE z = 1 OR z IS NULL": zone.fill_null(1) == 1,
    }
    for query, condition in cases.items():
        assert same(engine.query(f"SELECT id FROM {query}"), ZONES.filter(condition).select("id")), query
    found = engine.query("SELECT id, sum(zone(x, y)) OVER (ORDER BY id ROWS 3 PRECEDING) AS s FROM points")
    sums = ZONES.select("id", s=pl.col("zone").cast(pl.Int64).fill_null(0).rolling_sum(4, min_samples=1))
    assert same(found.select("id", pl.col("s").cast(pl.Int64).fill_null(0)), sums)


def test_rows_that_an_aggregate_leaves_out(engine: Engine) -> None:
    """DuckDB has no FILTER for macros. A NULL for the features leaves a row out on both engines."""
    expected = engine.query("SELECT kmeans_centroids([x, y], 3) AS c FROM points WHERE g = 1")
    assert engine.query("SELECT kmeans_centroids(CASE WHEN g = 1 THEN [x, y] END, 3) AS c FROM points").equals(expected)
    forms = {
        "kmeans_centroids([x, y], 3) FILTER (WHERE g = 1)": "WHERE true",
        "kmeans_centroids([x, y], 3 ORDER BY id DESC)": "WHERE g = 1",
        "kmeans_centroids([x, y], 3) OVER (PARTITION BY g)": "WHERE g = 1 LIMIT 1",
    }
    for form, rest in forms.items():
        query = f"SELECT {form} AS c FROM points {rest}"
        if isinstance(engine, DataFusion):
            assert engine.query(query).equals(expected), form
        else:
            with pytest.raises((duckdb.InvalidInputException, duckdb.BinderException), match=r"(?i)macro"):
                engine.query(query)


def test_queries_of_duckdb() -> None:
    with closing(DuckDB()) as engine:
        engine.table("points", FRAME)
        pk.sql.register(engine.connection, models={"zone": MODEL}, seed=3)
        values = FRAME.select("x", "y").row(9)
        assert engine.connection.execute("SELECT zone(?, ?)", values).fetchall() == [(ZONES["zone"][9],)]
        table = "SELECT id, label FROM kmeans(?, [x, y], k := 3) AS t(id, g, w, x, y, label)"
        rows = engine.connection.sql(table, params=["points"]).pl()
        assert same(rows, labels_of(FRAME, "x", "y"))
        pivot = "PIVOT (SELECT g, zone(x, y) AS z FROM points) ON z IN (0, 1, 2) USING count(*) ORDER BY g"
        counts = ZONES.drop_nulls("zone").pivot("zone", index="g", values="id", aggregate_function="len").sort("g")
        assert engine.query(pivot).rows() == counts.select("g", "0", "1", "2").rows()
        lateral = """
            SELECT unnest(t.ids) AS id, unnest(t.labels) AS label
            FROM (SELECT DISTINCT g FROM points) AS groups, LATERAL (
                SELECT list(id ORDER BY id) AS ids, kmeans_fit(list([x, y] ORDER BY id), 2) AS labels
                FROM points WHERE points.g = groups.g
            ) AS t
        """
        parts = pl.concat(labels_of(part, "x", "y", k=2) for part in FRAME.partition_by("g"))
        assert same(engine.query(lateral), parts)


def test_windows_of_datafusion() -> None:
    with closing(DataFusion()) as engine:
        engine.table("points", FRAME)
        pk.sql.register(engine.connection, seed=3)
        labels = labels_of(FRAME, "x", "y")
        query = "SELECT id, kmeans([x, y], 3) OVER () AS label FROM points QUALIFY {} = 0"
        for condition in ("label", "kmeans([x, y], 3) OVER ()"):
            assert same(engine.query(query.format(condition)), labels.filter(label=0))
        nested = "SELECT id, kmeans([x], 2) OVER (PARTITION BY {}) AS label FROM {} AS t"
        with pytest.raises(Exception, match="cannot be nested"):
            engine.query(nested.format("kmeans([x, y], 3) OVER ()", "points"))
        inner = "(SELECT id, x, kmeans([x, y], 3) OVER () AS part FROM points)"
        parts = FRAME.with_columns(part=labels["label"]).drop_nulls("part").partition_by("part")
        found = engine.query(f"{nested.format('part', inner)} WHERE part IS NOT NULL")
        assert same(found, pl.concat(labels_of(part, "x", k=2) for part in parts))
