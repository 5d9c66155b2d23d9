"""K-means as an estimator of scikit-learn. It needs scikit-learn: ``pip install scikit-learn``."""

try:
    # Version 1.6 brought this function.
    from sklearn.utils.validation import validate_data as _validate_data  # noqa: F401
except ImportError as error:
    msg = "polars_kmeans.sklearn needs scikit-learn 1.6 or newer: pip install -U scikit-learn"
    raise ImportError(msg, name=error.name) from error

from polars_kmeans.sklearn._bisecting import BisectingKMeans
from polars_kmeans.sklearn._estimator import KMeans
from polars_kmeans.sklearn._minibatch import MiniBatchKMeans

__all__ = ["BisectingKMeans", "KMeans", "MiniBatchKMeans"]
