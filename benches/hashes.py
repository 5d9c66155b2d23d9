"""One hash of three fits, by each way that a machine has: threads, instruction sets, rows in parts, GPUs.

    python benches/hashes.py [--json]

The hash is over the bits of centroids, labels and inertias. It fails if two ways give two hashes.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import polars as pl

import polars_kmeans as pk

Options = dict[str, Any]
# Arithmetic that is exact or rounded once, so that the rows are the same everywhere.
ROW = pl.int_range(50_000)
FEW = pl.select(x=0.1 * (ROW * 7 % 97), y=0.3 * (ROW * 31 % 89), z=(ROW * 13 % 1009).sqrt(), weight=1 + ROW % 3)
MANY = pl.select(
    weight=1 + ROW % 3,
    **{f"f{f}": ((ROW * (2 * f + 3) % (89 + f)).sqrt() + 1 + ROW % 10 * f).cast(pl.Float32) for f in range(64)},
)
FITS: tuple[tuple[pl.DataFrame, tuple[str, ...], Options], ...] = (
    (FEW, ("x", "y", "z"), {"k": 20}),
    (MANY, tuple(MANY.columns[1:]), {"k": 300, "max_iter": 20}),
    (MANY, tuple(MANY.columns[1:9]), {"k": 30, "metric": "cosine"}),
)
Fit = Callable[[Options, pl.DataFrame, tuple[str, ...]], pk.KMeansModel]


def hash_of(fit: Fit, device: str = "cpu") -> str:
    """Return the first half of the hash of all fits."""
    found = sha256()
    for rows, columns, options in FITS:
        model = fit({**options, "seed": 1, "device": device}, rows, columns)
        labels = model.predict(rows, device=device)
        found.update(model.centroids_array().tobytes() + labels.to_numpy().tobytes() + struct.pack("<d", model.inertia))
    return found.hexdigest()[:32]


def whole(options: Options, rows: pl.DataFrame, columns: tuple[str, ...]) -> pk.KMeansModel:
    return pk.KMeans(**options, weight="weight").fit(rows, *columns)


def in_parts(instructions: str) -> Fit:
    """Three parts, labelled by these instructions."""

    def fit(options: Options, rows: pl.DataFrame, columns: tuple[str, ...]) -> pk.KMeansModel:
        cuts = (rows[:1], rows[1:20_001], rows[20_001:])
        parts = [pk.parts.Part(cut, *columns, weight="weight", _instructions=instructions) for cut in cuts]
        model = pk.parts.fit(
            pk.KMeans(**options), lambda asked: [parts[part].answer(request) for part, request in asked], len(parts)
        )
        assert model is not None
        return model

    return fit


def ways() -> Iterator[tuple[str, str]]:
    """Each way that this machine has, and its hash."""
    facts = pk.versions()
    for threads in dict.fromkeys((1, facts["threads"])):
        command = [sys.executable, __file__, "--hash"]
        environment = os.environ | {"POLARS_MAX_THREADS": str(threads)}
        found = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        yield f"{threads} thread{'s' if threads > 1 else ''}", found
    names = {"portable": "portable", "avx2": "AVX2", "avx512": "AVX-512"}
    for instructions, name in names.items():
        try:
            yield name, hash_of(in_parts(instructions))
        except pk.errors.KMeansError as error:
            print(f"{name}: {error}", file=sys.stderr)
    gpus = [gpu["device"] for gpu in facts["gpus"] if gpu["usable"]]
    if gpus:
        yield "one GPU", hash_of(whole, gpus[0])
    if len(gpus) > 1:
        yield f"{len(gpus)} GPUs", hash_of(whole, "cuda:all")


def main() -> None:
    warnings.simplefilter("ignore", pk.ConvergenceWarning)
    if "--hash" in sys.argv:
        print(hash_of(whole))
        return
    hashes = set()
    for way, found in ways():
        row = {"shape": "three fits", "kind": way, "system": "ours", "hash": found}
        print(json.dumps(row) if "--json" in sys.argv else f"{way:<30}{found}", flush=True)
        hashes.add(found)
    if len(hashes) > 1:
        sys.exit("two ways give two hashes")


if __name__ == "__main__":
    main()
