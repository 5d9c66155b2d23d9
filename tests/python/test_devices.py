"""Choosing a device: on a machine without a GPU, and on one with fewer than a hundred."""

import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.exceptions import ComputeError

import polars_kmeans as pk

DF = pl.DataFrame({"x": [0.0, 0.1, 5.0, 5.1], "y": [1.0, 1.1, 9.0, 9.1]})
GPUS = pk.devices().filter(pl.col("device").str.starts_with("cuda") & pl.col("usable"))
needs_no_gpu = pytest.mark.skipif(not GPUS.is_empty(), reason="this machine has a GPU")


@pytest.mark.parametrize(
    "device", ["gpu", "CPU", "", "cuda:", "cuda:-1", "cuda:+1", "cuda:01", "cuda:0 ", "cuda:x", 0, None]
)
def test_unknown_names_are_refused_at_once(device: Any) -> None:
    expected = r'^device: expected "auto", "cpu", "cuda" or a numbered GPU as "cuda:0", got '
    for call in (pk.kmeans, pk.centroids):
        with pytest.raises(pk.InvalidParameterError, match=expected):
            call("x", k=2, device=device)
    with pytest.raises(pk.InvalidParameterError, match=expected):
        pk.KMeans(2, device=device)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:99"])
def test_names_are_accepted_before_there_are_data(device: str) -> None:
    pk.kmeans("x", k=2, device=device)
    pk.centroids("x", k=2, device=device)
    pk.KMeans(2, device=device)


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
        with pk.typed_errors(), pytest.raises(pk.DeviceError, match=said), pk.typed_errors():
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
        assert (again.device, again.device_reason) == (None, None)


def test_too_few_rows_are_still_no_model() -> None:
    assert pk.KMeans(3, too_few="null", device="cpu").fit(DF.head(2), "x") is None
