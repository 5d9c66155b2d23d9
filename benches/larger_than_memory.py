"""A fit of more rows than memory may hold: time, memory and bits.

    python benches/larger_than_memory.py                       # 16 GB, in 3 GB of memory
    python benches/larger_than_memory.py --gigabytes 4 --limit 1.2

The script writes a data set in Parquet files: few distinct values a column, so that they are small. Then it fits the
query over all of them in a process of its own, which a control group limits to a few gigabytes. Pages of files that it
maps count there, and make room when memory is asked for, as on a machine that small. The first file fits into memory.
It is fitted there and from a spill file, which must give the same bits.

It needs Linux, the right to make control groups, and room for the files: a quarter of the data, and once the data.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl

GB = 10**9
FILES = 16
# Rows of a row group.
GROUP = 1 << 18
VALUES = 12


def write_files(folder: Path, rows: int, features: int) -> list[Path]:
    """Write files of this many rows each, unless they are there. Blobs of integers."""
    paths = []
    for number in range(FILES):
        path = folder / f"rows-{rows}x{features}-{number}.parquet"
        paths.append(path)
        if path.exists():
            continue
        draws = np.random.default_rng(number)
        centres = np.random.default_rng(1_000).integers(0, 40, (8, features))
        values = np.empty((features, rows), dtype=np.float32)
        blob = draws.integers(0, len(centres), rows)
        for feature in range(features):
            noise = draws.integers(0, VALUES, rows, dtype=np.uint8)
            values[feature] = centres[blob, feature] + noise
        frame = pl.DataFrame({f"x{feature}": values[feature] for feature in range(features)})
        half = path.with_suffix(".half")
        frame.write_parquet(half, row_group_size=GROUP)
        half.rename(path)
    return paths


def read_rate(folder: Path, size: int) -> float:
    """Read a new file of this size from the disk without the cache, and return GB/s."""
    path = folder / "plain-read"
    block = os.urandom(1 << 24)
    try:
        with path.open("wb") as file:
            for _ in range(size // len(block)):
                file.write(block)
            os.fsync(file.fileno())
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            start, done = time.perf_counter(), 0
            while some := file.read(len(block)):
                done += len(some)
            return done / (time.perf_counter() - start) / GB
    finally:
        path.unlink(missing_ok=True)


class Group:
    """A control group with a limit on memory, of version 1 or 2."""

    def __init__(self, limit: int) -> None:
        paths = dict(line.strip().split(":", 2)[1:] for line in Path("/proc/self/cgroup").open())
        self.first = "memory" in paths
        root = Path("/sys/fs/cgroup/memory" if self.first else "/sys/fs/cgroup")
        self.path = root / paths["memory" if self.first else ""].lstrip("/") / f"larger-than-memory-{os.getpid()}"
        self.path.mkdir()
        (self.path / ("memory.limit_in_bytes" if self.first else "memory.max")).write_text(str(limit))

    def enter(self) -> None:
        """Move this process into the group."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self) -> int:
        """Return the most bytes that the group took, cached pages of files included."""
        return int((self.path / ("memory.max_usage_in_bytes" if self.first else "memory.peak")).read_text())

    def remove(self) -> None:
        """Remove the group."""
        self.path.rmdir()


def fit(arguments: argparse.Namespace) -> None:
    """Fit in this process, and print what came of it. The parent asks for it."""
    import polars_kmeans as pk

    paths = json.loads(arguments.paths)
    stages: list[tuple[str, float]] = []
    start = time.perf_counter()

    def see(progress: pk.Progress) -> None:
        stages.append((progress.stage, time.perf_counter() - start))

    estimator = pk.KMeans(arguments.clusters, seed=1, max_iter=arguments.iterations, tol=0, device="cpu")
    data = pl.scan_parquet(paths)
    if arguments.memory:
        model = estimator.fit(data.collect(), pl.all(), progress=see)
    else:
        limit = None if arguments.memory_limit < 0 else arguments.memory_limit
        model = estimator.fit(data, pl.all(), progress=see, memory_limit=limit, spill_directory=arguments.folder)
    seconds = time.perf_counter() - start
    facts = model.centroids.write_json() + model.inertia.hex() + str(model.n_iter)
    iterations = [at for stage, at in stages if stage == "iteration"]
    seeds = next(at for stage, at in stages if stage == "seeds")
    each = (iterations[-1] - seeds) / len(iterations)
    bits = hashlib.sha256(facts.encode()).hexdigest()[:16]
    print(json.dumps({"seconds": seconds, "rows": stages[0][1], "seeds": seeds, "each": each, "bits": bits}))


