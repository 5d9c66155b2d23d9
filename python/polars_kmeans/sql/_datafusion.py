"""Adds the functions to a session of DataFusion, which converts all numbers to float64 before it calls them."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa
from datafusion import SessionContext, udaf, udf, udwf
from datafusion.user_defined import Accumulator, WindowEvaluator

from polars_kmeans.errors import InvalidParameterError
from polars_kmeans.sql._fits import Fits
from polars_kmeans.sql._models import Predictor

_ROW = pa.list_(pa.float64())
_CENTROIDS = pa.list_(
    pa.struct([("cluster", pa.uint32()), ("size", pa.uint64()), ("inertia", pa.float64()), ("centroid", _ROW)])
)
# The types of the arguments (features, k, weight) by the end of the function's name. No argument is optional.
_FORMS = {"": [_ROW, pa.int64()], "_weighted": [_ROW, pa.int64(), pa.float64()]}

# A function of the session. It returns the options of the last registration. No model can have this name.
_KEPT = "polars-kmeans options"


def kept_options(context: Any) -> dict[str, Any]:
    """Return the options of the last registration."""
    if _KEPT not in context.udfs():
        return {}
    (batch,) = context.sql(f'SELECT "{_KEPT}"()').collect()
    options: dict[str, Any] = json.loads(batch[0][0].as_py())
    return options


def add(context: Any, fits: Fits, models: dict[str, Predictor]) -> None:
    """Add or replace the functions."""
    taken = models.keys() & _built_in()
    if taken:
        msg = f"models: expected names of new functions, got {min(taken)!r}, which DataFusion has"
        raise InvalidParameterError(msg)
    for end, types in _FORMS.items():
        labels, centroids = partial(_Labels, fits), partial(_Centroids, fits, types)
        context.register_udwf(udwf(labels, types, pa.uint32(), "immutable", f"kmeans{end}"))
        state = [pa.large_binary()]
        context.register_udaf(udaf(centroids, types, _CENTROIDS, state, "immutable", f"kmeans_centroids{end}"))
    kept = pa.array([fits.to_json()])
    context.register_udf(udf(lambda: kept, [], pa.string(), "immutable", _KEPT))
    for name, predictor in models.items():
        types = [_ROW if predictor.of_lists else pa.float64()] * len(predictor.features)
        context.register_udf(udf(predictor, types, pa.uint32(), "immutable", name))


def _built_in() -> set[str]:
    """Return the names of functions that every session has."""
    empty = SessionContext()
    return {*empty.udfs(), *empty.udafs(), *empty.udwfs()}


class _Labels(WindowEvaluator):
    """The labels of a partition."""

    def __init__(self, fits: Fits) -> None:
        self._fits = fits

    def evaluate_all(self, values: list[pa.Array], num_rows: int) -> pa.Array:
        """Label all rows of a partition at once."""
        rows, k, *weights = (pl.Series(column) for column in values)
        return self._fits.labels(rows, k, weights[0] if weights else None).to_arrow()


class _Centroids(Accumulator):
    """The centroids of a group. It keeps the rows, their `k` and their weights as they come, in any order."""

    def __init__(self, fits: Fits, types: list[pa.DataType]) -> None:
        self._fits = fits
        self._types = types
        self._chunks: list[list[pa.Array]] = [[] for _ in types]

    def update(self, *values: pa.Array) -> None:
        """Add rows. After the arguments may come the values of an ORDER BY, which does not matter."""
        for chunks, column in zip(self._chunks, values, strict=False):
            chunks.append(column)

    def state(self) -> list[pa.Scalar]:
        """Return the rows so far, as bytes of Arrow: DataFusion would take lists apart, one number at a time."""
        table = self._table().combine_chunks()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return [pa.scalar(sink.getvalue().to_pybytes(), pa.large_binary())]

    def merge(self, states: list[pa.Array]) -> None:
        """Add the rows of other states."""
        for state in states[0]:
            for batch in pa.ipc.open_stream(state.as_buffer()):
                self.update(*batch.columns)

    def evaluate(self) -> pa.Scalar:
        """Fit the rows. DataFusion takes no NULL for a list: without rows, the list is empty."""
        rows, k, *weights = (pl.Series(column) for column in self._table().columns)
        if rows.is_empty():
            return pa.scalar([], _CENTROIDS)
        found = self._fits.centroids(rows, k, weights[0] if weights else None)
        return found.to_arrow().cast(_CENTROIDS)[0]

    def _table(self) -> pa.Table:
        columns = [pa.chunked_array(chunks, dtype) for chunks, dtype in zip(self._chunks, self._types, strict=True)]
        return pa.Table.from_arrays(columns, [str(index) for index in range(len(columns))])
