"""Fits on the CPU shapes beside scikit-learn: same data, same starting centroids, same number of iterations, one run.

Each (shape, system) runs in a process of its own, so that one library's threads do not sit in another's way.
Time and inertia are reported together: a fast fit that ends elsewhere is not a faster one.
With `--default`, each system starts and stops as it does by default: it gets the number of clusters and a seed.
Further peers (faiss, sklearnex, superkmeans) take part where they are installed and named: `peers.py --with faiss`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

# What gives the centroids and the labels (some systems give none), which is not timed, and the number of iterations.
Found = tuple[Callable[[], np.ndarray], Callable[[], np.ndarray] | None, int]
Fit = Callable[[], Found]
# Rows whose labels are checked.
SAMPLE = 65_536

SHAPES = {  # rows, features, clusters, iterations
    "tiny": (500, 2, 4, 20),
    "small": (5_000, 20, 16, 50),
    "lutz-k4": (4_194_304, 4, 4, 10),
    "li-kdd": (494_080, 34, 32, 30),
    "kmcuda": (30_000, 408, 500, 15),
    "blog-1000": (1_000_000, 2, 1000, 10),
    "256-1000": (50_000, 256, 1000, 15),
    "256-64": (32_000, 256, 64, 20),
    "32-256": (200_000, 32, 256, 20),
    "768-100": (100_000, 768, 100, 15),
    "1200-60": (10_000, 1_200, 60, 20),
    "1500-40": (8_000, 1_500, 40, 12),
    "768-20": (8_000, 768, 20, 12),
    "3-2000": (2_000_000, 3, 2_000, 8),
    "8-16": (1_000_000, 8, 16, 20),
    "8-100": (1_000_000, 8, 100, 20),
}


def blobs(rng: np.random.Generator, n: int, d: int, count: int = 10) -> np.ndarray:
    """Normal blobs, ten of them as in Lutz et al. 2018, section 6.1."""
    centres = rng.uniform(-100, 100, (count, d))
    x = np.empty((n, d), np.float32)
    for start in range(0, n, 1 << 20):
        end = min(n, start + (1 << 20))
        x[start:end] = rng.normal(0, 10, (end - start, d)) + centres[rng.integers(0, count, end - start)]
    return x


def lognormal(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Heavy tails, and columns with scales of 1 to 1,000."""
    return (rng.lognormal(0, 1, (n, d)) * 10 ** rng.uniform(0, 3, d)).astype(np.float32)


