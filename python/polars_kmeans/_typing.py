"""Types of the public signatures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import polars as pl

if TYPE_CHECKING:
    from polars_kmeans.model import KMeansModel

IntoFeatures: TypeAlias = str | pl.Expr | Iterable[str | pl.Expr]
"""One column name, expression or selector, or several of them."""


class SupportsArray(Protocol):
    """Any array that NumPy can read, of any library."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """Return a NumPy array."""
        ...


InitMethod: TypeAlias = Literal["k-means++", "random", "kmeans-parallel", "afk-mc2", "optimal"]
Init: TypeAlias = "InitMethod | pl.DataFrame | KMeansModel | SupportsArray | Sequence[Sequence[float]]"
"""A method, or starting centroids: a frame (columns matched by name), or `k` rows of `d` numbers (by position)."""

Scale: TypeAlias = Literal["standard", "robust"] | Mapping[str, float] | None
"""How the columns are scaled, or a factor for some of them."""

Output: TypeAlias = Literal["label", "struct"]
Device: TypeAlias = 'Literal["auto", "cpu", "cuda"] | str'
"""`"cuda:1"` is the second GPU, as the driver counts them."""
