"""Rows that another library has: arrays, tensors, and data frames on a GPU. They are read where they are."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from polars_kmeans import _internal, _plugin
from polars_kmeans._frames import is_array as is_array
from polars_kmeans._options import FitOptions
from polars_kmeans._progress import OnProgress, shown
from polars_kmeans.errors import InvalidDataError, InvalidParameterError

if TYPE_CHECKING:
    from polars_kmeans._typing import Device, Fit, IntoArray, Output


class Prediction(NamedTuple):
    """Arrays of one value per row, on the device of the rows."""

    cluster: Any
    """The clusters (int32). -1: the row holds a null, a NaN or an infinity."""
    distance: Any
    """The distances to the nearest centroid (float64). NaN for the same rows."""
    second_distance: Any
    """The distances to the second nearest centroid (float64). None if there is one centroid."""


class NearestClusters(NamedTuple):
    """Arrays of `m` values per row."""

    clusters: Any
    """The clusters (int32). -1: the row holds a null, a NaN or an infinity."""
    distances: Any
    """The distances to their centroids (float64). NaN for the same rows."""


def on_gpu(data: object) -> bool:
    """Whether an array is on a GPU, as far as it says so."""
    if hasattr(type(data), "__arrow_c_device_array__"):
        return True
    # 1 is the memory of the host.
    device = getattr(data, "__dlpack_device__", None)
    return device is not None and int(device()[0]) != 1


def alone(data: object, columns: tuple[Any, ...], weight: object, remedy: str | None = None) -> None:
    """Refuse names of columns beside an array, which has no names. `weight`: that of the estimator, if no `remedy`."""
    if columns:
        msg = f"columns: expected none beside an array, got {len(columns)}: select columns of the {type(data).__name__}"
        raise InvalidParameterError(msg)
    if weight is not None:
        where = "in KMeans for an array" if remedy is None else "for an array"
        remedy = remedy or "fit(array, weight=...) takes an array"
        raise InvalidParameterError(f"weight: expected none {where}, got a column: {remedy}")


def in_place_of(columns: tuple[Any, ...]) -> IntoArray | None:
    """Return the array, if one was passed in place of columns."""
    arrays = [item for item in columns if is_array(item)]
    if not arrays:
        return None
    alone(arrays[0], columns[1:], None)
    return arrays[0]


def no_weight(weight: object) -> None:
    """Refuse the weights of a fit beside a frame."""
    if weight is not None:
        msg = f"weight: expected none in the fit of a frame, got {type(weight).__name__}"
        raise InvalidParameterError(f"{msg}: KMeans(k, weight=...) takes a column or an expression")


def fit(
    data: IntoArray,
    weight: IntoArray | None,
    options: FitOptions,
    progress: OnProgress = None,
    *,
    labels: bool = False,
) -> tuple[Fit, Any] | None:
    """Fit an array. As `_plugin.fit`, with the labels of an array on the host if they are wanted, else None."""
    _plugin.check_process(runs=True)
    keywords = {**options.keywords, "weighted": weight is not None}
    with shown(progress) as call:
        found = _internal.fit_array(data, weight, keywords, call, labels)
    if found is None:
        return None
    fitted, answers = found
    return fitted, None if answers is None else _returned(data, answers)


def predict(model: bytes, data: IntoArray, output: Output, device: Device, complete: bool) -> Any:
    """Label the rows of an array. The answer is an array of the same library, on the same device.

    If it must be `complete`, rows without a label are refused.
    """
    _plugin.check_process(runs=True)
    answers = _internal.predict_array(model, data, output, _plugin.device_name(device))
    arrays = [None if answer is None else _returned(data, answer) for answer in answers]
    if complete:
        _refuse_gaps(arrays[0])
    return arrays[0] if output == "label" else Prediction(*arrays)


def transform(model: bytes, data: IntoArray, device: Device, *, squared: bool) -> Any:
    """Measure the distances of the rows of an array to every centroid. The answer is as in `predict`."""
    _plugin.check_process(runs=True)
    return _returned(data, _internal.transform_array(model, data, _plugin.device_name(device), squared))


def silhouette(model: bytes, data: IntoArray, device: Device) -> Any:
    """Say how clearly the rows of an array belong to their clusters. The answer is as in `predict`."""
    _, first, second = predict(model, data, "struct", device, complete=False)
    if isinstance(first, _internal.Answers):
        # Those for an unknown library cannot be subtracted.
        import numpy as np

        first, second = np.asarray(first), None if second is None else np.asarray(second)
    # If the second distance is 0, so is the first.
    return first * float("nan") if second is None else (second - first) / (second + (second == 0))


def nearest_clusters(data: IntoArray, found: pl.Series, m: int) -> NearestClusters:
    """Return the nearest clusters of the rows of an array as arrays of its library."""
    rows = found.struct.unnest()
    ranks = [pl.col(rows.columns).arr.get(rank).name.suffix(f"_{rank}") for rank in range(m)]
    numbers = rows.select(ranks)
    names = [[f"{name}_{rank}" for rank in range(m)] for name in rows.columns]
    clusters = numbers.select(pl.col(names[0]).cast(pl.Int32).fill_null(-1))
    both = [part.to_numpy(order="c", writable=True) for part in (clusters, numbers.select(names[1]))]
    return NearestClusters(*(_returned(data, values) for values in both))


def score(model: bytes, data: IntoArray, weight: IntoArray | None, device: Device) -> float:
    """Score the rows of an array."""
    _plugin.check_process(runs=True)
    return _internal.score_array(model, data, weight, _plugin.device_name(device))


def _refuse_gaps(labels: Any) -> None:
    """Refuse labels of -1."""
    missing = int((labels < 0).sum())
    if missing:
        msg = f"rows: expected finite values in each, got {missing} rows with nulls, NaNs or infinities"
        raise InvalidDataError(f'{msg} (null_policy="skip" labels them -1)')


def _returned(data: Any, answers: Any) -> Any:
    """Return answers as an array of the caller's library, without a copy. For an unknown library, as they are."""
    namespace = getattr(data, "__array_namespace__", None)
    library: Any = namespace() if namespace else sys.modules.get(type(data).__module__.partition(".")[0])
    if getattr(library, "__name__", "") == "numpy":
        # Older versions of NumPy take arrays over by DLPack as read-only.
        return library.asarray(answers)
    from_dlpack = getattr(library, "from_dlpack", None)
    if from_dlpack is None:
        return answers
    answer = from_dlpack(answers)
    # Answers that were computed on the host follow a tensor to its GPU.
    return answer.to(data.device) if hasattr(answer, "to") and on_gpu(data) and not on_gpu(answer) else answer
