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
from helpers import ROOT, code_of
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


def test_values_that_overflow_or_vanish_when_they_are_squared_or_scaled() -> None:
    big = pl.DataFrame({"x": [1e200, -1e200, 1e-200, -3e-310, 1e10], "y": [1e200, -1e200, 1e-200, 0.0, 0.0]})
    directions = pk.KMeansModel.from_centroids([[1.0, 1.0], [-1.0, -1.0]], ["x", "y"], metric="cosine")
    given = pl.DataFrame({"x": [1e-30, 5e-30], "y": [1.0, 2.0]}, schema={"x": pl.Float32, "y": pl.Float32})
    scaled = pk.KMeansModel.from_centroids(given, scale={"x": 1e30, "y": 1.0})
    for model, df in ((directions, big), (scaled, big.cast(pl.Float32))):
        label = model.predict(df)
        assert of_duckdb(df, model.to_sql()).equals(label)
        assert df.select(model.to_expr()).to_series().equals(label)
    assert directions.predict(big).to_list() == [0, 1, 0, 1, 0]
    assert scaled.predict(big.cast(pl.Float32)).to_list()[4] is None


def test_names_that_sql_takes_for_one_are_refused() -> None:
    df = pl.DataFrame({"x": [0.0, 0.0, 9.0, 9.0], "X": [0.0, 9.0, 0.0, 9.0]})
    model = pk.KMeans(4, seed=1).fit(df, "x", "X")
    for dialect in ("duckdb", "sqlite", "ansi"):
        with pytest.raises(pk.InvalidColumnError, match=r"got 'x' and 'X': fit frame.rename\(\{'X': 'X_2'\}\)"):
            model.to_sql(dialect)  # type: ignore[arg-type]
    assert df.select(model.to_expr()).to_series().equals(model.predict(df))
    for names in ({"X": "X_2"}, {"x": "é", "X": "É"}, {"x": "ß", "X": "SS"}, {"x": "k", "X": "\u212a"}):
        renamed = df.rename(names)
        model = pk.KMeans(4, seed=1).fit(renamed, *renamed.columns)
        assert of_duckdb(renamed, model.to_sql()).equals(model.predict(renamed))
        assert of_sqlite(renamed, model.to_sql("sqlite")).equals(model.predict(renamed))


def test_models_of_expressions_have_no_exports() -> None:
    df = pl.DataFrame({"F": [0.0, 1.0, 50.0, 900.0]})
    model = pk.KMeans(2, seed=1).fit(df, pl.col("F").log1p())
    for export in (model.to_expr, model.to_sql, lambda: model.to_sql("sqlite")):
        with pytest.raises(pk.InvalidColumnError, match=r"as in frame.with_columns\(new=pl.col\('F'\).log1p\(\)\)"):
            export()
    made = df.with_columns(new=pl.col("F").log1p())
    model = pk.KMeans(2, seed=1).fit(made, "new")
    assert of_duckdb(made, model.to_sql()).equals(model.predict(made))


def test_types_say_when_rows_are_rounded() -> None:
    df = pl.DataFrame({"x": [0.0, 1.0, 3.0], "y": [0, 4, 1]}, schema={"x": pl.Float32, "y": pl.Int16})
    model = pk.KMeans(2, seed=1, scale="standard").fit(df, "x", "y")
    wide: list[Any] = [
        "float64",
        pl.Float64,
        pl.Int64(),
        {"x": "float32", "y": pl.Float64},
        {"x": pl.UInt32, "y": "float32"},
    ]
    narrow: list[Any] = [None, "float32", pl.Float16, df.schema, {"x": "float32", "y": pl.Boolean, "other": pl.String}]
    assert (
        len({model.to_sql(types=types) for types in wide}) == len({model.to_sql(types=types) for types in narrow}) == 1
    )
    assert model.to_sql(types=wide[0]) != model.to_sql()
    other = pk.KMeans(2).fit(df.cast(pl.Float64), "x", "y")
    assert other.to_sql(types="float32") == other.to_sql()
    wrong: list[Any] = [
        "double",
        pl.String,
        float,
        {"x": "float32"},
        {"x": "float32", "y": None},
        3,
        ["float32", "float32"],
    ]
    for types in wrong:
        for made in (model, other):
            with pytest.raises(
                pk.InvalidParameterError, match='types: expected "float32", "float64", a dtype of numbers'
            ):
                made.to_expr(types=types)


