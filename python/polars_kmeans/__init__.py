"""Exact, bit-reproducible k-means for Polars data frames.

=====================  ==========================================================
``kmeans``             an expression: the cluster of each row
``centroids``          an aggregation: the centroids, one list per group
``KMeans``             an estimator: ``KMeans(k=3).fit(frame, "x", "y")``
``KMeansModel``        what it gives: centroids, labels of other rows, files
``HierarchicalKMeans`` a tree of clusters: ``HierarchicalKMeans(levels=[30, 30]).fit(frame, "x", "y")``
``BisectingKMeans``    a tree that grows by splits in two
``KMeansTree``         what they give: nodes, leaves of other rows, flat models
``KMeansModels``       one model per group: ``KMeans(k=3).fit(frame, "x", by="g")``
``choose_k``           fits for several k, and measures that compare them
``stability``          how many rows keep their cluster when the rows are drawn again
``moved``              how many rows went from which old cluster to which new one
``Plan``               what a fit is expected to take: ``KMeans(k=3).plan(frame, "x", "y")``
``Progress``           what a fit shows of itself: ``fit(..., progress=...)``
``sphere``             places on a map as points for ``metric="cosine"``; ``sphere_degrees`` and ``sphere_km`` go back
``devices``            the GPUs
``show_versions``      versions, processor, threads, memory, GPUs; ``versions`` returns them
``typed_errors``       turns errors of queries into those of this package
``errors``             the module of all exceptions and warnings
=====================  ==========================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polars_kmeans._choose_k import choose_k
from polars_kmeans._devices import devices
from polars_kmeans._internal import __version__
from polars_kmeans._moved import moved
from polars_kmeans._plan import Plan
from polars_kmeans._progress import Progress
from polars_kmeans._sphere import sphere, sphere_degrees, sphere_km
from polars_kmeans._stability import stability
from polars_kmeans._versions import show_versions, versions

# The exceptions are names of this package too. `help(polars_kmeans)` leaves them to the module `errors`.
from polars_kmeans.errors import CancelledError as CancelledError
from polars_kmeans.errors import ConvergenceWarning as ConvergenceWarning
from polars_kmeans.errors import DeviceError as DeviceError
from polars_kmeans.errors import EmptyClusterWarning as EmptyClusterWarning
from polars_kmeans.errors import ForkedProcessError as ForkedProcessError
from polars_kmeans.errors import InvalidColumnError as InvalidColumnError
from polars_kmeans.errors import InvalidDataError as InvalidDataError
from polars_kmeans.errors import InvalidModelError as InvalidModelError
from polars_kmeans.errors import InvalidParameterError as InvalidParameterError
from polars_kmeans.errors import KMeansError as KMeansError
from polars_kmeans.errors import ModelFileError as ModelFileError
from polars_kmeans.errors import NoClearKWarning as NoClearKWarning
from polars_kmeans.errors import NoMemoryError as NoMemoryError
from polars_kmeans.errors import OptionWarning as OptionWarning
from polars_kmeans.errors import SpillError as SpillError
from polars_kmeans.errors import TooFewRowsError as TooFewRowsError
from polars_kmeans.errors import TooFewRowsWarning as TooFewRowsWarning
from polars_kmeans.errors import WeightWarning as WeightWarning
from polars_kmeans.errors import typed_errors
from polars_kmeans.estimator import KMeans
from polars_kmeans.expressions import centroids, kmeans
from polars_kmeans.groups import KMeansModels
from polars_kmeans.model import KMeansModel
from polars_kmeans.tree import KMeansTree
from polars_kmeans.tree_estimators import BisectingKMeans, HierarchicalKMeans

if TYPE_CHECKING:
    from polars_kmeans import parts as parts
    from polars_kmeans import plot as plot
    from polars_kmeans import ray as ray
    from polars_kmeans import sklearn as sklearn
    from polars_kmeans import sql as sql

__all__ = [
    "BisectingKMeans",
    "HierarchicalKMeans",
    "KMeans",
    "KMeansModel",
    "KMeansModels",
    "KMeansTree",
    "Plan",
    "Progress",
    "__version__",
    "centroids",
    "choose_k",
    "devices",
    "kmeans",
    "moved",
    "show_versions",
    "sphere",
    "sphere_degrees",
    "sphere_km",
    "stability",
    "typed_errors",
    "versions",
]


# Modules that are imported when they are asked for, and the packages that they need.
_LAZY = {"parts": (), "plot": ("altair",), "ray": ("ray",), "sklearn": ("sklearn",), "sql": ("numpy", "pyarrow")}


def __dir__() -> list[str]:
    """List the names, with the modules that can be imported here."""
    from importlib.util import find_spec

    return sorted({*globals(), *(name for name, needed in _LAZY.items() if all(map(find_spec, needed)))})


def __getattr__(name: str) -> Any:
    """Import the modules that need more packages when they are asked for."""
    if name in _LAZY:
        from importlib import import_module

        return import_module(f"polars_kmeans.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
