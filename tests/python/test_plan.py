"""A plan says what a fit will take. Twelve shapes on the CPU: device, method and memory."""

import json
from dataclasses import FrozenInstanceError
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from helpers import GPUS, needs_no_gpu, run

import polars_kmeans as pk

# Rows, features, type, layout, options.
SHAPES: dict[str, tuple[int, int, str, str, dict[str, Any]]] = {
    "few rows": (40, 2, "Float64", "columns", {"k": 3}),
    "many rows": (400_000, 2, "Float32", "columns", {"k": 5}),
    "groups": (100_000, 2, "Float32", "columns", {"k": 200}),
    "eight features": (150_000, 8, "Float32", "array", {"k": 40}),
    "float64": (50_000, 16, "Float64", "columns", {"k": 50}),
    "copies": (30_000, 64, "Float32", "array", {"k": 150}),
    "wide": (10_000, 400, "Float32", "columns", {"k": 30}),
    "wider than long": (500, 3_000, "Float64", "array", {"k": 20}),
    "optimal": (20_000, 1, "Float64", "columns", {"k": 10, "init": "optimal"}),
    "cast and weighted": (100_000, 4, "Int32", "columns", {"k": 12, "weight": "w", "init": "kmeans-parallel"}),
    "in order": (80_000, 3, "Float32", "columns", {"k": 20, "row_order": "values", "scale": "standard"}),
    "restarts": (30_000, 24, "Float32", "array", {"k": 100, "n_init": 3, "init_sample": 5_000, "metric": "cosine"}),
}
MEASURE = """
import ctypes, json, os, sys, warnings
import numpy as np, polars as pl, polars_kmeans as pk
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
from test_plan import SHAPES, estimator, frame_of

def status(name):
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith(name))) * 1024

answers = {}
for name in SHAPES:
    rows = frame_of(name)
    # The first fit starts threads, and reads the library.
    estimator(name).fit(pl.concat([rows.head(3_000)] * 3), pl.exclude("w"))
    plan = estimator(name).plan(rows, pl.exclude("w"))
    ctypes.CDLL(None).malloc_trim(0)
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmRSS")
    model = estimator(name).fit(rows, pl.exclude("w"))
    answers[name] = {
        "plan": vars(plan), "device": model.device, "reason": model.device_reason, "method": model.method,
        "bytes": status("VmHWM") - before,
    }
print(json.dumps(answers))
"""


def frame_of(name: str) -> pl.DataFrame:
    """Return rows of one of the shapes: blobs, a few of them."""
    n, d, dtype, layout, options = SHAPES[name]
    rng = np.random.default_rng(n + d)
    x = rng.normal(size=(n, d)) + 5 * rng.normal(size=(12, d))[rng.integers(12, size=n)]
    if dtype == "Int32":
        x = np.round(100 * x)
    if layout == "array":
        frame = pl.DataFrame({"x": pl.Series(x.astype(dtype.lower()))})
    else:
        frame = pl.DataFrame({f"x{f}": np.ascontiguousarray(x[:, f]) for f in range(d)}).cast(getattr(pl, dtype))
    return frame.with_columns(w=rng.random(n)) if "weight" in options else frame


def estimator(name: str) -> pk.KMeans:
    options = dict(SHAPES[name][4])
    return pk.KMeans(options.pop("k"), max_iter=5, tol=0, seed=1, device="cpu", **options)


@cache
def measured() -> dict[str, dict[str, Any]]:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the system does not say how much memory a process took")
    return json.loads(run(MEASURE, Path(__file__).parent, timeout=600))


@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_comes_true(name: str) -> None:
    fit = measured()[name]
    plan = fit["plan"]
    assert (plan["device"], plan["reason"], plan["method"]) == (fit["device"], fit["reason"], fit["method"])
    assert plan["device_bytes"] == 0
    # A plan that says too much says nothing.
    assert fit["bytes"] <= plan["host_bytes"] <= 8 * fit["bytes"] + (40 << 20)


def test_the_shapes_try_every_method() -> None:
    methods = {fit["method"] for fit in measured().values()}
    assert {"differences", "differences, groups", "products", "products, groups"} <= {
        method.removesuffix(", copies") for method in methods
    }


def test_a_shape_plans_as_a_frame_does() -> None:
    for dtype in (pl.Float32, pl.Float64):
        for rows, features, k in ((100, 3, 2), (50_000, 40, 200), (10_000, 300, 20)):
            frame = pl.DataFrame({"x": pl.Series([[0.5] * features] * rows, dtype=pl.Array(dtype, features))})
            plan = pk.KMeans(k).plan(frame, "x")
            assert plan == pk.KMeans(k).plan(shape=(rows, features), dtype=dtype)
            names = str(dtype).lower(), np.dtype(str(dtype).lower()), getattr(np, str(dtype).lower())
            for name in names:
                assert plan == pk.KMeans(k).plan(shape=np.zeros((rows, features)).shape, dtype=name)
    lists = pl.DataFrame({"x": [None, [1.0, 2.0, 3.0]]})
    assert pk.KMeans(1).plan(lists, "x").reason.startswith("2 rows x 3 features x 1 clusters ")


