"""Estimators of trees: hierarchical and bisecting k-means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, cast, overload

import polars as pl

from polars_kmeans import _arrays, _frames, _internal, _numeric, _plugin
from polars_kmeans._generated import TreeOptions
from polars_kmeans._keywords import checked, takes
from polars_kmeans._options import FitOptions
from polars_kmeans._typing import IntoArray, IntoFeatures, IntoFrame
from polars_kmeans.errors import InvalidParameterError
from polars_kmeans.tree import KMeansTree, _of_array, _rows_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

TooFew = Literal["raise", "null", "fewer"]


class _TreeEstimator:
    """What the estimators share."""

    def __init__(
        self, k: SupportsIndex, own: dict[str, Any], weight: Any, too_few: TooFew, options: dict[str, Any]
    ) -> None:
        self._options = FitOptions(k=k, **options, too_few=too_few)
        if not isinstance(self._options.given["init"], str):
            raise InvalidParameterError("init: expected a method, since each node has other centroids, got centroids")
        if weight is not None:
            _plugin.weight_expr(weight)
        self._weight = weight
        self._own = own
        growth = {"levels": None, "leaves": None, "refine": 0, "split": None, "max_size": None}
        self._growth = {name: own.get(name, default) for name, default in growth.items()}

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters by name. `type(estimator)(**estimator.parameters)` makes an equal estimator."""
        options = {name: value for name, value in self._options.given.items() if name != "k"}
        return {**self._own, **options, "weight": self._weight}

    def __repr__(self) -> str:
        shown = {name: value for name, value in self._own.items() if value not in (None, 0)}
        shown |= {name: value for name, value in self._options.chosen.items() if name != "k"}
        shown |= {} if self._weight is None else {"weight": self._weight}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r:.80}' for name, value in shown.items())})"

    @overload
    def fit(self, data: pl.DataFrame | pl.LazyFrame | IntoFrame, *columns: IntoFeatures) -> KMeansTree: ...

    @overload
    def fit(self, data: IntoArray, *, weight: IntoArray | None = ...) -> KMeansTree: ...

    @checked
    def fit(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray,
        *columns: IntoFeatures,
        weight: IntoArray | None = None,
    ) -> KMeansTree:
        """Fit a tree to the columns of a frame, or to an array. The query of a LazyFrame runs once.

        The rows are copied once, in the type of the fit. The root is fitted on the `device`. If that is a GPU, so are
        large nodes, one after the other. Small nodes are fitted on the CPU, side by side.

        Parameters
        ----------
        data, *columns, weight
            As in :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`.

        Returns
        -------
        KMeansTree
            The tree. With `too_few="null"`, None if there are fewer distinct rows than clusters.

        Raises
        ------
        KMeansError
            As in :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`, and for features named as columns of
            :attr:`KMeansTree.nodes <polars_kmeans.KMeansTree.nodes>`.

        """
        found = self._fit(data, columns, weight)
        # Only `too_few="null"` finds nothing.
        return cast("KMeansTree", None if found is None else found[0])

    @overload
    def fit_predict(self, data: pl.DataFrame | pl.LazyFrame | IntoFrame, *columns: IntoFeatures) -> pl.Series: ...

    @overload
    def fit_predict(self, data: IntoArray, *, weight: IntoArray | None = ...) -> Any: ...

    @checked
    def fit_predict(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray,
        *columns: IntoFeatures,
        weight: IntoArray | None = None,
    ) -> pl.Series | Any:
        """Fit, and return the leaf of each row. :meth:`fit` has the parameters and errors.

        Returns
        -------
        Series
            The leaves (UInt32), named `cluster`. Null for rows that were left out. For an array: an array of its
            library (int32; -1 for such rows).

        """
        if not _arrays.is_array(data):
            # The query of a LazyFrame runs once.
            data = _frames.collected(data, *_plugin.flat(columns), self._weight)
        found = self._fit(data, columns, weight)
        if found is None:
            if not isinstance(data, pl.DataFrame):
                raise InvalidParameterError('too_few: expected "raise" where an array is labelled, got "null"')
            return pl.repeat(None, data.height, dtype=pl.UInt32, eager=True).alias("cluster")
        return found[1]

    def _fit(self, data: Any, columns: tuple[Any, ...], weight: Any) -> tuple[KMeansTree, Any] | None:
        """Fit a frame or an array. Return the tree, and the leaf of each row as a Series or an array."""
        if _arrays.is_array(data):
            _arrays.alone(data, columns, self._weight)
            if not (_arrays.on_gpu(data) or _arrays.on_gpu(weight)):
                return self._fit_array(data, weight)
        else:
            _arrays.no_weight(weight)
            weight = self._weight
        frame, columns, by = _rows_of(data, columns, weight, columns)
        fit = _plugin.fit_tree(frame, _plugin.features(columns), self._options, by, self._growth)
        if fit is None:
            return None
        labels = fit[1].alias("cluster")
        return KMeansTree(fit[0]), _of_array(data, labels.to_frame(), one=True) if _arrays.is_array(data) else labels

    def _fit_array(self, data: Any, weight: Any) -> tuple[KMeansTree, Any] | None:
        _plugin.check_process(runs=True)
        keywords = {**self._options.keywords, "weighted": weight is not None}
        fit = _internal.fit_tree_array(data, weight, keywords, self._growth)
        return None if fit is None else (KMeansTree(fit[0]), _arrays._returned(data, fit[1]))


