"""What several files of tests use."""

import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import polars_kmeans as pk

ROOT = Path(__file__).parents[2]

# POLARS_KMEANS_DEMAND_GPU in the environment demands a GPU. Then tests that need one fail where there is none.
DEMANDED = "POLARS_KMEANS_DEMAND_GPU" in os.environ
GPUS = pk.devices().filter(pl.col("device").str.starts_with("cuda") & pl.col("usable"))
needs_gpu = pytest.mark.skipif(GPUS.is_empty() and not DEMANDED, reason="this machine has no GPU")
needs_no_gpu = pytest.mark.skipif(not GPUS.is_empty(), reason="this machine has a GPU")


def counted(frame: pl.DataFrame, **options: Any) -> tuple[pl.LazyFrame, list[int]]:
    """Return a query of the rows, and a list that gets their number each time it runs."""
    runs: list[int] = []

    def count(rows: pl.DataFrame) -> pl.DataFrame:
        runs.append(rows.height)
        return rows

    return frame.lazy().map_batches(count, **options), runs


def columns_of(x: Any) -> pl.DataFrame:
    """Return the rows of an array as a frame whose columns have the names that an array gets."""
    return pl.DataFrame({f"column_{f}": np.ascontiguousarray(x[:, f]) for f in range(x.shape[1])})


def run(code: str, *arguments: object, timeout: float = 120, **environment: str) -> str:
    """Run code in an interpreter of its own, and return what it prints."""
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    settings = os.environ | environment
    out = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=timeout, check=False)
    assert out.returncode == 0, (out.returncode, out.stdout[-3000:], out.stderr[-3000:])
    return out.stdout


def in_threads(work: Callable[[int], object], count: int) -> None:
    """Do work in several threads at once, and wait for them. Each gets its number."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def code_of(page: Path) -> list[str]:
    """Return the blocks of Python of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


def run_page(page: Path) -> dict[str, Any]:
    """Run the blocks of Python of a page, one after the other. Return the names that they make.

    A block of text right below a block of Python is what that code prints.
    """
    names: dict[str, Any] = {}
    for code, shown in re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", page.read_text(), flags=re.DOTALL):
        printed = printed_by(code, names)
        assert printed == (shown or printed)
    return names


def printed_by(code: str, names: dict[str, Any]) -> str:
    """Run code, and return what it prints."""
    with redirect_stdout(io.StringIO()) as printed:
        exec(code, names)
    return printed.getvalue()


class ByDLPack:
    """Exports an array by DLPack alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()
