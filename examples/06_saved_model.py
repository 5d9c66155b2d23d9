"""
A saved model is a table
========================

A model is saved as a Parquet file, which can be read and used without polars-kmeans.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import polars as pl
from sklearn.datasets import load_iris

import polars_kmeans as pk

bunch = load_iris()
features = ["sepal_length", "sepal_width", "petal_length", "petal_width"]
flowers = pl.DataFrame(bunch.data, schema=features).sample(fraction=1, shuffle=True, seed=1)
known, new = flowers[:100], flowers[100:]

model = pk.KMeans(k=3, n_init=10, seed=1, scale="standard").fit(known, features)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "iris.parquet"
    model.save(path)
    print(f"{path.stat().st_size:,} bytes")
    table = pl.read_parquet(path)
    metadata = json.loads(pl.read_parquet_metadata(path)["polars-kmeans"])
    loaded = pk.KMeansModel.load(path)

# %%
# The table is the centroid frame, in centimetres. The metadata say how the fit was made, and by which factors it scaled
# the columns. (The file also has the model as bytes with a checksum, which `load` reads.)
print(table)
print({name: metadata[name] for name in ("creator", "n_iter", "inertia")})
print(metadata["parameters"])
assert table.equals(model.centroids)
assert metadata["inertia"] == model.inertia
assert metadata["parameters"]["n_init"] == 10
factors = dict(zip(features, metadata["scaling"]["factors"], strict=True))
assert factors == model.factors

# %%
# Label new rows with plain Polars: compute the squared distances of scaled values to every centroid, then take the
# position of the least. A model that does not scale has no factors, which counts as 1.
distances = [
    pl.sum_horizontal(((pl.col(name) - centroid[name]) * factors[name]) ** 2 for name in features)
    for centroid in table.iter_rows(named=True)
]
known = pl.all_horizontal(pl.col(features).is_finite())
plain = new.select(cluster=pl.when(known).then(pl.concat_list(distances).list.arg_min()))

# %%
# The loaded model gives the same labels. (If a row were almost equally far from two centroids, rounding could change
# the label above. `predict` is exact, and gives a tie to the smaller label.)
labels = new.select(loaded.predict())
assert labels.equals(plain)
assert labels.equals(new.select(model.predict()))  # saving loses no bit
print(labels["cluster"].value_counts(sort=True))

# %%
# Give a path to draw the new flowers: `python examples/06_saved_model.py flowers.png`
if len(sys.argv) > 1:
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(7, 4), layout="constrained")
    panel.scatter(new["petal_length"], new["petal_width"], c=labels["cluster"], s=30)
    panel.scatter("petal_length", "petal_width", data=table, marker="x", s=90, c="black", label="centroids in the file")
    panel.set(xlabel="petal length, cm", ylabel="petal width, cm", title="50 new flowers, labelled by the saved model")
    panel.legend(frameon=False)
    panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(sys.argv[1], dpi=120)
