"""Frames of centroids that become models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from polars_kmeans import _arrays, _frames, _numeric
from polars_kmeans.errors import InvalidParameterError

# The attribute of a frame that says how its model compares rows with its centroids.
_ORIGIN = "_polars_kmeans_origin"


def of_model(frame: pl.DataFrame, metric: str, factors: Mapping[str, float] | None) -> pl.DataFrame:
    """Return the frame of a model's centroids, with a note of what the frame alone does not say."""
    setattr(frame, _ORIGIN, (metric, factors))
    return frame


def check_origin(centroids: Any, metric: str, scale: object) -> None:
    """Refuse the frame of a model whose metric or factors would be lost. A frame that was made of it has no note."""
    known, factors = getattr(centroids, _ORIGIN, (metric, None))
    if metric != known:
        msg = f'metric: expected "{known}", as in the model of these centroids, got {metric!r}'
        raise InvalidParameterError(msg)
    if factors is not None and scale is None:
        msg = "scale: expected the factors of the model of these centroids, which scales rows, got none"
        raise InvalidParameterError(f"{msg}: scale=model.factors")


def features_of(centroids: Any, columns: str | Sequence[str] | None) -> pl.DataFrame:
    """Return the features of centroids, in the order of the clusters. `columns`: their names, if they get new ones."""
    frame = _frame(centroids)
    if "cluster" in frame.columns:
        frame = frame.sort("cluster")
        if frame["cluster"].to_list() != list(range(frame.height)):
            raise InvalidParameterError('centroids: expected clusters numbered from 0 in column "cluster", got others')
    frame = frame.drop(_frames.OWN_COLUMNS, strict=False)
    if columns is not None:
        names = [columns] if isinstance(columns, str) else list(columns)
        if len(names) != frame.width:
            msg = f"columns: expected a name for each of {frame.width} features, got {len(names)}"
            raise InvalidParameterError(msg)
        if len(set(names)) < len(names):
            raise InvalidParameterError(f"columns: expected different names, got {names!r:.80}")
        frame.columns = names
    if frame.is_empty():
        raise InvalidParameterError("centroids: expected at least one row and one feature, got none")
    return frame


def _frame(centroids: Any) -> pl.DataFrame:
    """Return the features as columns."""
    if isinstance(centroids, pl.DataFrame):
        return centroids.clone()
    if _arrays.is_array(centroids) or not (isinstance(centroids, pl.LazyFrame) or _frames.is_foreign(centroids)):
        try:
            values: Any = centroids.__array__() if hasattr(centroids, "__array__") else centroids
            shape = getattr(values, "shape", None)
            if shape is not None:
                return pl.DataFrame(values.reshape(-1, 1) if len(shape) == 1 else values, orient="row")
            rows = [row if _numeric.is_row(row) else [row[()] if hasattr(row, "ndim") else row] for row in values]
            return pl.DataFrame(rows, orient="row")
        except (TypeError, ValueError, pl.exceptions.PolarsError):
            expected = "a frame, an array of clusters x features, or rows of numbers"
            raise InvalidParameterError(f"centroids: expected {expected}, got {centroids!r:.80}") from None
    return _frames.collected(centroids)
