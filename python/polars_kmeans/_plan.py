"""What a fit is expected to take, before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from polars_kmeans import _arrays, _frames, _internal, _numeric, _plugin
from polars_kmeans._options import FitOptions
from polars_kmeans._typing import IntoFeatures
from polars_kmeans.errors import InvalidDataError, InvalidParameterError, typed_errors


@dataclass(frozen=True)
class Plan:
    """What a fit is expected to take: see :meth:`KMeans.plan <polars_kmeans.KMeans.plan>`.

    `device` and `method` are those of the fit (:attr:`model.device <polars_kmeans.KMeansModel.device>`,
    :attr:`model.method <polars_kmeans.KMeansModel.method>`), and `reason` says why it is this device.
    """

    device: str
    """The device, as `"cpu"` or `"cuda:0"`."""
    reason: str
    """Why the fit runs there, as a sentence."""
    method: str
    """What the fit tries to find labels by."""
    host_bytes: int
    """The most bytes of the host's memory that the fit takes, without the rows that it is given."""
    device_bytes: int
    """The bytes that it takes on all GPUs. 0 on the CPU."""
    seconds_seeding: float
    """The seconds for the starting centroids of all restarts, roughly."""
    seconds_iteration: float
    """The seconds for an iteration, roughly."""


def of_frame(data: Any, columns: tuple[IntoFeatures, ...], options: FitOptions, weight: str | pl.Expr | None) -> Plan:
    """Plan a fit of a frame. Only the types of its columns and the number of its rows are looked at."""
    expected = "data: expected a frame or an array, or shape=(rows, features)"
    if isinstance(data, pl.LazyFrame):
        raise InvalidParameterError(f"{expected}, got a LazyFrame, whose rows are not counted: collect it")
    if data is None:
        raise InvalidParameterError(f"{expected}, got nothing")
    frame = _frames.polars_frame(data, *columns, weight)
    assert isinstance(frame, pl.DataFrame)
    features = _plugin.features(columns)
    query = frame.lazy().select(*features.exprs, *_plugin.weights(weight))
    width = None
    with typed_errors():
        empty = query.collect_schema().to_frame()
        if isinstance(empty.dtypes[0], pl.List):
            first = query.select(pl.first()).drop_nulls().head(1).collect().to_series()
            if first.is_empty():
                raise InvalidDataError(f"column {first.name!r}: expected lists of numbers, got none")
            width = len(first[0])
    return _plan(empty, options, frame.height, width=width, weighted=weight is not None, computed=features.computed)


def of_array(data: Any, columns: tuple[IntoFeatures, ...], options: FitOptions, weight: object) -> Plan:
    """Plan a fit of an array on the host, whose values are not read."""
    _arrays.alone(data, columns, weight)
    if _arrays.on_gpu(data):
        got = "one on a GPU: pass shape=array.shape, dtype=array.dtype"
        raise InvalidParameterError(f"data: expected an array on the host, got {got}")
    return Plan(*_internal.plan_array(data, {**options.keywords, "weighted": False}))


def of_shape(shape: Any, dtype: Any, options: FitOptions, *, weighted: bool) -> Plan:
    """Plan a fit of so many rows and features, which lie row by row."""
    try:
        rows, features = (_numeric.integer("shape", length, least=0) for length in shape)
        if isinstance(shape, (str, set)) or not 0 < features < 2**31:
            raise ValueError
    except (TypeError, ValueError):
        raise _numeric.refused("shape", "(rows, features)", shape) from None
    column = _dtype(dtype)
    schema: dict[str, Any] = {f"column_{f}": column for f in range(features)}
    if weighted:
        schema[_plugin.WEIGHT] = pl.Float64
    return _plan(pl.DataFrame(schema=schema), options, rows, weighted=weighted, array=True)


def _plan(
    empty: pl.DataFrame,
    options: FitOptions,
    rows: int,
    *,
    weighted: bool,
    width: int | None = None,
    array: bool = False,
    computed: bool = False,
) -> Plan:
    keywords = {**options.keywords, "weighted": weighted}
    return Plan(*_internal.plan(empty, keywords, rows, width, array, computed))


def _dtype(dtype: Any) -> pl.DataType:
    """Return a type of Polars. Arrays have types of other libraries, of the same names."""
    known = {"float16": pl.Float16, "bfloat16": pl.Float16, "float32": pl.Float32, "float64": pl.Float64}
    name = str(getattr(dtype, "__name__", dtype)).rpartition(".")[2].lower()
    if name not in known:
        raise InvalidParameterError(f"dtype: expected a type of floats such as pl.Float32, got {dtype!r:.80}")
    return known[name]()