def measured(arguments: argparse.Namespace, paths: list[Path], limit: float | None, *options: str) -> dict[str, float]:
    """Fit in a child process, in a group of this many gigabytes. Return what it printed, and its memory."""
    group = None if limit is None else Group(int(limit * GB))
    command = [sys.executable, __file__, "--paths", json.dumps([str(path) for path in paths]), *options]
    for name in ("folder", "clusters", "iterations"):
        command += [f"--{name}", str(getattr(arguments, name))]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=None if group is None else group.enter
    )
    own, spilled = 0, 0
    while child.poll() is None:
        try:
            status = Path(f"/proc/{child.pid}/status").read_text()
            own = max(own, *(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon")))
            # The spill file has no name, but it is mapped.
            for line in Path(f"/proc/{child.pid}/maps").read_text().splitlines():
                if line.endswith("(deleted)") and str(arguments.folder) in line:
                    first, last = (int(address, 16) for address in line.split()[0].split("-"))
                    spilled = max(spilled, last - first)
        except (OSError, TypeError):
            pass
        time.sleep(0.05)
    assert child.stdout is not None
    output = child.stdout.read()
    found = {} if group is None else {"peak": group.peak()}
    if group is not None:
        group.remove()
    if child.returncode != 0:
        sys.exit(f"the fit ended with {child.returncode}")
    return json.loads(output) | {"own": own, "spilled": spilled} | found


def main() -> None:
    """Write the data, fit, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=16)
    parser.add_argument("--limit", type=float, default=3, help="gigabytes of memory of the fit")
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--clusters", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument(
        "--folder", type=lambda path: Path(path).resolve(), default=Path("target/larger-than-memory").resolve()
    )
    parser.add_argument("--paths", help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--memory-limit", type=int, default=-1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.folder = arguments.folder.resolve()
    if arguments.paths:
        fit(arguments)
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows = int(arguments.gigabytes * GB / FILES / arguments.features / 4)
    start = time.perf_counter()
    paths = write_files(arguments.folder, rows, arguments.features)
    size, disk = rows * FILES * arguments.features * 4, sum(path.stat().st_size for path in paths)
    print(f"data: {rows * FILES:,} rows x {arguments.features} float32, {size / GB:.1f} GB")
    print(f"  Parquet files of {disk / GB:.1f} GB, written in {time.perf_counter() - start:.0f} s", flush=True)

    inside = measured(arguments, paths[:1], None, "--memory")
    spilled = measured(arguments, paths[:1], arguments.limit, "--memory-limit", "0")
    print(f"one file of {FILES}: in memory {inside['bits']}, spilled {spilled['bits']}", flush=True)
    assert inside["bits"] == spilled["bits"] and spilled["spilled"] > 0

    rate = read_rate(arguments.folder, size)
    whole = measured(arguments, paths, arguments.limit)
    assert whole["spilled"] >= size
    print(f"all files, limit {arguments.limit} GB: {whole['seconds']:.0f} s, bits {whole['bits']}")
    print(f"  query, spill file of {whole['spilled'] / GB:.1f} GB and preparation {whole['rows']:.0f} s")
    print(f"  seeding {whole['seeds'] - whole['rows']:.0f} s")
    print(f"  an iteration {whole['each']:.1f} s: {size / GB / whole['each']:.2f} GB/s; a plain read {rate:.2f} GB/s")
    print(f"  most memory: {whole['own'] / GB:.2f} GB of its own, {whole['peak'] / GB:.2f} GB with pages of files")
    assert whole["peak"] <= arguments.limit * GB


if __name__ == "__main__":
    main()