class HierarchicalKMeans(_TreeEstimator):
    """A tree of so many clusters a level, or of so many leaves: k-means in k-means.

    The fit of a node has the bits of a fit of its rows alone, with a seed of its own.

    Parameters
    ----------
    levels
        How many clusters each node of a level has: `[256, 256]` gives up to 65,536 leaves. A node with fewer distinct
        rows stays a leaf. So does a node of one cluster below the root.
    leaves
        In place of `levels`: how many leaves there are, in two levels. The root has `ceil(sqrt(leaves))` children, and
        each of them leaves in proportion to its rows of positive weight. Children with few distinct rows get fewer
        leaves, so there may be fewer in all.
    refine
        How many iterations of a flat fit move the leaves at the end. They have the bits of :class:`KMeans` with the
        leaves as `init` and `tol=0`. :attr:`KMeansTree.search` is then `"exact"`. Leaves with equal centroids are
        refused.
    weight
        Row weights, as in :class:`KMeans`.
    too_few
        What to do if the root has fewer distinct rows than clusters: see :class:`KMeans`.
    **options
        Those of :class:`KMeans`.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"x": [0.0, 1.0, 2.0, 50.0, 51.0, 99.0]})
    >>> tree = pk.HierarchicalKMeans(levels=[2, 2], sort_by="x").fit(df, "x")
    >>> tree
    KMeansTree(n_leaves=4, depth=2, inertia=1.0)
    >>> tree.predict(df).to_list()
    [0, 1, 1, 2, 2, 3]

    """

    @takes(TreeOptions)
    def __init__(
        self,
        *,
        levels: Sequence[SupportsIndex] | None = None,
        leaves: SupportsIndex | None = None,
        refine: SupportsIndex = 0,
        weight: str | pl.Expr | None = None,
        too_few: TooFew = "raise",
        **options: Unpack[TreeOptions],
    ) -> None:
        if (levels is None) == (leaves is None):
            raise InvalidParameterError("levels: expected levels or leaves, and not both")
        if levels is not None:
            try:
                levels = [_numeric.integer("levels", k) for k in levels]
            except (TypeError, InvalidParameterError):
                raise _numeric.refused("levels", "positive integers, as in [256, 256]", levels) from None
        own = {
            "levels": levels,
            "leaves": None if leaves is None else _numeric.integer("leaves", leaves),
            "refine": _numeric.integer("refine", refine, "an integer of at least 0", 0, 2**32 - 1),
        }
        super().__init__(1, own, weight, too_few, cast("dict[str, Any]", options))


class BisectingKMeans(_TreeEstimator):
    """A tree that grows by splits in two, until it has `k` leaves: scikit-learn's bisecting k-means.

    Parameters
    ----------
    k
        The number of leaves.
    split
        Which leaf is split next: `"inertia"`, that of the largest inertia, or `"size"`, that of the most rows of
        positive weight.
    max_size
        The most rows of positive weight that a leaf may have. Larger leaves are split, also beyond `k`. Equal rows are
        cut in the order of the table: both parts have one centroid, and :meth:`KMeansTree.predict` gives the smaller
        leaf for such rows. :meth:`fit_predict` gives the leaves of the fit.
    weight
        Row weights, as in :class:`KMeans`.
    too_few
        What to do if no leaf can be split before there are `k`: see :class:`KMeans`.
    **options
        Those of :class:`KMeans`, for each fit of two clusters.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"x": [0.0, 1.0, 2.0, 50.0, 51.0, 99.0]})
    >>> pk.BisectingKMeans(3, sort_by="x").fit_predict(df, "x").to_list()
    [0, 0, 0, 1, 1, 2]

    """

    @takes(TreeOptions)
    def __init__(
        self,
        k: SupportsIndex,
        *,
        split: Literal["inertia", "size"] = "inertia",
        max_size: SupportsIndex | None = None,
        weight: str | pl.Expr | None = None,
        too_few: TooFew = "raise",
        **options: Unpack[TreeOptions],
    ) -> None:
        if split not in ("inertia", "size"):
            raise InvalidParameterError(f'split: expected "inertia" or "size", got {split!r:.80}')
        most = None if max_size is None else _numeric.integer("max_size", max_size)
        own = {"k": k, "split": split, "max_size": most}
        super().__init__(k, own, weight, too_few, cast("dict[str, Any]", options))

    @property
    def k(self) -> int:
        """The number of leaves."""
        return int(self._options.given["k"])
