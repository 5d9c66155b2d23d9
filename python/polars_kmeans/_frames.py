"""Frames of other libraries, which export themselves as Arrow streams. Polars takes over columns where they are."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from numbers import Number
from typing import TYPE_CHECKING, Any

import polars as pl
from polars.exceptions import ColumnNotFoundError

from polars_kmeans.errors import InvalidColumnError, InvalidParameterError, typed_errors

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from polars_kmeans._typing import IntoArray, IntoFrame

# The columns of a frame of centroids that are not features.
OWN_COLUMNS = ("cluster", "size", "inertia")
_OF_ARRAYS = ("__dlpack__", "__array_interface__", "__arrow_c_device_array__")
_PROTOCOLS = ("__arrow_c_stream__", "__arrow_c_array__")
# What other libraries call the method that gives an array or a frame of theirs.
_METHODS = ("toarray", "todense", "to_polars", "to_arrow", "toArrow", "compute", "to_pandas", "toPandas")


def is_foreign(data: object) -> TypeIs[IntoFrame]:
    """Whether an object of another library exports Arrow data."""
    if isinstance(data, (str, pl.Expr, pl.DataFrame, pl.LazyFrame, pl.Series)):
        return False
    return any(hasattr(type(data), protocol) for protocol in _PROTOCOLS)


def is_array(data: object) -> TypeIs[IntoArray]:
    """Whether an object holds rows itself, in the way that array libraries pass them to each other."""
    if isinstance(data, (str, pl.Expr, pl.DataFrame, pl.LazyFrame, pl.Series)):
        return False
    return any(hasattr(type(data), protocol) for protocol in _OF_ARRAYS)


def ahead_of(columns: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return the frame, if one stands first, and the features. Refuse rows that are neither a frame nor an array."""
    if not columns:
        return None, ()
    data = columns[0]
    if isinstance(data, (pl.DataFrame, pl.LazyFrame)) or is_foreign(data):
        return data, columns[1:]
    value = data
    while isinstance(value, (list, tuple)) and value and value[0] is not value:
        value = value[0]
    if (
        isinstance(value, (Mapping, Number, pl.Series, type(None)))
        or hasattr(type(value), _METHODS[0])
        or is_array(value)
    ):
        raise no_rows(data)
    return None, columns


def type_name(data: object) -> str:
    """Return the name of an object's type, with its module."""
    kind = type(data)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def no_rows(data: object) -> InvalidParameterError:
    """Return the error for an object that is neither a frame nor an array. It says what to do."""
    msg = f"data: expected a frame or an array, got {type_name(data)}"
    method = next((name for name in _METHODS if hasattr(type(data), name)), None)
    if isinstance(data, pl.Series):
        msg += ": call to_frame() on it"
    elif is_array(data):
        msg = f"data: expected a frame, got {type_name(data)}: pl.from_numpy makes a frame of a NumPy array"
    elif isinstance(data, (list, tuple)) and data and isinstance(data[0], (Number, type(None))):
        msg += ': pl.DataFrame({"x": data}) makes a column of it, and pl.DataFrame([data], orient="row") a row'
    elif isinstance(data, (list, tuple)) and not (data and isinstance(data[0], Mapping)):
        msg += ': pl.DataFrame(data, orient="row") makes a frame of rows'
    elif isinstance(data, (Mapping, list, tuple)):
        msg += ": pl.DataFrame makes a frame of it"
    elif type(data).__module__.partition(".")[0] == "pandas":
        msg += ": pl.from_pandas makes a frame of it"
    elif method is not None:
        msg += f": call {method}() on it"
    return InvalidParameterError(msg)


def polars_frame(data: object, *columns: object) -> pl.DataFrame | pl.LazyFrame:
    """Return a frame of Polars. `columns`: all columns that will be read, as far as they are known, or None.

    Columns of numbers are not copied if they have Arrow's layout. Their chunks stay as they are.
    """
    if isinstance(data, (pl.DataFrame, pl.LazyFrame)):
        return data
    if not is_foreign(data):
        raise no_rows(data)
    # Not `pl.DataFrame(data)`: it copies the chunks of pyarrow's tables together.
    series = pl.Series(_narrowed(data, columns))
    if not isinstance(series.dtype, pl.Struct):
        msg = f"data: expected a frame, got one column ({type_name(data)}): call to_frame() on it"
        raise InvalidParameterError(msg)
    return series.struct.unnest()


def collected(data: object, *columns: object) -> pl.DataFrame:
    """Return a frame of Polars, as `polars_frame` does, and run the query of a LazyFrame."""
    frame = polars_frame(data, *columns)
    return frame.collect() if isinstance(frame, pl.LazyFrame) else frame


def stored(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame whose columns of extension types are those of their storage."""
    for name, dtype in frame.schema.items():
        if isinstance(dtype, pl.BaseExtension):
            frame = frame.with_columns(frame[name].ext.storage())
    return frame


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
    """Leave out columns of pandas that the call does not ask for, and the index, which is not a column.

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
    # Polars takes over names that are no texts, such as numbers, as texts.
    known, asked = [str(name) for name in data.columns], set(names)
    missing = sorted(asked.difference(known))
    if missing:
        with typed_errors():
            raise ColumnNotFoundError(f'"{missing[0]}" not found: expected one of the columns {known!s:.300}')
    return data.loc[:, [name in asked for name in known]] if names else data
