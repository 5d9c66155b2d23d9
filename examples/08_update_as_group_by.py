"""
The update step as a group-by
=============================

The update step of k-means, written as a group-by aggregation (Lutz et al. 2018, section 3.1).

The mean of a cluster is the sum over the rows with its label, divided by their number. Sums of floats depend on their
order, but sums of integers do not. This is how the engine gives the same bits everywhere: it rounds each value once, to
a multiple of its column's quantum, and all sums after that are exact. So a query in plain Polars gives the engine's
centroids to the last bit, in whatever order its threads work.
"""

from __future__ import annotations

import math
import sys

import polars as pl

import polars_kmeans as pk


def quantum_exponent(column: pl.Series) -> int:
    """The exponent of the quantum: 90 bits below the power of two at or above the column's largest magnitude."""
    fraction, exponent = math.frexp(column.abs().max())
    return (exponent - 1 if fraction == 0.5 else exponent) - 90


def quantised(column: str, exponent: int) -> pl.Expr:
    """Whole multiples of 2^exponent in two parts: the upper 45 bits, and the 45 bits below them."""
    value = pl.col(column) * 2.0 ** -(exponent + 45)
    high = value.round()
    low = ((value - high) * 2.0**45).round()
    return (high.cast(pl.Int128) * 2**45 + low.cast(pl.Int128)).alias(column)


def update(rows: pl.DataFrame, labels: pl.Series) -> pl.DataFrame:
    """The means of the clusters, each rounded once."""
    exponents = {column: quantum_exponent(rows[column]) for column in rows.columns}
    sums = (
        rows.select(quantised(column, exponent) for column, exponent in exponents.items())
        .with_columns(labels.alias("cluster"))
        .group_by("cluster")
        .agg(pl.all().sum(), pl.len().alias("size"))
        .sort("cluster")
    )
    # Python divides integers of any size, and rounds the quotient only once.
    means = {
        column: [total / (size << -exponent) for total, size in zip(sums[column], sums["size"], strict=True)]
        for column, exponent in exponents.items()
    }
    return sums.select("cluster", "size").with_columns(pl.Series(name, values) for name, values in means.items())


# %%
# Three groups of points on circles, and some starting centroids.
n = 30_000
turn = pl.int_range(n, eager=True) * 0.618034
rows = pl.DataFrame({"x": turn.sin() * (1 + turn % 3) + turn % 3, "y": turn.cos() * (1 + turn % 3) - turn % 3})
start = rows.head(8)

# %%
# Run the engine for one more iteration, and compare it with the query.
for iteration in range(1, 6):
    before = pk.KMeans(k=8, init=start, max_iter=iteration, tol=0.0).fit(rows, pl.all())
    after = pk.KMeans(k=8, init=start, max_iter=iteration + 1, tol=0.0).fit(rows, pl.all())
    means = update(rows, rows.select(before.predict()).to_series())
    assert means.select("x", "y").equals(after.centroids.select("x", "y"))
    print(f"iteration {iteration + 1}: all {means.height} centroids are the same to the last bit")
print(means)

# %%
# Give a path to draw the rows and the means: `python examples/08_update_as_group_by.py means.png`
if len(sys.argv) > 1:
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(6, 5), layout="constrained")
    panel.scatter(rows["x"], rows["y"], c=rows.select(before.predict()).to_series(), s=1, cmap="tab10")
    panel.scatter(means["x"], means["y"], marker="x", s=90, c="black")
    panel.set(title="The means of the clusters, by a query", aspect="equal")
    panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(sys.argv[1], dpi=120)
