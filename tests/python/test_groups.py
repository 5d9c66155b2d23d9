"""One fit per group gives the same bits as separate fits."""

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
from polars.exceptions import ComputeError

import polars_kmeans as pk

GROUPS = 1_000


@pytest.fixture(scope="module")
def df() -> pl.DataFrame:
    """Rows of 1,000 groups of different sizes, shuffled."""
    rng = np.random.default_rng(0)
    n = 40_000
    group = rng.integers(0, GROUPS, n)
    points = rng.normal(0, 1, (n, 3)) + 8 * (rng.integers(0, 3, (n, 1)) + group[:, None] % 5)
    return pl.DataFrame(points, schema=["x", "y", "z"]).with_columns(g=pl.Series(group), w=pl.Series(rng.random(n)))


def fit(group: pl.DataFrame, **options: object) -> pl.Series:
    return group.select(pk.kmeans("x", "y", "z", **options))["cluster"]


@pytest.mark.parametrize(
    "options", [{}, {"weight": "w"}, {"init": "random", "n_init": 2}, {"init": [[0.0] * 3, [9.0] * 3]}]
)
def test_over_and_agg_are_separate_fits(df: pl.DataFrame, options: dict) -> None:
    options = {"k": 2, "seed": 7, **options}
    over = df.with_columns(pk.kmeans("x", "y", "z", **options).over("g"))
    labels = df.group_by("g").agg(pk.kmeans("x", "y", "z", **options))
    centroids = df.group_by("g").agg(pk.centroids("x", "y", "z", **options))
    assert over["g"].n_unique() == GROUPS
    labels, centroids = dict(labels.iter_rows()), {g: c for g, c in zip(*centroids, strict=True)}
    for (g,), group in over.group_by("g", maintain_order=True):
        separate = fit(group, **options)
        assert group["cluster"].equals(separate)
        assert labels[g] == separate.to_list()
        model = pk.KMeans(**options).fit(group, ["x", "y", "z"])
        assert centroids[g].struct.unnest().equals(model.centroids)


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_engines(df: pl.DataFrame, engine: str) -> None:
    over = df.select(pk.kmeans("x", "y", "z", k=3).over("g"))
    assert df.lazy().select(pk.kmeans("x", "y", "z", k=3).over("g")).collect(engine=engine).equals(over)
    lists = df.group_by("g", maintain_order=True).agg(pk.centroids(cs.by_name("x", "y"), k=3))
    lazy = df.lazy().group_by("g", maintain_order=True).agg(pk.centroids(cs.by_name("x", "y"), k=3))
    assert lazy.collect(engine=engine).equals(lists)
    assert lazy.collect_schema() == lists.schema


def test_centroids_of_rows(df: pl.DataFrame) -> None:
    """Array columns stay Array and List columns stay List. The bits are the same as for separate columns."""
    rows = df.select("g", array=pl.concat_arr("x", "y").cast(pl.Array(pl.Float32, 2)), list=pl.concat_list("x", "y"))
    for name, dtype in {"array": pl.Array(pl.Float32, 2), "list": pl.List(pl.Float64)}.items():
        expr = pk.centroids(name, k=2, seed=1)
        assert rows.lazy().select(expr).collect_schema()["centroids"].inner.fields[-1] == pl.Field(name, dtype)
        out = rows.select(expr)["centroids"].explode().struct.unnest()
        assert out[name].dtype == dtype
        columns = df.select(pl.col("x", "y").cast(dtype.inner)).select(pk.centroids("x", "y", k=2, seed=1))
        columns = columns["centroids"].explode().struct.unnest()
        assert out[name].to_list() == [list(row) for row in columns.select("x", "y").iter_rows()]
        assert out.drop(name).equals(columns.drop("x", "y"))


def test_groups_that_are_too_small() -> None:
    df = pl.DataFrame({"g": [0, 0, 0, 1, 2, 2, 3], "x": [0.0, 1.0, 5.0, 1.0, 4.0, 4.0, None]})
    with pytest.raises(ComputeError, match="TooFewRowsError"):
        df.drop_nulls().select(pk.kmeans("x", k=2).over("g"))
    options = {"k": 2, "too_few": "null", "null_policy": "skip"}
    labels = df.with_columns(pk.kmeans("x", **options).over("g"))["cluster"]
    assert labels.is_null().to_list() == [False] * 3 + [True] * 4
    centroids = df.group_by("g", maintain_order=True).agg(pk.centroids("x", **options))["centroids"]
    assert centroids.is_null().to_list() == [False, True, True, True]
    assert pk.KMeans(**options).fit(df.filter(g=1), "x") is None


def test_no_groups(df: pl.DataFrame) -> None:
    empty = df.clear()
    assert empty.group_by("g").agg(pk.centroids("x", k=2), pk.kmeans("x", k=2)).shape == (0, 3)
    assert empty.select(pk.kmeans("x", k=2).over("g")).shape == (0, 1)
    assert empty.select(pk.kmeans("x", k=2)).schema == {"cluster": pl.UInt32}
    assert empty.select(pk.centroids("x", k=2))["centroids"].to_list() == [None]
    with pytest.raises(pk.InvalidDataError, match="expected at least one row"):
        pk.KMeans(k=2).fit(empty, "x")


def test_a_literal_is_repeated(df: pl.DataFrame) -> None:
    ones = df.select(pk.kmeans("x", "y", k=3, weight=pl.lit(2.0)))
    assert ones.equals(df.select(pk.kmeans("x", "y", k=3)))
    assert df.select(pk.kmeans("x", pl.lit(1.0), k=3)).equals(df.select(pk.kmeans("x", k=3)))
    model = pk.KMeans(k=3, weight=pl.lit(2.0)).fit(df, ["x", "y"])
    assert df.select(model.predict()).equals(ones)
