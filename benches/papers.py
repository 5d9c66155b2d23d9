"""The claims of the five papers, run again: their systems as strategies of our engine, beside what they published.

And one of ours: that the default takes the fastest strategy.

`python benches/papers.py run GPU_BENCH [--papers ...] [--scale S] --out benches/record/NAME.json` runs the experiments
on a machine with a GPU; GPU_BENCH is the binary of `cargo bench --no-default-features --features cuda --bench gpu
--no-run`.
Every strategy of a shape has the same data and starting centroids, and gives the same bits: its objective must be that
of the others, or the run fails. `--scale 0.1` takes a tenth of the rows.

`python benches/papers.py show benches/record/NAME.json` prints the tables and draws the pictures of
`docs/performance.md` into `docs/performance/`. It needs matplotlib, and no GPU.

Milliseconds are those of an iteration on the device, sums and update included: the mean over a fit without its first
iteration, in which every row changes its cluster.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
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
CANDIDATES = ("registers-single", "registers-groups8", "registers-groups16")
CANDIDATES += ("tiled-32", "tiled-64", "tiled-128", "tiled-128-panels")


def drawn_shapes(count: int) -> tuple[Run, ...]:
    """Shapes of any kind that take less than a few milliseconds an iteration."""
    draw, runs = random.Random(2027), []
    while len(runs) < count:
        n, d, k = (round(math.exp(draw.uniform(math.log(low), math.log(high)))) for low, high in LIMITS)
        if k < n and n * d < 2**28 and n * d * k < 2**36:
            runs.append(Run(n, d, k, 12, ("default", *CANDIDATES)))
    return tuple(runs)


LIMITS = ((3_000, 30_000_000), (1, 600), (2, 4_000))

EXPERIMENTS = (
    Experiment(
        "choice",
        "forty shapes",
        "The default takes the fastest of its strategies, or loses at most a tenth beside it",
        drawn_shapes(40),
    ),
    Experiment(
        "lutz",
        "figure 6",
        "Feature sums (here with labels): partitioned features beat cluster merge for k = 64 or d > 16, by 97 at most",
        tuple(
            Run(lutz_rows(d), d, k, 6, ("lutz-merge", "lutz-features")) for k in (4, 64) for d in (2, 4, 16, 64, 256)
        ),
        {"system": "GTX 1080", "best ratio": 96.7},
    ),
    Experiment(
        "lutz",
        "figure 7",
        "Mass sums: private counters are best up to k = 16, counters in local memory from k = 128, atomics far behind",
        tuple(Run(lutz_rows(4), 4, k, 6, MASSES) for k in (2, 8, 16, 64, 128, 512)),
        {"system": "GTX 1080"},
    ),
    Experiment(
        "lutz",
        "figures 8 and 10",
        "d = 4: one pass is twice as fast as several for k up to 16, several from k = 32; CPU sums cost 19 times",
        tuple(Run(lutz_rows(4), 4, k, 6, MULTI_AND_SINGLE) for k in (4, 16, 32, 64, 128)),
        {
            "system": "GTX 1080",
            "k = 4: single pass over multi-pass": 2.0,
            "k = 4: single pass over cross-processing": 19.3,
        },
    ),
    Experiment(
        "lutz",
        "figure 11",
        "k = 4: a single pass is faster than several for d < 32, and as fast beyond",
        tuple(Run(lutz_rows(d), d, 4, 6, MULTI_AND_SINGLE) for d in (2, 8, 32, 128)),
        {"system": "GTX 1080"},
    ),
    Experiment(
        "lutz",
        "figure 13",
        "Data of any size stream at the speed of the bus: 9.8 of 12.2 GB/s, filling pinned memory included",
        tuple(Run(gib * GIB // 16, 4, k, 4, options=("--limit", str(2 * GIB))) for k in (4, 64) for gib in (1, 4, 16)),
        {"system": "GTX 1080, PCIe 3", "GB/s": 9.8, "GB/s at most": 12.2},
        "GB/s",
    ),
    Experiment(
        "li",
        "table 1",
        "Few dimensions, 50 iterations, seconds: 3 to 8 times faster than HP k-means, 10 to 20 than UV_k-Means",
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
    ),
    Experiment(
        "li",
        "table 2",
        "n = 1,000,000, k = 100: hardly any difference between d = 2 and 6, then registers run out",
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
    ),
    Experiment(
        "li",
        "table 10",
        "Data a hundred times larger, through the device in parts, take a hundred times longer: merging is negligible",
        (
            Run(4_000_000, 2, 100, 5),
            Run(400_000_000, 2, 100, 5, options=("--limit", str(GIB))),
        ),
        {"system": "GTX 280 (the table's figures are not in the text that we have)"},
    ),
    Experiment(
        "zechner",
        "figures 5, 6, 10",
        "Labels on the GPU, sums on the CPU beat the CPU from 5,000 rows on, 1.5 to 14 times, more the larger they are",
        tuple(
            Run(n, d, k, 20, ("cpu", "zechner", "default"))
            for n in (500, 5_000, 50_000, 500_000)
            for d in (2, 20, 200)
            for k in (2, 16, 128)
        ),
        {"system": "9600 GT beside a Core 2 Duo with SSE3", "speed-up": [1.5, 14]},
    ),
    Experiment(
        "luigi",
        "V1 to V4, K = 5, 100, 1000",
        "Two dimensions: centroids in shared memory make a speed-up of 35 one of 100; means on the GPU change little",
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
    ),
    Experiment(
        "kmcuda",
        "Lloyd",
        "300,000 x 408 into 5,000 until at most 1 % change: 7 min 16 s by Lloyd, 4 min 38 s by Yinyang",
        (Run(300_000, 408, 5_000, 100, ("kmcuda", "default"), ("--tol-labels", "0.01")),),
        {"system": "Titan X", "seconds": {"Lloyd": 436, "Yinyang": 278, "one thread a row, first version": 2_880}},
        "s until done",
    ),
)


# ---- running ---------------------------------------------------------------------------------------------------------


def bench(binary: Path, run: Run, scale: float, limit: float) -> list[dict[str, Any]]:
    """One shape by all of its strategies: what the bench says of each, or why it does not."""
    n = max(run.k, int(run.n * scale))
    shape = f"{n}x{run.d}x{run.k}x{run.iterations}"
    arguments = [shape, "--json", "--strategies", ",".join(run.strategies), *run.options]
    try:
        said = subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return [{"shape": shape, "error": f"took longer than {limit:.0f} s"}]
    found = [json.loads(line) for line in said.stdout.splitlines() if line.startswith("{")]
    if said.returncode != 0 or not found:
        found.append({"shape": shape, "error": said.stderr.strip()[-300:] or f"exit {said.returncode}"})
    objectives = {(row["iterations"], row["inertia"]) for row in found if "inertia" in row}
    if len(objectives) > 1:
        sys.exit(f"{shape}: strategies differ in their objective: {found}")
    return found


def run_all(args: argparse.Namespace) -> None:
    gpu = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    )
    record: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "gpu": gpu.stdout.strip(),
        "host": platform.processor() or platform.machine(),
        "scale": args.scale,
        "experiments": {},
    }
    for experiment in EXPERIMENTS:
        if experiment.paper not in args.papers:
            continue
        begin = datetime.datetime.now()
        rows = [row for run in experiment.runs for row in bench(args.binary, run, args.scale, args.limit)]
        record["experiments"][experiment.name] = rows
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n")
        print(
            f"{experiment.name}: {len(rows)} results, {(datetime.datetime.now() - begin).total_seconds():.1f} s",
            flush=True,
        )
        for row in rows:
            what = row.get("error") or f"{row['ms']:.4f} ms an iteration, {row['iterations']} of them"
            print(f"    {row['shape']:<26}{row.get('strategy', ''):<18}{what}", flush=True)


# ---- showing ---------------------------------------------------------------------------------------------------------


def shape_of(row: dict[str, Any]) -> str:
    return "x".join(row["shape"].split("x")[:3])


def table(experiment: Experiment, rows: list[dict[str, Any]]) -> str:
    """A line a shape, a column a strategy; what was published to the right."""
    strategies = list(dict.fromkeys(row["strategy"] for row in rows if "ms" in row))
    said = next((v for v in experiment.published.values() if isinstance(v, dict)), {})
    columns = experiment.published.get("columns", []) if said else []
    lines = [
        f"| n x d x k, {experiment.unit} | " + " | ".join([*strategies, *(f"{c} (published)" for c in columns)]) + " |"
    ]
    lines.append("|---" * (1 + len(strategies) + len(columns)) + "|")
    for shape in dict.fromkeys(shape_of(row) for row in rows):
        own = {row["strategy"]: row for row in rows if shape_of(row) == shape and "ms" in row}
        cells = [f"{experiment.value(own[s]):.3g}" if s in own else "-" for s in strategies]
        cells += [f"{v:g}" for v in said.get(shape, [])] or ["-"] * len(columns)
        n, d, k = map(int, shape.split("x"))
        lines.append(f"| {n:,} x {d} x {k} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def losses(rows: list[dict[str, Any]]) -> str:
    """What the default loses beside the best strategy, shape by shape."""
    found = []
    for shape in dict.fromkeys(shape_of(row) for row in rows):
        own = {row["strategy"]: row["ms"] for row in rows if shape_of(row) == shape and "ms" in row}
        best = min((ms, name) for name, ms in own.items() if name != "default")
        found.append((own["default"] / best[0] - 1, shape, best[1]))
    found.sort(reverse=True)
    worst = ", ".join(f"{shape} {100 * loss:.1f} % ({name})" for loss, shape, name in found[:5])
    within = sum(loss <= 0.1 for loss, _, _ in found)
    return f"{within} of {len(found)} lose at most a tenth; the most is lost at {worst}."


def picture(experiment: Experiment, rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in rows if "ms" in row]
    shapes = list(dict.fromkeys(shape_of(row) for row in rows))
    figure, ax = plt.subplots(figsize=(max(6, 0.45 * len(shapes) + 3), 4), layout="constrained")
    for strategy in dict.fromkeys(row["strategy"] for row in rows):
        own = {shape_of(row): experiment.value(row) for row in rows if row["strategy"] == strategy}
        style = {"linewidth": 2.5, "color": "black"} if strategy == "default" else {"linewidth": 1}
        ax.plot([shapes.index(s) for s in own], list(own.values()), marker="o", markersize=4, label=strategy, **style)
    ax.set_xticks(range(len(shapes)), shapes, rotation=60, ha="right", fontsize=7)
    ax.set(yscale="log", ylabel=experiment.unit, title=experiment.name)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def show(args: argparse.Namespace) -> None:
    record = json.loads(args.record.read_text())
    print(f"{record['gpu']}, {record['date']}; `python benches/papers.py run ...`, {args.record.relative_to(ROOT)}\n")
    pictures = ROOT / "docs" / "performance"
    pictures.mkdir(exist_ok=True)
    for experiment in EXPERIMENTS:
        rows = record["experiments"].get(experiment.name)
        if not rows:
            continue
        published = {k: v for k, v in experiment.published.items() if k not in ("system", "columns")}
        said = [f"{name} {value}" for name, value in published.items() if not isinstance(value, dict)]
        what = ": " + "; ".join(said) if said else ""
        source = f" Published on {experiment.published['system']}{what}." if experiment.published else ""
        print(f"#### {experiment.name}\n\n{experiment.claim}.{source}\n")
        print(table(experiment, rows) + "\n")
        for row in rows:
            if "error" in row:
                print(f"- {row['shape']} {row.get('strategy', '')}: {row['error']}")
        if experiment.paper == "choice":
            print(losses(rows) + "\n")
            continue
        name = experiment.name.replace(":", "").replace(",", "").replace(" ", "-") + ".png"
        picture(experiment, rows, pictures / name)
        print(f"![{experiment.name}](performance/{name})\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="run the experiments")
    papers = list(dict.fromkeys(experiment.paper for experiment in EXPERIMENTS))
    run.add_argument("binary", type=Path, metavar="GPU_BENCH")
    run.add_argument("--papers", nargs="*", default=papers, choices=papers)
    run.add_argument("--scale", type=float, default=1.0, help="of the rows")
    run.add_argument("--limit", type=float, default=120.0, help="seconds a shape may take")
    run.add_argument("--out", type=Path, required=True)
    run.set_defaults(command=run_all)
    shown = commands.add_parser("show", help="tables and pictures of a record")
    shown.add_argument("record", type=lambda path: Path(path).resolve())
    shown.set_defaults(command=show)
    args = parser.parse_args()
    args.command(args)


if __name__ == "__main__":
    main()
