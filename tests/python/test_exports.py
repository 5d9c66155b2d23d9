"""Labels of `to_expr` and `to_sql` against those of `predict`, and recipes of pages on rows that are hard.

POLARS_KMEANS_EXPORTS in the environment sets how many models there are. From 100 on, each labels 10,000 rows.
"""

import os
import sqlite3
from collections import Counter
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

import polars_kmeans as pk

duckdb = pytest.importorskip("duckdb")
pytestmark = pytest.mark.filterwarnings("ignore::polars_kmeans.ConvergenceWarning")

MODELS = int(os.environ.get("POLARS_KMEANS_EXPORTS", "12"))
ROWS = 10_000 if MODELS >= 100 else 1_000
NAMES = [
    "order",
    'a "b"',
    "x.y",
    "it's",
    "Größe",
    "`t`",
    "v0",
    "v_1.f0",
    "*",
    "^x.*$",
    "select",
    "size_",
    "_k0",
    " ",
    "X",
]
SPECIAL = [
    None, np.nan, np.inf, -np.inf, 0.0, -0.0, 1e300, -1e300, 1e200, 1e-200, 1e-300, -1e-300, 5e-324, -3e-310, 1.5e-45,
    1e10, 3.4e38, -3.5e38, 1e154, 1e-160, 16777217.0, 0.1,
]  # fmt: skip


def a_model(random: np.random.Generator, number: int) -> pk.KMeansModel:
    """Return a model of one of 16 kinds, in turn."""
    dtype = pl.Float32 if number % 2 else pl.Float64
    d, k = int(random.integers(1, 7)), int(random.integers(1, 9))
    names = [str(name) for name in random.permutation(NAMES)[:d]]
    size = 10.0 ** random.integers(-3, 4, d) * (1e120 if number % 16 in (0, 8) else 1.0)
    # Some have centroids that are near each other, as points and as directions.
    x = (random.normal(size=(300, d)) + random.integers(-2, 3, (300, d)) + 1e4 * (number % 3 == 1)) * size
    factors = {name: float(f) for name, f in zip(names, 10.0 ** random.integers(-9, 30, d), strict=True)}
    scale = [None, "standard", "robust", factors][number // 2 % 4]
    df = pl.DataFrame(x, schema=dict.fromkeys(names, dtype))
    metric: Any = ["euclidean", "cosine"][number // 8 % 2]
    return pk.KMeans(k, seed=number, scale=scale, metric=metric, max_iter=5, too_few="fewer").fit(df, *names)


def some_rows(random: np.random.Generator, model: pk.KMeansModel, n: int) -> pl.DataFrame:
    """Return rows near the centroids, on borders and a few units beside them, and of special values."""
    c = model.centroids_array().astype(np.float64)
    one, other = random.integers(0, len(c), (2, n))
    x = c[one] + random.normal(size=(n, c.shape[1])) * np.abs(c[one])
    border = random.random(n) < 0.4
    x[border] = ((c[one] + c[other]) / 2)[border] * random.choice([1.0, 1.0, 3.0, 7e5], n)[border, None]
    beside = random.integers(-3, 4, x.shape)
    x += beside * np.spacing(x) * (random.random((n, 1)) < 0.5)
    values: NDArray[Any] = x.astype(object)
    special = random.random(x.shape) < 0.02
    special[: n // 20] = random.random((n // 20, 1)) < 0.9
    drawn = random.integers(0, len(SPECIAL), x.shape)
    drawn[: n // 40] = drawn[: n // 40, :1]
    values[special] = np.array(SPECIAL, dtype=object)[drawn[special]]
    return pl.DataFrame({name: values[:, f].tolist() for f, name in enumerate(model.feature_names)}, strict=False).cast(
        pl.Float64
    )


def of_duckdb(df: pl.DataFrame, label: str) -> pl.Series:
    with duckdb.connect() as connection:
        connection.register("points", df.with_row_index("row number").to_arrow())
        query = f'SELECT "row number", {label} AS cluster FROM points ORDER BY "row number"'
        return connection.sql(query).pl().to_series(1)


def of_sqlite(df: pl.DataFrame, label: str) -> pl.Series:
    connection = sqlite3.connect(":memory:")
    columns = ['"{}"'.format(name.replace('"', '""')) for name in df.columns]
    connection.execute(f"CREATE TABLE points ({', '.join(f'{name} REAL' for name in columns)})")
    connection.executemany(f"INSERT INTO points VALUES ({', '.join('?' * df.width)})", df.rows())
    found = pl.Series([cluster for (cluster,) in connection.execute(f"SELECT {label} FROM points")], dtype=pl.UInt32)
    connection.close()
    return found


def differences(model: pk.KMeansModel, df: pl.DataFrame, found: pl.Series) -> Counter[str]:
    """Count the rows by how their label differs from that of the model."""
    label = model.predict(df)
    assert found.dtype == label.dtype == pl.UInt32
    counts = Counter({"null": int((label.is_null() != found.is_null()).sum()), "allowed": 0, "wrong": 0})
    differ = (label != found).fill_null(value=False)
    squares = df.filter(differ).select(model.transform(squared=True)).to_series()
    for own, other, distances in zip(label.filter(differ), found.filter(differ), squares, strict=True):
        band = (len(model.feature_names) + 2) * 2.0**-51 * distances[other]
        counts["allowed" if distances[other] - distances[own] < band else "wrong"] += 1
    counts["equal"] = df.height - counts.total()
    return counts


def test_random_models_have_the_labels_of_predict() -> None:
    random = np.random.default_rng(11)
    counts: dict[tuple[str, ...], Counter[str]] = {}
    for number in range(MODELS):
        model = a_model(random, number)
        wide = some_rows(random, model, ROWS)
        metric, scaled = model.parameters["metric"], "as it is" if model.factors is None else "scaled"
        own = model.centroids.dtypes[-1]
        for dtype in (pl.Float64, pl.Float32):
            df = wide.cast(dtype)
            types: Any = None if dtype == own else ["float32", "float64"][dtype == pl.Float64]
            types = df.schema if number % 3 == 0 else types
            answers = {"polars": df.select(model.to_expr(types=types)).to_series()}
            answers["polars, streamed"] = (
                df.lazy().select(model.to_expr(types=types)).collect(engine="streaming").to_series()
            )
            answers["duckdb"] = of_duckdb(df, model.to_sql(types=types))
            if own == dtype == pl.Float32 and (model.factors is not None or metric == "cosine"):
                for dialect in ("sqlite", "ansi"):
                    with pytest.raises(pk.InvalidParameterError, match='expected "duckdb" for a float32 model'):
                        model.to_sql(dialect, types=types)  # type: ignore[arg-type]
            else:
                answers["sqlite"] = of_sqlite(df, model.to_sql("sqlite", types=types))
                answers["ansi in duckdb"] = of_duckdb(df, model.to_sql("ansi", types=types))
                answers["ansi in sqlite"] = of_sqlite(df, model.to_sql("ansi", types=types))
            for engine, found in answers.items():
                kind = (engine, f"{own} model", f"{dtype} columns", scaled, metric)
                counts[kind] = counts.get(kind, Counter()) + differences(model, df, found.cast(pl.UInt32))
    for kind, count in sorted(counts.items()):
        print(*kind, dict(count), sep=" | ")
    whole = sum(counts.values(), Counter())
    print(dict(whole))
    assert whole["null"] == whole["wrong"] == 0
    assert whole["equal"] > 0.99 * whole.total()
