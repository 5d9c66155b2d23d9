"""What exact means: the reference distance decides labels, and `transform(squared=True)` gives it."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest
from helpers import needs_gpu

import polars_kmeans as pk

CENTROIDS = [[0.1, 8.3], [1.1, 8.3]]
# Rows whose distances to both centroids are nearly equal. A sum that rounds every square gives the first one label 0.
TIES = [[0.6000000000000001, 9.9], [0.6000000000000001, 8.6]]


def distance(row: Any, centroid: Any) -> float:
    """Return the reference distance: `fma(t, t, s)` in feature order. A fraction is rounded once."""
    s = 0.0
    for x, c in zip(row, centroid, strict=True):
        t = float(x) - float(c)
        s = float(Fraction(t) ** 2 + Fraction(s))
    return s


def arg_min(column: pl.Series) -> list[int]:
    return column.arr.arg_min().to_list()


# Each gives the answers of a model for two columns, as a Series of arrays or of labels.
DOORS: dict[str, Callable[[Callable[..., Any], pl.DataFrame], pl.Series]] = {
    "expression": lambda ask, df: df.select(ask()).to_series(),
    "streaming": lambda ask, df: df.lazy().select(ask()).collect(engine="streaming").to_series(),
    "columns": lambda ask, df: df.select(ask("x", pl.col("y"))).to_series(),
    "frame": lambda ask, df: ask(df),
    "arrow": lambda ask, df: ask(df.to_arrow()),
    "array": lambda ask, df: pl.Series(ask(df.to_numpy(order="c"))),
    "columns of an array": lambda ask, df: pl.Series(ask(df.to_numpy(order="fortran"))),
}


@pytest.mark.parametrize("door", DOORS)
def test_the_least_squared_distance_is_the_label_where_others_see_a_tie(door: str) -> None:
    model = pk.KMeansModel.from_centroids(CENTROIDS, ["x", "y"])
    df = pl.DataFrame(TIES, schema=["x", "y"], orient="row")
    squared = DOORS[door](lambda *rows: model.transform(*rows, squared=True), df)
    assert squared.to_list() == [[distance(row, c) for c in CENTROIDS] for row in TIES]
    assert arg_min(squared) == DOORS[door](model.predict, df).to_list() == [1, 1]
    # A naive sum and square roots do not see which centroid is nearer.
    assert int(np.square(np.subtract(TIES[0], CENTROIDS)).sum(axis=1).argmin()) == 0
    assert arg_min(DOORS[door](model.transform, df)) == [0, 0]


@pytest.mark.parametrize("options", [{}, {"scale": "standard"}, {"metric": "cosine"}])
@pytest.mark.parametrize("dtype", [pl.Float32, pl.Float64])
def test_prices_of_a_grid_have_the_label_of_the_least_squared_distance(dtype: Any, options: dict[str, Any]) -> None:
    random = np.random.default_rng(1)
    df = pl.DataFrame(random.integers(1, 100, (20_000, 2)) / 10, schema={"x": dtype, "y": dtype})
    model = pk.KMeansModel.from_centroids(
        pl.DataFrame(random.integers(1, 100, (40, 2)) / 10, schema=df.schema).unique()
    )
    if options:
        model = pk.KMeans(30, seed=1, max_iter=2, tol=1.0, **options).fit(df, "x", "y")
    squared = df.select(model.transform(squared=True)).to_series()
    assert squared.name == "squared_distances"
    assert arg_min(squared) == df.select(model.predict()).to_series().to_list()
    if not options:
        centroids = model.centroids.select("x", "y").to_numpy()
        assert squared[:100].to_list() == [[distance(row, c) for c in centroids] for row in df[:100].rows()]
    roots = squared.explode().sqrt().to_numpy()
    assert (roots == df.select(model.transform()).to_series().explode().to_numpy()).all()


def test_a_row_without_a_label_has_no_squared_distances() -> None:
    model = pk.KMeansModel.from_centroids(CENTROIDS, ["x", "y"])
    holes = pl.DataFrame({"x": [None, 1.0, float("inf")], "y": [1.0, 2.0, 3.0]})
    asked = holes.lazy().select(model.transform(squared=True))
    assert asked.collect_schema() == {"squared_distances": pl.Array(pl.Float64, 2)}
    assert asked.collect().to_series().is_null().to_list() == [True, False, True]
    assert np.isnan(model.transform(holes.to_numpy(), squared=True)).any(axis=1).tolist() == [True, False, True]


GPU_WAYS = [pytest.param(device, marks=needs_gpu) for device in ("cuda", "cuda:all")]


@pytest.mark.parametrize("device", ["cpu", "auto", *GPU_WAYS])
@pytest.mark.parametrize("dtype", [pl.Float32, pl.Float64])
def test_squared_distances_have_the_same_bits_everywhere(dtype: Any, device: str) -> None:
    random = np.random.default_rng(2)
    values = random.integers(1, 100, (3_000, 5)) / 10
    values[7, 1] = np.inf
    df = pl.DataFrame(values, schema={f"x{f}": dtype for f in range(5)})
    centroids = pl.DataFrame(random.integers(1, 100, (40, 5)) / 10, schema=df.schema)
    model = pk.KMeansModel.from_centroids(centroids)
    squared = model.transform(df, squared=True, device=device)
    assert arg_min(squared) == model.predict(df, device="cpu").to_list()
    rows = [[float("nan")] * 40 if distances is None else distances for distances in squared.to_list()]
    assert np.array_equal(np.array(rows), model.transform(df.to_numpy(), squared=True, device=device), equal_nan=True)
    assert squared[2_999].to_list() == [distance(df.row(2_999), c) for c in centroids.rows()]
    assert squared.equals(df.select(model.transform(squared=True, device=device)).to_series())


def test_squared_is_true_or_false() -> None:
    model = pk.KMeansModel.from_centroids(CENTROIDS, ["x", "y"])
    with pytest.raises(pk.InvalidParameterError, match="squared: expected True or False, got 'no'"):
        model.transform(squared="no")  # type: ignore[call-overload]
