"""What `papers.py` runs: the claims of the five papers, and one of ours."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

GIB = 2**30


@dataclass(frozen=True)
class Run:
    """A shape, the strategies to run it by, and what the bench is told besides."""

    n: int
    d: int
    k: int
    iterations: int
    strategies: tuple[str, ...] = ("default",)
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """One claim: where it stands, what is run, what was published."""

    paper: str
    where: str
    claim: str
    runs: tuple[Run, ...]
    published: dict[str, Any] = field(default_factory=dict)
    unit: str = "ms an iteration"
    today: str = ""  # what still holds by the newest record

    def value(self, row: dict[str, Any]) -> float:
        """Put a result in the unit of what was published."""
        n, d, _, iterations = map(int, row["shape"].split("x"))
        match self.unit:
            case "s":
                return row["ms"] * iterations / 1e3
            case "s until done":
                return row["total_ms"] / 1e3
            case "GB/s":
                return 4 * n * d / row["ms"] / 1e6
            case _:
                return row["ms"]

    @property
    def name(self) -> str:
        return f"{self.paper}: {self.where}"


def lutz_rows(d: int) -> int:
    """Rows of 2 GiB."""
    return 2 * GIB // 4 // d


MULTI_AND_SINGLE = ("zechner", "lutz-features", "lutz-fused", "default")
MASSES = ("lutz-mass-atomic", "lutz-mass-global", "lutz-mass-local", "lutz-features")

# What the default chooses from, and shapes to check the choice by, evenly in the logarithms: drawn after its table was
# measured.
CANDIDATES = ("registers-single", "registers-groups", "columns", "tiled-32", "tiled-64", "tiled-128")


def drawn_shapes(count: int) -> tuple[Run, ...]:
    """Shapes of any kind that take less than a few milliseconds an iteration."""
    draw, runs = random.Random(2031), []
    while len(runs) < count:
        n, d, k = (round(math.exp(draw.uniform(math.log(low), math.log(high)))) for low, high in LIMITS)
        if k < n and n * d < 2**28 and n * d * k < 2**36:
            fitting = CANDIDATES if d <= 12 else CANDIDATES[2:]  # rows of more do not go into registers
            runs.append(Run(n, d, k, 12, ("default", *fitting)))
    return tuple(runs)


LIMITS = ((3_000, 30_000_000), (1, 600), (2, 4_000))

EXPERIMENTS = (
    Experiment(
        "choice",
        "forty shapes",
        "The default takes the fastest of its strategies, or one that is at most a tenth slower",
        drawn_shapes(40),
        today=(
            "Holds for all forty shapes. The largest loss is 6.7 %. Two runs of one strategy differ by about as much "
            "at 15 us an iteration"
        ),
    ),
    Experiment(
        "lutz",
        "figure 6",
        "Feature sums (here with labels): partitioned features beat cluster merge for k = 64 or d > 16, up to 97 times",
        tuple(
            Run(lutz_rows(d), d, k, 6, ("lutz-merge", "lutz-features")) for k in (4, 64) for d in (2, 4, 16, 64, 256)
        ),
        {"system": "GTX 1080", "best ratio": 96.7},
        today="Holds. For k = 4 it holds from 16 features on. The factor is at most 12: these times include labels",
    ),
    Experiment(
        "lutz",
        "figure 7",
        "Mass sums: private counters are best up to k = 16, in local memory from k = 128. Atomics are far behind",
        tuple(Run(lutz_rows(4), 4, k, 6, MASSES) for k in (2, 8, 16, 64, 128, 512)),
        {"system": "GTX 1080"},
        today=(
            "Atomics still cost 18 times as much at k = 2. The other three now differ little: counters in device "
            "memory cost 1.2 to 2.7 times as much up to k = 16"
        ),
    ),
    Experiment(
        "lutz",
        "figures 8 and 10",
        "d = 4: one pass is twice as fast as several up to k = 16, and slower from k = 32. CPU sums cost 19 times",
        tuple(Run(lutz_rows(4), 4, k, 6, MULTI_AND_SINGLE) for k in (4, 16, 32, 64, 128)),
        {
            "system": "GTX 1080",
            "k = 4: single pass over multi-pass": 2.0,
            "k = 4: single pass over cross-processing": 19.3,
        },
        today=(
            "One pass is no longer faster than two at k = 4, and half as fast at k = 128. Sums on 16 cores cost 307 "
            "times as much at k = 4. They take most of the time of cross-processing at every shape"
        ),
    ),
    Experiment(
        "lutz",
        "figure 11",
        "k = 4: a single pass is faster than several for d < 32, and as fast from there on",
        tuple(Run(lutz_rows(d), d, 4, 6, MULTI_AND_SINGLE) for d in (2, 8, 32, 128)),
        {"system": "GTX 1080"},
        today=(
            "Holds at 8 and 32 features, by 1.07 and 1.35 times. At 2 and 128 features one pass is slower, by 1.27 and "
            "1.16 times"
        ),
    ),
    Experiment(
        "lutz",
        "figure 13",
        "Data of any size stream at the speed of the bus: 9.8 of 12.2 GB/s, including the copy to pinned memory",
        tuple(Run(gib * GIB // 16, 4, k, 4, options=("--limit", str(2 * GIB))) for k in (4, 64) for gib in (1, 4, 16)),
        {"system": "GTX 1080, PCIe 3", "GB/s": 9.8, "GB/s at most": 12.2},
        "GB/s",
        today=(
            "Holds. Data larger than the device are processed at 55 GB/s, the speed of the bus, for k = 4 and for "
            "k = 64. At 4 GiB the rate is 89 GB/s, because a part of the rows stays on the device from pass to pass. "
            "Data that fit are read at 500 to 1,600 GB/s"
        ),
    ),
    Experiment(
        "li",
        "table 1",
        "Few features, seconds of 50 iterations: 3 to 8 times faster than HP k-means, 10 to 20 times than UV_k-Means",
        tuple(Run(n, d, k, 50, ("li", "default")) for n in (2_000_000, 4_000_000) for d in (2, 8) for k in (100, 400)),
        {
            "system": "GTX 280",
            "columns": ["Li", "HP_k-Means", "UV_k-Means", "GPUMiner"],
            "seconds of 50 iterations": {
                "2000000x2x100": [0.22, 1.45, 2.84, 61.39],
                "2000000x2x400": [0.79, 2.16, 5.96, 63.46],
                "2000000x8x100": [0.35, 2.48, 6.07, 192.05],
                "2000000x8x400": [1.23, 4.53, 16.32, 226.79],
                "4000000x2x100": [0.34, 2.88, 5.64, 130.36],
                "4000000x2x400": [1.22, 4.38, 11.94, 126.38],
                "4000000x8x100": [0.68, 4.95, 12.85, 383.41],
                "4000000x8x400": [2.26, 9.03, 34.54, 474.83],
            },
        },
        "s",
        today="Their system is 3 to 10 times as fast as on their card. The default is another 6 to 20 times as fast",
    ),
    Experiment(
        "li",
        "table 2",
        "n = 1,000,000, k = 100: hardly any difference between d = 2 and d = 6. Beyond that, registers run out",
        tuple(Run(1_000_000, d, 100, 20, ("li", "default")) for d in (2, 4, 6, 8, 10)),
        {
            "system": "GTX 280",
            "columns": ["labels", "sums"],
            "milliseconds": {
                "1000000x2x100": [72, 64],
                "1000000x4x100": [75, 63],
                "1000000x6x100": [83, 64],
                "1000000x8x100": [138, 67],
                "1000000x10x100": [405, 64],
            },
        },
        today="Holds up to d = 8: 1.02 to 1.12 ms. Labels are a small part of that",
    ),
    Experiment(
        "li",
        "table 5",
        "KDD Cup 1999 (here: rows of its shape), k = 32, 100 iterations, seconds: 4 to 8 times faster than UV_k-Means",
        (Run(51_200, 34, 32, 100, ("li", "default")), Run(494_080, 34, 32, 100, ("li", "default"))),
        {
            "system": "GTX 280",
            "columns": ["Li", "UV_k-Means", "GPUMiner", "one CPU thread"],
            "seconds of 100 iterations": {
                "51200x34x32": [0.34, 1.86, 4.26, 35.79],
                "494080x34x32": [1.15, 8.67, 40.6, 224.47],
            },
        },
        "s",
        today="Holds: 5 and 10 times as fast as on their card. The default is another 24 and 18 times as fast",
    ),
    Experiment(
        "li",
        "table 10",
        "Data 100 times larger stream through the device in parts and take 100 times as long: merging is negligible",
        (
            Run(4_000_000, 2, 100, 5),
            Run(400_000_000, 2, 100, 5, options=("--limit", str(GIB))),
        ),
        {"system": "GTX 280 (the table's figures are not in the text that we have)"},
        today="Merging is still negligible, but the bus is not: the data take 460 times as long, at the bus's speed",
    ),
    Experiment(
        "zechner",
        "figures 5, 6, 10",
        "Labels on the GPU and sums on the CPU beat the CPU from 5,000 rows on, 1.5 to 14 times, most for large data",
        tuple(
            Run(n, d, k, 20, ("cpu", "zechner", "default"))
            for n in (500, 5_000, 50_000, 500_000)
            for d in (2, 20, 200)
            for k in (2, 16, 128)
        ),
        {"system": "9600 GT beside a Core 2 Duo with SSE3", "speed-up": [1.5, 14]},
        today=(
            "Does not hold. The GPU with sums on the CPU is slower than our CPU engine on 16 cores at every shape, by "
            "1.4 to 19 times. From 5,000 rows on, these sums are half to all of its time. With sums on the GPU the "
            "speed-up reaches 46, and the CPU wins at 500 rows of up to 20 features in up to 16 clusters"
        ),
    ),
    Experiment(
        "luigi",
        "V1 to V4, K = 5, 100, 1000",
        "Two features: centroids in shared memory raise the speed-up from 35 to 100. Means on the GPU change little",
        tuple(
            Run(n, 2, k, 20, ("luigi-v1", "luigi-v2", "luigi-v3", "luigi-v4", "default"))
            for k in (5, 100, 1000)
            for n in (1_000_000, 10_000_000)
        ),
        {
            "system": "a GPU of compute capability 6 or older (nvprof)",
            "columns": ["luigi-v1", "luigi-v2"],
            "milliseconds": {"1000000x2x100": [9.7556, 9.9910 + 0.3283]},
        },
        today=(
            "Centroids in shared memory give a factor of 1.2 from K = 100 on, because caches now do most of that work. "
            "Means on the GPU give a factor of 2.6 at a million rows and K = 5, and 1.08 at ten million and K = 100"
        ),
    ),
    Experiment(
        "kmcuda",
        "Lloyd",
        "300,000 x 408 into 5,000 until at most 1 % change: 7 min 16 s by Lloyd, 4 min 38 s by Yinyang",
        (Run(300_000, 408, 5_000, 100, ("kmcuda", "default"), ("--tol-labels", "0.01")),),
        {"system": "Titan X", "seconds": {"Lloyd": 436, "Yinyang": 278, "one thread a row, first version": 2_880}},
        "s until done",
        today="The same system takes 7 s and the default 0.24 s. Both reach the same centroids",
    ),
)
