"""A tree of clusters."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, SupportsIndex, cast, overload

import polars as pl

from polars_kmeans import _arrays, _files, _frames, _internal, _numeric, _plugin
from polars_kmeans._keywords import checked
from polars_kmeans._typing import Device, IntoArray, IntoFeatures, IntoFrame
from polars_kmeans.errors import InvalidParameterError
from polars_kmeans.model import KMeansModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

Search = Literal["tree", "exact"]


class KMeansTree:
    """A tree of clusters. Made by :class:`HierarchicalKMeans`, :class:`BisectingKMeans` or :meth:`load`.

    Labels are numbers of leaves, depth first.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"x": [0.0, 1.0, 9.0, 10.0, 20.0]})
    >>> tree = pk.BisectingKMeans(3, sort_by="x").fit(df, "x")
    >>> df.select("x", tree.predict(), tree.path()).unnest("path").rows()
    [(0.0, 0, 1, 3), (1.0, 0, 1, 3), (9.0, 1, 1, 4), (10.0, 1, 1, 4), (20.0, 2, 2, None)]
    >>> tree.nodes.select("node", "parent", "leaf", "size", "x").rows()
    [(0, None, None, 5, 8.0), (1, 0, None, 4, 5.0), (2, 0, 2, 1, 20.0), (3, 1, 0, 2, 0.5), (4, 1, 1, 2, 9.5)]

    """

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded
        self._n_nodes, self._depth, self._search = _internal.tree_facts(encoded)

    def __repr__(self) -> str:
        return f"KMeansTree(n_leaves={self.n_leaves}, depth={self._depth}, inertia={self.inertia})"

    def __eq__(self, other: object) -> bool:
        """Whether two trees are equal: whether their files are."""
        if not isinstance(other, KMeansTree):
            return NotImplemented
        return self._encoded == other._encoded or self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash((self._n_nodes, self._depth, self.inertia))

    def __reduce__(self) -> tuple[Callable[[bytes], KMeansTree], tuple[bytes]]:
        """Pickle the bytes of the file that :meth:`save` writes."""
        return KMeansTree.from_bytes, (self.to_bytes(),)

    @property
    def nodes(self) -> pl.DataFrame:
        """A frame of all nodes, which is also the table of the tree's Parquet file.

        `node` (UInt32: breadth first by path, the root is 0), `parent` (UInt32, null for the root), `level` (UInt32),
        `path` (List of UInt32: the numbers of the clusters on the way from the root), `seed` (UInt64: that of the
        node's fit), `leaf` (UInt32: the label of its rows, null for inner nodes), `size` (UInt64: rows of positive
        weight), `inertia` (Float64: around its centroid), then the features of the centroid, as in
        :attr:`KMeansModel.centroids`.
        """
        return _internal.tree_nodes(self._encoded)

    @cached_property
    def flat(self) -> KMeansModel:
        """The leaves as clusters of one model, for all that models do. Its predictions are the exact search."""
        return KMeansModel(_internal.tree_flat(self._encoded))

    @property
    def n_leaves(self) -> int:
        """The number of leaves."""
        return self.flat.k

    @property
    def depth(self) -> int:
        """The number of levels below the root."""
        return self._depth

    @property
    def search(self) -> Search:
        """The search that gives the rows of the fit their labels: `"tree"`, or `"exact"` if leaves were refined."""
        return self._search

    @property
    def inertia(self) -> float:
        """Weighted sum of squared distances of the rows to the centroids of their leaves."""
        # Only updated models have none.
        return cast("float", self.flat.inertia)

    @property
    def feature_names(self) -> list[str]:
        """The names of the columns that the tree was fitted to, in order."""
        return self.flat.feature_names

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of :attr:`flat`: those of the nodes, with all leaves as `k`, or those of the refinement."""
        return self.flat.parameters

    @property
    def centroids(self) -> pl.DataFrame:
        """A frame of the leaves, as :attr:`KMeansModel.centroids`."""
        return self.flat.centroids

    def centroids_array(self) -> NDArray[Any]:
        """Return the centroids of the leaves as a NumPy array of leaves x features, in the units of the columns."""
        return self.flat.centroids_array()

    @overload
    def predict(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame,
        /,
        *columns: IntoFeatures,
        search: Search | None = ...,
        device: Device = ...,
        null_policy: Literal["raise", "skip"] = ...,
    ) -> pl.Series: ...

    @overload
    def predict(
        self,
        data: IntoArray,
        /,
        *,
        search: Search | None = ...,
        device: Device = ...,
        null_policy: Literal["raise", "skip"] = ...,
    ) -> Any: ...

    @overload
    def predict(
        self,
        *columns: IntoFeatures,
        search: Search | None = ...,
        device: Device = ...,
        null_policy: Literal["raise", "skip"] = ...,
    ) -> pl.Expr: ...

    @checked
    def predict(
        self,
        *columns: IntoFeatures | pl.LazyFrame | IntoFrame | IntoArray,
        search: Search | None = None,
        device: Device = "auto",
        null_policy: Literal["raise", "skip"] = "skip",
    ) -> pl.Expr | pl.Series | Any:
        """Find the leaf of each row: as an expression, or at once for the rows of a frame or an array.

        Parameters
        ----------
        *columns
            As in :meth:`KMeansModel.predict <polars_kmeans.KMeansModel.predict>`.
        search
            `"tree"`: from the root, the nearest child again and again. It takes few distances, and the nearest leaf of
            all may lie below another child. `"exact"`: the nearest leaf of all, certified. None: the :attr:`search`
            that gives the rows of the fit their labels.
        device
            For an exact search, as in :meth:`KMeansModel.predict <polars_kmeans.KMeansModel.predict>`. A search through
            the tree runs on the CPU.
        null_policy
            As in :meth:`KMeansModel.predict <polars_kmeans.KMeansModel.predict>`.

        Returns
        -------
        Expr
            A column named `cluster` (UInt32), null for rows with nulls, NaNs or infinities. For a frame: a Series. For
            an array: an array of its library (int32; -1 for such rows).

        Raises
        ------
        InvalidParameterError, InvalidColumnError
            At once, as in :meth:`KMeansModel.predict <polars_kmeans.KMeansModel.predict>`.

        """
        if null_policy not in ("raise", "skip"):
            raise InvalidParameterError(f'null_policy: expected "raise" or "skip", got {null_policy!r}')
        if self._searched(search, device) == "exact":
            flat: Any = self.flat
            return flat.predict(*columns, device=device, null_policy=null_policy)
        query, array, exprs = self._rows(columns)
        leaves = self._call("descend", exprs, complete=null_policy == "raise").alias("cluster")
        if query is None:
            return leaves
        found = _plugin.collect(query.select(leaves)).to_series()
        return found if array is None else _of_array(array, found.to_frame(), one=True)

    @checked
    def path(
        self,
        *columns: IntoFeatures | pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray,
        search: Search | None = None,
        device: Device = "auto",
    ) -> pl.Expr | pl.Series | Any:
        """Find the node of each row on every level. Parameters are as in :meth:`predict`.

        Returns
        -------
        Expr
            A column named `path`: structs of `level_1`, `level_2`, ... (UInt32: numbers of nodes). They are null below
            the row's leaf, and for rows without a leaf. For a frame: a Series. For an array: an array of rows x levels
            (int32; -1 in place of null).

        """
        query, array, exprs = self._rows(columns)
        leaves = self.predict(*exprs, search=search, device=device)
        path = self._call("tree_path", [leaves], depth=self._depth).alias("path")
        if query is None:
            return path
        found = _plugin.collect(query.select(path)).to_series()
        return found if array is None else _of_array(array, found.struct.unnest())

    @overload
    def label(
        self,
        data: pl.LazyFrame,
        /,
        *columns: IntoFeatures,
        name: str = ...,
        search: Search | None = ...,
        device: Device = ...,
    ) -> pl.LazyFrame: ...

    @overload
    def label(
        self,
        data: pl.DataFrame | IntoFrame,
        /,
        *columns: IntoFeatures,
        name: str = ...,
        search: Search | None = ...,
        device: Device = ...,
    ) -> pl.DataFrame: ...

    @checked
    def label(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame,
        /,
        *columns: IntoFeatures,
        name: str = "cluster",
        search: Search | None = None,
        device: Device = "auto",
    ) -> pl.DataFrame | pl.LazyFrame:
        """Add the leaves to a frame, as its last column. `name` is new in the frame. The rest is as in :meth:`predict`.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> df = pl.DataFrame({"x": [0.0, 1.0, 9.0]})
        >>> pk.BisectingKMeans(2, sort_by="x").fit(df, "x").label(df, name="leaf").rows()
        [(0.0, 0), (1.0, 0), (9.0, 1)]

        """
        return _frames.with_labels(data, self.predict(*columns, search=search, device=device), name)

    @checked
    def score(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray,
        *columns: IntoFeatures,
        weight: str | pl.Expr | IntoArray | None = None,
        search: Search | None = None,
        device: Device = "auto",
    ) -> float:
        """Return minus the inertia of rows around the leaves that the search finds.

        Parameters are as in :meth:`predict` and :meth:`KMeansModel.score <polars_kmeans.KMeansModel.score>`.
        """
        if self._searched(search, device) == "exact":
            return self.flat.score(data, *columns, weight=weight, device=device)
        self.flat._weigh(weight)
        frame, columns, by = _rows_of(data, columns, weight, self.flat._asked(columns))
        exprs = [*self.flat._features(columns), *_plugin.weights(by)]
        score = self._call("descent_score", exprs, weighted=by is not None)
        return float(_plugin.item(frame, score))

    def nearest_clusters(self, m: SupportsIndex, *columns: Any, squared: bool = False, device: Device = "auto") -> Any:
        """Find the `m` nearest leaves of every row, in order, of all leaves: exact.

        As :meth:`KMeansModel.nearest_clusters <polars_kmeans.KMeansModel.nearest_clusters>` of :attr:`flat`.
        """
        return self.flat.nearest_clusters(m, *columns, squared=squared, device=device)

    def cut(self, level: SupportsIndex) -> KMeansModel:
        """Return a flat model of the nodes of a level, and of the leaves above it, in the order of their paths.

        Raises
        ------
        InvalidParameterError
            If two of these nodes have equal centroids.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> df = pl.DataFrame({"x": [0.0, 1.0, 9.0, 10.0, 20.0]})
        >>> tree = pk.BisectingKMeans(3, sort_by="x").fit(df, "x")
        >>> tree.cut(1).centroids["x"].to_list()
        [5.0, 20.0]

        """
        expected = "an integer of at least 0"
        return KMeansModel(_internal.tree_cut(self._encoded, _numeric.integer("level", level, expected, 0, 2**32 - 1)))

    def save(self, path: str | PathLike[str] | BinaryIO) -> None:
        """Save as a file: the tree, with a checksum, and beside it :attr:`nodes`, which any Parquet reader reads.

        Parameters and errors are those of :meth:`KMeansModel.save <polars_kmeans.KMeansModel.save>`.
        """
        if isinstance(path, (str, PathLike)):
            _internal.save_tree(self._encoded, _files.expanded(path))
        else:
            _files.write(path, self.to_bytes())

    @staticmethod
    def load(path: str | PathLike[str] | BinaryIO) -> KMeansTree:
        """Read a tree that :meth:`save` wrote. The table of nodes is not read.

        Parameters and errors are those of :meth:`KMeansModel.load <polars_kmeans.KMeansModel.load>`.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "tree.parquet"
        >>> pk.BisectingKMeans(2).fit(pl.DataFrame({"x": [0.0, 2.0, 5.0]}), "x").save(path)
        >>> pk.KMeansTree.load(path).nodes.equals(pl.read_parquet(path))
        True

        """
        if isinstance(path, (str, PathLike)):
            return KMeansTree(_internal.load_tree(_files.expanded(path)))
        return KMeansTree.from_bytes(_files.read(path, "KMeansTree"))

    def to_bytes(self) -> bytes:
        """Return the bytes of the file that :meth:`save` writes. Equal trees give equal bytes."""
        return _internal.tree_to_file(self._encoded)

    @staticmethod
    def from_bytes(content: bytes) -> KMeansTree:
        """Read a tree from the bytes of its file. Errors are those of :meth:`load`."""
        return KMeansTree(_internal.tree_from_file(content))

    def _searched(self, search: Any, device: Device) -> Search:
        if search not in (None, "tree", "exact"):
            raise InvalidParameterError(f'search: expected "tree", "exact" or None, got {search!r:.80}')
        found: Search = search or self._search
        if _plugin.device_name(device) not in ("auto", "cpu") and found == "tree":
            msg = f'device: expected "auto" or "cpu" for search="tree", got {device!r:.80}'
            raise InvalidParameterError(f'{msg}: search="exact" runs on every device')
        return found

    def _rows(self, columns: tuple[Any, ...]) -> tuple[pl.LazyFrame | None, IntoArray | None, list[pl.Expr]]:
        """Return the query of the rows and the array that they are from, if there are some, and the features."""
        array = _arrays.in_place_of(columns)
        data, features = (array, ()) if array is not None else _frames.ahead_of(columns)
        query = None
        if data is not None:
            query, features = self.flat._query(data, features, ())
        return query, array, self.flat._features(features)

    def _call(
        self, function: str, exprs: list[pl.Expr], *, complete: bool = False, weighted: bool = False, depth: int = 0
    ) -> pl.Expr:
        kwargs = {"complete": complete, "weighted": weighted, "depth": depth}
        return _plugin.of_model(function, exprs, self._encoded, kwargs, scalar=function == "descent_score")


def _of_array(array: IntoArray, found: pl.DataFrame, *, one: bool = False) -> Any:
    """Return numbers as an array of the library of another one."""
    numbers = found.select(pl.all().cast(pl.Int32).fill_null(-1)).to_numpy(order="c", writable=True)
    return _arrays._returned(array, numbers[:, 0] if one else numbers)


def _rows_of(
    data: Any, columns: tuple[Any, ...], weight: Any, read: tuple[Any, ...]
) -> tuple[Any, tuple[Any, ...], Any]:
    """Return rows as a frame, its features, and its weights. `read`: the columns that will be read of a frame."""
    if not _arrays.is_array(data):
        return _frames.polars_frame(data, *read, weight), columns, weight
    _arrays.alone(data, columns, None)
    frame = _internal.array_frame(data)
    columns = tuple(frame.columns)
    if weight is None:
        return frame, columns, None
    weights = _internal.array_frame(weight).to_series()
    if len(weights) != frame.height:
        msg = f"weight: expected one number for each row, got {len(weights)} for {frame.height} rows"
        raise InvalidParameterError(msg)
    return frame.with_columns(weights.alias(_plugin.WEIGHT)), columns, _plugin.WEIGHT
