"""Frames of other libraries: whatever exports itself as an Arrow stream. Polars takes over columns where they are."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import polars as pl

from polars_kmeans.errors import InvalidColumnError, InvalidParameterError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from polars_kmeans._typing import IntoFrame

# The columns of a frame of centroids that are not features.
OWN_COLUMNS = ("cluster", "size", "inertia")
_PROTOCOLS = ("__arrow_c_stream__", "__arrow_c_array__")


def is_foreign(data: object) -> TypeIs[IntoFrame]:
    """Whether an object of another library exports Arrow data."""
    if isinstance(data, (str, pl.Expr, pl.DataFrame, pl.LazyFrame, pl.Series)):
        return False
    return any(hasattr(type(data), protocol) for protocol in _PROTOCOLS)


def is_frame(data: object) -> TypeIs[pl.DataFrame | IntoFrame]:
    """Whether an object holds named columns: a DataFrame of Polars or of another library."""
    return isinstance(data, pl.DataFrame) or is_foreign(data)


def ahead_of(columns: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return the frame, if one stands first, and the features."""
    return (columns[0], columns[1:]) if columns and is_frame(columns[0]) else (None, columns)


def polars_frame(data: object, *columns: object) -> pl.DataFrame | pl.LazyFrame:
    """Return a frame of Polars. `columns`: all columns that will be read, as far as they are known, or None.

    Columns of numbers are not copied if they have Arrow's layout. Their chunks stay as they are.
    """
    if isinstance(data, (pl.DataFrame, pl.LazyFrame)):
        return data
    if not is_foreign(data):
        msg = f"data: expected a frame or an array, got {type(data).__name__}"
        if isinstance(data, pl.Series):
            msg += ": call to_frame() on it"
        elif isinstance(data, (dict, list, tuple)):
            msg += ": pl.DataFrame makes a frame of it"
        raise InvalidParameterError(msg)
    # Not `pl.DataFrame(data)`: it copies the chunks of pyarrow's tables together.
    series = pl.Series(_narrowed(data, columns))
    if not isinstance(series.dtype, pl.Struct):
        msg = f"data: expected a frame, got one column ({type(data).__name__}): call to_frame() on it"
        raise InvalidParameterError(msg)
    return series.struct.unnest()


def collected(data: object, *columns: object) -> pl.DataFrame:
    """Return a frame of Polars, as `polars_frame` does, and run the query of a LazyFrame."""
    frame = polars_frame(data, *columns)
    return frame.collect() if isinstance(frame, pl.LazyFrame) else frame


def is_number(dtype: pl.DataType, *, nested: bool = False) -> bool:
    """Whether values are numbers or booleans or, if `nested`, rows of them."""
    inner = dtype.inner if nested and isinstance(dtype, (pl.Array, pl.List)) else dtype
    return inner.is_numeric() or inner == pl.Boolean


def with_labels(data: object, labels: pl.Expr, name: str) -> pl.DataFrame | pl.LazyFrame:
    """Add a column to a frame. Its name must be new."""
    frame = polars_frame(data)
    if name in frame.collect_schema().names():
        raise InvalidColumnError(f"name: expected a name that is not in the frame, got {name!r}")
    return frame.with_columns(labels.alias(name))


def _narrowed(data: Any, columns: tuple[object, ...]) -> Any:
    """Leave out columns of pandas that nobody asks for, and the index, which is not a column.

    A column of mixed objects cannot be exported.
    """
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(data, pandas.DataFrame):
        return data
    if not isinstance(data.index, pandas.RangeIndex):
        data = data.reset_index(drop=True)
    names: list[str] = []
    for item in columns:
        found = [item] if isinstance(item, str) else [] if item is None else item
        if not (isinstance(found, (list, tuple)) and all(isinstance(name, str) for name in found)):
            return data
        names += found
    # A name that is not there gets the error of Polars.
    return data[[name for name in dict.fromkeys(names) if name in data.columns]] if names else data
