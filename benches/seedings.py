"""Inertia of every seeding, beside scikit-learn's k-means++: the median over some seeds, after the loop and before it.

    python benches/seedings.py [--data digits blobs vectors prices] [--k 10 100 1000] [--seeds 20] [--times]

`vectors` needs the package wordllama (32,000 token vectors of 256 numbers), `digits` and the peer need scikit-learn. `--times`
times each seeding on 200,000 x 64 into 1000, on the CPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from pathlib import Path

import numpy as np
import polars as pl

import polars_kmeans as pk

SEEDINGS = {
    "k-means++": {"init": "k-means++"},
    "kmeans-parallel": {"init": "kmeans-parallel"},
    "afk-mc2": {"init": "afk-mc2"},
    "k-means++ of a sample": {"init": "k-means++", "init_sample": 10_000},
    "random": {"init": "random", "n_init": 1},
}
CLUSTERS = {"digits": (10, 100), "blobs": (100, 1000), "vectors": (100, 1000), "prices": (4, 20)}


def blobs(n: int, d: int, centres: int) -> np.ndarray:
    rng = np.random.default_rng(n + d)
    return (
        rng.uniform(-100, 100, (centres, d))[rng.integers(0, centres, n)] + rng.normal(0, 10, (n, d))
    ).astype(np.float32)


def vectors() -> np.ndarray | None:
    """The token vectors of wordllama, from its file: the length of a header, the header in JSON, the numbers."""
    package = importlib.util.find_spec("wordllama")
    if package is None or package.origin is None:
        return None
    content = (Path(package.origin).parent / "weights" / "l2_supercat_256.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    (entry,) = (entry for name, entry in json.loads(content[8 : 8 + length]).items() if name != "__metadata__")
    start, end = entry["data_offsets"]
    values = np.frombuffer(content[8 + length + start : 8 + length + end], np.float16)
    return values.reshape(entry["shape"]).astype(np.float32)


def load(name: str) -> np.ndarray | None:
    if name == "digits":
        from sklearn.datasets import load_digits

        return load_digits().data.astype(np.float32)
    if name == "vectors":
        return vectors()
    if name == "prices":
        return np.random.default_rng(1).lognormal(3.0, 1.2, (20_000, 1)).astype(np.float32)
    return blobs(50_000, 16, 500)


def frame(x: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame({"e": pl.Series(np.ascontiguousarray(x))})


def quality(name: str, x: np.ndarray, k: int, seeds: int) -> None:
    """Print a line for each seeding: inertia of the starting centroids and of the fit as shares of k-means++'s, and time."""
    rows, found = frame(x), {}
    options = {**SEEDINGS, "optimal": {"init": "optimal"}} if x.shape[1] == 1 else SEEDINGS
    for seeding, option in options.items():
        before, after, seconds = [], [], []
        for seed in range(1 if seeding == "optimal" else seeds):
            start = time.perf_counter()
            model = pk.KMeans(k, seed=seed, device="cpu", history="full", **option).fit(rows, "e")
            seconds.append(time.perf_counter() - start)
            before.append(model.history["inertia"][0])
            after.append(model.inertia)
        found[seeding] = before, after, seconds
    try:
        from sklearn.cluster import KMeans
    except ImportError:
        pass
    else:
        before, after, seconds = [], [], []
        for seed in range(seeds):
            start = time.perf_counter()
            model = KMeans(k, n_init=1, random_state=seed).fit(x)
            seconds.append(time.perf_counter() - start)
            before.append(float("nan"))
            after.append(model.inertia_)
        found["scikit-learn's k-means++"] = before, after, seconds
    base = statistics.median(found["k-means++"][1])
    print(f"{name}, {x.shape[0]:,} x {x.shape[1]} into {k}: inertia, where k-means++ ends at 1 ({base:.6g})")
    for seeding, (before, after, seconds) in found.items():
        start, end, slowest = statistics.median(before) / base, statistics.median(after) / base, max(after) / base
        print(
            f"  {seeding:<26} starts at {start:7.4f}, ends at {end:.4f}, at worst {slowest:.4f}, "
            f"{statistics.median(seconds):8.3f} s a fit",
            flush=True,
        )


def times() -> None:
    """Print the time of each seeding: that of one iteration after it, less that of one from given centroids."""
    x = blobs(200_000, 64, 1000)
    rows, k = frame(x), 1000

    def fit(**option: object) -> tuple[float, float]:
        start = time.perf_counter()
        model = pk.KMeans(k, max_iter=1, device="cpu", history="full", **option).fit(rows, "e")
        return time.perf_counter() - start, model.history["inertia"][0]

    given = min(fit(init=x[:k])[0] for _ in range(3))
    for seeding, option in SEEDINGS.items():
        runs = [fit(**option) for _ in range(3)]
        print(f"200,000 x 64 into 1000, {seeding:<24} {min(runs)[0] - given:7.3f} s, inertia {runs[0][1]:.6g}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=list(CLUSTERS), choices=list(CLUSTERS))
    parser.add_argument("--k", nargs="*", type=int)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--times", action="store_true")
    asked = parser.parse_args()
    if asked.times:
        return times()
    for name in asked.data:
        x = load(name)
        if x is None:
            print(f"{name}: not installed")
            continue
        for k in asked.k or CLUSTERS[name]:
            quality(name, x, k, asked.seeds)
    return None


if __name__ == "__main__":
    main()
