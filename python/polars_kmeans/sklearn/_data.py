"""Checks of data. Those of scikit-learn leave arrays where they are. Tensors on a GPU have checks of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from sklearn.utils import check_array
from sklearn.utils.validation import _check_sample_weight, validate_data

from polars_kmeans.errors import InvalidParameterError
from polars_kmeans.sklearn._codebook import refuse

_FLOATS = [np.float64, np.float32]
# The devices of DLPack whose memory the host reads: the CPU, and pinned memory of CUDA.
_HOST = (1, 3)


def on_gpu(data: Any) -> bool:
    """Whether data are a tensor that the host cannot read."""
    device = getattr(type(data), "__dlpack_device__", None)
    return device is not None and device(data)[0] not in _HOST


def checked_rows(estimator: Any, X: Any, *, reset: bool) -> Any:
    """Check data as scikit-learn does. Arrays of float32 or float64 stay where they are, tensors on a GPU too."""
    if isinstance(X, pl.LazyFrame):
        raise InvalidParameterError("X: expected rows, got the query of a LazyFrame: collect it first")
    if not on_gpu(X):
        whole = estimator.null_policy == "raise"
        rows = validate_data(estimator, X, reset=reset, dtype=_FLOATS, ensure_all_finite=whole)
        if estimator.metric == "cosine" and whole:
            refuse(~rows.any(axis=1))
        return rows
    if len(X.shape) != 2:
        raise ValueError(f"Expected 2D array, got {len(X.shape)}D array instead: reshape your data.")
    validate_data(estimator, X, reset=reset, skip_check_array=True)
    return X


def checked_weights(sample_weight: Any, rows: Any) -> Any:
    """Check weights as scikit-learn does."""
    if sample_weight is None or on_gpu(sample_weight):
        return sample_weight
    return _check_sample_weight(sample_weight, rows, dtype=_FLOATS)


def checked_centers(centers: Any, rows: Any, n_clusters: int) -> Any:
    """Check starting centers."""
    centers = check_array(centers, dtype=np.float64 if on_gpu(rows) else rows.dtype)
    for given, expected, what in (
        (centers.shape[0], n_clusters, "number of clusters"),
        (centers.shape[1], rows.shape[1], "number of features of the data"),
    ):
        if given != expected:
            raise ValueError(f"The shape of the initial centers {centers.shape} does not match the {what} {expected}.")
    return centers
