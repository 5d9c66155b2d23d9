"""Exact, bit-reproducible k-means for Polars data frames."""

from polars_kmeans._choose_k import choose_k
from polars_kmeans._devices import devices
from polars_kmeans._internal import __version__
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
    "TooFewRowsError",
    "__version__",
    "centroids",
    "choose_k",
    "devices",
    "kmeans",
    "typed_errors",
]
