"""
Vectors in one column
=====================

1,797 handwritten digits of 64 pixels each, clustered without knowing the true digits.

Embeddings from any source are clustered in the same way: in an Array column, or a List column of one width.
"""

from __future__ import annotations

import sys

import polars as pl
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

import polars_kmeans as pk

bunch = load_digits()
digits = pl.DataFrame(
    {"pixels": bunch.data, "digit": bunch.target},
    schema={"pixels": pl.Array(pl.Float32, 64), "digit": pl.UInt8},
)

# %%
# k-means finds a local optimum. Of ten starts, the fit with the least inertia is kept.
model = pk.KMeans(k=10, n_init=10, seed=1).fit(digits, "pixels")
assert model.inertia < pk.KMeans(k=10, n_init=1, seed=1).fit(digits, "pixels").inertia

# %%
# A centroid is a digit too. Its column has the same name and type, so it can be searched, joined or drawn.
assert model.centroids.schema["pixels"] == digits.schema["pixels"] == pl.Array(pl.Float32, 64)
shades = " .:-=+*#%@"
first = model.centroids["pixels"][0].to_list()
print("centroid 0:")
for row in range(8):
    print("  " + "".join(2 * shades[int(value / 16 * 9)] for value in first[8 * row : 8 * row + 8]))

# %%
# Label every digit, and measure its squared distance to all ten centroids. The label is the nearest of them.
digits = digits.with_columns(model.predict(), model.transform(squared=True))
assert digits.schema["squared_distances"] == pl.Array(pl.Float64, 10)
assert digits["squared_distances"].arr.arg_min().equals(digits["cluster"])
inertia = digits["squared_distances"].arr.min().sum()
assert abs(inertia / model.inertia - 1) < 1e-9

# %%
# How far do clusters and true digits agree? Name each cluster after its most frequent digit, then count.
clusters = (
    digits.group_by("cluster")
    .agg(
        pl.len(),
        pl.col("digit").mode().sort().first().alias("named"),
        pl.col("digit").unique_counts().max().alias("right"),
    )
    .sort("cluster")
)
purity = clusters["right"].sum() / digits.height
rand = adjusted_rand_score(digits["digit"], digits["cluster"])
with pl.Config(tbl_rows=10):
    print(clusters)
print(f"{purity:.1%} of the digits are in a cluster named after them; adjusted Rand index {rand:.3f}")
assert purity > 0.75 and rand > 0.6

# %%
# Give a path to draw the ten centroids: `python examples/03_embeddings.py centroids.png`
if len(sys.argv) > 1:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 5, figsize=(8, 3.8), layout="constrained")
    for panel, pixels, (label, size, named, _) in zip(
        panels.flat, model.centroids["pixels"], clusters.rows(), strict=True
    ):
        panel.imshow(pixels.reshape((8, 8)).to_numpy(), cmap="gray_r")
        panel.set_title(f"cluster {label}: {size} rows,\nmostly {named}", fontsize=9)
        panel.set_axis_off()
    figure.savefig(sys.argv[1], dpi=120)
