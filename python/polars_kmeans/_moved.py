"""Who moved between two models."""

from __future__ import annotations

import polars as pl

from polars_kmeans import _frames, _plugin
from polars_kmeans._typing import IntoFrame
from polars_kmeans.errors import InvalidParameterError
from polars_kmeans.model import KMeansModel


def moved(data: pl.DataFrame | pl.LazyFrame | IntoFrame, old: KMeansModel, new: KMeansModel) -> pl.DataFrame:
    """Count the rows that have each pair of an old and a new label.

    Numbers mean the same in both models if the new one was fitted with `sort_by=old`.

    The frame has the columns of both models. The query of a LazyFrame runs once.

    Returns
    -------
    DataFrame
        One row for each pair that occurs: `before` and `after` (UInt32; null for rows with nulls, NaNs or infinities),
        and `size` (UInt64: rows), sorted.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> old = pk.KMeansModel.from_centroids([[0.0], [5.0]], ["x"])
    >>> new = pk.KMeansModel.from_centroids([[0.0], [9.0]], ["x"])
    >>> pk.moved(pl.DataFrame({"x": [0.0, 4.0, 9.0]}), old, new).rows()
    [(0, 0, 1), (1, 0, 1), (1, 1, 1)]

    """
    for name, model in (("old", old), ("new", new)):
        if not isinstance(model, KMeansModel):
            raise InvalidParameterError(f"{name}: expected a KMeansModel, got {_frames.type_name(model)}")
    query = _frames.polars_frame(data).lazy().select(before=old.predict(), after=new.predict())
    counts = query.group_by("before", "after").agg(size=pl.len().cast(pl.UInt64))
    return _plugin.collect(counts.sort("before", "after", nulls_last=True))
