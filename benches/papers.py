"""The claims of the five papers, run again: their systems as strategies of our engine, beside what they published.

And one of ours: that the default takes the fastest strategy.

`python benches/papers.py run [--papers ...] [--scale S] --out benches/record/NAME.json` builds the bench and runs the
experiments on a machine with a GPU, and so does `make papers`. `--binary FILE` takes a bench that was built elsewhere.
Every strategy of a shape has the same data and starting centroids, and gives the same bits: its objective must be that
of the others, or the run fails. `--scale 0.1` takes a tenth of the rows.

`python benches/papers.py show benches/record/NAME.json` prints the tables behind `docs/lab/papers.md` and
`docs/lab/choosing-a-kernel.md`, and draws the pictures into `docs/lab/papers/`. It needs matplotlib, and no GPU.

Milliseconds are those of an iteration on the device, sums and update included: the mean over a fit without its first
iteration, in which every row changes its cluster.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments import EXPERIMENTS, Experiment, Run

ROOT = Path(__file__).parents[1]


# ---- running ---------------------------------------------------------------------------------------------------------


def bench(binary: Path, run: Run, scale: float, limit: float) -> list[dict[str, Any]]:
    """One shape by all of its strategies: what the bench says of each, or why it does not."""
    n = max(run.k, int(run.n * scale))
    shape = f"{n}x{run.d}x{run.k}x{run.iterations}"
    arguments = [shape, "--json", "--strategies", ",".join(run.strategies), *run.options]
    try:
        said = subprocess.run([binary, "gpu", *arguments], capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return [{"shape": shape, "error": f"took longer than {limit:.0f} s"}]
    found = [json.loads(line) for line in said.stdout.splitlines() if line.startswith("{")]
    if said.returncode != 0 or not found:
        found.append({"shape": shape, "error": said.stderr.strip()[-300:] or f"exit {said.returncode}"})
    objectives = {(row["iterations"], row["inertia"]) for row in found if "inertia" in row}
    if len(objectives) > 1:
        sys.exit(f"{shape}: strategies differ in their objective: {found}")
    return found


def text(record: dict[str, Any]) -> str:
    """A record as JSON, a line a result."""
    head = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in record.items() if k != "experiments")
    experiments = (
        f"  {json.dumps(name)}: [\n" + ",\n".join(f"   {json.dumps(row)}" for row in rows) + "\n  ]"
        for name, rows in record["experiments"].items()
    )
    return "{\n" + head + ',\n "experiments": {\n' + ",\n".join(experiments) + "\n }\n}\n"


def build() -> Path:
    """Builds the bench of the GPU, with the papers' systems. Returns its file."""
    command = ["cargo", "bench", "--no-default-features", "--features", "bench,papers", "--bench", "kmeans", "--no-run"]
    said = subprocess.run(
        [*command, "--message-format=json-render-diagnostics"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    built = [json.loads(line) for line in said.stdout.splitlines()]
    return next(Path(message["executable"]) for message in built if message.get("executable"))


def run_all(args: argparse.Namespace) -> None:
    binary = args.binary or build()
    gpu = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    )
    # A paper at a time may add to the same record.
    record: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {"experiments": {}}
    record |= {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "gpu": gpu.stdout.strip(),
        "host": platform.processor() or platform.machine(),
        "scale": args.scale,
    }
    for experiment in EXPERIMENTS:
        if experiment.paper not in args.papers:
            continue
        begin = datetime.datetime.now()
        rows = [row for run in experiment.runs for row in bench(binary, run, args.scale, args.limit)]
        record["experiments"][experiment.name] = rows
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text(record))
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
    """A line a shape, a column a strategy; to the right what was published, and the inertia that was reached."""
    strategies = list(dict.fromkeys(row["strategy"] for row in rows if "ms" in row))
    said = next((v for v in experiment.published.values() if isinstance(v, dict)), {})
    columns = experiment.published.get("columns", []) if said else []
    head = [*strategies, *(f"{column} (published)" for column in columns)]
    staged = any("stages" in row for row in rows)
    head += ["of cross-processing: labels, transfer, sums"] if staged else []
    lines = [f"| n x d x k, {experiment.unit} | " + " | ".join([*head, "objective"]) + " |"]
    lines.append("|---" * (2 + len(head)) + "|")
    for shape in dict.fromkeys(shape_of(row) for row in rows):
        own = {row["strategy"]: row for row in rows if shape_of(row) == shape and "ms" in row}
        cells = [f"{experiment.value(own[s]):.3g}" if s in own else "-" for s in strategies]
        cells += [f"{v:g}" for v in said.get(shape, [])] or ["-"] * len(columns)
        if staged:
            shares = next((row["stages"] for row in own.values() if "stages" in row), [])
            # Of the three together: those of the pass that labels by the final centroids are in them too.
            cells.append(", ".join(f"{100 * share / sum(shares):.0f} %" for share in shares))
        # The same for all: `bench` sees to it.
        cells += [f"{row['inertia']:.7g}" for row in own.values()][:1]
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
    return f"{within} of {len(found)} lose at most a tenth. The largest losses: {worst}."


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
    said = next((v for v in experiment.published.values() if isinstance(v, dict)), {})
    for i, column in enumerate(experiment.published.get("columns", []) if said else []):
        points = [(shapes.index(shape), values[i]) for shape, values in said.items() if shape in shapes]
        grey = str(0.35 + 0.12 * i)
        ax.plot(*zip(*points, strict=True), "--o", color=grey, linewidth=1, markersize=3, label=f"{column} (published)")
    ax.set_xticks(range(len(shapes)), shapes, rotation=60, ha="right", fontsize=7)
    ax.set(yscale="log", ylabel=experiment.unit, title=experiment.name)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def show(args: argparse.Namespace) -> None:
    record = json.loads(args.record.read_text())
    print(f"{record['gpu']}, {record['date']}; `python benches/papers.py run ...`, {args.record.relative_to(ROOT)}\n")
    pictures = ROOT / "docs" / "lab" / "papers"
    pictures.mkdir(parents=True, exist_ok=True)
    for experiment in EXPERIMENTS:
        rows = record["experiments"].get(experiment.name)
        if not rows:
            continue
        published = {k: v for k, v in experiment.published.items() if k not in ("system", "columns")}
        said = [f"{name} {value}" for name, value in published.items() if not isinstance(value, dict)]
        what = ": " + "; ".join(said) if said else ""
        source = f" Published on {experiment.published['system']}{what}." if experiment.published else ""
        today = f" **Today:** {experiment.today[0].lower()}{experiment.today[1:]}." if experiment.today else ""
        print(f"### {experiment.name}\n\n{experiment.claim}.{source}{today}\n")
        print(table(experiment, rows) + "\n")
        if experiment.paper == "choice":
            print(losses(rows) + "\n")
            continue
        for row in rows:
            if "error" in row:
                print(f"- {row['shape']} {row.get('strategy', '')}: {row['error']}")
        name = re.sub(r"[^a-z0-9]+", "-", experiment.name.lower()) + ".png"
        if len({shape_of(row) for row in rows}) > 2:
            picture(experiment, rows, pictures / name)
            print(f"![{experiment.name}](papers/{name})\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="run the experiments")
    papers = list(dict.fromkeys(experiment.paper for experiment in EXPERIMENTS))
    run.add_argument("--binary", type=Path, help="a bench that was built elsewhere")
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