def test_numbers_are_read_as_they_are() -> None:
    """SQLite and decimals of DuckDB round some literals to another float64 than the nearest."""
    from polars_kmeans._export import _DIALECTS

    random = np.random.default_rng(3)
    values = [
        *random.normal(size=200),
        *10.0 ** random.uniform(-307, 308, 200),
        5e-324,
        -3e-310,
        1.7976931348623157e308,
        0.0,
    ]
    for name, engines in {"duckdb": "d", "sqlite": "s", "ansi": "ds"}.items():
        texts = [_DIALECTS[name]().number(float(value)).text for value in values]
        for engine in engines:
            query = "SELECT " + ", ".join(texts)
            connection: Any = duckdb.connect() if engine == "d" else sqlite3.connect(":memory:")
            assert connection.execute(query).fetchall() == [tuple(values)]


def test_the_text_grows_with_clusters_times_features() -> None:
    """An engine that puts an expression in each place of its name would not come to an end."""
    random = np.random.default_rng(3)
    df = pl.DataFrame(random.normal(size=(30, 60)), schema=[f"x{f}" for f in range(60)])
    model = pk.KMeansModel.from_centroids(df[:8], metric="cosine")
    for dialect in ("sqlite", "ansi"):
        label = model.to_sql(dialect)  # type: ignore[arg-type]
        assert len(label) < 300_000
        assert of_sqlite(df, label).equals(model.predict(df))


def test_a_column_that_sqlite_does_not_have_is_an_error() -> None:
    label = pk.KMeansModel.from_centroids([[0.0], [5.0]], ["x"]).to_sql("sqlite")
    with pytest.raises(sqlite3.OperationalError, match="no such column"):
        of_sqlite(pl.DataFrame({"y": [1.0]}), label)
    connection = sqlite3.connect(":memory:")
    found = connection.execute(f"SELECT {label} FROM (SELECT 'text' AS x UNION ALL SELECT 7 UNION ALL SELECT x'00')")
    assert found.fetchall() == [(None,), (1,), (None,)]


RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled": {"scale": "standard"},
    "directions": {"metric": "cosine"},
    "scaled directions": {"scale": "robust", "metric": "cosine"},
}


@pytest.mark.parametrize("dtype", [pl.Float32, pl.Float64])
@pytest.mark.parametrize("kind", RECIPES)
def test_recipes_without_python_label_any_rows(kind: str, dtype: Any) -> None:
    """Rows have repeated ids, nulls and NaNs, and names that need quotes. The blocks compare with `predict`."""
    setup, *blocks = code_of(ROOT / "docs" / "guide" / "without-python.md")
    random = np.random.default_rng(6)
    columns = ["order", 'a "b"', "x.y"]
    rows = pl.DataFrame(random.normal(size=(60, 3)) * [1.0, 50.0, 1e-3] + 1, schema=dict.fromkeys(columns, dtype))
    model = pk.KMeans(4, seed=1, **RECIPES[kind]).fit(rows, *columns)
    special = [
        [None, 1.0, 1.0],
        [np.nan, 1.0, None],
        [1.0, -np.inf, 1.0],
        [0.0, -0.0, 0.0],
        [1e30, 1e-30, 0.0],
        [None] * 3,
    ]
    people = pl.concat([rows, rows[:9], pl.DataFrame(special, schema=rows.schema, orient="row")])
    people = people.with_columns(id=pl.int_range(pl.len()) // 3)
    names: dict[str, Any] = {}
    exec(setup, names)
    names |= {"people": people, "model": model}
    for block in blocks:
        exec(block, names)
    assert model.predict(people).null_count() >= 4
    assert [block.count("assert") for block in blocks] == [2, 0, 1]
