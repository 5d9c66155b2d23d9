"""
Again next month
================

A CSV of orders a month: segments that keep their numbers, and a table of the customers that moved.

Give a path to draw how many moved where: `python examples/12_again_next_month.py movers.png`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

import polars_kmeans as pk

# %%
# Two months of orders, as CSV files. These are made up: in June, some customers buy more often, and some are new.
random = np.random.default_rng(3)
folder = tempfile.TemporaryDirectory()
home = Path(folder.name)
kinds = {customer: random.choice(3, p=[0.5, 0.3, 0.2]) for customer in range(1_500)}
for month in ("may", "june"):
    rows = []
    for customer, kind in kinds.items():
        orders, euros = [(2, 20), (10, 35), (3, 200)][kind]
        rows += [(customer, euros * random.lognormal(0, 0.3)) for _ in range(1 + random.poisson(orders))]
    orders = pl.DataFrame(rows, schema=["customer", "euros"], orient="row")
    orders.with_columns(pl.col("euros").round(2)).write_csv(home / f"{month}.csv")
    for customer in random.choice(1_500, 90, replace=False):
        kinds[int(customer)] = 1
    kinds |= {customer: 0 for customer in range(1_500, 1_560)}


# %%
# One row a customer. Euros are added up as whole cents: sums of integers have the same bits in each run, sums of floats
# do not.
def customers(month: str) -> pl.DataFrame:
    """How often a customer buys, and for how much."""
    cents = (pl.col("euros") * 100).round().cast(pl.Int64)
    query = pl.scan_csv(home / f"{month}.csv").group_by("customer")
    return query.agg(orders=pl.len().log1p(), euros=(cents.sum() / pl.len() / 100).log()).sort("customer").collect()


FEATURES = ["orders", "euros"]
may, june = customers("may"), customers("june")

# %%
# May: a model, its note, and its file. It keeps its sums, so rows can be added to it later. With tol=0 the fit goes on
# until its centroids are the means of these sums.
model = pk.KMeans(3, seed=1, scale="standard", sort_by="euros", tol=0, keep_sums=True).fit(may, FEATURES)
model.with_metadata({"orders": "may.csv"}).save(home / "segments.parquet")

# %%
# June: does the old model still describe the customers?
old = pk.KMeansModel.load(home / "segments.parquet")
print(old.metadata, old.drift(june))
assert old.drift(june)["stability_index"].sum() < 0.25

# %%
# The segments of June. They have the numbers of the segments of May, and their distances are in the same units.
new = pk.KMeans(3, seed=8, scale=old.factors, sort_by=old).fit(june, FEATURES)
print(new.match(old))
assert new.match(old)["cluster"].to_list() == [0, 1, 2]

# %%
# Who moved? A customer has a segment in May, by the model of May, and one in June, by the model of June.
movers = (
    may.select("customer", before=old.predict())
    .join(june.select("customer", after=new.predict()), on="customer", how="full", coalesce=True)
    .filter(pl.col("before").ne_missing(pl.col("after")))
    .sort("customer")
)
print(movers.group_by("before", "after").len().sort("before", "after"))
movers.write_csv(home / "movers.csv")
assert movers.filter(pl.col("before").is_null()).height == 60

# %%
# The same customers by both models: these rows moved because segments did.
print(pk.moved(june, old, new))

# %%
# Or no new fit at all: the model of May takes the customers of June in, and lets those of May fade.
both = old.updated(june.select(old.sums()), decay=0.5)
assert both.updated(june.clear().select(both.sums())).centroids["size"].sum() == may.height + june.height
print(both.centroids.select("cluster", "size", *FEATURES))

# %%
# The customers of both months, by their old and their new segment.
if len(sys.argv) > 1:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    both_months = may.select("customer", before=old.predict()).join(
        june.select("customer", after=new.predict()), on="customer"
    )
    figure, axes = plt.subplots(figsize=(4.5, 4), layout="constrained")
    for (before, after), rows_of_pair in both_months.group_by("before", "after"):
        axes.scatter(before, after, s=rows_of_pair.height * 3, alpha=0.7)
        axes.annotate(str(rows_of_pair.height), (before, after), ha="center", va="center")
    axes.set(
        xlabel="segment in May", ylabel="segment in June", xticks=range(3), yticks=range(3), xlim=(-1, 3), ylim=(-1, 3)
    )
    figure.savefig(sys.argv[1], dpi=120)
