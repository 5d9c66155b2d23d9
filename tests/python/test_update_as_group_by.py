"""The update step as a Polars group-by over quantised columns gives the engine's centroids, bit for bit."""

import math
from fractions import Fraction

import numpy as np
import polars as pl
import pytest

import polars_kmeans as pk


def quantised(column: pl.Series) -> tuple[pl.Series, int]:
    """The contract's quanta, in Polars' own arithmetic: whole multiples of 2^exponent, and the exponent."""
    two_limbs = column.dtype == pl.Float64
    bits = 90 if two_limbs else 50
    fraction, exponent = math.frexp(column.abs().max())  # type: ignore[arg-type]
    exponent = (exponent - 1 if fraction == 0.5 else exponent) - bits
    value = column.cast(pl.Float64) * 2.0 ** -(exponent + (45 if two_limbs else 0))
    high = value.round()
    if not two_limbs:
        return high.cast(pl.Int128), exponent
    limbs = pl.DataFrame({"high": high, "low": ((value - high) * 2.0**45).round()}).cast(pl.Int128)
    return limbs.select(pl.col("high") * 2**45 + pl.col("low")).to_series().alias(column.name), exponent


def nearest(quotient: Fraction, dtype: type) -> float:
    """The quotient, rounded once to nearest, ties to even."""
    guess = dtype(float(quotient))
    near = [guess, np.nextafter(guess, dtype(-np.inf)), np.nextafter(guess, dtype(np.inf))]
    distance = min(abs(Fraction(float(v)) - quotient) for v in near)
    best = [v for v in near if abs(Fraction(float(v)) - quotient) == distance]
    return float(min(best, key=lambda v: np.atleast_1d(v).view(f"u{v.nbytes}")[0] & 1))


def update(rows: pl.DataFrame, labels: pl.Series) -> pl.DataFrame:
    whole = {column.name: quantised(column) for column in rows}
    sums = (
        pl.DataFrame([series for series, _ in whole.values()])
        .with_columns(labels.alias("cluster"))
        .group_by("cluster")
        .agg(pl.all().sum(), pl.len().alias("size"))
        .sort("cluster")
    )
    means = []
    for name, (_, exponent) in whole.items():
        dtype = np.float64 if rows[name].dtype == pl.Float64 else np.float32
        quotients = [
            nearest(Fraction(total, size) * Fraction(2) ** exponent, dtype)
            for total, size in zip(sums[name], sums["size"], strict=True)
        ]
        means.append(pl.Series(name, quotients, dtype=rows[name].dtype))
    return sums.select("cluster", "size").with_columns(means)


@pytest.mark.filterwarnings("ignore::polars_kmeans.ConvergenceWarning")  # it stops early
@pytest.mark.parametrize("dtype", [pl.Float32, pl.Float64])
@pytest.mark.parametrize(("n", "d", "k"), [(50, 1, 3), (5_000, 3, 7), (20_000, 17, 40), (300_000, 2, 5)])
def test_a_group_by_is_the_update(dtype: type[pl.DataType], n: int, d: int, k: int) -> None:
    random = np.random.default_rng(n + d)
    values = random.normal(size=(n, d)) * 10.0 ** random.integers(-3, 6, size=d) + random.integers(0, 9, size=(n, 1))
    rows = pl.DataFrame(values, schema={f"x{f}": dtype for f in range(d)})
    start = rows.sample(k, seed=1)
    compared = 0
    for iteration in range(1, 4):
        before = pk.KMeans(k=k, init=start, max_iter=iteration, tol=0.0).fit(rows, pl.all())
        after = pk.KMeans(k=k, init=start, max_iter=iteration + 1, tol=0.0).fit(rows, pl.all())
        if after.n_iter <= iteration or before.centroids["size"].min() == 0:
            continue
        means = update(rows, rows.select(before.predict()).to_series())
        assert means["size"].to_list() == before.centroids["size"].to_list()
        assert means.select(rows.columns).equals(after.centroids.select(rows.columns))
        compared += k * d
    assert compared >= k * d
