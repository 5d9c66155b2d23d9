"""Many small fits: 10,000 groups of 200 rows x 4 columns, k = 3, beside scikit-learn in a loop and beside one fit.

`python benches/groups.py [--json]`. Every fit starts from k-means++ (one restart); inertia is summed over the groups.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import polars as pl
from sklearn.cluster import KMeans

import polars_kmeans as pk

GROUPS, ROWS, D, K = 10_000, 200, 4, 3
COLUMNS = list("abcd")


def seconds(work: Callable[[], object], rounds: int = 5) -> float:
    def once() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return statistics.median(once() for _ in range(rounds))


def main() -> None:
    rng = np.random.default_rng(0)
    centres = rng.uniform(-10, 10, (GROUPS, K, D))
    blob = rng.integers(0, K, (GROUPS, ROWS))
    x = (centres[np.arange(GROUPS)[:, None], blob] + rng.normal(0, 1, (GROUPS, ROWS, D))).astype(np.float32)
    df = pl.DataFrame(x.reshape(-1, D), schema=COLUMNS).with_columns(g=pl.Series(np.repeat(np.arange(GROUPS), ROWS)))
    expr = {"k": K, "init": "k-means++"}

    frames = df.group_by("g").agg(pk.centroids(*COLUMNS, **expr)).explode("centroids").unnest("centroids")
    inertia = {"ours": frames["inertia"].sum(), "scikit-learn": 0.0}

    def loop() -> None:
        inertia["scikit-learn"] = sum(KMeans(K, n_init=1, random_state=0).fit(rows).inertia_ for rows in x)

    times = {
        ("labels, .over", "ours"): seconds(lambda: df.select(pk.kmeans(*COLUMNS, **expr).over("g"))),
        ("labels, group_by", "ours"): seconds(lambda: df.group_by("g").agg(pk.kmeans(*COLUMNS, **expr))),
        ("centroids, group_by", "ours"): seconds(lambda: df.group_by("g").agg(pk.centroids(*COLUMNS, **expr))),
        ("labels, one fit of all rows", "ours"): seconds(lambda: df.select(pk.kmeans(*COLUMNS, **expr))),
        ("scikit-learn, in a loop over the groups", "sklearn"): seconds(loop, rounds=1),
    }
    for (what, system), time_ in times.items():
        if "--json" in sys.argv:
            row = {"shape": f"{GROUPS:,} x ({ROWS} x {D} x {K})", "kind": what, "system": system, "fit_ms": 1e3 * time_}
            print(json.dumps(row), flush=True)
        else:
            print(f"{what:<40}{time_:8.3f} s{1e6 * time_ / GROUPS:10.1f} us a group")
    if "--json" not in sys.argv:
        print(f"inertia: {inertia}")


if __name__ == "__main__":
    main()
