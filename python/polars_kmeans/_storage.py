"""A model as a file, as bytes, as JSON, and from centroids alone: methods of `KMeansModel`.

Functions import the model and the estimator, because these import this module.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import polars as pl

from polars_kmeans import _arrays, _files, _frames, _internal
from polars_kmeans._typing import IntoArray, IntoFrame
from polars_kmeans.errors import InvalidModelError, InvalidParameterError, TooFewRowsError

if TYPE_CHECKING:
    from polars_kmeans.model import KMeansModel

_FILE = "polars_kmeans_file"
_OWN_COLUMNS = ("cluster", "size", "inertia")


def save(self: KMeansModel, path: str | PathLike[str] | BinaryIO) -> None:
    """Save as a file: the model, with a checksum, and beside it a table that any Parquet reader reads.

    The table is the centroid frame, with the parameters in its metadata. If the fit scaled the columns, the table has
    the scaled centroids, bit for bit, and the metadata have the factors. An existing file is replaced only after the
    new file is complete. Links are followed.

    Parameters
    ----------
    path
        A path, where `~` is the home folder. Or a file that is open for writing bytes.

    Raises
    ------
    ModelFileError
        If the file cannot be written. If the mode of an existing file lets nobody write, the file is not replaced,
        not even by root.

    """
    if isinstance(path, (str, PathLike)):
        _internal.save_model(self._encoded, _files.expanded(path))
    else:
        _files.write(path, self.to_bytes())


def load(path: str | PathLike[str] | BinaryIO) -> KMeansModel:
    """Read a model that :meth:`save` wrote, in Python or in Rust. Its predictions have the same bits.

    Parameters
    ----------
    path
        A path, where `~` is the home folder. Or a file that is open for reading bytes.

    Raises
    ------
    ModelFileError
        If the file cannot be read.
    InvalidModelError
        If the file is truncated, not a model, or of a newer version, or if the model in it was altered (it has a
        checksum). Also if it needs something that this version does not know, such as another metric. The table is for
        other programs: it is not read. If another program reads the table and writes it again, the new file is not a
        model: see :meth:`from_centroids`.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.parquet"
    >>> pk.KMeans(k=2).fit(pl.DataFrame({"x": [0.0, 2.0, 5.0]}), "x").save(path)
    >>> pk.KMeansModel.load(path).centroids.equals(pl.read_parquet(path))
    True

    """
    from polars_kmeans.model import KMeansModel

    if isinstance(path, (str, PathLike)):
        return KMeansModel(_internal.load_model(_files.expanded(path)))
    return from_bytes(_files.read(path))


def to_bytes(self: KMeansModel) -> bytes:
    """Return the bytes of the file that :meth:`save` writes. Equal models give equal bytes.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> model = pk.KMeans(k=2).fit(pl.DataFrame({"x": [0.0, 2.0, 5.0]}), "x")
    >>> pk.KMeansModel.from_bytes(model.to_bytes()) == model
    True

    """
    return _internal.model_to_file(self._encoded)


def from_bytes(content: bytes) -> KMeansModel:
    """Read a model from the bytes of its file.

    Raises
    ------
    InvalidModelError
        As in :meth:`load`.

    """
    from polars_kmeans.model import KMeansModel

    return KMeansModel(_internal.model_from_file(content))


def to_json(self: KMeansModel) -> str:
    """Return the model as JSON: names, parameters, sizes and centroids to read, and the bytes of its file in base 64.

    :meth:`from_json` makes the model from these bytes, so it comes back bit for bit.

    Examples
    --------
    >>> import json
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> model = pk.KMeans(k=2, init=[0.0, 5.0]).fit(pl.DataFrame({"x": [0.0, 2.0, 5.0]}), "x")
    >>> json.loads(model.to_json())["centroids"]
    [[1.0], [5.0]]
    >>> pk.KMeansModel.from_json(model.to_json()) == model
    True

    """
    return json.dumps({**_readable(self), _FILE: b64encode(self.to_bytes()).decode()}, indent=1)


def from_json(content: str | bytes) -> KMeansModel:
    """Read a model that :meth:`to_json` wrote.

    Raises
    ------
    InvalidModelError
        If the text is not from :meth:`to_json`. Also if one of its parts that are there to read was changed, because
        such a change would have no effect on the model.

    """
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


def from_centroids(
    centroids: pl.DataFrame | IntoFrame | IntoArray | Sequence[Sequence[float]] | Sequence[float],
    columns: str | Sequence[str] | None = None,
    *,
    metric: Literal["euclidean", "cosine"] = "euclidean",
    scale: Mapping[str, float] | None = None,
) -> KMeansModel:
    """Make a model of centroids: from another library, from a table that lost its metadata, or written by hand.

    The model is a fit of the centroids themselves: each of them is the only row of its cluster. So every size is 1 and
    the inertia is 0. Values must be in the range that a fit takes.

    Parameters
    ----------
    centroids
        One row per cluster, in the order of the labels: a frame of the features, an array of clusters x features, or
        rows of numbers. If a frame has columns `cluster`, `size` and `inertia`, they are not features, and its rows are
        sorted by `cluster`.
    columns
        The names of the features. By default those of the frame, or `column_0`, `column_1`, ...
    metric
        As in :func:`polars_kmeans.kmeans`.
    scale
        The factors of columns, as in :func:`polars_kmeans.kmeans`. Centroids are in the units of the columns.

    Raises
    ------
    InvalidParameterError
        For centroids of another shape, or if two are equal.
    KMeansError
        For values or columns that a fit would refuse.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> model = pk.KMeansModel.from_centroids([[20.0, 1.0], [65.0, 3.0]], ["age", "children"])
    >>> pl.DataFrame({"age": [30, 70], "children": [2, 2]}).select(model.predict()).to_series().to_list()
    [0, 1]

    """
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
