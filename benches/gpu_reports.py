"""What `gpu.py --reports` shows of one GPU: a fit by iterations, host memory, the expression's cost."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_data import generate, to_frame


def history_report(rows: int) -> dict[str, Any]:
    """Show a fit iteration by iteration: what later iterations save."""
    import polars_kmeans as pk

    x, start = generate(rows, 4, 64)
    df, start = to_frame(x), start.cpu().numpy()
    del x
    estimator = pk.KMeans(k=64, init=start, max_iter=20, tol=0.0, device="cuda")
    estimator.fit(df, df.columns)
    history = estimator.fit(df, df.columns).history
    print(f"{'iteration':>9}{'ms':>10}{'changed, %':>12}{'shift':>14}")
    for row in history.iter_rows(named=True):
        share = 100 * row["changed"] / rows
        print(f"{row['iteration']:>9}{1e3 * row['seconds']:>10.3f}{share:>12.4f}{row['shift']:>14.5g}")
    return {"rows": rows, "history": history.drop("inertia").to_dicts()}


def plugin(df: Any, function: str, kwargs: dict[str, Any]) -> list[float]:
    """Call a function of the library that is there for benches alone."""
    import polars as pl
    from polars.plugins import register_plugin_function

    from polars_kmeans import _internal

    if not hasattr(ctypes.CDLL(_internal.__file__), f"_polars_plugin_{function}"):
        msg = f"this build of polars_kmeans has no {function}"
        raise ImportError(msg)
    call = register_plugin_function(
        plugin_path=Path(_internal.__file__).parent,
        function_name=function,
        args=[pl.col(name) for name in df.columns],
        kwargs=kwargs,
        changes_length=True,
        input_wildcard_expansion=True,
    )
    return df.select(call).to_series().to_list()


def peak(*, reset: bool = False) -> tuple[float, float]:
    """MiB of host memory that this process has, and has had at most."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) / 1024, int(status["VmHWM"].split()[0]) / 1024


def memory_report(rows: int) -> dict[str, Any]:
    """Show what a fit adds to the host's memory: staging, and the labels."""
    import polars_kmeans as pk

    x, start = generate(rows, 4, 16)
    df, start = to_frame(x), start.cpu().numpy()
    del x
    estimator = pk.KMeans(k=16, init=start, max_iter=5, tol=0.0, device="cuda")
    estimator.fit(df.head(10_000), df.columns)  # context and kernels
    before, _ = peak(reset=True)
    estimator.fit(df, df.columns)
    after, most = peak()
    found = {
        "frame_MiB": df.estimated_size("mb"),
        "peak_MiB": most - before,
        "left_MiB": after - before,
        "labels_MiB": rows * 4 / 2**20,
    }
    print(", ".join(f"{name} {value:.0f}" for name, value in found.items()))
    return found


def expression_report(rows: int) -> dict[str, Any]:
    """Time the expression and the estimator beside the engine that they call, on the same frame."""
    import polars_kmeans as pk
    from polars_kmeans._options import FitOptions

    x, start = generate(rows, 4, 16)
    df, start = to_frame(x), start.cpu().numpy()
    del x
    options = {"k": 16, "init": start, "max_iter": 20, "tol": 0.0, "device": "cuda"}
    expression, estimator = pk.kmeans(*df.columns, **options), pk.KMeans(**options)
    kwargs = {**FitOptions(**options).keywords, "weighted": False}

    def wall(work: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    df.select(expression)
    # In turn, so that all of them see the same minute.
    rounds = [
        (
            plugin(df, "benchmark_fit", kwargs)[0],
            wall(lambda: df.select(expression)),
            wall(lambda: estimator.fit(df, df.columns)),
        )
        for _ in range(9)
    ]
    engine, by_expression, by_estimator = (statistics.median(times) for times in zip(*rounds, strict=True))
    print(
        f"{rows} x 4, k = 16: engine {1e3 * engine:.3f} ms, expression {1e3 * by_expression:.3f} ms"
        f" ({100 * (by_expression / engine - 1):+.1f} %), estimator {1e3 * by_estimator:.3f} ms"
        f" ({100 * (by_estimator / engine - 1):+.1f} %)"
    )
    return {"engine_s": engine, "expression_s": by_expression, "estimator_s": by_estimator}


REPORTS: dict[str, tuple[Callable[[int], dict[str, Any]], int]] = {
    "history": (history_report, 134_217_728),
    "memory": (memory_report, 67_108_864),
    "expression": (expression_report, 10_000_000),
}
