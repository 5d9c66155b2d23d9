"""
A balanced sample of a vocabulary
=================================

Random samples of a large collection repeat what is common: forms of names, suffixes, digits. A tree of clusters gives a
sample that covers the whole collection: an equal part of each branch (Vo et al. 2024, "Automatic data curation for
self-supervised learning: a clustering-based approach").

The collection is the vocabulary of a language model: 32,000 token vectors of the package wordllama
(`pip install --no-deps wordllama`). Its files are read directly, because importing it needs more packages.

Give a path to draw the sample: `python examples/14_vocabulary.py vocabulary.png`.
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

# %%
# Each row has a token and its vector. A mark stands for the space before a word.
spec = find_spec("wordllama")
if spec is None or spec.origin is None:
    print("skipped: the wordllama package is not installed")
    sys.exit()
folder = Path(spec.origin).parent
content = (folder / "weights" / "l2_supercat_256.safetensors").read_bytes()
start = 8 + int.from_bytes(content[:8], "little")
(table,) = (value for name, value in json.loads(content[8:start]).items() if name != "__metadata__")
values = np.frombuffer(content, "<f2", offset=start + table["data_offsets"][0]).reshape(table["shape"])
names = json.loads((folder / "tokenizers" / "l2_supercat_tokenizer_config.json").read_text())["model"]["vocab"]
tokens = pl.DataFrame({"token": sorted(names, key=names.__getitem__), "vector": values.astype(np.float32)})
tokens = tokens.with_columns(pl.col("token").str.replace_all("▁", "_"))
print(f"{tokens.height:,} tokens, {tokens.schema['vector']}")

# %%
# Two levels: 24 branches, and up to 40 leaves in each. `sort_by="size"` numbers the children of a node by size.
began = time.perf_counter()
estimator = pk.HierarchicalKMeans(levels=[24, 40], metric="cosine", seed=2, sort_by="size")
tree = estimator.fit(tokens, "vector")
print(f"{tree} in {time.perf_counter() - began:.1f} s")
nodes = tree.nodes.drop("vector")
print(nodes.filter(pl.col("level") == 1).select("node", "path", "size", "inertia").head(5))
assert tree.n_leaves > 900 and nodes["size"][0] == tokens.height

# %%
# The words of a node: those nearest to its centroid. `cut(1)` is a flat model of the branches, in the order of their
# nodes.
branches = tree.cut(1)
for (branch,), words in branches.nearest(tokens, 8).group_by("cluster", maintain_order=True):
    if branch % 4 == 0:
        print(f"node {1 + branch:>2}: {' '.join(words['token'])}")

# %%
# `path` gives the node of each row on each level. The words of a leaf, from its centroid outwards, are what is near.
tokens = tokens.with_columns(tree.predict(), tree.path()).unnest("path")
nearest = tree.flat.nearest(tokens.select("token", "vector"), 12)
for word in ["_music", "_German", "_church", "_software"]:
    leaf = tokens.filter(pl.col("token") == word)["cluster"][0]
    print(f"{word:>8}: {' '.join(nearest.filter(pl.col('cluster') == leaf)['token'])}")
assert tokens["level_1"].is_between(1, 24).all() and (tokens["level_2"] > 24).sum() > 30_000

# %%
# The sample: as many tokens of every branch, and in a branch as many of every leaf. In turn, each leaf gives one more
# token, and each branch takes turns of its leaves, so small leaves give all they have.
SIZE = 3_000
turns = (
    tokens.sample(fraction=1, shuffle=True, seed=3)
    .with_columns(turn=pl.int_range(pl.len()).over("cluster"))
    .sort("turn", maintain_order=True)
    .with_columns(place=pl.int_range(pl.len()).over("level_1"))
    .sort("place", maintain_order=True)
)
sample, random = turns.head(SIZE), tokens.sample(SIZE, seed=3)


def missed(rows: pl.DataFrame) -> int:
    """The leaves of which no row was drawn."""
    return tree.n_leaves - rows["cluster"].n_unique()


table = pl.DataFrame(
    {
        "sample": ["random", "balanced"],
        "fewest of a branch": [rows["level_1"].value_counts()["count"].min() for rows in (random, sample)],
        "most of a branch": [rows["level_1"].value_counts()["count"].max() for rows in (random, sample)],
        "leaves missed": [missed(rows) for rows in (random, sample)],
    }
)
print(table)
assert missed(sample) < missed(random) / 2
assert table["most of a branch"][1] - table["fewest of a branch"][1] <= 1

# %%
# Rows of the fit get their own leaf by a descent. The nearest of all leaves may lie in another branch.
exact = tree.predict(tokens, "vector", search="exact")
print(f"{(exact != tokens['cluster']).mean():.0%} of the tokens are nearer to a leaf of another branch or node")
assert tree.score(tokens, "vector", search="exact") > tree.score(tokens, "vector")

# %%
# Tokens of each branch in both samples.
if len(sys.argv) > 1:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(8, 3.2), layout="constrained")
    for shift, (label, rows) in enumerate({"random": random, "balanced": sample}.items()):
        counts = rows.group_by("level_1").len().sort("level_1")
        panel.bar(counts["level_1"] + 0.4 * shift, counts["len"], width=0.4, label=label)
    panel.set(xlabel="branch", ylabel="tokens in the sample")
    panel.legend(frameon=False)
    panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(sys.argv[1], dpi=120)
