"""A fitted model."""

from __future__ import annotations

import polars as pl

from polars_kmeans import _internal, _plugin
from polars_kmeans._typing import IntoFeatures, Output


class KMeansModel:
    """Centroids, and what can be done with them; made by :meth:`polars_kmeans.KMeans.fit`.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"x": [0.0, 0.1, 5.0, 5.1]})
    >>> model = pk.KMeans(k=2, seed=1).fit(df, "x")
    >>> df.select(model.predict()).equals(df.select(pk.kmeans("x", k=2, seed=1)))
    True
    >>> round(model.score(df), 6)
    -0.01

    """

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded
        self._names, self._inertia, self._n_iter = _internal.model_facts(encoded)

    def __repr__(self) -> str:
        return f"KMeansModel(k={self.centroids.height}, features={self._names}, inertia={self._inertia})"

    @property
    def centroids(self) -> pl.DataFrame:
        """`k` rows: cluster, size (rows of positive weight), inertia, then one column a feature."""
        return _internal.model_centroids(self._encoded)

    @property
    def history(self) -> pl.DataFrame:
        """One row an iteration: iteration, changed rows, squared shift, inertia (if the history is full), seconds."""
        return _internal.model_history(self._encoded)

    @property
    def feature_names(self) -> list[str]:
        """The features' names, in order."""
        return list(self._names)

    @property
    def inertia(self) -> float:
        """Weighted sum of squared distances of the rows to their centroids."""
        return self._inertia

    @property
    def n_iter(self) -> int:
        """Iterations of the winning restart."""
        return self._n_iter

    def predict(self, *columns: IntoFeatures, output: Output = "label") -> pl.Expr:
        """Label rows: an elementwise expression, which streams.

        Parameters
        ----------
        *columns
            The features, in the model's order; by default the columns that it was fitted to.
        output
            `"label"`, or `"struct"` with the distances to the nearest and to the second nearest centroid.

        Returns
        -------
        Expr
            A column named `kmeans`. Rows with nulls, NaNs or infinities are null.

        """
        return _plugin.predict(self._features(columns), self._encoded, output).alias("kmeans")

    def score(
        self, frame: pl.DataFrame | pl.LazyFrame, *columns: IntoFeatures, weight: str | pl.Expr | None = None
    ) -> float:
        """Minus the inertia of a frame's rows under the model, as in scikit-learn; rows with nulls are left out."""
        expr = _plugin.score(self._features(columns), self._encoded, weight)
        return float(_plugin.item(frame, expr))

    def _features(self, columns: tuple[IntoFeatures, ...]) -> list[pl.Expr]:
        return _plugin.features(columns or (self._names,))
