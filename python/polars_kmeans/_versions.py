"""What an answer to "why is it slow here?" and a report of a fault need to know of a machine."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import polars as pl

from polars_kmeans import _internal
from polars_kmeans._devices import devices

_PACKAGES = (
    *("numpy", "pandas", "pyarrow", "scikit-learn", "duckdb", "datafusion", "ray", "torch", "cupy", "jax", "cudf"),
    *("altair", "tqdm"),
)


def versions() -> dict[str, Any]:
    """Say what fits of this process run with.

    Returns
    -------
    dict
        `polars_kmeans`, `polars`, `polars_in_library` (the version that the compiled library was built with), `python`,
        `platform`, and `packages`: versions of packages that are installed. `processor`, its `instructions` that fits
        use, and `processors` that the process may use. `threads` of a fit, and `POLARS_MAX_THREADS`, which limits them.
        `memory_total`, `memory_free` and `memory_limit` in bytes: the limit is that of the process (`ulimit -v`) or of
        its control group, as containers have it. `kernels`: the GPUs that the library has kernels for. `gpus`: the rows
        of :func:`polars_kmeans.devices` but the first, as dicts. A value that is unknown or not set is None.

    Examples
    --------
    >>> import polars_kmeans as pk
    >>> pk.versions()["polars_kmeans"] == pk.__version__
    True

    """
    instructions, threads, memory, kernels, polars_in_library = _internal.machine()
    total, free, limit = memory or (None, None, None)
    packages = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            packages[package] = version(package)
    cpu, *gpus = devices().to_dicts()
    limits = [bytes for bytes in (limit, _address_space()) if bytes is not None]
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "polars_kmeans": _internal.__version__,
        "polars": pl.__version__,
        "polars_in_library": polars_in_library,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "processor": cpu["name"],
        "instructions": instructions,
        "processors": processors,
        "threads": threads,
        "POLARS_MAX_THREADS": os.environ.get("POLARS_MAX_THREADS"),
        "memory_total": total,
        "memory_free": free,
        "memory_limit": min(limits, default=None),
        "kernels": kernels,
        "gpus": gpus,
    }


def show_versions() -> None:
    """Print what :func:`versions` returns: versions, processor, threads, memory, and why a GPU is not used.

    Examples
    --------
    >>> import polars_kmeans as pk
    >>> pk.show_versions()  # doctest: +ELLIPSIS
    polars-kmeans       ...
    polars              ...
    python              ...

    """
    facts = versions()
    gpus = [
        f"{gpu['device']}: {gpu['name'] or 'none'}, {'used' if gpu['usable'] else 'not used'}: {gpu['reason']}"
        for gpu in facts["gpus"]
    ]
    limit = facts["POLARS_MAX_THREADS"]
    memory = {name: _gigabytes(facts[f"memory_{name}"]) for name in ("total", "free", "limit")}
    lines = {
        "polars-kmeans": facts["polars_kmeans"],
        "polars": f"{facts['polars']} ({facts['polars_in_library']} in the library)",
        "python": facts["python"],
        "platform": facts["platform"],
        "processor": facts["processor"],
        "instructions": ", ".join(facts["instructions"]),
        "threads": f"{facts['threads']} on {facts['processors']} processors, POLARS_MAX_THREADS={limit or 'not set'}",
        "memory": f"{memory['total']}, of which {memory['free']} are free",
        "memory limit": memory["limit"] if facts["memory_limit"] else "none",
        "kernels for GPUs": facts["kernels"] or "none",
        "gpus": ("\n" + " " * 20).join(gpus),
    }
    for name, value in (lines | facts["packages"]).items():
        print(f"{name:<19} {value}")


def _gigabytes(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 1e9:.1f} GB"


def _address_space() -> int | None:
    """Return the limit of the memory of this process, if there is one."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        return None if limit == resource.RLIM_INFINITY else limit
    return None
