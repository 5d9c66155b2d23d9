"""Exact, bit-reproducible k-means for Polars data frames."""

from polars_kmeans._internal import __version__
from polars_kmeans.estimator import KMeans
from polars_kmeans.expressions import kmeans
from polars_kmeans.model import KMeansModel

__all__ = ["KMeans", "KMeansModel", "__version__", "kmeans"]
