"""A model as bytes of a file object, as JSON, and from centroids alone."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable
from os import PathLike, path
from typing import TYPE_CHECKING, Any

import polars as pl

from polars_kmeans import _arrays, _frames
from polars_kmeans.errors import InvalidModelError, InvalidParameterError, ModelFileError, TooFewRowsError

if TYPE_CHECKING:
    from polars_kmeans.model import KMeansModel

_FILE = "polars_kmeans_file"
_OWN_COLUMNS = ("cluster", "size", "inertia")


def expanded(where: str | PathLike[str]) -> str | PathLike[str]:
    """Return a path with `~` replaced by the home folder."""
    return path.expanduser(where)


def file_error(where: object, error: OSError) -> ModelFileError:
    """Say of a path what the system said."""
    reason = "no such file or folder" if isinstance(error, FileNotFoundError) else error.strerror
    return ModelFileError(f'file "{where}": {reason}')


def write(file: Any, content: bytes) -> None:
    """Write bytes to an open file."""
    if not hasattr(file, "write"):
        msg = f"path: expected a path or a file that is open for writing, got {type(file).__name__}"
        raise InvalidParameterError(msg)
    if hasattr(file, "encoding"):
        raise InvalidParameterError('path: expected a file of bytes, got one of text: open it with mode "wb"')
    file.write(content)


def read(file: Any) -> bytes:
    """Read the bytes of an open file."""
    if not hasattr(file, "read"):
        msg = f"path: expected a path or a file that is open for reading, got {type(file).__name__}"
        if isinstance(file, (bytes, bytearray, memoryview)):
            msg += ": KMeansModel.from_bytes takes bytes"
        raise InvalidParameterError(msg)
    if hasattr(file, "encoding"):
        raise InvalidParameterError('path: expected a file of bytes, got one of text: open it with mode "rb"')
    return bytes(file.read())


def _readable(model: KMeansModel) -> dict[str, Any]:
    """Return the parts of a model's JSON that are there to read."""
    table = model.centroids
    features = table.drop(_OWN_COLUMNS)
    rows = features.to_series().to_list() if features.dtypes[0].is_nested() else [list(row) for row in features.rows()]
    return {
        "n_clusters": model.n_clusters,
        "feature_names": model.feature_names,
        "inertia": model.inertia,
        "n_iter": model.n_iter,
        "parameters": model.parameters,
        "factors": model.factors,
        "sizes": table["size"].to_list(),
        "centroids": rows,
    }


def to_json(model: KMeansModel) -> str:
    """Write a model as JSON."""
    return json.dumps({**_readable(model), _FILE: b64encode(model.to_bytes()).decode()}, indent=1)


def from_json(content: str | bytes, from_bytes: Callable[[bytes], KMeansModel]) -> KMeansModel:
    """Read a model from JSON."""
    try:
        parts = json.loads(content)
        model = from_bytes(b64decode(parts.pop(_FILE), validate=True))
    except (ValueError, TypeError, KeyError, AttributeError, Base64Error) as error:
        if isinstance(error, InvalidModelError):
            raise
        msg = "model: expected JSON that KMeansModel.to_json wrote, got something else"
        raise InvalidModelError(msg) from None
    if parts != _readable(model):
        msg = (
            f"model: expected parts that agree with {_FILE}, got others: KMeansModel.from_centroids takes new centroids"
        )
        raise InvalidModelError(msg)
    return model


def from_centroids(centroids: Any, columns: Any, metric: Any, scale: Any) -> KMeansModel:
    """Fit centroids, each of which starts a cluster and is its only row."""
    # The estimator imports the model, which imports this module.
    from polars_kmeans.estimator import KMeans

    frame = _frame(centroids)
    if "cluster" in frame.columns:
        frame = frame.sort("cluster")
        if frame["cluster"].to_list() != list(range(frame.height)):
            msg = 'centroids: expected clusters numbered from 0 in column "cluster", got others'
            raise InvalidParameterError(msg)
    frame = frame.drop(_OWN_COLUMNS, strict=False)
    if columns is not None:
        names = [columns] if isinstance(columns, str) else list(columns)
        if len(names) != frame.width:
            msg = f"columns: expected a name for each of {frame.width} features, got {len(names)}"
            raise InvalidParameterError(msg)
        frame.columns = names
    if frame.is_empty():
        raise InvalidParameterError("centroids: expected at least one row and one feature, got none")
    try:
        # Centroids that differ do not move.
        options: dict[str, Any] = {"init": frame, "max_iter": 1, "tol": 0.0, "metric": metric, "scale": scale}
        estimator: KMeans[KMeansModel] = KMeans(frame.height, device="cpu", **options)
        return estimator.fit(frame, frame.columns)
    except TooFewRowsError:
        msg = f"centroids: expected {frame.height} different rows, got two that are equal"
        raise InvalidParameterError(msg) from None


def _frame(centroids: Any) -> pl.DataFrame:
    """Return the features as columns."""
    if isinstance(centroids, pl.DataFrame):
        return centroids.clone()
    if isinstance(centroids, pl.LazyFrame):
        return centroids.collect()
    if _arrays.is_array(centroids) or not _frames.is_foreign(centroids):
        try:
            values: Any = centroids.__array__() if hasattr(centroids, "__array__") else centroids
            shape = getattr(values, "shape", None)
            if shape is not None:
                return pl.DataFrame(values.reshape(-1, 1) if len(shape) == 1 else values, orient="row")
            rows = [row if hasattr(type(row), "__iter__") else [row] for row in values]
            return pl.DataFrame(rows, orient="row")
        except (TypeError, ValueError, pl.exceptions.PolarsError):
            expected = "a frame, an array of clusters x features, or rows of numbers"
            msg = f"centroids: expected {expected}, got {centroids!r:.80}"
            raise InvalidParameterError(msg) from None
    frame = _frames.polars_frame(centroids)
    return frame.collect() if isinstance(frame, pl.LazyFrame) else frame
