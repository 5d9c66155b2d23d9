"""The record: every table of figures that README and `docs/performance.md` show, measured on a named machine.

    python benches/record.py run cpu ... --machine "two cores of an AMD EPYC (Zen 4)" [--out FOLDER]
    python benches/record.py add FOLDER
    python benches/record.py pages [--check]

`run` measures tables, and writes each to `benches/record/TABLE.csv`: a row for each fit, with machine, date and
version. Rows of the same machine are replaced. With `--out`, tables go to that folder: `add` takes them from there. The
file of a table is written after each fit, so that a run that was cut off leaves what it measured. `pages` writes the
tables and the picture of the record into the pages, and needs no measurement. With `--check` it fails if a page does
not say what the record says. Between the marks of a table without a record, `pages` changes nothing.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
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
# The packages of systems.
PACKAGES = {"sklearn": "scikit-learn", "sklearnex": "scikit-learn-intelex", "faiss": "faiss-cpu", "torch": "torch"}
PACKAGES |= {"superkmeans": "superkmeans", "flash": "flash-kmeans", "flashlib": "flashlib", "flashlib-bf16": "flashlib"}
# They come first, and are no peers.
OURS = ("ours", "two-gpus")
ALL_PEERS = "--with sklearnex faiss superkmeans"
PEERS = "--with sklearnex faiss"
KINDS = "clusters-100 clusters-1000 nested uniform lognormal ties"
GPU = "gpu.py --reports --systems ours flashlib flashlib-bf16"


@dataclass(frozen=True)
class Table:
    """What is run, and which figure is shown."""

    commands: tuple[str, ...]
    shown: str = "ms"


TABLES = {
    "cpu": Table((f"peers.py {ALL_PEERS}",), "fit_ms"),
    "cpu-kinds": Table((f"peers.py {PEERS} --only 256-1000 kmcuda 768-100 32-256 8-100 --kind {KINDS}",), "fit_ms"),
    "cpu-tokens": Table((f"peers.py {ALL_PEERS} --only 256-1000 256-64 --kind tokens",), "fit_ms"),
    "cpu-default": Table(
        (
            "peers.py --with sklearnex --default --only small li-kdd 256-1000 kmcuda 32-256 8-16"
            " --kind blobs clusters-100",
        ),
        "fit_ms",
    ),
    "groups": Table(("groups.py",), "fit_ms"),
    "seedings": Table(("seedings.py --times",), "fit_ms"),
    "hashes": Table(("hashes.py",), "hash"),
    "gpu": Table(
        (
            f"{GPU} flash torch --cases small li-2-100 blog-1000 lutz-k4 lutz-k64 li-kdd fl-64-64 fl-64-32 fl-20-200"
            " zechner lutz-d256 fl-128-1k fl-768-1k kmcuda fl-256-4k flash",
        )
    ),
    "gpu-kinds": Table((f"{GPU} --cases fl-32-1k fl-64-256 fl-128-1k fl-256-4k kmcuda --kind {KINDS}",)),
    "gpu-default": Table(
        ("gpu.py --reports --systems ours --cases fl-128-1k kmcuda --kind blobs clusters-300 --default",), "fit_ms"
    ),
    "gpu-two": Table(("gpu.py --reports --systems ours two-gpus --cases blog-1000 lutz-k4 kmcuda flash",)),
    # They take minutes each with torch.
    "gpu-large": Table((f"{GPU} --cases fl-128-20k fl-256-20k kmcuda-big",)),
}


FAILED: list[str] = []


def run(name: str, machine: str, folder: Path, more: list[str]) -> None:
    """Measure a table, and put its rows in the place of those of the same machine."""
    file, rows = folder / f"{name}.csv", []
    folder.mkdir(parents=True, exist_ok=True)
    others = pl.read_csv(file).filter(pl.col("machine") != machine) if file.exists() else pl.DataFrame()
    said = {"machine": machine, "date": datetime.date.today().isoformat(), "version": pk.__version__}
    for command in TABLES[name].commands:
        program, *arguments = command.split()
        command_line = [sys.executable, str(ROOT / "benches" / program), *arguments, "--json", *more]
        with subprocess.Popen(command_line, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or []:
                print(line, end="", flush=True)
                row = json.loads(line) if line.startswith("{") else {}
                # A system that is missing or refuses has no figure.
                if TABLES[name].shown in row:
                    rows.append(said | row | {"peer_version": version_of(row.get("system", ""))})
                    found = pl.DataFrame(rows, infer_schema_length=None)
                    write(pl.concat([others, found], how="diagonal_relaxed"), file)
        if process.returncode:
            # The other tables have their turn.
            FAILED.append(f"{command}: exit {process.returncode}")


def version_of(system: str) -> str | None:
    """Return the version of a peer. None for ours, whose version has a column of its own."""
    package = PACKAGES.get(system)
    try:
        return importlib.metadata.version(package) if package else None
    except importlib.metadata.PackageNotFoundError:
        return None


def write(table: pl.DataFrame, file: Path) -> None:
    """Write a table in one step, so that a reader finds the old one or the new one."""
    unfinished = file.with_suffix(".unfinished")
    table.write_csv(unfinished, float_precision=6)
    unfinished.rename(file)


def add(folder: Path) -> None:
    """Take the tables of a folder into the record. Their rows replace those of the same machine."""
    for source in sorted(folder.glob("*.csv")):
        if source.stem not in TABLES:
            continue
        found, file = pl.read_csv(source), RECORD / source.name
        if file.exists():
            old = pl.read_csv(file).join(
                found.select("machine").unique(), on="machine", how="anti", maintain_order="left"
            )
            found = pl.concat([old, found], how="diagonal_relaxed")
        write(found, file)
        print(f"{file.relative_to(ROOT)}: {found.height} rows")


# ---- the pages -------------------------------------------------------------------------------------------------------


def digits(value: float) -> str:
    """Three digits that count. A difference of two times may be below 0: nothing was measurable."""
    value = max(value, 0.0)
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def cell(row: dict[str, Any], shown: str) -> str:
    """A time, and in brackets the share of wrong labels where there are any."""
    wrong = row.get("wrong")
    share = f" ({100 * wrong:.2g}%)" if isinstance(wrong, float) and wrong > 0 else ""
    return f"{digits(row[shown])}{share}"


def markdown(name: str, before: list[str]) -> str:
    """Return the record of a table. Machine and version are said where they are not those of the table before."""
    record, shown = pl.read_csv(RECORD / f"{name}.csv"), TABLES[name].shown
    if shown == "hash":
        return hashes(record)
    lines = []
    for (machine,), rows in record.group_by("machine", maintain_order=True):
        measured = rows.select(pl.format("version {}, {}", "version", "date").unique().sort()).to_series()
        one_kind = rows.group_by("shape", "system").len()["len"].max() == 1 and rows["kind"].n_unique() == 1
        layout = by_system if one_kind else by_kind
        said = f"On {machine}; {', '.join(measured)}."
        lines += [*([] if before == [said] else ["", said]), "", *layout(rows, shown)]
        before[:] = [said]
    return "\n".join([*lines, ""])


def grid(head: list[str], body: list[list[str]]) -> list[str]:
    """Lines of a table in Markdown."""
    first, *lines = (f"|{'|'.join(row)}|" for row in (head, *body))
    return [first, f"|{'---|' * len(head)}", *lines]


def by_system(rows: pl.DataFrame, shown: str) -> list[str]:
    """A line for each shape, a column for each system."""
    systems = sorted(rows["system"].unique(maintain_order=True), key=lambda system: system not in OURS)
    peers = [system for system in systems if system not in OURS]
    body = []
    for (shape,), fits in rows.group_by("shape", maintain_order=True):
        found = {row["system"]: row for row in fits.iter_rows(named=True)}
        line = [shape, *(cell(found[system], shown) if system in found else "-" for system in systems)]
        best = min((found[peer][shown] for peer in peers if peer in found), default=None)
        if peers:
            line.append(f"{found['ours'][shown] / best:.2f}" if best and "ours" in found else "-")
        body.append(line)
    names = NAMES | {"ours": "one GPU"} if "two-gpus" in systems else NAMES
    head = ["rows x features x k", *(names.get(system, system) for system in systems)]
    return grid([*head, "ours / best"] if peers else head, body)


def by_kind(rows: pl.DataFrame, shown: str) -> list[str]:
    """A line for each shape, a column for each kind of data: ours, and the fastest peer."""
    kinds, body = rows["kind"].unique(maintain_order=True).to_list(), []
    peers = rows.filter(~pl.col("system").is_in(OURS)).height > 0
    if rows["shape"].n_unique() == 1:  # kinds are long, and each has a line
        return grid([rows["shape"][0], "ms"], [[row["kind"], cell(row, shown)] for row in rows.iter_rows(named=True)])
    for (shape,), fits in rows.group_by("shape", maintain_order=True):
        line = [shape]
        for kind in kinds:
            found = {row["system"]: row[shown] for row in fits.filter(kind=kind).iter_rows(named=True)}
            best = min((value for system, value in found.items() if system not in OURS), default=None)
            figures = [found.get("ours"), best] if peers else [found.get("ours")]
            line.append(" / ".join("-" if value is None else digits(value) for value in figures))
        body.append(line)
    return grid(["rows x features x k", *kinds], body)


def hashes(record: pl.DataFrame) -> str:
    """A line for each machine and hash. All hashes should be one."""
    found = record.group_by("machine", "hash", maintain_order=True).agg(pl.col("kind").str.join(", "))
    body = [[machine, kinds, f"`{value}`"] for machine, value, kinds in found.iter_rows()]
    return "\n".join(["", *grid(["machine", "ways", "hash"], body), ""])


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
            wrong = "labels not checked" if best["wrong"] is None else wrong
            label = ", ".join(filter(None, [NAMES.get(best["system"], best["system"]), wrong]))
            times = best[shown] / found["ours"][shown]
            # The text stands right of the bar, also where we are slower.
            rows.append({"machine": machine, "shape": shape, "times": times, "end": max(times, 1.0), "peer": label})
    # Room for the texts.
    scale = alt.Scale(type="log", domainMax=4 * max(row["end"] for row in rows), nice=False)
    base = alt.Chart(pl.DataFrame(rows)).encode(alt.Y("shape:N", sort=None, title="rows x features x clusters"))
    bars = base.mark_bar(height=11).encode(alt.X("times:Q", scale=scale, title=AXIS), x2=alt.datum(1))
    texts = base.mark_text(align="left", dx=4, fontSize=10).encode(alt.X("end:Q", scale=scale), text="peer:N")
    machines = list(dict.fromkeys(row["machine"] for row in rows))
    chart = (
        alt.layer(bars, texts)
        .properties(width=460)
        .facet(
            row=alt.Row("machine:N", title=None, sort=machines), title=alt.Title(TITLE, subtitle=SAID, anchor="start")
        )
    )
    chart.resolve_scale(y="independent").save(PICTURE)


TITLE = "How many times as fast as the fastest other system: longer is faster"
SAID = [
    "A bar is a whole fit (CPU) or an iteration (GPU) of ten blobs. 500 x 2 x 4: 500 rows, 2 features, 4 clusters.",
    "At 10, the fastest other system takes ten times as long. Its name stands right of the bar,",
    "with the share of its labels that are wrong. None of ours is.",
]
AXIS = "times as fast (logarithmic)"


def filled(place: re.Match[str], before: list[str]) -> str:
    """Return a place on a page with its table, or as it is if there is no record."""
    if not (RECORD / f"{place[2]}.csv").exists():
        return place[0]
    return f"{place[1]}{markdown(place[2], before)}\n{place[3]}"


def pages(check: bool) -> None:
    """Write each table of the record between its marks on the pages."""
    stale = []
    for page in PAGES:
        text, before = page.read_text(), list[str]()
        new = re.sub(
            r"(<!-- record: ([a-z0-9-]+) -->\n).*?(<!-- end of the record -->)",
            lambda found, before=before: filled(found, before),
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
    measuring.add_argument("--out", type=Path, default=RECORD, help="where the tables go")
    adding = commands.add_parser("add", help="take tables that were measured elsewhere into the record")
    adding.add_argument("folder", type=Path)
    writing = commands.add_parser("pages", help="write the record into the pages")
    writing.add_argument("--check", action="store_true", help="write nothing, fail if a page is stale")
    args, more = parser.parse_known_args()
    if args.command == "pages":
        return pages(args.check)
    if args.command == "add":
        return add(args.folder)
    for name in args.tables:
        run(name, args.machine, args.out, more)
    if FAILED:
        sys.exit("\n".join(FAILED))
    return None


if __name__ == "__main__":
    main()