def test_a_plan_is_a_frozen_value() -> None:
    plan = pk.KMeans(2).plan(pl.DataFrame({"x": [1.0, 2.0]}), "x")
    assert isinstance(plan, pk.Plan)
    assert plan == pk.KMeans(2).plan(pl.DataFrame({"x": [3.0, 4.0]}), pl.all())
    assert hash(plan) == hash(pk.KMeans(2).plan(pl.DataFrame({"x": [3.0, 4.0]}), pl.all()))
    with pytest.raises(FrozenInstanceError):
        plan.device = "cuda"  # type: ignore[misc]


def test_a_plan_takes_no_time_and_no_memory() -> None:
    huge = pk.KMeans(1_000, device="cpu").plan(shape=(10**9, 256), dtype=pl.Float32)
    assert 4e9 < huge.host_bytes < 100e9
    more = pk.KMeans(1_000, device="cpu", row_order="values").plan(shape=(10**9, 256), dtype=pl.Float32)
    assert more.host_bytes - huge.host_bytes > 10**9 * 256 * 4
    # Columns that must be cast or computed are copied.
    frame = pl.DataFrame({"x": pl.Series([1.0, 2.0] * 10_000, dtype=pl.Float32)})
    plain = pk.KMeans(1).plan(frame, "x").host_bytes
    assert pk.KMeans(1).plan(frame.cast(pl.Int16), "x").host_bytes - plain == 20_000 * 4
    assert pk.KMeans(1).plan(frame, pl.col("x") * 2).host_bytes - plain == 20_000 * 16


def test_what_a_fit_refuses_a_plan_refuses() -> None:
    frame = pl.DataFrame({"x": [1.0, 2.0], "s": ["a", "b"]})
    refused: list[tuple[pk.KMeans, tuple[Any, ...], str]] = [
        (pk.KMeans(3), (frame, "x"), "k: expected at most as many clusters as distinct rows"),
        (pk.KMeans(1), (frame.head(0), "x"), "rows: expected at least one row, got none"),
        (pk.KMeans(1), (frame, "s"), 'column "s": expected numbers'),
        (pk.KMeans(1), (frame,), "features: expected at least one column"),
        (pk.KMeans(1, init="optimal"), (frame, "x", (pl.col("x") + 1).alias("y")), "init: expected one feature"),
        (pk.KMeans(1, device="cuda:99"), (frame, "x"), 'device="cuda:99" cannot be used'),
    ]
    for estimator, arguments, said in refused:
        for call in (estimator.plan, estimator.fit):
            with pytest.raises(pk.KMeansError, match=said):
                call(*arguments)


def test_what_is_no_frame_is_refused() -> None:
    estimator: Any = pk.KMeans(2)
    frame = pl.DataFrame({"x": [1.0, 2.0, 3.0]})
    with pytest.raises(pk.InvalidParameterError, match=r"^data: expected a frame, .* got a LazyFrame, .*: collect it$"):
        estimator.plan(frame.lazy(), "x")
    with pytest.raises(pk.InvalidParameterError, match=r"got an array: pass shape=array.shape, dtype=array.dtype$"):
        estimator.plan(np.zeros((3, 2)))
    with pytest.raises(pk.InvalidParameterError, match=r"^data: expected a frame, .* got nothing$"):
        estimator.plan()
    with pytest.raises(pk.InvalidParameterError, match=r"^shape: expected none beside a frame"):
        estimator.plan(frame, "x", shape=(3, 1))
    shapes: list[Any] = [3, (3,), (3, 0), (-1, 2), (3.0, 2), "32", (1, 2, 3), (2**70, 1)]
    for shape in shapes:
        with pytest.raises(pk.InvalidParameterError, match=r"^shape: expected \(rows, features\), got "):
            estimator.plan(shape=shape)
    for dtype in (pl.String, "int", None, 3):
        with pytest.raises(pk.InvalidParameterError, match=r"^dtype: expected a type of floats such as pl.Float32"):
            estimator.plan(shape=(3, 2), dtype=dtype)


@needs_no_gpu
def test_a_plan_says_why_no_gpu_is_used() -> None:
    plan = pk.KMeans(500).plan(shape=(10**6, 100))
    assert (plan.device, plan.reason) == ("cpu", f"no GPU can be used: {pk.devices()['reason'][1]}")


@pytest.mark.skipif(GPUS.is_empty(), reason="this machine has no GPU")
def test_a_plan_for_a_gpu_comes_true() -> None:
    x = np.random.default_rng(1).normal(size=(200_000, 32)).astype("float32")
    plan = pk.KMeans(100, device="cuda").plan(shape=x.shape, dtype=x.dtype)
    model = pk.KMeans(100, device="cuda", max_iter=5).fit(x)
    assert (plan.device, plan.method) == (model.device, model.method)
    assert x.nbytes < plan.device_bytes < 10 * x.nbytes
