"""Types of the public signatures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import polars as pl

IntoFeatures: TypeAlias = str | pl.Expr | Iterable[str | pl.Expr]
"""A column name, an expression or selector, or several."""

InitMethod: TypeAlias = Literal["k-means++", "random"]
Init: TypeAlias = InitMethod | pl.DataFrame | Sequence[Sequence[float]]
"""A method, or starting centroids: a frame matched by name, or `k` rows of `d` numbers by position."""

NullPolicy: TypeAlias = Literal["raise", "skip"]
TooFew: TypeAlias = Literal["raise", "null"]
History: TypeAlias = Literal["light", "full"]
Output: TypeAlias = Literal["label", "struct"]
