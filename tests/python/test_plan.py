"""A plan says what a fit will take. Thirteen shapes on the CPU: device, method, memory and time."""

import json
import math
import os
from dataclasses import FrozenInstanceError
from functools import cache
from pathlib import Path
from typing import Any, Literal

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
    "a tree": (8_000, 2, "Float32", "columns", {"k": 2_000}),
    "wider than long": (500, 3_000, "Float64", "array", {"k": 20}),
    "optimal": (20_000, 1, "Float64", "columns", {"k": 10, "init": "optimal"}),
    "cast and weighted": (100_000, 4, "Int32", "columns", {"k": 12, "weight": "w", "init": "kmeans-parallel"}),
    "in order": (80_000, 3, "Float32", "columns", {"k": 20, "row_order": "values", "scale": "standard"}),
    "restarts": (30_000, 24, "Float32", "array", {"k": 100, "n_init": 3, "init_sample": 5_000, "metric": "cosine"}),
}
# How many times as long a fit may take, or as short: 3, with `make measured-build` on a machine that does nothing else.
# Tests run a library that checks every sum, beside other tests. So they look at times only if this is set.
FACTOR = float(os.environ.get("POLARS_KMEANS_PLAN_FACTOR", "inf"))
# Shorter times are noise.
NOISE = 1e-3
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
    iteration = model.history["seconds"].mean()
    answers[name] = {
        "plan": vars(plan), "device": model.device, "reason": model.device_reason, "method": model.method,
        "bytes": status("VmHWM") - before, "seeding": model.seconds["seeding"], "iteration": iteration,
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
    # Each thread has memory of its own. The plan counts that of all threads, which need not all work.
    return json.loads(run(MEASURE, Path(__file__).parent, timeout=600, RAYON_NUM_THREADS="2"))


@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_comes_true(name: str) -> None:
    fit = measured()[name]
    plan = fit["plan"]
    assert (plan["device"], plan["reason"], plan["method"]) == (fit["device"], fit["reason"], fit["method"])
    assert plan["device_bytes"] == 0
    # A plan that says too much says nothing.
    assert fit["bytes"] <= plan["host_bytes"] <= 8 * fit["bytes"] + (40 << 20)
    for part in ("seeding", "iteration"):
        planned, took = plan[f"seconds_{part}"], fit[part]
        assert 0 < planned < 10
        print(f"{name}, {part}: planned {planned:.6f}, took {took:.6f}")
        assert 1 / FACTOR <= max(planned, NOISE) / max(took, NOISE) <= FACTOR, part


def test_the_shapes_try_every_method() -> None:
    methods = {fit["method"] for fit in measured().values()}
    assert {"differences", "differences, groups", "products", "products, groups", "a tree"} <= {
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


def seconds(rows: int, features: int, k: int, **options: Any) -> tuple[float, float]:
    plan = pk.KMeans(k, device="cpu", **options).plan(shape=(rows, features), dtype=pl.Float32)
    assert math.isfinite(plan.seconds_seeding) and plan.seconds_seeding > 0
    assert math.isfinite(plan.seconds_iteration) and plan.seconds_iteration > 0
    return plan.seconds_seeding, plan.seconds_iteration


@pytest.mark.parametrize("init", ["k-means++", "kmeans-parallel", "afk-mc2"])
def test_more_work_takes_more_seconds(init: str) -> None:
    for rows, features, k in [(50, 2, 3), (20_000, 2, 100), (100_000, 16, 40), (10**6, 128, 1_000)]:
        least = seconds(rows, features, k, init=init)
        # Three times as much, because another method may take the work.
        for more in [(3 * rows, features, k), (rows, 3 * features, k), (rows, features, 3 * k)]:
            assert all(a < b for a, b in zip(least, seconds(*more, init=init), strict=True)), (rows, features, k, more)


def test_options_that_save_seeding_save_seconds_of_a_plan() -> None:
    plain = seconds(10**6, 8, 100)
    assert seconds(10**6, 8, 100, n_init=5)[0] == pytest.approx(5 * plain[0])
    assert seconds(10**6, 8, 100, init_sample=10_000)[0] < plain[0] / 4
    assert seconds(10**6, 8, 100, init="random", n_init=1)[0] < plain[0] / 10
    assert seconds(10**6, 8, 100, init=[[0.0] * 8] * 100)[0] < plain[0] / 10


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_plans_as_its_fit_runs(dtype: str, order: Literal["C", "F"]) -> None:
    x = np.asarray(np.random.default_rng(1).normal(size=(20_000, 5)), dtype=dtype, order=order)
    estimator = pk.KMeans(20, seed=1, device="cpu", max_iter=2)
    with pytest.warns(pk.ConvergenceWarning):
        model = estimator.fit(x)
    plan = estimator.plan(x)
    assert (plan.device, plan.reason, plan.method) == (model.device, model.device_reason, model.method)
    # An array of 16 bits is widened in a copy.
    same = pk.KMeans(20, seed=1, device="cpu", max_iter=2).plan(x.astype("float32")) if dtype == "float16" else plan
    assert plan.host_bytes - same.host_bytes == (4 * x.size if dtype == "float16" else 0)
    if order == "C" and dtype != "float16":
        assert plan == estimator.plan(shape=x.shape, dtype=x.dtype)
    assert estimator.plan(x[:, 0]).host_bytes < plan.host_bytes


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
    with pytest.raises(pk.InvalidParameterError, match=r"^data: expected a frame .* got a LazyFrame, .*: collect it$"):
        estimator.plan(frame.lazy(), "x")
    with pytest.raises(pk.InvalidParameterError, match="values of float16, bfloat16, float32 or float64, got int64"):
        estimator.plan(np.zeros((3, 2), dtype="int64"))
    with pytest.raises(pk.InvalidParameterError, match=r"^columns: expected none beside an array"):
        estimator.plan(np.zeros((3, 2)), "x")
    with pytest.raises(pk.InvalidParameterError, match=r"^data: expected a frame .* got nothing$"):
        estimator.plan()
    with pytest.raises(pk.InvalidParameterError, match=r"^shape: expected none beside rows"):
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
    for (n, d), k in [((200_000, 32), 100), ((2_000_000, 2), 10), ((1_000_000, 16), 1_000), ((100_000, 300), 2_000)]:
        x = np.random.default_rng(1).normal(size=(n, d)).astype("float32")
        estimator = pk.KMeans(k, device="cuda", max_iter=10, tol=0, seed=1)
        plan = estimator.plan(x)
        estimator.fit(x)  # starts the GPU
        model = estimator.fit(x)
        # With several GPUs, each call takes the one with the most free memory.
        assert plan.device.startswith("cuda:") and model.device.startswith("cuda:") and plan.method == model.method
        assert x.nbytes < plan.device_bytes < 10 * x.nbytes
        took = {"seeding": (model.seconds or {})["seeding"], "iteration": model.history["seconds"].mean()}
        for part, planned in (("seeding", plan.seconds_seeding), ("iteration", plan.seconds_iteration)):
            print(f"{n} x {d} into {k}, {part}: planned {planned:.6f}, took {took[part]:.6f}")
            assert 1 / FACTOR <= planned / took[part] <= FACTOR, (n, d, k, part)
