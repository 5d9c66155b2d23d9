"""Choosing a device. The tests pass on a machine without a GPU, and on one with fewer than a hundred GPUs.

If POLARS_KMEANS_DEMAND_GPU is set in the environment, tests that need a GPU fail when there is none.
"""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from helpers import DEMANDED, GPUS, needs_gpu, needs_no_gpu
from polars.exceptions import ComputeError

import polars_kmeans as pk

DF = pl.DataFrame({"x": [0.0, 0.1, 5.0, 5.1], "y": [1.0, 1.1, 9.0, 9.1]})


@pytest.mark.parametrize(
    "device", ["gpu", "CPU", "", "cuda:", "cuda:-1", "cuda:+1", "cuda:01", "cuda:0 ", "cuda:x", 0, None]
)
def test_unknown_names_are_refused_at_once(device: Any) -> None:
    expected = (
        r'^device: expected "auto", "cpu", "cuda", "cuda:all" or numbered GPUs as "cuda:0" or "cuda:0,cuda:1", got '
    )
    for call in (pk.kmeans, pk.centroids):
        with pytest.raises(pk.InvalidParameterError, match=expected):
            call("x", k=2, device=device)
    with pytest.raises(pk.InvalidParameterError, match=expected):
        pk.KMeans(2, device=device)
    model = pk.KMeans(2).fit(DF, "x")
    for use in (model.predict, model.transform, partial(model.score, DF)):
        with pytest.raises(pk.InvalidParameterError, match=expected):
            use(device=device)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:99"])
def test_names_are_accepted_before_there_are_data(device: str) -> None:
    pk.kmeans("x", k=2, device=device)
    pk.centroids("x", k=2, device=device)
    pk.KMeans(2, device=device)
    model = pk.KMeans(2).fit(DF, "x")
    model.predict(device=device)
    model.transform("y", device=device)


def test_devices_is_a_frame_of_the_cpu_and_the_gpus() -> None:
    frame = pk.devices()
    assert frame.schema == pl.Schema(
        {
            "device": pl.String,
            "name": pl.String,
            "memory_free": pl.UInt64,
            "memory_total": pl.UInt64,
            "compute_capability": pl.String,
            "driver": pl.String,
            "usable": pl.Boolean,
            "reason": pl.String,
        }
    )
    cpu = frame.row(0, named=True)
    assert (cpu["device"], cpu["usable"], cpu["reason"]) == ("cpu", True, "always there")
    assert cpu["name"]
    assert frame["device"].n_unique() == frame.height >= 2
    assert frame["reason"].str.len_chars().min() > 0  # type: ignore[operator]
    assert frame["usable"].null_count() == 0
    assert frame.filter(pl.col("memory_free") > pl.col("memory_total")).is_empty()
    gpus = frame.slice(1)
    if gpus["device"].to_list() == ["cuda"]:
        assert not gpus["usable"].item()
        assert gpus.drop("device", "usable", "reason").null_count().sum_horizontal().item() == 5
    else:
        assert gpus["device"].to_list() == [f"cuda:{i}" for i in range(gpus.height)]
        assert gpus.null_count().sum_horizontal().item() == 0


def test_a_memory_limit_is_accepted_and_refused_at_once() -> None:
    for limit in (1, 2**40, 2**100, None):
        pk.kmeans("x", k=2, device_memory_limit=limit)
        pk.centroids("x", k=2, device_memory_limit=limit)
        assert pk.KMeans(2, device_memory_limit=limit).fit(DF, "x").device == "cpu"
    limits: list[Any] = [0, -1, 1.5, True, "1"]
    for limit in limits:
        for call in (pk.kmeans, pk.centroids):
            with pytest.raises(pk.InvalidParameterError, match=r"^device_memory_limit: expected "):
                call("x", k=2, device_memory_limit=limit)
        with pytest.raises(pk.InvalidParameterError, match=r"^device_memory_limit: expected "):
            pk.KMeans(2, device_memory_limit=limit)


@needs_gpu
def test_rows_that_do_not_fit_stream_and_too_little_memory_is_an_error() -> None:
    frame = pl.DataFrame({f"x{f}": [float(i * (f + 3) % 1009) for i in range(50_000)] for f in range(4)})
    resident = pk.KMeans(5, device="cuda").fit(frame, pl.all())
    streamed = pk.KMeans(5, device="cuda", device_memory_limit=1_500_000).fit(frame, pl.all())
    assert streamed == resident
    assert streamed.device_reason is not None
    assert "stream through it in " in streamed.device_reason
    labels = frame.select(pk.kmeans(pl.all(), k=5, device="cuda", device_memory_limit=1_500_000))
    assert labels.equals(frame.select(resident.predict().alias("cluster")))
    with pytest.raises(pk.NoMemoryError, match=r"device_memory_limit allows 1\.0 kB"), pk.typed_errors():
        frame.select(pk.kmeans(pl.all(), k=5, device="cuda", device_memory_limit=1_000))


