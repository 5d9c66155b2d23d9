"""How often each measure of choose_k finds the number of clusters that a data set was made with.

    python benches/choosing_k.py [--sets 100]

Each line is a kind of data, and the share of data sets for which each rule names the right number. The elbow is the k
whose inertia lies farthest below the line from the first to the last (Satopää et al. 2011): once with k from 1, and
once with k from 2.
"""

import argparse

import numpy as np
import polars as pl

import polars_kmeans as pk

KS = range(1, 13)
# Rows, features, clusters, least distance of centres in standard deviations, and the shape of the clusters.
KINDS = {
    "2 features, 5 clusters, far apart": (1000, 2, 5, 8, "equal"),
    "2 features, 5 clusters, that touch": (1000, 2, 5, 5, "equal"),
    "10 features, 8 clusters, that touch": (1000, 10, 8, 5, "equal"),
    "10 features, 8 clusters, that overlap": (1000, 10, 8, 3.5, "equal"),
    "2 features, 5 clusters of different sizes and widths": (1000, 2, 5, 8, "uneven"),
    "2 features, 5 clusters, stretched": (1000, 2, 5, 12, "stretched"),
    "2 features, 1 cluster": (1000, 2, 1, 0, "equal"),
}


def made(rng: np.random.Generator, rows: int, d: int, k: int, apart: float, shape: str) -> pl.DataFrame:
    """Make clusters whose centres are at least `apart` from each other, and seldom much more."""
    centres = np.zeros((1, d))
    while len(centres) < k:
        direction = rng.normal(size=d)
        start = centres[rng.integers(len(centres))]
        new = start + apart * rng.uniform(1, 1.3) * direction / np.linalg.norm(direction)
        if np.linalg.norm(centres - new, axis=1).min() >= apart:
            centres = np.vstack([centres, new])
    shares = rng.dirichlet(np.full(k, 3.0)) if shape == "uneven" else np.full(k, 1 / k)
    widths = rng.uniform(0.5, 1.5, size=k) if shape == "uneven" else np.ones(k)
    label = rng.choice(k, size=rows, p=shares)
    noise = widths[label, None] * rng.normal(size=(rows, d))
    if shape == "stretched":
        ways = rng.normal(size=(k, d))
        ways /= np.linalg.norm(ways, axis=1, keepdims=True)
        noise += 2 * ways[label] * rng.normal(size=(rows, 1))
    return pl.DataFrame(centres[label] + noise)


def elbow(k: np.ndarray, inertia: np.ndarray) -> int:
    """Return the k whose inertia lies farthest below the line from the first to the last."""
    across = (k - k[0]) / (k[-1] - k[0])
    down = (inertia - inertia[-1]) / (inertia[0] - inertia[-1])
    return int(k[np.argmax(1 - across - down)])


def chosen(found: pl.DataFrame) -> dict[str, int]:
    """Return the k that each rule names."""
    k = found["k"]
    return {
        "silhouette": k[found["silhouette"].arg_max()],
        "calinski_harabasz": k[found["calinski_harabasz"].arg_max()],
        "davies_bouldin": k[found["davies_bouldin"].arg_min()],
        "bic": k[found["bic"].arg_min()],
        "elbow": elbow(k.to_numpy().astype(float), found["inertia"].to_numpy()),
        "elbow from 2": elbow(k.to_numpy().astype(float)[1:], found["inertia"].to_numpy()[1:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=100)
    sets = parser.parse_args().sets
    lines = []
    for kind, (rows, d, k, apart, shape) in KINDS.items():
        rng = np.random.default_rng(17)
        frames = (made(rng, rows, d, k, apart, shape) for _ in range(sets))
        names = [chosen(pk.choose_k(frame, pl.all(), k=KS, n_init=5)) for frame in frames]
        lines.append({"data": kind} | {rule: sum(name[rule] == k for name in names) / sets for rule in names[0]})
    with pl.Config(
        tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True, tbl_width_chars=140, fmt_str_lengths=60
    ):
        print(pl.DataFrame(lines))


if __name__ == "__main__":
    main()
