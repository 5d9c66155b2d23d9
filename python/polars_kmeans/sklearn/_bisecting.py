"""Bisecting k-means."""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import Any, ClassVar, Literal, cast

import numpy as np
from sklearn.base import _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from polars_kmeans.sklearn._codebook import Codebook
from polars_kmeans.sklearn._data import checked_rows, checked_weights, on_gpu
from polars_kmeans.sklearn._estimator import KMeans
from polars_kmeans.tree import KMeansTree
from polars_kmeans.tree_estimators import BisectingKMeans as Engine


class BisectingKMeans(KMeans):
    """Bisecting k-means with the parameters, methods and attributes of :class:`sklearn.cluster.BisectingKMeans`.

    Parameters
    ----------
    n_clusters, max_iter, tol, random_state, copy_x, algorithm
        As in :class:`KMeans`. `tol` and `max_iter` are those of each fit of two clusters.
    init
        `"k-means++"` or `"random"`, for each fit of two clusters.
    n_init
        The restarts of each fit of two clusters.
    verbose
        Without effect.
    bisecting_strategy
        Which cluster is split next: `"biggest_inertia"`, or `"largest_cluster"`, that of the most rows.

    Attributes
    ----------
    cluster_centers_, labels_, inertia_, n_features_in_, feature_names_in_
        As in :class:`KMeans`.
    tree_
        The :class:`polars_kmeans.KMeansTree` of the fit, which predictions descend. They do not follow centers that you
        assign.
    model_
        Its leaves as a :class:`polars_kmeans.KMeansModel`.

    Examples
    --------
    >>> import numpy as np
    >>> from polars_kmeans.sklearn import BisectingKMeans
    >>> X = np.array([[1.0, 2.0], [1.0, 4.0], [10.0, 2.0], [10.0, 4.0]])
    >>> kmeans = BisectingKMeans(n_clusters=2, init="k-means++", random_state=0).fit(X)
    >>> bool(kmeans.labels_[0] == kmeans.labels_[1] == kmeans.predict([[0.0, 0.0]])[0])
    True

    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **{
            name: KMeans._parameter_constraints[name]
            for name in ("n_clusters", "max_iter", "tol", "verbose", "random_state", "copy_x", "algorithm")
        },
        "init": [StrOptions({"k-means++", "random"})],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "bisecting_strategy": [StrOptions({"biggest_inertia", "largest_cluster"})],
    }
    metric = "euclidean"
    device = "auto"
    null_policy = "raise"

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Literal["k-means++", "random"] = "random",
        n_init: int = 1,
        random_state: int | np.random.RandomState | None = None,
        max_iter: int = 300,
        verbose: int = 0,
        tol: float = 1e-4,
        copy_x: bool = True,
        algorithm: Literal["lloyd", "elkan"] = "lloyd",
        bisecting_strategy: Literal["biggest_inertia", "largest_cluster"] = "biggest_inertia",
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.random_state = random_state
        self.max_iter = max_iter
        self.verbose = verbose
        self.tol = tol
        self.copy_x = copy_x
        self.algorithm = algorithm
        self.bisecting_strategy = bisecting_strategy

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> BisectingKMeans:
        """Find the clusters. Parameters, warnings and errors are those of :meth:`KMeans.fit`."""
        rows = checked_rows(self, X, reset=True)
        self._check_size(rows)
        engine = Engine(
            self.n_clusters,
            split="inertia" if self.bisecting_strategy == "biggest_inertia" else "size",
            init=cast("Any", self.init),
            n_init=self.n_init,
            seed=self._seed(check_random_state(self.random_state)),
            max_iter=self.max_iter,
            tol=self.tol,
            too_few="fewer",
        )
        # Only `too_few="null"` finds nothing.
        found = cast("tuple[KMeansTree, Any]", engine._fit(rows, (), checked_weights(sample_weight, rows)))
        self.tree_, self.labels_ = found
        self.model_ = self.tree_.flat
        self._codebook = Codebook.of_fit(self.model_, self.n_clusters)
        self.cluster_centers_ = self._codebook.centers.copy()
        self._n_features_out = self.n_clusters
        self.inertia_ = self.tree_.inertia
        found_clusters = self.tree_.n_leaves
        if found_clusters < self.n_clusters:
            msg = f"Number of distinct clusters ({found_clusters}) found smaller than n_clusters ({self.n_clusters})."
            warnings.warn(f"{msg} Possibly due to duplicate points in X.", ConvergenceWarning, stacklevel=3)
        return self

    def predict(self, X: Any) -> Any:
        """Find the leaf of each row. Parameters and errors are those of :meth:`KMeans.predict`."""
        check_is_fitted(self)
        return self.tree_.predict(checked_rows(self, X, reset=False), null_policy="raise")

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return minus the inertia of rows around their leaves. Parameters are as in :meth:`KMeans.score`."""
        check_is_fitted(self)
        rows = checked_rows(self, X, reset=False)
        if on_gpu(rows):
            # A tree leaves out rows that have no leaf. Here they are refused.
            self.tree_.predict(rows, null_policy="raise")
        self.tree_.flat._told = True
        return self.tree_.score(rows, weight=checked_weights(sample_weight, rows))
