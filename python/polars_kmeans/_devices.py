"""The devices that a fit can use."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

import polars as pl

from polars_kmeans import _internal

_SCHEMA = {
    "device": pl.String,
    "name": pl.String,
    "memory_free": pl.UInt64,
    "memory_total": pl.UInt64,
    "compute_capability": pl.String,
    "driver": pl.String,
    "usable": pl.Boolean,
    "reason": pl.String,
}


def devices() -> pl.DataFrame:
    """List the devices that fits can run on, as they are now.

    Returns
    -------
    DataFrame
        The CPU, then one row per GPU. If there is no GPU, one row says why. Columns: device (as the parameter `device`
        takes it), name, memory_free and memory_total (UInt64: bytes), compute_capability and driver (String: the CUDA
        version that the driver supports), usable (Boolean), reason (String). An unknown value is null.

        `CUDA_VISIBLE_DEVICES` hides and renumbers GPUs, as for every program.

    Examples
    --------
    >>> import polars_kmeans as pk
    >>> pk.devices().select("device", "usable", "reason").head(1)
    shape: (1, 3)
    ┌────────┬────────┬──────────────┐
    │ device ┆ usable ┆ reason       │
    │ ---    ┆ ---    ┆ ---          │
    │ str    ┆ bool   ┆ str          │
    ╞════════╪════════╪══════════════╡
    │ cpu    ┆ true   ┆ always there │
    └────────┴────────┴──────────────┘

    """
    gpus, why_none = _internal.devices()
    rows = [
        ("cpu", _processor(), *_memory(), None, None, True, "always there"),
        *((f"cuda:{ordinal}", *rest) for ordinal, *rest in gpus),
    ]
    if not gpus:
        rows.append(("cuda", None, None, None, None, None, False, why_none or "the driver lists no GPU"))
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def _proc(file: str) -> dict[str, str]:
    """Read lines of `key: value`. If a key occurs again, its first value counts."""
    with suppress(OSError):
        lines = (line.partition(":") for line in reversed(Path(file).read_text().splitlines()))
        return {key.strip(): value.strip() for key, _, value in lines}
    return {}


def _processor() -> str:
    return _proc("/proc/cpuinfo").get("model name") or platform.processor() or platform.machine()


def _memory() -> tuple[int | None, int | None]:
    """Free and total bytes. None for a number that the system does not give."""
    free = _proc("/proc/meminfo").get("MemAvailable", "").removesuffix(" kB")
    total = None
    with suppress(AttributeError, OSError, ValueError):
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(free) * 1024 if free.isdigit() else None, total