def tokens(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """The first d of 256 features of the first n of 32,000 token vectors, which the package `wordllama` ships."""
    from importlib.util import find_spec
    from pathlib import Path

    package = find_spec("wordllama")
    if package is None or package.origin is None:
        raise SystemExit("tokens: expected the package wordllama, found none")
    file = Path(package.origin).parent / "weights" / "l2_supercat_256.safetensors"
    data = file.read_bytes()
    header = int.from_bytes(data[:8], "little")
    (tensor,) = (value for name, value in json.loads(data[8 : 8 + header]).items() if name != "__metadata__")
    start, end = tensor["data_offsets"]
    x = np.frombuffer(data[8 + header + start : 8 + header + end], np.float16).reshape(tensor["shape"])
    return np.ascontiguousarray(x[:n, :d].astype(np.float32))


def clusters(count: int) -> Callable[[np.random.Generator, int, int], np.ndarray]:
    """So many natural clusters, as far apart as the ten blobs."""
    return lambda rng, n, d: blobs(rng, n, d, count)


def nested(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Ten clusters of thirty clusters each."""
    centres = np.repeat(rng.uniform(-100, 100, (10, d)), 30, axis=0) + rng.normal(0, 20, (300, d))
    return (centres[rng.integers(0, 300, n)] + rng.normal(0, 3, (n, d))).astype(np.float32)


KINDS = {
    "blobs": blobs,
    "clusters-100": clusters(100),
    "clusters-1000": clusters(1_000),
    "nested": nested,
    "tokens": tokens,
    "uniform": lambda rng, n, d: rng.random((n, d), np.float32),
    "lognormal": lognormal,
    "ties": lambda rng, n, d: rng.integers(0, 4, (n, d)).astype(np.float32),
}


def generate(n: int, d: int, k: int, kind: str = "blobs") -> tuple[np.ndarray, np.ndarray]:
    """Rows of a kind, and k of them to start from."""
    rng = np.random.default_rng(n + d)
    x = KINDS[kind](rng, n, d)
    return x, x[rng.choice(len(x), k, replace=False)].copy()


def ours(x: np.ndarray, k: int, start: np.ndarray | None, iterations: int) -> Fit:
    import polars as pl

    import polars_kmeans as pk

    names = [f"f{f}" for f in range(x.shape[1])]
    df = pl.DataFrame([pl.Series(name, np.ascontiguousarray(x[:, f])) for f, name in enumerate(names)])

    def fit() -> Found:
        given = {"seed": 0} if start is None else {"init": start, "max_iter": iterations, "tol": 0}
        model = pk.KMeans(k=k, device="cpu", **given).fit(df, names)

        def labels() -> np.ndarray:
            return df.select(model.predict()).to_series().to_numpy()

        return lambda: model.centroids.select(names).to_numpy(), labels, model.n_iter

    return fit


def as_scikit_learn(start: np.ndarray | None, iterations: int) -> dict[str, Any]:
    """Parameters in scikit-learn's names."""
    if start is None:
        return {"random_state": 0}
    return {"init": start, "n_init": 1, "max_iter": iterations, "tol": 0, "algorithm": "lloyd"}


def sklearn(x: np.ndarray, k: int, start: np.ndarray | None, iterations: int) -> Fit:
    from sklearn.cluster import KMeans

    def fit() -> Found:
        model = KMeans(k, **as_scikit_learn(start, iterations)).fit(x)
        return lambda: model.cluster_centers_, lambda: model.labels_, model.n_iter_

    return fit


def sklearnex(x: np.ndarray, k: int, start: np.ndarray | None, iterations: int) -> Fit:
    from sklearnex.cluster import KMeans

    def fit() -> Found:
        model = KMeans(k, **as_scikit_learn(start, iterations)).fit(x)
        return lambda: model.cluster_centers_, lambda: model.labels_, model.n_iter_

    return fit


def faiss(x: np.ndarray, k: int, start: np.ndarray | None, iterations: int) -> Fit:
    import faiss

    def fit() -> Found:
        if start is None:
            model = faiss.Kmeans(x.shape[1], k)
            model.train(x)
            return lambda: model.centroids, lambda: model.assign(x)[1], model.cp.niter
        model = faiss.Kmeans(
            x.shape[1], k, niter=iterations, min_points_per_centroid=1, max_points_per_centroid=1 << 30
        )
        model.train(x, init_centroids=start)
        # faiss stops early if nothing improves.
        return lambda: model.centroids, lambda: model.assign(x)[1], len(model.iteration_stats)

    return fit


def superkmeans(x: np.ndarray, k: int, start: np.ndarray | None, iterations: int) -> Fit:
    """It is approximate, and takes no starting centroids."""
    from superkmeans import SuperKMeans

    def fit() -> Found:
        if start is None:
            model = SuperKMeans(k, x.shape[1])
            centroids = model.train(x)
            return lambda: np.asarray(centroids), None, 1
        model = SuperKMeans(
            k,
            x.shape[1],
            iters=iterations,
            sampling_fraction=1.0,
            max_points_per_cluster=1 << 30,
            hierarchical=False,
            early_termination=False,
        )
        centroids = model.train(x)
        return lambda: np.asarray(centroids), None, iterations

    return fit


# Limits all systems to AVX2, as far as they have a switch. oneDAL takes AVX2 on processors of AMD.
AVX2 = {
    "POLARS_KMEANS_INSTRUCTIONS": "avx2",
    "OPENBLAS_CORETYPE": "Haswell",
    "FAISS_SIMD_LEVEL": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
}

SYSTEMS = {"ours": ours, "sklearn": sklearn, "sklearnex": sklearnex, "faiss": faiss, "superkmeans": superkmeans}


def check(x: np.ndarray, centroids: np.ndarray, labels: np.ndarray | None) -> dict[str, float | None]:
    """Return the inertia of all rows, and the share of a sample whose label is not a float64 argmin."""
    centroids = centroids.astype(np.float64)

    def products(rows: np.ndarray) -> np.ndarray:
        return (rows**2).sum(1)[:, None] - 2 * rows @ centroids.T + (centroids**2).sum(1)

    parts = np.array_split(x, max(1, x.shape[0] * len(centroids) // 20_000_000))
    inertia = sum(products(rows.astype(np.float64)).min(1).sum() for rows in parts)
    if labels is None:
        return {"inertia": inertia, "wrong": None}
    sample = np.random.default_rng(7).choice(len(x), min(SAMPLE, len(x)), replace=False)
    wrong = 0
    for some in np.array_split(sample, max(1, len(sample) * len(centroids) // 20_000_000)):
        rows, own, every = x[some].astype(np.float64), labels[some], np.arange(len(some))
        squares = products(rows)
        # Rows whose label is ahead of all others by more than products round are right. Others are looked at closely.
        rounding = 1e-14 * x.shape[1] * ((rows**2).sum(1) + (centroids**2).sum(1).max())
        mine = squares[every, own]
        squares[every, own] = np.inf
        close = np.flatnonzero(mine > squares.min(1) - rounding)
        for few in np.array_split(close, max(1, len(close) * centroids.size // 50_000_000)):
            exact = np.stack([((rows[few] - c) ** 2).sum(1) for c in centroids], 1)
            # Within the rounding of these distances, a label is as good as the nearest.
            wrong += (exact[np.arange(len(few)), own[few]] > exact.min(1) * (1 + 1e-12)).sum()
    return {"inertia": inertia, "wrong": wrong / len(sample)}


def measure(shape: str, system: str, kind: str, default: bool) -> dict[str, Any]:
    n, d, k, iterations = SHAPES[shape]
    x, start = generate(n, d, k, kind)
    start = None if default else start
    SYSTEMS[system](x[: max(4 * k, 256)], k, start, 2)()  # threads, dispatch
    fit = SYSTEMS[system](x, k, start, iterations)
    seconds = []
    # Three fits, or as many as ten seconds hold.
    while len(seconds) < (21 if n < 10_000 else 3) and sum(seconds) < 10:
        begin = time.perf_counter()
        centroids, labels, ran = fit()
        seconds.append(time.perf_counter() - begin)
    fit_ms = 1e3 * float(np.median(seconds))
    named = {"shape": f"{len(x):,} x {d:,} x {k:,}", "kind": kind, "system": system, "iterations": int(ran)}
    found = check(x, centroids(), labels and labels())
    return {**named, "ms": fit_ms / (1 if default else int(ran)), "fit_ms": fit_ms, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--with", dest="more", nargs="*", default=[], choices=["sklearnex", "faiss", "superkmeans"])
    parser.add_argument("--kind", nargs="*", default=["blobs"], choices=KINDS, help="kinds of data")
    parser.add_argument("--default", action="store_true", help="fits that start and stop by default")
    parser.add_argument("--avx2", action="store_true", help="limit all systems to AVX2")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each fit")
    parser.add_argument("--one", nargs=2, metavar=("SHAPE", "SYSTEM"), help="measure in this process")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*args.one, args.kind[0], args.default)))
        return
    if not args.json:
        print(
            f"{'shape':<24}{'kind':<15}{'system':<13}{'fit, ms':>10}{'iterations':>12}{'ms/iter':>10}{'inertia':>16}"
            f"{'wrong':>9}{'ours / it':>11}"
        )
    for shape, kind in itertools.product(args.only, args.kind):
        base = None
        for system in ["ours", "sklearn", *args.more]:
            command = [sys.executable, __file__, "--kind", kind, "--one", shape, system]
            command += ["--default"] if args.default else []
            limits = AVX2 if args.avx2 else {}
            run = subprocess.run(command, capture_output=True, text=True, env=os.environ | limits)
            if run.returncode != 0:
                print(f"{shape:<11}{system:<11}{(run.stderr.strip().splitlines() or ['?'])[-1]}", file=sys.stderr)
                continue
            r = json.loads(run.stdout.splitlines()[-1])
            base = base or r["ms"]
            wrong = "-" if r["wrong"] is None else f"{r['wrong']:.2%}"
            row = f"{r['shape']:<24}{kind:<15}{system:<13}{r['fit_ms']:>10.3f}{r['iterations']:>12}{r['ms']:>10.3f}"
            row += f"{r['inertia']:>16.8g}{wrong:>9}{base / r['ms']:>11.2f}"
            print(json.dumps(r) if args.json else row, flush=True)


if __name__ == "__main__":
    main()
