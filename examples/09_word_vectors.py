"""
Words by meaning
================

Token vectors of a language model, clustered by the angle between them (spherical k-means).

The vectors come with the package wordllama: `pip install --no-deps wordllama`. Its files are read directly, because
importing it needs more packages.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl

import polars_kmeans as pk

K = 500


def read_words() -> pl.DataFrame:
    """The whole words of the vocabulary, with their vectors."""
    spec = find_spec("wordllama")
    if spec is None or spec.origin is None:
        print("skipped: the wordllama package is not installed")
        sys.exit()
    folder = Path(spec.origin).parent
    tokens = json.loads((folder / "tokenizers" / "l2_supercat_tokenizer_config.json").read_text())["model"]["vocab"]
    content = (folder / "weights" / "l2_supercat_256.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    (table,) = (value for name, value in json.loads(content[8:start]).items() if name != "__metadata__")
    assert table["dtype"] == "F16"
    vectors = np.frombuffer(content, "<f2", offset=start + table["data_offsets"][0]).reshape(table["shape"])
    words = pl.DataFrame({"word": list(tokens), "token": list(tokens.values())})
    # A token that starts a word begins with a mark. Fragments and signs say little alone.
    words = words.with_columns(pl.col("word").str.strip_prefix("▁"), starts=pl.col("word").str.starts_with("▁"))
    words = words.filter("starts", pl.col("word").str.contains("^[A-Za-z]{3,}$"))
    return words.select("word", vector=pl.Series(vectors[words["token"].to_numpy()].astype(np.float32)))


words = read_words()
print(f"{words.height:,} words, {words.schema['vector']}")

# %%
# Only directions count: frequent words have longer vectors, which would make clusters of frequent words otherwise.
start = time.perf_counter()
model = pk.KMeans(k=K, seed=1, metric="cosine").fit(words, "vector")
print(f"{K} clusters in {time.perf_counter() - start:.1f} s, {model.n_iter} iterations")

# %%
# Distances are chords of the unit sphere: distance^2 = 2 - 2 cos(angle). So cosine similarity is 1 - distance^2 / 2.
words = words.with_columns(model.predict(output="struct")).unnest("cluster")
words = words.with_columns(cosine=1 - pl.col("distance") ** 2 / 2)
centroids = model.centroids.select("cluster", "size", centroid="vector")
unit = words.select(pl.col("vector").cast(pl.Array(pl.Float64, 256))).to_series().to_numpy()
unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
own = centroids["centroid"].to_numpy().astype(np.float64)[words["cluster"].to_numpy()]
assert np.allclose((unit * own).sum(axis=1), words["cosine"].to_numpy(), atol=1e-6)

# %%
# The words nearest to the centroid of the cluster of some words.
for word in ["Monday", "blue", "seven", "France", "doctor", "guitar", "river", "software"]:
    cluster = words.filter(word=word)["cluster"]
    if len(cluster):
        nearest = words.filter(cluster=cluster[0]).sort("cosine", descending=True)["word"].head(12)
        print(f"{word:>10}: {' '.join(nearest)}")

# %%
# The longest vectors do not matter: words in other sizes get the same labels.
longer = words.select("word", "cluster", vector=pl.col("vector").cast(pl.Array(pl.Float32, 256)) * 4)
assert longer.select(model.predict()).to_series().equals(words["cluster"], check_names=False)

# %%
# Give a path to draw some clusters, in their two main directions: `python examples/09_word_vectors.py words.png`
if len(sys.argv) > 1:
    import matplotlib.pyplot as plt

    shown = ["Monday", "blue", "France", "guitar", "river"]
    own_words = [
        words.with_row_index().filter(cluster=words.filter(word=word)["cluster"][0]).top_k(6, by="cosine")
        for word in shown
    ]
    some = pl.concat(own_words)
    points = unit[some["index"].to_numpy()]
    points = points - points.mean(axis=0)
    plane = points @ np.linalg.svd(points, full_matrices=False)[2][:2].T
    figure, panel = plt.subplots(figsize=(9, 6), layout="constrained")
    colours = some["cluster"].rank("dense").to_numpy()
    panel.scatter(*plane.T, c=colours, cmap="tab10", s=15)
    for word, (x, y) in zip(some["word"], plane, strict=True):
        panel.annotate(word, (x, y), xytext=(3, 3), textcoords="offset points", fontsize=8)
    panel.set_axis_off()
    panel.set_title("The middle of five clusters")
    figure.savefig(sys.argv[1], dpi=120)
