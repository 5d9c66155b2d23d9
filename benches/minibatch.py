"""`MiniBatchKMeans` beside scikit-learn's: seconds and inertia over 20 seeds, on token vectors and on points of a map.

`python benches/minibatch.py [--seeds 20]`. It needs scikit-learn and wordllama (`embeddings.py`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings

import numpy as np
from embeddings import read_table
from sklearn import cluster

from polars_kmeans import sklearn as ours


def town_points(n: int = 200_000, towns: int = 300) -> np.ndarray:
    """Return points around towns, of which few are large: degrees."""
    random = np.random.default_rng(0)
    centres = random.uniform([-180, -60], [180, 70], (towns, 2))
    sizes = 1 / np.arange(1, towns + 1)
    town = random.choice(towns, n, p=sizes / sizes.sum())
    return (centres[town] + random.normal(0, 0.5, (n, 2))).astype(np.float32)


def main() -> None:
    """Print a line for each system and kind of data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = range(parser.parse_args().seeds)
    tokens = np.frombuffer(read_table(), np.float16).reshape(-1, 256).astype(np.float32)
    for kind, rows in (("token vectors", tokens), ("points of a map", town_points())):
        for name, system in (("ours", ours.MiniBatchKMeans), ("scikit-learn", cluster.MiniBatchKMeans)):
            seconds, inertias = [], []
            for seed in seeds:
                begin = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    fit = system(n_clusters=100, random_state=seed, n_init=1).fit(rows)
                seconds.append(time.perf_counter() - begin)
                inertias.append(float(fit.inertia_))
            shape = f"{len(rows):,} x {rows.shape[1]} x 100"
            medians = {"ms": 1e3 * statistics.median(seconds), "inertia": statistics.median(inertias)}
            print(json.dumps({"kind": kind, "shape": shape, "system": name} | medians), flush=True)


if __name__ == "__main__":
    main()
