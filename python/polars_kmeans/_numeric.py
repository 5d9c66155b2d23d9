"""Numbers that a caller passes: Python's, NumPy's and those of other libraries. Every parameter takes the same ones."""

from __future__ import annotations

from operator import index
from typing import Any

from polars_kmeans import _internal
from polars_kmeans.errors import InvalidParameterError


def _one(value: Any) -> Any:
    """Return a value that may be a number. Truth values, texts and arrays of several values are none."""
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    if isinstance(value, (bool, str, bytes)) or kind in "bcSUmM" or getattr(value, "ndim", 0) != 0:
        raise TypeError
    return value


def is_row(value: Any) -> bool:
    """Whether a value holds several numbers."""
    return hasattr(type(value), "__iter__") and getattr(value, "ndim", 1) != 0


def integer(
    name: str, value: Any, expected: str = "a positive integer", least: float = 1, most: float = 2**63 - 1
) -> int:
    """Return an integer of Python."""
    try:
        number = index(_one(value))
        if not least <= number <= most:
            raise TypeError
    except TypeError:
        raise refused(name, expected, value) from None
    return number


def number(name: str, value: Any, expected: str = "a number") -> float:
    """Return a float of Python."""
    try:
        with _internal.FloatEnvironment():
            return float(_one(value))
    except (TypeError, ValueError, OverflowError):
        raise refused(name, expected, value) from None


def plain(value: Any) -> int | float:
    """Return an integer if the value is one, else a float."""
    try:
        return index(_one(value))
    except TypeError:
        return number("value", value)


def refused(name: str, expected: str, value: Any) -> InvalidParameterError:
    """Return the error for a value that is not as expected."""
    return InvalidParameterError(f"{name}: expected {expected}, got {value!r:.80}")
