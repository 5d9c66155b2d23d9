"""The estimator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
    _fit_context,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from polars_kmeans._typing import InitMethod
from polars_kmeans.estimator import KMeans as Engine
from polars_kmeans.model import KMeansModel
from polars_kmeans.sklearn._callbacks import CallbackSupportMixin, fit_task
from polars_kmeans.sklearn._codebook import Codebook
from polars_kmeans.sklearn._data import checked_centers, checked_rows, checked_weights, on_gpu
from polars_kmeans.sklearn._verbose import Printer


class KMeans(CallbackSupportMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """K-means with the parameters, methods and attributes of :class:`sklearn.cluster.KMeans`.

    Labels are exact. With the same `random_state`, results have the same bits on every device, and with any number of
    threads. They are the bits of :class:`polars_kmeans.KMeans` with `seed=random_state`.

    Parameters
    ----------
    n_clusters
        The number of clusters.
    init
        `"k-means++"` (greedy; Arthur & Vassilvitskii 2007), `"random"`, `"kmeans-parallel"` (Bahmani et al. 2012),
        `"afk-mc2"` (Bachem et al. 2016), for one feature `"optimal"` (Wang & Song 2011); an array of starting centers,
        clusters x features; or a function of `X`, `n_clusters` and `random_state` (by keyword) that returns such an
        array.
    n_init
        The number of restarts. The result with the least inertia is kept. `"auto"`: 10 if `init` is `"random"` or a
        function, else 1. With given starting centers there is one restart.
    max_iter
        The most iterations of one restart.
    tol
        Stop when the squared shift of the centers is at most `tol` times the mean variance of the features.
    verbose
        Whether to print the iterations while the fit runs. Each then also computes the inertia.
    random_state
        A seed from 0 to 2^32 - 1, or a generator that seeds are drawn from. None: NumPy's global generator.
    copy_x
        Without effect. A fit never writes to its data.
    algorithm
        `"lloyd"` or `"elkan"`. Without effect, because labels are exact with both.
    metric
        `"euclidean"`, or `"cosine"`: rows and centers are normalised to length 1. Rows of zeros are refused.
    device
        `"auto"`, `"cpu"`, `"cuda"` or `"cuda:1"`, as for :class:`polars_kmeans.KMeans`.
    row_order
        `"given"` or `"values"`. With `"values"`, the order of the rows does not matter, and a row of weight 2 counts
        like two rows. Then the fit works on a sorted copy of the rows.
    scale
        None, `"standard"`, `"robust"` or a dict of factors by feature, as for :class:`polars_kmeans.KMeans`. Centers
        are in the units of the data. Distances and inertia are those of scaled values.
    null_policy
        `"raise"`, or `"skip"`: rows with NaNs or infinities (`metric="cosine"`: also rows of zeros) are left out of the
        fit and of the score. Their labels are -1, and their distances NaN.
    sort_by
        None, `"size"`, the name of a feature, or a :class:`polars_kmeans.KMeansModel` such as another estimator's
        `model_`: the order of the clusters, as for :class:`polars_kmeans.KMeans`. Features without names are
        `column_0`, `column_1`, ...

    Attributes
    ----------
    cluster_centers_
        Array of clusters x features: float32 if the data are float32, else float64.
    labels_
        Array of the cluster (int32) of each row of the fit. For a tensor on a GPU: a tensor on that GPU.
    inertia_
        Weighted sum of the squared distances of the rows to their centers.
    n_iter_
        Iterations of the restart that was kept.
    model_
        The :class:`polars_kmeans.KMeansModel` of the fit: for expressions, files, profiles. Its features are named
        `column_0`, `column_1`, ..., so pass it columns, as in `model_.predict("a", "b")`. It has fewer clusters if
        there were fewer distinct rows, and does not follow centers that you assign.
    n_features_in_
        The number of features.
    feature_names_in_
        The names of the features, if the data of the fit were a frame whose column names are texts.

    Examples
    --------
    >>> import numpy as np
    >>> from polars_kmeans.sklearn import KMeans
    >>> X = np.array([[1.0, 2.0], [1.0, 4.0], [10.0, 2.0], [10.0, 4.0]])
    >>> kmeans = KMeans(n_clusters=2, random_state=0).fit(X)
    >>> kmeans.labels_
    array([0, 0, 1, 1], dtype=int32)
    >>> kmeans.predict([[0.0, 0.0], [12.0, 3.0]])
    array([0, 1], dtype=int32)
    >>> kmeans.cluster_centers_
    array([[ 1.,  3.],
           [10.,  3.]])

    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "init": [StrOptions(set(get_args(InitMethod))), callable, "array-like"],
        "n_init": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "verbose": ["verbose"],
        "random_state": ["random_state"],
        "copy_x": ["boolean"],
        "algorithm": [StrOptions({"lloyd", "elkan"})],
        "metric": [StrOptions({"euclidean", "cosine"})],
        "device": [str, list, tuple],
        "row_order": [StrOptions({"given", "values"})],
        "scale": [StrOptions({"standard", "robust"}), dict, None],
        "null_policy": [StrOptions({"raise", "skip"})],
        "sort_by": [str, KMeansModel, None],
    }

    # How many restarts "auto" means where starts differ much.
    _several = 10

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: InitMethod | Callable[..., Any] | Any = "k-means++",
        n_init: int | Literal["auto"] = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
        copy_x: bool = True,
        algorithm: Literal["lloyd", "elkan"] = "lloyd",
        metric: Literal["euclidean", "cosine"] = "euclidean",
        device: str | Sequence[str] = "auto",
        row_order: Literal["given", "values"] = "given",
        scale: Literal["standard", "robust"] | dict[str, float] | None = None,
        null_policy: Literal["raise", "skip"] = "raise",
        sort_by: str | KMeansModel | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.copy_x = copy_x
        self.algorithm = algorithm
        self.metric = metric
        self.device = device
        self.row_order = row_order
        self.scale = scale
        self.null_policy = null_policy
        self.sort_by = sort_by

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> KMeans:
        """Find the clusters.

        Parameters
        ----------
        X
            Rows x features: an array of NumPy, anything that scikit-learn converts to such an array, or a tensor on a
            GPU. Arrays of float32 and float64 are read where they are, in any layout.
        y
            Ignored.
        sample_weight
            One non-negative weight per row. None: all rows count alike.

        Returns
        -------
        KMeans
            The estimator itself.

        Raises
        ------
        ValueError
            For parameters, data or weights that cannot be used. Errors that only the engine finds are exceptions of
            :mod:`polars_kmeans.errors`.

        Warns
        -----
        ConvergenceWarning
            If there are fewer distinct rows than clusters. Then each distinct row is a center. The other centers repeat
            the first one, and no row has their labels.
        RuntimeWarning
            If there are several restarts of given centers, or one cluster for `"elkan"`.

        """
        rows = checked_rows(self, X, reset=True)
        self._check_size(rows)
        self._n_init = self._restarts()
        weights = checked_weights(sample_weight, rows)
        with fit_task(self, X=rows, y=y, metadata={"sample_weight": sample_weight}):
            model, labels = self._best(rows, weights)
            self.model_ = model
            self._codebook = Codebook.of_fit(model, self.n_clusters)
            # A copy, so that a change in place is seen.
            self.cluster_centers_ = self._codebook.centers.copy()
            self._n_features_out = self.n_clusters
            # Rows that have no label were refused before, or have -1.
            self.labels_ = labels
            self.inertia_ = model.inertia
            self.n_iter_ = model.n_iter
        found = int((model.centroids["size"] > 0).sum())
        if found < self.n_clusters:
            msg = (
                f"Number of distinct clusters ({found}) found smaller than n_clusters ({self.n_clusters}). "
                "Possibly due to duplicate points in X."
            )
            warnings.warn(msg, ConvergenceWarning, stacklevel=3)
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Find the clusters, and return `labels_`. Parameters and errors are those of :meth:`fit`."""
        return self.fit(X, sample_weight=sample_weight).labels_

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Find the clusters, and return the distances. Parameters and errors are those of :meth:`fit`."""
        return self.fit(X, sample_weight=sample_weight)._distances(X)

    def predict(self, X: Any) -> Any:
        """Label rows.

        Parameters
        ----------
        X
            Rows x features, as in :meth:`fit`.

        Returns
        -------
        ndarray
            The nearest cluster of each row (int32). For a tensor on a GPU: a tensor on that GPU.

        Raises
        ------
        NotFittedError
            Before :meth:`fit`.
        ValueError
            For values that are not finite, or another number of features.

        """
        check_is_fitted(self)
        return self._known().labels(checked_rows(self, X, reset=False), self.device, self.null_policy)

    def transform(self, X: Any) -> Any:
        """Measure the distances of rows to the centers.

        Parameters
        ----------
        X
            Rows x features, as in :meth:`fit`.

        Returns
        -------
        ndarray
            Rows x clusters: float32 for float32 rows, else float64. For a tensor on a GPU: a float64 tensor on that
            GPU. After `set_output("polars")` or `set_output("pandas")`: a frame.

        Raises
        ------
        NotFittedError
            Before :meth:`fit`.
        ValueError
            For values that are not finite, or another number of features.

        """
        check_is_fitted(self)
        return self._distances(X)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return minus the inertia of rows. Parameters are as in :meth:`fit`, and errors as in :meth:`predict`."""
        check_is_fitted(self)
        rows, codebook = checked_rows(self, X, reset=False), self._known()
        if on_gpu(rows):
            # A model leaves out rows that have no label. Here they are refused.
            codebook.labels(rows, self.device, self.null_policy)
        return codebook.model._score(rows, (), checked_weights(sample_weight, rows), self.device)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.null_policy == "skip"
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _distances(self, X: Any) -> Any:
        rows = checked_rows(self, X, reset=False)
        distances = self._known().distances(rows, self.device, self.null_policy)
        return distances if on_gpu(rows) else distances.astype(rows.dtype, copy=False)

    def _check_size(self, rows: Any) -> None:
        if rows.shape[0] < self.n_clusters:
            raise ValueError(f"n_samples={rows.shape[0]} should be >= n_clusters={self.n_clusters}.")
        if self.algorithm == "elkan" and self.n_clusters == 1:
            msg = "algorithm='elkan' doesn't make sense for a single cluster. Using 'lloyd' instead."
            warnings.warn(msg, RuntimeWarning, stacklevel=4)

    def _restarts(self) -> int:
        """Return how many restarts the fit has."""
        if isinstance(self.init, str) or callable(self.init):
            several = callable(self.init) or self.init == "random"
            return (self._several if several else 1) if self.n_init == "auto" else self.n_init
        if self.n_init not in ("auto", 1):
            msg = (
                "Explicit initial center position passed: performing only one init in "
                f"{type(self).__name__} instead of n_init={self.n_init}."
            )
            warnings.warn(msg, RuntimeWarning, stacklevel=4)
        return 1

    def _best(self, rows: Any, weights: Any) -> tuple[KMeansModel, Any]:
        """Fit, and return the model with the least inertia, and its labels."""
        random_state = check_random_state(self.random_state)
        if not callable(self.init):
            init = self.init if isinstance(self.init, str) else checked_centers(self.init, rows, self.n_clusters)
            return self._model(rows, weights, init, random_state)
        fits = []
        for _ in range(self._n_init):
            centers = self.init(rows, self.n_clusters, random_state=random_state)
            fits.append(self._model(rows, weights, checked_centers(centers, rows, self.n_clusters), random_state))
        return min(fits, key=lambda fit: cast("float", fit[0].inertia))

    def _model(
        self, rows: Any, weights: Any, init: Any, random_state: np.random.RandomState
    ) -> tuple[KMeansModel, Any]:
        """Fit once. If there are fewer distinct rows than clusters, find as many clusters as distinct rows."""
        engine = Engine(
            self.n_clusters,
            init=init,
            n_init=self._n_init if isinstance(init, str) else 1,
            seed=self._seed(random_state),
            max_iter=self.max_iter,
            tol=self.tol,
            metric=self.metric,
            history="full" if self.verbose else "light",
            device=self.device,
            row_order=self.row_order,
            scale=self._named(self.scale) if isinstance(self.scale, dict) else self.scale,
            null_policy=self.null_policy,
            sort_by=self.sort_by if self.sort_by == "size" else self._named(self.sort_by),
            too_few="fewer",
        )
        printer = Printer(self.max_iter) if self.verbose else None
        found = engine._fit_array(rows, weights, printer)
        if printer:
            printer.end()
        # Only `too_few="null"` finds nothing.
        return cast("tuple[KMeansModel, Any]", found)

    def _named(self, value: Any) -> Any:
        """Return an option with the names that the engine has for features, in place of those of the data."""
        names = {name: f"column_{at}" for at, name in enumerate(getattr(self, "feature_names_in_", ()))}
        if isinstance(value, dict):
            return {names.get(name, name): factor for name, factor in value.items()}
        return names.get(value, value) if isinstance(value, str) else value

    def _seed(self, random_state: np.random.RandomState) -> int:
        """Return the engine's seed: the one that was given, or one that is drawn."""
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(random_state.randint(2**32, dtype=np.uint64))

    def _known(self) -> Codebook:
        """Return what the fit found, with the centers that the estimator has now."""
        if np.array_equal(self.cluster_centers_, self._codebook.centers):
            return self._codebook
        return Codebook.of_centers(self.cluster_centers_, self.metric, self._codebook.model.factors)
