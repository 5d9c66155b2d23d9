"""A fitted model."""

from __future__ import annotations

import copy
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, BinaryIO, Literal, cast

import polars as pl

from polars_kmeans import _centroids, _export, _files, _frames, _internal, _living, _names, _numeric, _plugin
from polars_kmeans._facts import Ran
from polars_kmeans._keywords import checked
from polars_kmeans._options import FitOptions
from polars_kmeans._summaries import Summaries
from polars_kmeans._typing import Fit, IntoArray, IntoFrame, IntoTypes
from polars_kmeans.errors import InvalidModelError, InvalidParameterError, TooFewRowsError

# The name of the model's file in its JSON.
_FILE = "polars_kmeans_file"


class KMeansModel(Summaries):
    """A fitted model. Made by :meth:`polars_kmeans.KMeans.fit`, :meth:`load` or :meth:`from_centroids`.

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

    @classmethod
    def _of_fit(cls, model: bytes, *ran: Any) -> KMeansModel:
        """Make the model of a fit that has just run, and say how it ran."""
        fitted = cls(model)
        fitted._ran = Ran(*ran)
        return fitted

    def __eq__(self, other: object) -> bool:
        """Whether two models are equal. Wall times and :attr:`metadata` do not count."""
        if not isinstance(other, KMeansModel):
            return NotImplemented
        return _internal.models_equal(self._encoded, other._encoded)

    def __hash__(self) -> int:
        """Hash what equal models have in common. No call changes a model."""
        return hash((*self._names, self._k, self._inertia, self._n_iter))

    def __reduce__(self) -> tuple[Callable[[bytes], KMeansModel], tuple[bytes]]:
        """Pickle the bytes of the file that :meth:`save` writes. Later versions can read it."""
        return _from_file, (self.to_bytes(),)

    def with_metadata(self, metadata: Mapping[str, str]) -> KMeansModel:
        """Return the same model with texts of yours in place of those that it had. They are saved with it.

        They do not count when models are compared. The names of the clusters stay. Anything but texts, and the key
        `"polars_kmeans.cluster_names"`, is an `InvalidParameterError`.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> model = pk.KMeans(k=2).fit(pl.DataFrame({"x": [0.0, 2.0, 5.0]}), "x")
        >>> pk.KMeansModel.from_bytes(model.with_metadata({"rows": "may.csv"}).to_bytes()).metadata
        {'rows': 'may.csv'}

        """
        texts = dict(metadata) if isinstance(metadata, Mapping) else {"": metadata}
        if not all(isinstance(text, str) for pair in texts.items() for text in pair):
            raise InvalidParameterError(f"metadata: expected texts by name, got {metadata!r:.80}")
        if _names.KEY in texts:
            msg = f"metadata: expected another key than {_names.KEY!r}, which holds the names of the clusters"
            raise InvalidParameterError(f"{msg}: model.with_names gives names")
        kept = _internal.model_metadata(self._encoded)
        return self._noted(texts | {key: kept[key] for key in kept if key == _names.KEY})

    def with_names(self, names: Sequence[str] | pl.Series | None) -> KMeansModel:
        """Return the same model with names of its clusters, in the order of the clusters. They are saved with it.

        :attr:`cluster_names` has them. :meth:`profile`, `label(names=True)` and the charts show them. :meth:`updated`
        keeps them. A new fit has none, because its clusters are others. They do not count when models are compared.

        Parameters
        ----------
        names
            A list or a Series with one text for each cluster, all different. Anything else is an
            `InvalidParameterError`. None or an empty list takes the names away.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> df = pl.DataFrame({"euros": [9.0, 250.0, 11.0]})
        >>> model = pk.KMeans(k=2, sort_by="euros").fit(df, "euros").with_names(["small", "large"])
        >>> model.label(df, names=True)["cluster"].to_list()
        ['small', 'large', 'small']

        """
        return self._noted(self.metadata | _names.encoded(names, self._k))

    def _noted(self, metadata: dict[str, str]) -> KMeansModel:
        noted = copy.copy(self)
        noted._encoded = _internal.model_with(self._encoded, metadata)
        return noted

    @checked
    def updated(
        self,
        sums: pl.DataFrame | pl.LazyFrame | pl.Series | IntoFrame | None = None,
        *,
        removed: pl.DataFrame | pl.LazyFrame | pl.Series | IntoFrame | None = None,
        start: Literal["kept", "zero"] = "kept",
        decay: float | None = None,
        extents: Mapping[str, float] | Sequence[float] | None = None,
        batch: str | None = None,
        removed_batch: str | None = None,
    ) -> KMeansModel:
        """Return the model whose centroids are the exact means of the rows in tables of sums.

        A cluster without weight keeps its centroid. The new model keeps its sums.

        Parameters
        ----------
        sums
            A table of :meth:`sums`, or a frame with a column of such tables. Rows of one cluster add up. None: no rows.
        removed
            A table of rows to take away again, with the labels that they had when they were added.
        start
            `"kept"`: the sums that this model keeps, which needs a fit with `keep_sums=True` (best with `tol=0`, see
            :doc:`/guide/living-models`) or an updated model.
            `"zero"`: no rows.
        decay
            What weights and sums of earlier rows are multiplied by first: a number from 0 to 1, rounded to 32 bits. A
            cluster without rows in `sums` keeps its centroid, bit for bit, and remembers the product of its decays
            until rows come. After a decay below 1, rows can no longer be removed.
        extents
            As in :meth:`sums`.
        batch
            A key of the rows in `sums`, such as a day. The model remembers the key, and no model takes one twice: see
            :attr:`batches`. `start="zero"` forgets all keys.
        removed_batch
            A key of the rows in `removed`. The key of a batch means that the whole batch is removed. Some rows of a
            batch need a key of their own.

            Without keys, a table that is added twice is not noticed. A table that is removed twice is noticed only if a
            cluster would have fewer than no rows, or sums that its rows cannot have.

        Returns
        -------
        KMeansModel
            `size` counts the rows in the sums. `inertia` and `converged` are None, and the history is empty.

        Raises
        ------
        InvalidParameterError
            For a table of other models, for totals that no rows can have, for `start="kept"` where no sums are kept,
            for `removed` after a decay, and for a key that was taken before.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> may, june = pl.DataFrame({"x": [0.0, 2.0, 9.0]}), pl.DataFrame({"x": [11.0]})
        >>> model = pk.KMeans(k=2, init=[[1.0], [9.0]], tol=0, keep_sums=True).fit(may, "x")
        >>> later = model.updated(june.select(model.sums()))
        >>> later.centroids["x"].to_list()
        [1.0, 10.0]
        >>> later.updated(removed=june.select(model.sums())).centroids["x"].to_list()
        [1.0, 9.0]

        """
        if start not in ("kept", "zero"):
            raise InvalidParameterError(f'start: expected "kept" or "zero", got {start!r:.80}')
        options = {
            "sums": None if sums is None else _living.table(sums, "sums"),
            "removed": None if removed is None else _living.table(removed, "removed"),
            "start": start,
            "decay": None if decay is None else _numeric.number("decay", decay, "a number from 0 to 1"),
            "extents": _living.extents(extents, self._sum_names()),
            "batch": _living.key("batch", batch),
            "removed_batch": _living.key("removed_batch", removed_batch),
        }
        return KMeansModel(_internal.update_model(self._encoded, options))

    @checked
    def widened(
        self, extents: Mapping[str, float] | Sequence[float] | None = None, *, weight: float | None = None
    ) -> KMeansModel:
        """Return the same model with room for larger values in its :meth:`sums`.

        Sums take values up to 16 times as large as those of the fit. A fit with `extents` has more room from the start.

        The kept sums are rounded once to the coarser units. Tables of sums that were made before are refused, because
        their units are others: make them again.

        Parameters
        ----------
        extents
            The largest magnitudes, by feature or one for each, in the units of the columns. Features that are not named
            stay as they are, and so do those with larger values in the fit.
        weight
            The largest weight of later rows, for a model of a fit with weights.

        Raises
        ------
        InvalidParameterError
            For other features, magnitudes out of range, and a weight where the fit had none.
        InvalidDataError
            If the sums of earlier rows would lose their digits: if fewer bits than those of the float type (53 or 24)
            would remain below the values of the fit.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> model = pk.KMeans(k=2, init=[0.0, 9.0], keep_sums=True).fit(pl.DataFrame({"x": [0.0, 9.0]}), "x")
        >>> wide = model.widened({"x": 1000.0})
        >>> wide.updated(pl.DataFrame({"x": [1000.0]}).select(wide.sums())).centroids["x"].to_list()
        [0.0, 504.5]

        """
        names = self._sum_names()
        if isinstance(extents, Mapping):
            _living.check_features(extents, names)
            extents = {name: extents.get(name, 0.0) for name in names}
        found = _living.extents([0.0] * len(names) if extents is None else extents, names) or []
        largest = None if weight is None else _numeric.number("weight", weight)
        return KMeansModel(_internal.widen_model(self._encoded, found, largest))

    @checked
    def match(self, other: KMeansModel) -> pl.DataFrame:
        """Find which clusters of another model the clusters of this one are.

        The sum of the squared distances between matched centroids is the least that there is, in the units in which the
        other model compares rows. `sort_by=other` numbers the clusters of a fit by the same match. Another metric,
        other features and more than 4,096 clusters are an `InvalidParameterError`.

        Returns
        -------
        DataFrame
            One row for each cluster of this model: `cluster` and `matched` (UInt32; the number in the other model), and
            `distance` (Float64). In the order of `matched`. Clusters without a match come last, with nulls.

        Examples
        --------
        >>> import polars_kmeans as pk
        >>> old = pk.KMeansModel.from_centroids([[0.0], [5.0]], ["x"])
        >>> new = pk.KMeansModel.from_centroids([[5.5], [9.0], [0.0]], ["x"])
        >>> new.match(old).rows()
        [(2, 0, 0.0), (0, 1, 0.5), (1, None, None)]

        """
        if not isinstance(other, KMeansModel):
            raise InvalidParameterError(f"other: expected a KMeansModel, got {_frames.type_name(other)}")
        rows = _internal.match_models(self._encoded, other._encoded)
        return pl.DataFrame(
            rows, schema={"cluster": pl.UInt32, "matched": pl.UInt32, "distance": pl.Float64}, orient="row"
        )

    def to_expr(self, *, types: IntoTypes | None = None) -> pl.Expr:
        """Return the label as an expression of plain Polars, for programs that do not have this package.

        Nulls and labels are those of :meth:`predict`. But without a fused multiply-add, the label of a row may differ
        if its two least squared distances differ by less than `(d + 2) 2^-51` of themselves.

        Parameters
        ----------
        types
            The types of the columns, if they are not those of the fit: `"float32"`, `"float64"`, a dtype, or one for
            each name, as `frame.schema`. They matter where a float32 model scales rows or takes directions: rows are
            rounded to float32 unless a column is wider. Other types are an `InvalidParameterError`.

        Returns
        -------
        Expr
            A column named `cluster` (UInt32). It grows with clusters times features. A model of an Array column or of
            expressions is an `InvalidColumnError`.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> df = pl.DataFrame({"x": [0.0, 2.0, 5.0, None]})
        >>> df.select(pk.KMeansModel.from_centroids([[0.0], [5.0]], ["x"]).to_expr()).to_series().to_list()
        [0, 0, 1, None]

        """
        return _export.Formula(self, types).polars()

    def to_sql(self, dialect: Literal["duckdb", "sqlite", "ansi"] = "duckdb", *, types: IntoTypes | None = None) -> str:
        """Return the label as an expression of SQL, for engines without this package.

        Parameters
        ----------
        dialect
            `"duckdb"` (1.3 or newer), `"sqlite"`, or `"ansi"` for engines that take `WITH` inside of expressions. An
            engine that raises for an overflow, as PostgreSQL does, raises for rows whose squares overflow.
        types
            As in :meth:`to_expr`. Only DuckDB rounds to float32. So for others, where a float32 model scales rows or
            takes directions, only `types="float64"` is taken: labels are those of Float64 columns.

        Returns
        -------
        str
            One expression, as in `SELECT *, {model.to_sql()} AS cluster FROM rows`. Labels, NULLs and errors are those
            of :meth:`to_expr`. Features whose names differ by case only are an `InvalidColumnError`.

        Examples
        --------
        >>> import sqlite3
        >>> import polars_kmeans as pk
        >>> label = pk.KMeansModel.from_centroids([[0.5], [5.0]], ["x"]).to_sql("sqlite")
        >>> sqlite3.connect(":memory:").execute(f"SELECT {label} FROM (SELECT 1.5 AS x UNION SELECT 4)").fetchall()
        [(0,), (1,)]

        """
        return _export.Formula(self, types).sql(dialect)

    def save(self, path: str | PathLike[str] | BinaryIO) -> None:
        """Save as a file: the model, with a checksum, and beside it a table that any Parquet reader reads.

        The table is the centroid frame, with the parameters in its metadata. If the fit scaled the columns, the
        metadata have the factors too, which a reader needs to label rows. An existing file is replaced only after the
        new file is complete. Links are followed.

        Parameters
        ----------
        path
            A path, where `~` is the home folder. Or a file that is open for writing bytes.

        Raises
        ------
        ModelFileError
            If the file cannot be written. If the mode of an existing file lets no user write, the file is not replaced,
            not even by root.

        """
        if isinstance(path, (str, PathLike)):
            _internal.save_model(self._encoded, _files.expanded(path))
        else:
            _files.write(path, self.to_bytes())

    @staticmethod
    def load(path: str | PathLike[str] | BinaryIO) -> KMeansModel:
        """Read a model that :meth:`save` wrote, in Python or in Rust. Its predictions have the same bits.

        Parameters
        ----------
        path
            A path, where `~` is the home folder. Or a file that is open for reading bytes.

        Raises
        ------
        ModelFileError
            If the file cannot be read.
        InvalidModelError
            If the file is truncated, not a model, or of a newer version, or if the model in it was altered (it has a
            checksum). Also if it needs something that this version does not know, such as another metric. The table is
            for other programs: it is not read. If another program reads the table and writes it again, the new file is
            not a model: see :meth:`from_centroids`.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.parquet"
        >>> pk.KMeans(k=2).fit(pl.DataFrame({"x": [0.0, 2.0, 5.0]}), "x").save(path)
        >>> pk.KMeansModel.load(path).centroids.equals(pl.read_parquet(path))
        True

        """
        if isinstance(path, (str, PathLike)):
            return KMeansModel(_internal.load_model(_files.expanded(path)))
        return KMeansModel.from_bytes(_files.read(path))

    def to_bytes(self) -> bytes:
        """Return the bytes of the file that :meth:`save` writes. Equal models give equal bytes.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> model = pk.KMeans(k=2).fit(pl.DataFrame({"x": [0.0, 2.0, 5.0]}), "x")
        >>> pk.KMeansModel.from_bytes(model.to_bytes()) == model
        True

        """
        return _internal.model_to_file(self._encoded)

    @staticmethod
    def from_bytes(content: bytes) -> KMeansModel:
        """Read a model from the bytes of its file.

        Raises
        ------
        InvalidModelError
            As in :meth:`load`.

        """
        return KMeansModel(_internal.model_from_file(content))

    def to_json(self) -> str:
        """Return the model as JSON: what is in it, to read, and the bytes of its file in base 64.

        To read are names, parameters, sizes and centroids. :meth:`from_json` makes the model from the bytes, so it
        comes back bit for bit.

        Examples
        --------
        >>> import json
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> model = pk.KMeans(k=2, init=[0.0, 5.0]).fit(pl.DataFrame({"x": [0.0, 2.0, 5.0]}), "x")
        >>> json.loads(model.to_json())["centroids"]
        [[1.0], [5.0]]
        >>> pk.KMeansModel.from_json(model.to_json()) == model
        True

        """
        return json.dumps({**self._readable(), _FILE: b64encode(self.to_bytes()).decode()}, indent=1)

    @staticmethod
    def from_json(content: str | bytes) -> KMeansModel:
        """Read a model that :meth:`to_json` wrote.

        Raises
        ------
        InvalidModelError
            If the text is not from :meth:`to_json`. Also if one of its parts that are there to read was changed,
            because such a change would have no effect on the model.

        """
        try:
            parts = json.loads(content)
            model = KMeansModel.from_bytes(b64decode(parts.pop(_FILE), validate=True))
        except InvalidModelError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise InvalidModelError("model: expected JSON that KMeansModel.to_json wrote, got something else") from None
        if parts != model._readable():
            msg = f"model: expected parts that agree with {_FILE}, got others"
            raise InvalidModelError(f"{msg}: KMeansModel.from_centroids takes new centroids")
        return model

    @staticmethod
    @checked
    def from_centroids(
        centroids: pl.DataFrame | IntoFrame | IntoArray | Sequence[Sequence[float]] | Sequence[float],
        columns: str | Sequence[str] | None = None,
        *,
        metric: Literal["euclidean", "cosine"] = "euclidean",
        scale: Mapping[str, float] | None = None,
    ) -> KMeansModel:
        """Make a model of centroids: from another library, from a table that lost its metadata, or written by hand.

        The model is a fit of the centroids themselves: each of them is the only row of its cluster. So every size is 1
        and the inertia is 0. Values must be in the range that a fit takes. Its :meth:`sums` need `extents`.

        Parameters
        ----------
        centroids
            One row per cluster, in the order of the labels: a frame of the features, an array of clusters x features,
            or rows of numbers. If a frame has columns `cluster`, `size` and `inertia`, they are not features, and its
            rows are sorted by `cluster`.
        columns
            The names of the features. By default those of the frame, or `column_0`, `column_1`, ...
        metric
            As in :func:`polars_kmeans.kmeans`.
        scale
            The factors of columns, as in :func:`polars_kmeans.kmeans`. Centroids are in the units of the columns. The
            centroids of a model that scales rows need its factors: `scale=model.factors`.

        Raises
        ------
        InvalidParameterError
            For centroids of another shape, or if two are equal. For `model.centroids` without the model's metric, or
            without factors where the model has some.
        KMeansError
            For values or columns that a fit would refuse.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> model = pk.KMeansModel.from_centroids([[20.0, 1.0], [65.0, 3.0]], ["age", "children"])
        >>> pl.DataFrame({"age": [30, 70], "children": [2, 2]}).select(model.predict()).to_series().to_list()
        [0, 1]

        """
        _centroids.check_origin(centroids, metric, scale)
        frame = _centroids.features_of(centroids, columns)
        # Centroids that differ do not move. Directions are rounded once more, and then stay.
        options: dict[str, Any] = {"init": frame, "max_iter": 2, "tol": 0.0, "metric": metric, "scale": scale}
        features = _plugin.features((frame.columns,))
        try:
            found = _plugin.fit(frame, features, FitOptions(k=frame.height, device="cpu", **options), None)
        except TooFewRowsError:
            msg = f"centroids: expected {frame.height} different rows, got two that are equal"
            raise InvalidParameterError(msg) from None
        # Only `too_few="null"` finds nothing.
        fit, _ = cast("tuple[Fit, None]", found)
        # The centroids say little about the size of rows.
        return KMeansModel._of_fit(_internal.model_with(fit[0]), *fit[1:])


# Pickles name this function, also those of earlier versions.
def _from_file(content: bytes) -> KMeansModel:
    return KMeansModel.from_bytes(content)
