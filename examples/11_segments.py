"""
From orders to named segments
=============================

A CSV of orders becomes customers with a segment that has a name: how many segments, what they are, who is typical.

Give a path to write a picture of the segments as a PNG: `python examples/11_segments.py segments.png`. The site
has this lesson as a notebook too.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl

import polars_kmeans as pk

# %%
# A CSV of orders. These are made up: four kinds of customers, which the rest of the lesson does not know.
random = np.random.default_rng(7)
folder = tempfile.TemporaryDirectory()
csv = Path(folder.name) / "orders.csv"
rows = []
for customer in range(2_000):
    orders, euros, gone = [(12, 30, 10), (12, 200, 15), (2, 60, 300), (1, 90, 30)][
        random.choice(4, p=[0.4, 0.1, 0.3, 0.2])
    ]
    days = gone * random.uniform(0.5, 1.5) + np.cumsum(random.exponential(20, 1 + random.poisson(orders)))
    rows += [(customer, int(day), euros * random.lognormal(0, 0.4)) for day in days]
orders = pl.DataFrame(rows, schema=["customer", "days", "euros"], orient="row").sort("days", descending=True)
orders.select("customer", day=date(2025, 12, 31) - pl.duration(days="days"), euros=pl.col("euros").round(2)).write_csv(
    csv
)

# %%
# One row a customer: how long ago the last order was, how many there were, and how much one is worth. Euros are added
# up as whole cents. Polars adds floats in any order, so a mean of floats has other last bits in each run, and a fit of
# such means may have other labels.
cents = (pl.col("euros") * 100).round().cast(pl.Int64)
customers = (
    pl.scan_csv(csv, try_parse_dates=True)
    .group_by("customer")
    .agg(
        days_ago=(date(2025, 12, 31) - pl.col("day").max()).dt.total_days(),
        orders=pl.len(),
        euros=cents.sum() / pl.len() / 100,
    )
    .sort("customer")
    .collect()
)
FEATURES = ["days_ago", "orders", "euros"]
print(customers.head(3))

# %%
# Days, orders and euros have different units, and their distributions have long tails: logarithms, then one scale for
# all.
LOGARITHMS = pl.col(FEATURES).log1p()
logs = customers.with_columns(LOGARITHMS)

# %%
# How many segments? Several measures, because each has its own idea of a good clustering.
choice = pk.choose_k(logs, FEATURES, k=range(2, 9), scale="standard", seed=1, n_init=5)
with pl.Config(tbl_cols=-1, float_precision=3):
    print(choice.drop("seconds"))
k = choice.sort("silhouette", descending=True)["k"][0]
assert k == 4

# %%
# The segments, and what sets each apart: described in days, orders and euros, not in logarithms.
model = pk.KMeans(k=k, scale="standard", seed=1, n_init=5).fit(logs, FEATURES)
segments = customers.with_columns(segment=logs.select(model.predict()).to_series())
medians = segments.group_by("segment").agg(pl.len().alias("customers"), pl.col(FEATURES).median()).sort("segment")
with pl.Config(float_precision=0):
    print(medians)
profile = model.profile(logs)
print(profile.filter(pl.col("rank") == 1).select("cluster", "share", "feature", pl.col("difference").round(1)))

# %%
# Names come from the medians, not from the numbers of the clusters, which depend on the seed.
buys_often, spends_much, was_here = pl.col("orders") > 6, pl.col("euros") > 120, pl.col("days_ago") < 120
named = medians.select(
    "segment",
    name=pl.when(buys_often & spends_much)
    .then(pl.lit("best customers"))
    .when(buys_often)
    .then(pl.lit("regulars"))
    .when(was_here)
    .then(pl.lit("new"))
    .otherwise(pl.lit("lost")),
)
# The model keeps the names of its clusters.
model = model.with_names(named["name"].to_list())
result = segments.with_columns(model.label(logs, name="name", names=True)["name"])
print(result["name"].value_counts(sort=True))

# %%
# Who is typical? The rows nearest each centroid.
typical = model.nearest(logs, 1).select("customer", "cluster").join(customers, on="customer")
print(typical.join(named, left_on="cluster", right_on="segment").select("name", *FEATURES))

# %%
# The file of the model gives next month's customers their segment, by name. The model knows the scale, but not the
# logarithms: new rows need the same logarithms first. Without them the labels are wrong, and there is no error.
model.save(Path(folder.name) / "segments.parquet")
later = pk.KMeansModel.load(Path(folder.name) / "segments.parquet")
new = pl.DataFrame({"customer": [2_000, 2_001], "days_ago": [12, 280], "orders": [15, 2], "euros": [31.0, 55.0]})
labelled = later.label(new.with_columns(LOGARITHMS), name="segment", names=True)
print(new.join(labelled.select("customer", "segment"), on="customer"))
assert logs.select(later.predict()).equals(logs.select(model.predict()))
result.write_csv(Path(folder.name) / "customers.csv")

# %%
# Two of the three features, by segment.
if len(sys.argv) > 1:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib import patheffects

    figure, axes = plt.subplots(figsize=(8, 4.8), layout="constrained")
    for (name,), part in result.sort("name").group_by("name", maintain_order=True):
        axes.scatter(part["days_ago"], part["euros"], s=9, alpha=0.4, linewidths=0)
        middle, share = part.median(), part.height / result.height
        text = f"{name}\n{part.height:,} customers, {share:.0%}"
        outlined = [patheffects.withStroke(linewidth=4, foreground="white")]
        place = {"ha": "center", "va": "center", "weight": "bold", "path_effects": outlined}
        axes.text(middle["days_ago"][0], middle["euros"][0], text, **place)
    axes.set(xscale="log", yscale="log", xlabel="days since the last order", ylabel="euros an order")
    for axis, ticks in ((axes.xaxis, [5, 10, 20, 50, 100, 200, 500]), (axes.yaxis, [20, 50, 100, 200, 400])):
        axis.set_ticks(ticks)
        axis.set_major_formatter("{x:.0f}")
        axis.set_minor_formatter("")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{result.height:,} customers in {k} segments")
    figure.savefig(sys.argv[1], dpi=120)
