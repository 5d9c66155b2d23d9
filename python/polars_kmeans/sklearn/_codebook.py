"""What a fitted estimator knows: the centers of its clusters, and the model that labels rows by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sklearn.utils import check_array

from polars_kmeans._frames import OWN_COLUMNS
from polars_kmeans.errors import InvalidDataError, InvalidParameterError
from polars_kmeans.model import KMeansModel

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Codebook:
    """Centers of clusters, and a model. Some centers may be equal. The centroids of the model all differ."""

    centers: Any
    """Clusters x features."""
    model: KMeansModel
    clusters: Any
    """The cluster of each centroid of the model: the first one that has this center."""
    centroids: Any
    """The model's centroid of each cluster."""

    @classmethod
    def of_fit(cls, model: KMeansModel, n_clusters: int) -> Codebook:
        """Take a model of at most `n_clusters` centroids. The clusters that it lacks repeat its first center."""
        numbers = np.arange(n_clusters)
        centroids = np.where(numbers < model.n_clusters, numbers, 0)
        return cls(_centers(model)[centroids], model, numbers[: model.n_clusters], centroids)

    @classmethod
    def of_centers(
        cls, centers: Any, metric: Literal["euclidean", "cosine"], factors: dict[str, float] | None = None
    ) -> Codebook:
        """Take centers that did not come from a fit.

        Raises
        ------
        InvalidParameterError
            If a model cannot hold exactly these centers: some values are tiny beside others of their feature.

        """
        centers = check_array(centers, dtype=[np.float64, np.float32])
        _, first, inverse = np.unique(centers, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(first)
        clusters = first[order]
        distinct = centers[clusters]
        model = KMeansModel.from_centroids(distinct, metric=metric, scale=factors)
        if not np.array_equal(_centers(model), distinct):
            msg = "cluster_centers_: expected values that a model can hold exactly, got others: fit with them as init"
            raise InvalidParameterError(msg)
        return cls(centers, model, clusters, np.argsort(order)[inverse.reshape(-1)])

    def labels(self, rows: Any, device: str | Sequence[str], null_policy: str = "raise") -> Any:
        """Label rows: int32. With `"skip"`, rows that have no nearest center get -1."""
        labels = self.model.predict(rows, device=device)
        if null_policy == "raise":
            refuse(labels < 0)
        if _counts_up(self.clusters):
            return labels
        # The last place is that of -1.
        return np.append(self.clusters, -1).astype(np.int32)[np.asarray(labels)]

    def distances(self, rows: Any, device: str | Sequence[str], null_policy: str = "raise") -> Any:
        """Measure the distances of rows to the centers: rows x clusters."""
        distances = self.model.transform(rows, device=device)
        nearest = distances[:, 0]
        if null_policy == "raise":
            refuse(nearest != nearest)
        if _counts_up(self.centroids):
            return distances
        return distances[:, self.centroids.tolist()]


def refuse(bad: Any) -> None:
    """Refuse rows that have no nearest center. `bad` says which rows these are."""
    count = int(bad.sum())
    if count:
        msg = f"X: expected finite values (metric='cosine': and no rows of zeros), got {count} rows with others"
        raise InvalidDataError(msg)


def _counts_up(numbers: Any) -> bool:
    """Whether numbers are 0, 1, 2, ..."""
    return np.array_equal(numbers, np.arange(len(numbers)))


def _centers(model: KMeansModel) -> Any:
    """Return the centroids of a model as an array."""
    return np.ascontiguousarray(model.centroids.drop(OWN_COLUMNS).to_numpy())
