"""Exact, bit-reproducible k-means for Polars data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polars_kmeans._choose_k import choose_k
from polars_kmeans._devices import devices
from polars_kmeans._internal import __version__
from polars_kmeans._progress import Progress
from polars_kmeans.errors import (
    CancelledError,
    DeviceError,
    ForkedProcessError,
    InvalidColumnError,
    InvalidDataError,
    InvalidModelError,
    InvalidParameterError,
    KMeansError,
    ModelFileError,
    NoMemoryError,
    TooFewRowsError,
    typed_errors,
)
from polars_kmeans.estimator import KMeans
from polars_kmeans.expressions import centroids, kmeans
from polars_kmeans.model import KMeansModel

if TYPE_CHECKING:
    from polars_kmeans import plot as plot
    from polars_kmeans import sklearn as sklearn
    from polars_kmeans import sql as sql

__all__ = [
    "CancelledError",
    "DeviceError",
    "ForkedProcessError",
    "InvalidColumnError",
    "InvalidDataError",
    "InvalidModelError",
    "InvalidParameterError",
    "KMeans",
    "KMeansError",
    "KMeansModel",
    "ModelFileError",
    "NoMemoryError",
    "Progress",
    "TooFewRowsError",
    "__version__",
    "centroids",
    "choose_k",
    "devices",
    "kmeans",
    "typed_errors",
]


def __getattr__(name: str) -> Any:
    """Import the modules that need more packages when they are asked for."""
    if name in ("plot", "sklearn", "sql"):
        from importlib import import_module

        return import_module(f"polars_kmeans.{name}")
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
