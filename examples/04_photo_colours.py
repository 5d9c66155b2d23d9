"""
The eight colours of a photograph
=================================

Pixels are rows, and equal pixels become one row with a weight.

Give a path to write the photograph in its eight colours as a PNG: `python examples/04_photo_colours.py china.png`
"""

from __future__ import annotations

import sys
import time

import polars as pl
from PIL import Image
from sklearn.datasets import load_sample_image

import polars_kmeans as pk

# %%
# One row per pixel, in three UInt8 columns. Small integers are clustered as float32.
photo = load_sample_image("china.jpg")
height, width, _ = photo.shape
pixels = pl.DataFrame(photo.reshape(-1, 3), schema=["r", "g", "b"])

# %%
# Equal pixels become one row with a weight. It is the same clustering problem with fewer rows.
colours = pixels.group_by("r", "g", "b").len("count")
print(f"{pixels.height:,} pixels, {colours.height:,} colours")

# %%
# From the same start, both fits give the same result, to the last bit. A seed alone would draw the starts from
# different rows. And the default `tol` depends on the variance of the rows without weights, so the two fits could stop
# at different iterations. `tol=0` prevents that.
start = [[32 * i + 16] * 3 for i in range(8)]
begin = time.perf_counter()
by_pixel = pk.KMeans(k=8, init=start, tol=0).fit(pixels, ["r", "g", "b"])
middle = time.perf_counter()
by_colour = pk.KMeans(k=8, init=start, tol=0, weight="count").fit(colours, ["r", "g", "b"])
end = time.perf_counter()
assert by_colour.n_iter == by_pixel.n_iter
assert by_colour.inertia == by_pixel.inertia
assert by_colour.centroids.select("r", "g", "b").equals(by_pixel.centroids.select("r", "g", "b"))
print(f"{by_pixel.n_iter} iterations: {1e3 * (middle - begin):.0f} ms by pixel, {1e3 * (end - middle):.0f} by colour\n")

# %%
# The palette. Sizes count rows, whatever their weights, so take the sizes of the fit over pixels.
palette = by_pixel.centroids.select("cluster", "size", pl.col("r", "g", "b").round().cast(pl.UInt8))
for _, size, r, g, b in palette.sort("size", descending=True).iter_rows():
    print(f"#{r:02x}{g:02x}{b:02x} {size / pixels.height:6.1%}")
assert palette["size"].sum() == pixels.height
assert by_colour.centroids["size"].sum() == colours.height

# %%
# Every pixel gets the colour of its cluster.
labels = pixels.select(by_pixel.predict())
painted = labels.join(palette, on="cluster", how="left", maintain_order="left").select("r", "g", "b")
assert painted.n_unique() == 8
if len(sys.argv) > 1:
    Image.fromarray(painted.to_numpy().reshape(height, width, 3)).save(sys.argv[1])
