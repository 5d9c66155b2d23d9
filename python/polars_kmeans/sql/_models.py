"""Models as functions of SQL: columns of Arrow go in, labels of Arrow come out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa

from polars_kmeans.errors import InvalidParameterError, typed_errors
from polars_kmeans.model import KMeansModel
from polars_kmeans.tree import KMeansTree

if TYPE_CHECKING:
    from numpy.typing import NDArray

OWN = ("kmeans", "kmeans_fit", "kmeans_centroids", "kmeans_weighted", "kmeans_centroids_weighted")
"""Functions that every connection gets. No model can have their names."""

_NAME = re.compile(r"[a-z_][a-z0-9_]*")


class Predictor:
    """The labels of a model or a tree, for chunks of columns."""

    def __init__(self, model: KMeansModel | KMeansTree) -> None:
        self.model = model
        self.features = model.feature_names
        self.of_lists = isinstance(model.centroids.schema[self.features[-1]], pl.Array)
        """Whether the one feature is a list: the model was fitted to an Array column."""
        self._expr = model.predict(*self.features)

    def __call__(self, *columns: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Label rows."""
        array = self._array(columns)
        if array is not None:
            labels = self.model.predict(array)
            return pa.array(labels.view(np.uint32), mask=labels < 0)
        frame = pl.DataFrame(pa.Table.from_arrays(list(columns), self.features))
        # A NULL that stands in the query itself.
        frame = frame.with_columns(cs.by_dtype(pl.Null).cast(pl.Float64))
        with typed_errors():
            return frame.select(self._expr).to_series().to_arrow()

    def _array(self, columns: tuple[pa.Array | pa.ChunkedArray, ...]) -> NDArray[Any] | None:
        """Return floats as one array, in which NaN stands for null. For a small chunk, a frame would cost more."""
        types = {column.type for column in columns}
        if not types <= {pa.float32(), pa.float64()}:
            return None
        dtype = np.float64 if pa.float64() in types else np.float32
        array = np.empty((len(columns[0]), len(columns)), dtype, order="F")
        for index, column in enumerate(columns):
            array[:, index] = column.to_numpy(zero_copy_only=False)
        return array


def predictors(models: Mapping[str, KMeansModel | KMeansTree]) -> dict[str, Predictor]:
    """Check models and their names."""
    if not isinstance(models, Mapping):
        raise InvalidParameterError(f"models: expected a dict of names and models, got {type(models).__name__}")
    for name, model in models.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            msg = f"models: expected names of lower-case letters, digits and underscores, got {name!r:.80}"
            raise InvalidParameterError(msg)
        if name in OWN:
            raise InvalidParameterError(f"models: expected names other than {', '.join(OWN)}, got {name!r}")
        if not isinstance(model, (KMeansModel, KMeansTree)):
            msg = f"models[{name!r}]: expected a KMeansModel or a KMeansTree, got {type(model).__name__}"
            raise InvalidParameterError(msg)
    return {name: Predictor(model) for name, model in models.items()}
