"""The estimator that learns from batches, on exact sums."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, cast

import numpy as np
from sklearn.base import _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from polars_kmeans import _internal, _living, _numeric
from polars_kmeans._typing import InitMethod
from polars_kmeans.errors import InvalidParameterError
from polars_kmeans.estimator import KMeans as Engine
from polars_kmeans.model import KMeansModel
from polars_kmeans.sklearn._codebook import Codebook
from polars_kmeans.sklearn._data import checked_centers, checked_rows, checked_weights, on_gpu
from polars_kmeans.sklearn._estimator import KMeans

# The number of the draw of the rows that seeds come from. Batches have smaller ones.
_SEEDS = 2**32 - 1


class MiniBatchKMeans(KMeans):
    """K-means on batches, with the parameters, methods and attributes of :class:`sklearn.cluster.MiniBatchKMeans`.

    Centers are exact means of all batches. After every call, `labels_` is what :meth:`predict` gives.

    Parameters
    ----------
    n_clusters, init, verbose, random_state
        As in :class:`KMeans`.
    max_iter
        How often :meth:`fit` goes through the data, at most, as a number of batches.
    batch_size
        The rows of a batch of :meth:`fit`. They are drawn with replacement.
    compute_labels
        Whether to compute `labels_` and `inertia_` after a fit.
    tol
        Stop :meth:`fit` when the squared shift of the centers is at most `tol` times the mean variance. 0: never.
    max_no_improvement
        Stop :meth:`fit` after so many batches whose smoothed inertia is no new minimum. None: never.
    init_size
        The rows that :meth:`fit` draws seeds from. None: three batches, or `3 * n_clusters` if that is more.
    n_init
        How many seedings are compared. `"auto"`: 3 if `init` is `"random"` or a function, else 1.
    reassignment_ratio
        A cluster whose weight is below this share of the largest takes the batch's farthest row.
    extents
        For :meth:`partial_fit`: the largest magnitude of each feature, in order or by name. None: those of the first
        batch. A later value that is more than 16 times as large is taken too: the sums are rounded to coarser units
        first. So the bits of a model depend on the order of its batches from then on. With extents that hold for all
        batches, they do not.

    Attributes
    ----------
    cluster_centers_, labels_, inertia_, n_features_in_, feature_names_in_
        As in :class:`KMeans`. After :meth:`partial_fit`, labels and inertia are those of the last batch.
    n_iter_
        How often :meth:`fit` went through the data.
    n_steps_
        The number of batches.
    model_
        The :class:`polars_kmeans.KMeansModel`, which keeps the sums of all batches.

    Examples
    --------
    >>> import numpy as np
    >>> from polars_kmeans.sklearn import MiniBatchKMeans
    >>> X = np.array([[1.0, 2.0], [1.0, 4.0], [10.0, 2.0], [10.0, 4.0]])
    >>> kmeans = MiniBatchKMeans(n_clusters=2, random_state=0)
    >>> kmeans = kmeans.partial_fit(X).partial_fit(X + 1)
    >>> kmeans.cluster_centers_[kmeans.predict([[1.0, 1.0]])]
    array([[1.5, 3.5]])

    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **{name: KMeans._parameter_constraints[name] for name in ("n_clusters", "init", "verbose", "random_state")},
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "compute_labels": ["boolean"],
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_no_improvement": [Interval(Integral, 0, None, closed="left"), None],
        "init_size": [Interval(Integral, 1, None, closed="left"), None],
        "n_init": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "reassignment_ratio": [Interval(Real, 0, None, closed="left")],
        "extents": ["array-like", dict, None],
    }
    _several = 3
    metric = "euclidean"
    device = "auto"
    algorithm = "lloyd"
    null_policy = "raise"

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: InitMethod | Callable[..., Any] | Any = "k-means++",
        max_iter: int = 100,
        batch_size: int = 1024,
        verbose: int = 0,
        compute_labels: bool = True,
        random_state: int | np.random.RandomState | None = None,
        tol: float = 0.0,
        max_no_improvement: int | None = 10,
        init_size: int | None = None,
        n_init: int | Literal["auto"] = "auto",
        reassignment_ratio: float = 0.01,
        extents: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.verbose = verbose
        self.compute_labels = compute_labels
        self.random_state = random_state
        self.tol = tol
        self.max_no_improvement = max_no_improvement
        self.init_size = init_size
        self.n_init = n_init
        self.reassignment_ratio = reassignment_ratio
        self.extents = extents

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> MiniBatchKMeans:
        """Find the clusters, by batches that are drawn from the data.

        Parameters, warnings and errors are those of :meth:`KMeans.fit`, for rows on the host.
        """
        rows, weights = self._checked(X, sample_weight, reset=True)
        self._check_size(rows)
        n, batch = len(rows), min(self.batch_size, len(rows))
        seed = self._seed(check_random_state(self.random_state))
        seed_rows = self._drawn(rows, weights, seed, _SEEDS, self._init_rows(n))
        encoded = self._start(*seed_rows, seed, np.abs(rows).max(axis=0), weights)
        steps, step = self.max_iter * n // batch, 0
        alpha, tol = min(1.0, 2.0 * batch / (n + 1)), self.tol and self.tol * float(np.mean(np.var(rows, axis=0)))
        # scikit-learn's rules to stop. The first batch says nothing: its inertia is that of the seeds.
        smoothed, least, since = None, np.inf, 0
        for step in range(steps):
            before = encoded
            drawn, weight = self._drawn(rows, weights, seed, step, batch)
            encoded, inertia = _internal.step_array(encoded, drawn, weight, self.reassignment_ratio)
            inertia /= batch
            if self.verbose:
                print(f"Minibatch step {step + 1}/{steps}: mean batch inertia: {inertia}, smoothed: {smoothed}")
            if step == 0:
                continue
            smoothed = inertia if smoothed is None else smoothed * (1 - alpha) + inertia * alpha
            since = 0 if smoothed < least else since + 1
            least = min(least, smoothed)
            if (tol and _shift(before, encoded) <= tol) or (
                self.max_no_improvement is not None and since >= self.max_no_improvement
            ):
                break
        self._take(encoded, rows, weights, step + 1)
        self.n_iter_ = int(np.ceil(self.n_steps_ * batch / n))
        return self

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> MiniBatchKMeans:
        """Learn from one more batch. The first call finds starting centers in its rows.

        Parameters are those of :meth:`fit`. Later batches become the type of the first one. A value beside which the
        sums of earlier batches would lose their digits, such as 1e37 for a missing one, is an error.
        """
        known = hasattr(self, "model_")
        rows, weights = self._checked(X, sample_weight, reset=not known)
        if known:
            encoded = self.model_._encoded
        else:
            self._check_size(rows)
            seed = self._seed(check_random_state(self.random_state))
            largest = np.abs(rows).max(axis=0) if self.extents is None else self._largest(rows)
            encoded = self._start(rows, weights, seed, largest, weights)
        encoded, _ = _internal.step_array(encoded, rows, weights, self.reassignment_ratio)
        self._take(encoded, rows, weights, self.n_steps_ + 1 if known else 1)
        return self

    def _checked(self, X: Any, sample_weight: Any, *, reset: bool) -> tuple[Any, Any]:
        if on_gpu(X):
            raise InvalidParameterError("X: expected rows on the host, got a tensor on a GPU: copy it to the host")
        rows = checked_rows(self, X, reset=reset)
        if not reset:
            rows = rows.astype(self.cluster_centers_.dtype, copy=False)
        return rows, checked_weights(sample_weight, rows)

    def _largest(self, rows: Any) -> Any:
        """Return the extents that the user gives. Features that are not named have those of the rows."""
        if not isinstance(self.extents, Mapping):
            return [_numeric.number("extents", extent) for extent in self.extents]
        names = list(getattr(self, "feature_names_in_", [f"column_{at}" for at in range(rows.shape[1])]))
        _living.check_features(self.extents, names)
        found = zip(names, np.abs(rows).max(axis=0), strict=True)
        return [_numeric.number("extents", self.extents.get(name, own)) for name, own in found]

    def _init_rows(self, n: int) -> int:
        size = max(3 * self.batch_size, 3 * self.n_clusters) if self.init_size is None else self.init_size
        if size < self.n_clusters:
            msg = f"init_size={size} should be larger than n_clusters={self.n_clusters}. Setting it to 3 * n_clusters."
            warnings.warn(msg, RuntimeWarning, stacklevel=4)
            size = 3 * self.n_clusters
        return min(size, n)

    def _drawn(self, rows: Any, weights: Any, seed: int, step: int, count: int) -> tuple[Any, Any]:
        """Return some rows, drawn with replacement. All of them, if so many are asked for."""
        if step == _SEEDS and count == len(rows):
            return rows, weights
        places = np.frombuffer(_internal.draw_rows(seed, step, count, len(rows)), dtype="<i8")
        return rows[places], None if weights is None else weights[places]

    def _start(self, rows: Any, weights: Any, seed: int, largest: Any, later: Any) -> bytes:
        """Return a model of starting centers, without rows, whose sums take values and weights of these magnitudes."""
        starts = self._seedings(rows, weights, seed)
        weight = 1.0 if later is None else float(np.max(later)) or 1.0
        # Any centroids that differ: starts need not.
        shape = np.arange(self.n_clusters * rows.shape[1], dtype=rows.dtype).reshape(self.n_clusters, -1)
        model = KMeansModel.from_centroids(shape)._encoded
        magnitudes = [float(value) for value in largest]
        found = [_internal.model_starting_at(model, np.ravel(start).tolist(), magnitudes, weight) for start in starts]
        if len(found) > 1:
            found.sort(key=lambda encoded: -KMeansModel(encoded).score(rows, weight=weights))
        return found[0]

    def _seedings(self, rows: Any, weights: Any, seed: int) -> list[Any]:
        """Return starting centers, once for each seeding."""
        self._n_init = restarts = self._restarts()
        if callable(self.init):
            state = check_random_state(seed % 2**32)
            centers = (self.init(rows, self.n_clusters, random_state=state) for _ in range(restarts))
            return [checked_centers(found, rows, self.n_clusters) for found in centers]
        if not isinstance(self.init, str):
            return [checked_centers(self.init, rows, self.n_clusters)]
        seen: list[Any] = []

        def see(progress: Any) -> None:
            if progress.stage == "seeds":
                seen.append(progress.centroids())

        options = {"init": self.init, "n_init": restarts, "seed": seed, "max_iter": 1, "too_few": "fewer"}
        found = Engine(self.n_clusters, **cast("Any", options))._fit_array(rows, weights, see)
        centers = cast("Any", found)[0].centroids_array()
        # Where there are fewer distinct rows, the first one is a center several times.
        missing = self.n_clusters - len(centers)
        return [np.concatenate([centers, np.repeat(centers[:1], missing, axis=0)])] if missing else seen

    def _take(self, encoded: bytes, rows: Any, weights: Any, steps: int) -> None:
        """Take a model over. An error before that leaves the estimator as it was."""
        model = KMeansModel(encoded)
        codebook = Codebook.of_fit(model, self.n_clusters)
        if self.compute_labels:
            labels, inertia = codebook.labels(rows, self.device), -model._score(rows, (), weights, "auto")
            self.labels_, self.inertia_ = labels, inertia
        self.model_, self._codebook, self.n_steps_ = model, codebook, steps
        self.cluster_centers_ = codebook.centers.copy()
        self._n_features_out = self.n_clusters


def _shift(before: bytes, after: bytes) -> float:
    """Return the squared shift of the centers."""
    old, new = (np.asarray(_internal.model_compared(model)) for model in (before, after))
    return float(np.sum((new - old) ** 2))
