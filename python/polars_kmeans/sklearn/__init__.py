"""K-means as an estimator of scikit-learn. It needs scikit-learn: ``pip install "polars-kmeans[sklearn]"``."""

try:
    import sklearn as _sklearn  # noqa: F401
except ModuleNotFoundError as error:
    msg = 'polars_kmeans.sklearn needs scikit-learn: pip install "polars-kmeans[sklearn]"'
    raise ModuleNotFoundError(msg, name=error.name) from None

from polars_kmeans.sklearn._estimator import KMeans

__all__ = ["KMeans"]
