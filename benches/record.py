"""The record: every table of speed that README and `docs/performance.md` show, measured on a named machine.

    python benches/record.py run cpu ... --machine "two cores of an AMD EPYC (Zen 4)"
    python benches/record.py pages [--check]

`run` measures tables, and writes each to `benches/record/TABLE.csv`: a row for each fit, with machine, date and
version. Rows of the same machine are replaced. `pages` writes the tables and the picture of the record into the pages,
and needs no measurement. With `--check` it fails if a page does not say what the record says.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

import polars_kmeans as pk

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benches" / "record"
PAGES = [ROOT / "README.md", ROOT / "docs" / "performance.md"]
PICTURE = ROOT / "docs" / "speed.svg"
# The names of systems on the pages.
NAMES = {
    "sklearn": "scikit-learn",
    "sklearnex": "oneDAL",
    "superkmeans": "SuperKMeans",
    "flash": "flash-kmeans",
    "flashlib": "FlashLib",
    "flashlib-bf16": "FlashLib, bf16",
    "cuvs": "cuVS",
    "two-gpus": "two GPUs",
}
# They come first, and are no peers.
OURS = ("ours", "two-gpus")
ALL_PEERS = "--with sklearnex faiss superkmeans"
KINDS = "clusters-100 clusters-1000 nested uniform lognormal ties"
GPU = "gpu.py --reports --systems ours flashlib flashlib-bf16"


@dataclass(frozen=True)
class Table:
    """What is run, and which figure is shown."""

    commands: tuple[str, ...]
    shown: str = "ms"


TABLES = {
    "cpu": Table((f"peers.py {ALL_PEERS}",), "fit_ms"),
    "cpu-kinds": Table(
        (
            f"peers.py {ALL_PEERS} --only kmcuda 256-1000 768-100 1200-60 32-256 li-kdd 8-16 lutz-k4 --kind {KINDS}",
            f"peers.py {ALL_PEERS} --only 256-1000 256-64 --kind tokens",
        ),
        "fit_ms",
    ),
    "cpu-default": Table((f"peers.py {ALL_PEERS} --default --kind blobs clusters-100 uniform",), "fit_ms"),
    "groups": Table(("groups.py",), "fit_ms"),
    "seedings": Table(("seedings.py --times",), "fit_ms"),
    "gpu": Table((f"{GPU} torch",)),
    "gpu-kinds": Table((f"{GPU} --cases fl-256-4k kmcuda fl-128-1k fl-32-1k fl-64-256 --kind {KINDS}",)),
    "gpu-default": Table(
        ("gpu.py --reports --systems ours --cases kmcuda fl-128-1k --kind clusters-300 --default",), "fit_ms"
    ),
    "gpu-two": Table(("gpu.py --reports --systems ours two-gpus --cases flash lutz-k4 blog-1000 kmcuda",)),
}


def run(name: str, machine: str, more: list[str]) -> None:
    """Measure a table, and put its rows in the place of those of the same machine."""
    rows = []
    for command in TABLES[name].commands:
        program, *arguments = command.split()
        command_line = [sys.executable, str(ROOT / "benches" / program), *arguments, "--json", *more]
        with subprocess.Popen(command_line, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or []:
                print(line, end="", flush=True)
                rows += [json.loads(line)] if line.startswith("{") else []
        if process.returncode:
            sys.exit(f"{command}: exit {process.returncode}")
    said = {"machine": machine, "date": datetime.date.today().isoformat(), "version": pk.__version__}
    found = pl.DataFrame([said | row for row in rows], infer_schema_length=None)
    file = RECORD / f"{name}.csv"
    if file.exists():
        found = pl.concat([pl.read_csv(file).filter(pl.col("machine") != machine), found], how="diagonal_relaxed")
    found.write_csv(file, float_precision=6)


# ---- the pages -------------------------------------------------------------------------------------------------------


def digits(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def cell(row: dict[str, Any], shown: str) -> str:
    """A time, and in brackets the share of wrong labels where there are any."""
    wrong = row.get("wrong")
    share = f" ({100 * wrong:.2g} %)" if isinstance(wrong, float) and wrong > 0 else ""
    return f"{digits(row[shown])}{share}"


def markdown(name: str) -> str:
    """Return the record of a table: a line for each shape and kind of data, a column for each system."""
    record, shown = pl.read_csv(RECORD / f"{name}.csv"), TABLES[name].shown
    lines = []
    for (machine,), rows in record.group_by("machine", maintain_order=True):
        systems = sorted(rows["system"].unique(maintain_order=True), key=lambda system: system not in OURS)
        kinds = rows["kind"].n_unique() > 1
        peers = [system for system in systems if system not in OURS]
        head = ["rows x features x k", *(["data"] if kinds else []), *(NAMES.get(system, system) for system in systems)]
        head += ["ours / best"] if peers else []
        measured = rows.select(pl.format("version {}, {}", "version", "date").unique().sort()).to_series()
        lines += ["", f"On {machine}; {', '.join(measured)}.", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
        for (shape, kind), fits in rows.group_by("shape", "kind", maintain_order=True):
            found = {row["system"]: row for row in fits.iter_rows(named=True)}
            best = min((found[peer][shown] for peer in peers if peer in found), default=None)
            row = [shape, *([kind] if kinds else [])]
            row += [cell(found[system], shown) if system in found else "-" for system in systems]
            row += [f"{found['ours'][shown] / best:.2f}" if best and "ours" in found else "-"] if peers else []
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join([*lines, ""])


def draw() -> None:
    """Draw how many times as fast as each peer we are, with the wrong labels of the peer, into a picture."""
    import altair as alt

    rows = []
    for name in ("cpu", "gpu"):
        file, shown = RECORD / f"{name}.csv", TABLES[name].shown
        if not file.exists():
            continue
        for (machine, shape), fits in pl.read_csv(file).group_by("machine", "shape", maintain_order=True):
            found = {row["system"]: row for row in fits.iter_rows(named=True)}
            peers = [row for system, row in found.items() if system not in OURS]
            best = min(peers, key=lambda row: row[shown], default=None)
            if best is None or "ours" not in found:
                continue
            wrong = f"{100 * best['wrong']:.2g} % wrong" if best["wrong"] else ""
            label = ", ".join(filter(None, [NAMES.get(best["system"], best["system"]), wrong]))
            rows.append(
                {"machine": machine, "shape": shape, "times": best[shown] / found["ours"][shown], "peer": label}
            )
    base = alt.Chart(pl.DataFrame(rows)).encode(
        alt.Y("shape:N", sort=None, title=None), alt.X("times:Q", scale=alt.Scale(type="log"), title=TITLE)
    )
    bars = base.mark_bar(height=11).encode(x2=alt.datum(1))
    texts = base.mark_text(align="left", dx=4, fontSize=10).encode(text="peer:N")
    chart = alt.layer(bars, texts).properties(width=460).facet(row=alt.Row("machine:N", title=None, sort=None))
    chart.resolve_scale(y="independent").save(PICTURE)


TITLE = "times as fast as the fastest peer (its name, and its share of wrong labels)"


def pages(check: bool) -> None:
    """Write each table of the record between its marks on the pages."""
    stale = []
    for page in PAGES:
        text = page.read_text()
        new = re.sub(
            r"(<!-- record: ([a-z0-9-]+) -->\n).*?(<!-- end of the record -->)",
            lambda found: found[1] + markdown(found[2]) + "\n" + found[3],
            text,
            flags=re.DOTALL,
        )
        if new != text:
            stale.append(page.name)
            if not check:
                page.write_text(new)
    if check and stale:
        sys.exit(f"{', '.join(stale)}: not what the record says. `python benches/record.py pages` writes it")
    if not check:
        draw()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("run", help="measure tables")
    measuring.add_argument("tables", nargs="+", choices=TABLES)
    measuring.add_argument("--machine", required=True, help="what the pages call this machine")
    writing = commands.add_parser("pages", help="write the record into the pages")
    writing.add_argument("--check", action="store_true", help="write nothing, fail if a page is stale")
    args, more = parser.parse_known_args()
    if args.command == "pages":
        return pages(args.check)
    for name in args.tables:
        run(name, args.machine, more)
    return None


if __name__ == "__main__":
    main()
