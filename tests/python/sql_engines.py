"""DuckDB and DataFusion behind one face, rows for them, and the same fits without SQL."""

from typing import Any

import datafusion
import duckdb
import numpy as np
import polars as pl
import pytest

import polars_kmeans as pk

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

    def close(self) -> None:
        self.connection.close()

    labels = "SELECT id, cluster FROM kmeans('points', [{features}], k := {k}, weight := {weight})"
    unweighted = "SELECT id, cluster FROM kmeans('points', [{features}], k := {k})"
    groups = """
        SELECT unnest(list(id ORDER BY id)) AS id, unnest(kmeans_fit(list([{features}] ORDER BY id), {k})) AS cluster
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

    def close(self) -> None:
        """Nothing has to be closed."""

    labels = "SELECT id, kmeans_weighted([{features}], {k}, {weight}) OVER () AS cluster FROM points"
    unweighted = "SELECT id, kmeans([{features}], {k}) OVER () AS cluster FROM points"
    groups = "SELECT id, kmeans([{features}], {k}) OVER (PARTITION BY g) AS cluster FROM points"
    centroids = "SELECT g, kmeans_centroids_weighted([{features}], {k}, {weight}) AS c FROM points GROUP BY g"


Engine = DuckDB | DataFusion
ENGINES = [pytest.param(DuckDB, id="duckdb"), pytest.param(DataFusion, id="datafusion")]


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
