"""Types of the public signatures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import polars as pl


class SupportsDLPack(Protocol):
    """An array or a tensor that other libraries can take over: of torch, CuPy, JAX, NumPy."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the array in a capsule."""
        ...


class SupportsArrayInterface(Protocol):
    """An array that describes its memory, as those of NumPy do."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Return address, shape, strides and type."""
        ...


class SupportsDeviceArrow(Protocol):
    """A data frame on a GPU, such as those of cuDF."""

    def __arrow_c_device_array__(self, *args: Any, **kwargs: Any) -> Any:
        """Return schema and columns in two capsules."""
        ...


IntoArray: TypeAlias = SupportsDLPack | SupportsArrayInterface | SupportsDeviceArrow
"""Rows that another library has: an array of rows x features, or a data frame on a GPU."""


class SupportsArrowStream(Protocol):
    """A data frame of another library: of pandas, pyarrow, DuckDB, DataFusion."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the columns in a capsule."""
        ...


IntoFrame: TypeAlias = SupportsArrowStream
"""A data frame that another library has."""

IntoTypes: TypeAlias = str | pl.DataType | type[pl.DataType] | Mapping[str, "str | pl.DataType | type[pl.DataType]"]
"""The types of columns: one for all, or one for each name, as the schema of a frame."""

IntoFeatures: TypeAlias = str | pl.Expr | Iterable[str | pl.Expr]
"""One column name, expression or selector, or several of them."""


class SupportsArray(Protocol):
    """Any array that NumPy can read, of any library."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """Return a NumPy array."""
        ...


class SupportsCentroids(Protocol):
    """A fitted model."""

    @property
    def centroids(self) -> pl.DataFrame:
        """Return a frame whose columns are matched by name."""
        ...

    @property
    def factors(self) -> dict[str, float] | None:
        """Return the factors of its columns, which the fit takes if it has no `scale`."""
        ...

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the parameters of its fit. The metric must be the same."""
        ...


InitMethod: TypeAlias = Literal["k-means++", "random", "kmeans-parallel", "afk-mc2", "optimal"]
Init: TypeAlias = (
    "InitMethod | pl.DataFrame | SupportsCentroids | SupportsArray | Sequence[Sequence[float]] | Sequence[float]"
)
"""A method, or starting centroids: a frame (columns matched by name), or `k` rows of `d` numbers (by position).

For one feature, `k` numbers are enough.
"""

SortBy: TypeAlias = "str | SupportsCentroids | None"
"""`"size"`, the name of a feature, or a model whose numbers the clusters get."""

Scale: TypeAlias = Literal["standard", "robust"] | Mapping[str, float] | None
"""How the columns are scaled, or a factor for some of them."""

Extents: TypeAlias = Mapping[str, float] | Sequence[float] | None
"""The largest magnitudes of features, by name or in order."""

Output: TypeAlias = Literal["label", "struct"]
Device: TypeAlias = 'Literal["auto", "cpu", "cuda", "cuda:all"] | str | Sequence[str]'
"""`"cuda:1"` is the second GPU, as the driver counts them. `["cuda:0", "cuda:1"]` shares the rows between two."""

# What the library says of a fit: the model as bytes, its device, the reason for it, how labels were found, what the CPU
# decided and why, the seconds for rows, seeding and iterations, and the starting centroids that lost all of their rows.
Fit: TypeAlias = tuple[bytes, str, str, str | None, str | None, tuple[float, float, float], list[int]]
# The fields of a `Plan`.
Planned: TypeAlias = tuple[str, str, str, int, int, float, float]
# What the library calls with the fields of a `Progress`, and centroids that have `rows()`, or None. True stops the fit.
Call: TypeAlias = Callable[[Any, int, int, int, float, float | None, float, Any], bool]
# Carries requests to parts: it takes the number of a part with each request, and returns the answers in this order.
Ask: TypeAlias = Callable[[list[tuple[int, bytes]]], Sequence[bytes]]
