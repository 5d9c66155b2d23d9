"""What Ray costs: a fit in one process beside the same fit on two workers of one machine.

    python benches/parts.py [rows] [features] [clusters]

Prints the seconds of both, and the time of a message. The models must be equal.
"""

import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import ray

import polars_kmeans as pk


def timed(fit: Callable[[], pk.KMeansModel]) -> tuple[pk.KMeansModel, float]:
    start = time.perf_counter()
    return fit(), time.perf_counter() - start


def main(rows: int, features: int, clusters: int) -> None:
    random = np.random.default_rng(0)
    ray.init(num_cpus=3, include_dashboard=False, logging_level="error", log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        for part in range(2):
            columns = {f"x{f}": random.normal(size=rows // 2).astype("f4") for f in range(features)}
            pl.DataFrame(columns).write_parquet(Path(folder) / f"{part}.parquet", row_group_size=rows // 16)
        for init in ("kmeans-parallel", "k-means++"):
            parameters = {"k": clusters, "init": init, "seed": 1, "max_iter": 20, "tol": 0.0}
            scan = pl.scan_parquet(f"{folder}/*.parquet")
            one, alone = timed(lambda p=parameters, scan=scan: pk.KMeans(**p).fit(scan, pl.all()))
            two, on_ray = timed(lambda p=parameters: pk.ray.KMeans(**p).fit(folder, pl.all(), num_workers=2))
            assert one == two
            print(f"{init}: one process {alone:.2f} s {one.seconds}, two workers {on_ray:.2f} s {two.seconds}")
    small = pl.DataFrame({"x": np.arange(1_000.0) ** 2 % 97})
    messages = 0
    ask = pk.ray._ask

    def counted(*call: object) -> list[bytes]:
        nonlocal messages
        messages += 1
        return ask(*call)

    pk.ray._ask = counted
    for workers in (1, 2):
        messages = 0
        model = pk.ray.KMeans(40, max_iter=100, tol=0).fit(small, "x", num_workers=workers)
        seconds = model.seconds["seeding"] + model.seconds["iterations"]
        print(f"{workers} workers: {messages} messages, {1e3 * seconds / messages:.2f} ms each")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    given = [int(argument) for argument in sys.argv[1:]]
    main(*(given + [2_000_000, 8, 50][len(given) :]))