def test_a_gpu_that_is_not_there_is_an_error_that_says_what_there_is() -> None:
    said = r'^device="cuda:99" cannot be used: .* \(device="auto" takes the CPU where no GPU can be used\)$'
    with pytest.raises(pk.DeviceError, match=said) as caught:
        pk.KMeans(2, device="cuda:99").fit(DF, "x")
    assert isinstance(caught.value, (pk.KMeansError, RuntimeError))
    last = pk.devices().row(-1, named=True)
    assert (last["name"] or last["reason"]) in str(caught.value)
    for expr in (pk.kmeans("x", k=2, device="cuda:99"), pk.centroids("x", k=2, device="cuda:99")):
        with pytest.raises(ComputeError, match="DeviceError: "):
            DF.select(expr)
        with pytest.raises(pk.DeviceError, match=said), pk.typed_errors():
            DF.lazy().select(expr).collect()


@needs_no_gpu
def test_cuda_without_a_gpu_is_an_error_with_the_reason() -> None:
    why = pk.devices()["reason"][1]
    with pytest.raises(pk.DeviceError) as caught:
        pk.KMeans(2, device="cuda").fit(DF, "x")
    assert f'device="cuda" cannot be used: {why}' in str(caught.value)


def test_small_fits_stay_on_the_cpu_and_say_why() -> None:
    model = pk.KMeans(2).fit(DF, "x", "y")
    assert model.device == "cpu"
    assert model.device_reason is not None
    assert model.device_reason.startswith("4 rows x 2 features x 2 clusters are predicted to take ")
    model = pk.KMeans(2, device="cpu").fit(DF, "x")
    assert (model.device, model.device_reason) == ("cpu", 'device="cpu" was asked for')
    why = "rows are compared with all centroids, because there are few rows or few clusters"
    assert model.method == "products"
    assert (model.method_reason or "").startswith(why)


@pytest.mark.filterwarnings("ignore::polars_kmeans.ConvergenceWarning")  # it stops early
@needs_no_gpu
def test_large_fits_fall_back_to_the_cpu_and_say_why() -> None:
    frame = pl.DataFrame({f"x{f}": [float(i * (f + 3) % 1009) for i in range(20_000)] for f in range(8)})
    model = pk.KMeans(40, max_iter=1).fit(frame, pl.all())
    assert (model.device, model.device_reason) == ("cpu", f"no GPU can be used: {pk.devices()['reason'][1]}")


def test_the_device_is_no_part_of_a_model(tmp_path: Path) -> None:
    model = pk.KMeans(2, device="cpu").fit(DF, "x", "y")
    assert model == pk.KMeans(2).fit(DF, "x", "y")
    assert "device" not in model.parameters
    model.save(tmp_path / "model.parquet")
    for again in (pk.KMeansModel.load(tmp_path / "model.parquet"), pickle.loads(pickle.dumps(model))):
        assert again == model
        assert {again.device, again.device_reason, again.method, again.method_reason} == {None}


def test_too_few_rows_are_still_no_model() -> None:
    assert pk.KMeans(3, too_few="null", device="cpu").fit(DF.head(2), "x") is None


def answers(model: pk.KMeansModel, frame: pl.DataFrame, device: str) -> tuple[pl.DataFrame, float]:
    """All results of a model for a frame."""
    exprs = [
        model.predict(device=device),
        model.predict(output="struct", device=device).alias("struct"),
        model.transform(device=device),
    ]
    eager, lazy = frame.select(exprs), frame.lazy().select(exprs)
    assert lazy.collect(engine="streaming").equals(eager)
    return eager, model.score(frame, device=device)


def holes(rows: int, features: int, dtype: type[pl.DataType]) -> pl.DataFrame:
    """Rows, of which some have nulls, NaNs or infinities."""
    values = {f"x{f}": [float((i * (f + 3) + i * i) % 1009) for i in range(rows)] for f in range(features)}
    for f, hole in enumerate((None, float("nan"), float("inf"))):
        column: list[Any] = values[f"x{f % features}"]
        column[f::97] = [hole] * len(column[f::97])
    return pl.DataFrame(values, schema={name: dtype for name in values}, strict=False)


def test_predictions_are_the_same_wherever_they_run_by_default() -> None:
    frame = holes(500, 3, pl.Float32)
    model = pk.KMeans(5, null_policy="skip").fit(frame, pl.all())
    (auto, score), (cpu, score_on_cpu) = answers(model, frame, "auto"), answers(model, frame, "cpu")
    assert auto.equals(cpu)
    assert score == score_on_cpu
    assert frame.select(model.predict()).equals(cpu.select("cluster"))
    assert cpu["cluster"].null_count() > 10


def test_predictions_on_a_gpu_that_is_not_there_are_an_error() -> None:
    said = r'^device="cuda:99" cannot be used: '
    model = pk.KMeans(2).fit(DF, "x")
    for expr in (
        model.predict(device="cuda:99"),
        model.predict(output="struct", device="cuda:99"),
        model.transform(device="cuda:99"),
    ):
        with pytest.raises(pk.DeviceError, match=said), pk.typed_errors():
            DF.select(expr)
        with pytest.raises(ComputeError, match="DeviceError: "):
            DF.lazy().select(expr).collect()
    with pytest.raises(pk.DeviceError, match=said):
        model.score(DF, device="cuda:99")


@needs_no_gpu
def test_predictions_on_cuda_without_a_gpu_are_an_error_with_the_reason() -> None:
    model = pk.KMeans(2).fit(DF, "x")
    with pytest.raises(pk.DeviceError) as caught:
        model.score(DF, device="cuda")
    assert f'device="cuda" cannot be used: {pk.devices()["reason"][1]}' in str(caught.value)


@pytest.mark.skipif(not DEMANDED, reason="no GPU is demanded")
def test_the_gpu_that_is_demanded_is_there() -> None:
    assert not GPUS.is_empty(), pk.devices()["reason"].to_list()


@needs_gpu
@pytest.mark.parametrize("dtype", [pl.Float32, pl.Float64])
@pytest.mark.parametrize(("rows", "features", "k"), [(5, 1, 1), (4_000, 2, 3), (3_000, 40, 70), (700, 5, 600)])
def test_predictions_on_a_gpu_have_the_same_bits(dtype: type[pl.DataType], rows: int, features: int, k: int) -> None:
    frame = holes(rows, features, dtype)
    fitted = frame.fill_nan(None).fill_null(1.5).select(pl.all().clip(0.0, 1009.0))
    for columns in (pl.all(), pl.concat_arr(pl.all()).alias("xs")):
        model = pk.KMeans(k, device="cpu", max_iter=3).fit(fitted.select(columns), pl.all())
        frame_of_columns = frame.select(columns)
        (gpu, score), (cpu, score_on_cpu) = (answers(model, frame_of_columns, device) for device in ("cuda", "cpu"))
        assert gpu.equals(cpu)
        assert score == score_on_cpu
        assert gpu.null_count().equals(cpu.null_count())
        weight = pl.int_range(pl.len()) % 5 + 0.25
        scores = [model.score(frame_of_columns, weight=weight, device=device) for device in ("cuda", "cpu")]
        assert scores[0] == scores[1]
    # float64 rows under a float32 model are compared in float64.
    wide = frame.cast(pl.Float64).select(pl.all() + 1e-9)
    narrow = pk.KMeans(k, device="cpu", max_iter=3).fit(fitted.cast(pl.Float32), pl.all())
    assert answers(narrow, wide, "cuda")[0].equals(answers(narrow, wide, "cpu")[0])
    struct = pk.kmeans(pl.all(), k=k, output="struct", max_iter=3, device="cuda")
    assert fitted.select(struct).equals(
        fitted.select(pk.kmeans(pl.all(), k=k, output="struct", max_iter=3, device="cpu"))
    )


@needs_gpu
@pytest.mark.filterwarnings("ignore::polars_kmeans.ConvergenceWarning")  # it stops early
def test_memory_that_a_fit_gives_back_counts_as_free() -> None:
    def free() -> int:
        return int(pk.devices().filter(pl.col("device") == "cuda:0")["memory_free"].item())

    x = pl.DataFrame({f"f{f}": pl.arange(0, 500_000, eager=True).cast(pl.Float32) * (f + 1) % 7 for f in range(64)})
    estimator = pk.KMeans(4, max_iter=1, tol=0, device="cuda:0")
    estimator.fit(x.head(10_000), x.columns)
    before = free()
    # It takes 128 MB at least, and the driver keeps them for the next call.
    estimator.fit(x, x.columns)
    assert free() > before - (32 << 20)
