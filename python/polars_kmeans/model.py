"""A fitted model."""

from __future__ import annotations

import copy
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast, overload

import polars as pl

from polars_kmeans import _arrays, _centroids, _files, _frames, _internal, _living, _plugin, _rows
from polars_kmeans._keywords import checked
from polars_kmeans._options import FitOptions, text
from polars_kmeans._typing import Device, Fit, IntoArray, IntoFeatures, IntoFrame, Output
from polars_kmeans.errors import InvalidColumnError, InvalidModelError, InvalidParameterError, TooFewRowsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The name of the model's file in its JSON.
_FILE = "polars_kmeans_file"
# A wide model shows the first names of its columns.
_SHOWN = 6


class KMeansModel:
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

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded
        self._names, self._k, self._inertia, self._n_iter, self._stopped = _internal.model_facts(encoded)
        # The columns of the fit, once they are asked for.
        self._columns: tuple[str, ...] | None = None
        self._device: str | None = None
        self._device_reason: str | None = None
        self._method: str | None = None
        self._method_reason: str | None = None
        self._seconds: tuple[float, float, float] | None = None
        self._relocated: list[int] | None = None

    @classmethod
    def _of_fit(
        cls,
        model: bytes,
        device: str,
        reason: str,
        method: str | None,
        method_reason: str | None,
        seconds: tuple[float, float, float],
        relocated: list[int],
    ) -> KMeansModel:
        """Make the model of a fit that has just run, and say how it ran."""
        fitted = cls(model)
        fitted._device, fitted._device_reason = device, reason
        fitted._method, fitted._method_reason = method, method_reason
        fitted._seconds, fitted._relocated = seconds, relocated
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

    def __repr__(self) -> str:
        names = ", ".join(repr(name) for name in self._names[:_SHOWN])
        more = len(self._names) - _SHOWN
        columns = f"[{names}, ... {more} more]" if more > 0 else f"[{names}]"
        return f"KMeansModel(k={self._k}, columns={columns}, inertia={self._inertia})"

    def _repr_html_(self) -> str:
        """Show the model in a notebook."""
        from polars_kmeans import _html

        parameters = self.parameters
        facts = {
            "clusters": self._k,
            "features": len(self._names),
            "inertia": "unknown (updated)" if self._inertia is None else f"{self._inertia:.6g}",
            "iterations": self._n_iter,
            "init": parameters["init"],
            "metric": parameters["metric"],
            "scale": "none" if self.factors is None else parameters["scale"],
            "device": self._device or "unknown (loaded)",
        }
        return _html.model(facts, self.centroids)

    @property
    def centroids(self) -> pl.DataFrame:
        """A frame of `k` rows: cluster (UInt32), size (UInt64: rows of positive weight), inertia (Float64), features.

        The inertia is null in a model of :meth:`updated`, which has seen sums and no rows.

        The features are one column each, in the fit's float type, or the one Array column. They are in the units of the
        columns, even if the fit scaled the columns. With `metric="cosine"`, they are directions: points on the unit
        sphere.
        """
        return _centroids.of_model(_internal.model_centroids(self._encoded), self.parameters["metric"], self.factors)

    def centroids_array(self) -> NDArray[Any]:
        """Return the centroids as a NumPy array of clusters x features, in the units of the columns.

        Its type is the fit's float type: float32 or float64. It is a copy.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> df = pl.DataFrame({"x": [0.0, 2.0, 5.0], "y": [1.0, 1.0, 8.0]})
        >>> pk.KMeans(k=2, init=[[0.0, 1.0], [5.0, 8.0]], scale="standard").fit(df, "x", "y").centroids_array()
        array([[1., 1.],
               [5., 8.]])

        """
        features = self.centroids.drop(_frames.OWN_COLUMNS)
        nested = features.dtypes[0].is_nested()
        return features.to_series().to_numpy(writable=True) if nested else features.to_numpy(order="c", writable=True)

    @property
    def history(self) -> pl.DataFrame:
        """One row per iteration: iteration, changed rows, squared shift, inertia (if the history is full), and costs.

        The last five columns say how much work an iteration was. They depend on the device, so they are neither saved
        nor compared, and are null in a model that was loaded:

        - `settled`: the share of the rows whose label needed float64 distances, because a fast computation could not
          prove it. See :doc:`/exact`.
        - `rescored`: the share of the rows that a second computation, of twice as many bits, looked at before. Null
          where there is none: on the CPU, and on GPUs without tensor cores or for few features.
        - `skipped`: the share of the scores of a row and a centroid that were not computed, because a bound rules the
          centroid out. Null where the CPU computes all, and counts nothing.
        - `groups`: into how many groups the rows were put, each of which is compared only with the centroids that can
          be nearest. Null if there are none.
        - `seconds`: the wall time.
        """
        return _internal.model_history(self._encoded)

    @property
    def seconds(self) -> dict[str, float] | None:
        """Where the time of the fit went, in seconds: `rows`, `seeding` and `iterations`, of all restarts.

        `rows` is the time until the rows were checked and in place. For a fit on a GPU, it includes the upload. The
        :attr:`history` has the iterations one by one. None in a model that was loaded or unpickled, because wall times
        are not saved.
        """
        return (
            None if self._seconds is None else dict(zip(("rows", "seeding", "iterations"), self._seconds, strict=True))
        )

    @property
    def relocated(self) -> list[int] | None:
        """The numbers of the starting centroids that lost all of their rows, in ascending order.

        A row far from its centroid took the place of each. So these clusters are others than at the start. The numbers
        are those of the start, also with `sort_by`. None in a model that was loaded or unpickled.
        """
        return None if self._relocated is None else list(self._relocated)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the fit by name, as they are saved. Starting centroids are not kept."""
        with _internal.FloatEnvironment():
            parameters: dict[str, Any] = json.loads(_internal.model_parameters(self._encoded))
        return parameters

    @property
    def metadata(self) -> dict[str, str]:
        """The texts that :meth:`with_metadata` gave the model."""
        return _internal.model_metadata(self._encoded)

    def with_metadata(self, metadata: Mapping[str, str]) -> KMeansModel:
        """Return the same model with texts of yours in place of those that it had. They are saved with it.

        They do not count when models are compared. Anything but texts is an `InvalidParameterError`.

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
        noted = copy.copy(self)
        noted._encoded = _internal.model_with(self._encoded, texts)
        return noted

    @property
    def factors(self) -> dict[str, float] | None:
        """What the model multiplies the values of each feature by. None if the fit did not scale them."""
        return _internal.model_factors(self._encoded)

    @property
    def k(self) -> int:
        """The number of clusters."""
        return self._k

    @property
    def n_clusters(self) -> int:
        """The number of clusters, under scikit-learn's name."""
        return self._k

    @property
    def feature_names(self) -> list[str]:
        """The names of the columns that the model was fitted to, in order."""
        return list(self._names)

    @property
    def inertia(self) -> float | None:
        """Weighted sum of squared distances of the rows to their centroids. None in a model of :meth:`updated`."""
        return self._inertia

    @property
    def n_iter(self) -> int:
        """Iterations of the winning restart."""
        return self._n_iter

    @property
    def converged(self) -> bool | None:
        """Whether the fit stopped by itself. None in a model of :meth:`updated`.

        False if a function that sees its progress stopped it, or if it used all `max_iter` iterations and a centroid
        moved in the last one.
        """
        if self._inertia is None:
            return None
        if self._stopped:
            return False
        if self._n_iter < self.parameters["max_iter"]:
            return True
        last = self.history.row(-1, named=True)
        return bool(last["changed"] == 0 or last["shift"] == 0)

    @property
    def device(self) -> str | None:
        """The device that the fit ran on: `"cpu"`, or a GPU such as `"cuda:0"`.

        None in a model that was loaded or unpickled. The device is not saved, since the bits are the same on every
        device.
        """
        return self._device

    @property
    def device_reason(self) -> str | None:
        """Why the fit ran on that device, as a sentence. None if :attr:`device` is None."""
        return self._device_reason

    @property
    def method(self) -> str | None:
        """What the fit tried to find labels by. :meth:`KMeans.plan <polars_kmeans.KMeans.plan>` says it before a fit.

        On the CPU: `"differences"` (for up to 8 features of float32) or `"products"`, then what may save distances:
        `", groups"` of rows, and `", copies"` of the rows in 8 or 16 bits. On a GPU: the name of its kernel. The labels
        do not depend on it. None for fits in parts, and in a model that was loaded or unpickled.
        """
        return self._method

    @property
    def method_reason(self) -> str | None:
        """What the CPU decided when it had seen the rows, and why, as a sentence.

        It says whether rows were compared with all centroids or only with those near their group, whether by integer
        copies first, and by which instructions. The :attr:`history` has the share of the distances that each iteration
        left out. None for fits on GPUs, and where :attr:`method` is None.
        """
        return self._method_reason

    @overload
    def predict(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame,
        /,
        *columns: IntoFeatures,
        output: Output = ...,
        device: Device = ...,
        null_policy: Literal["raise", "skip"] = ...,
    ) -> pl.Series: ...

    @overload
    def predict(
        self,
        data: IntoArray,
        /,
        *,
        output: Output = ...,
        device: Device = ...,
        null_policy: Literal["raise", "skip"] = ...,
    ) -> Any: ...

    @overload
    def predict(
        self,
        *columns: IntoFeatures,
        output: Output = ...,
        device: Device = ...,
        null_policy: Literal["raise", "skip"] = ...,
    ) -> pl.Expr: ...

    @checked
    def predict(
        self,
        *columns: IntoFeatures | pl.LazyFrame | IntoFrame | IntoArray,
        output: Output = "label",
        device: Device = "auto",
        null_policy: Literal["raise", "skip"] = "skip",
    ) -> pl.Expr | pl.Series | Any:
        """Label rows: as an expression, or at once those of a frame or an array.

        The expression is elementwise, so it can stream.

        Parameters
        ----------
        *columns
            The features, in the model's order: values are taken by position. Names of the model in another order are
            refused. By default, the columns that the model was fitted to. A model that was fitted to expressions has no
            default, because columns with the same names may hold other values.

            A frame may come first: of Polars, or of any library with `__arrow_c_stream__`. The query of a LazyFrame
            then runs at once. Or pass only an array. Frames and arrays are those of :meth:`KMeans.fit
            <polars_kmeans.KMeans.fit>`.
        output
            `"label"`, or `"struct"` with the distances to the nearest and to the second nearest centroid.
        device
            The device to run on. The bits are the same on every device. `"auto"` decides for each morsel (a chunk of
            rows). It takes a GPU if one can be used and the morsel has so much work (many clusters of many features)
            that the transfer costs little in comparison. Otherwise it takes the CPU. `"cpu"`, `"cuda"` (the GPU with
            the most free memory) or `"cuda:1"`: this device, or an error when the query runs.
        null_policy
            `"skip"`: rows with nulls, NaNs or infinities have no label. `"raise"`: they are an error when the query
            runs. The error counts only the bad rows of the first morsel that has any.

        Returns
        -------
        Expr
            A column named `cluster`. Rows with nulls, NaNs or infinities get a null label (or a null struct). So do all
            rows if a column has only nulls and no type, as that of one row of JSON may have.

            For a frame: a Series of the same values.

            For an array: an array of its library on its device, with the labels (int32; -1 for such rows). With
            `output="struct"`: a tuple of three arrays `cluster`, `distance` and `second_distance`.

        Raises
        ------
        InvalidParameterError
            At once, for a parameter outside its domain.
        InvalidColumnError
            At once, for names of the model in another order.
        InvalidDataError
            With `null_policy="raise"`, for rows with nulls, NaNs or infinities.

        """
        if output not in ("label", "struct"):
            raise InvalidParameterError(f'output: expected "label" or "struct", got {output!r}')
        if null_policy not in ("raise", "skip"):
            raise InvalidParameterError(f'null_policy: expected "raise" or "skip", got {null_policy!r}')
        complete = null_policy == "raise"
        array = _arrays.in_place_of(columns)
        if array is not None:
            return _arrays.predict(self._encoded, array, output, device, complete)
        kwargs = {"output": text(output), "complete": complete}
        return self._answer("predict", columns, device, kwargs, "cluster")

    @overload
    def transform(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame,
        /,
        *columns: IntoFeatures,
        squared: bool = ...,
        device: Device = ...,
    ) -> pl.Series: ...

    @overload
    def transform(self, data: IntoArray, /, *, squared: bool = ..., device: Device = ...) -> Any: ...

    @overload
    def transform(self, *columns: IntoFeatures, squared: bool = ..., device: Device = ...) -> pl.Expr: ...

    @checked
    def transform(
        self,
        *columns: IntoFeatures | pl.LazyFrame | IntoFrame | IntoArray,
        squared: bool = False,
        device: Device = "auto",
    ) -> pl.Expr | pl.Series | Any:
        """Measure the distance of every row to every centroid: as an expression, or at once for a frame or an array.

        The expression is elementwise, so it can stream.

        Parameters
        ----------
        *columns
            As in :meth:`predict`.
        squared
            True: the squared distances, which decide the labels. The index of the least one, and of equal ones the
            first, is the label. Two different squared distances may have the same square root: see :doc:`/exact`.
        device
            As in :meth:`predict`.

        Returns
        -------
        Expr
            A column named `distances` or `squared_distances`: `Array(Float64, k)`, Euclidean. Rows and centroids are
            scaled and normalised first, if they were in the fit. Rows with nulls, NaNs or infinities are null.

            For a frame: a Series of the same values.

            For an array: an array of its library on its device, rows x clusters (float64; NaN for such rows).

        Raises
        ------
        InvalidParameterError
            At once, for a text that is not the name of a device.
        InvalidColumnError
            At once, for names of the model in another order.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> df = pl.DataFrame({"x": [0.0, 2.0, 5.0]})
        >>> model = pk.KMeans(k=2, init=[[0.0], [5.0]]).fit(df, "x")
        >>> df.select(model.transform()).to_series().to_list()
        [[1.0, 5.0], [1.0, 3.0], [4.0, 0.0]]
        >>> df.select(model.transform(squared=True)).to_series().to_list()
        [[1.0, 25.0], [1.0, 9.0], [16.0, 0.0]]

        """
        if not isinstance(squared, bool):
            raise InvalidParameterError(f"squared: expected True or False, got {squared!r:.80}")
        array = _arrays.in_place_of(columns)
        if array is not None:
            return _arrays.transform(self._encoded, array, device, squared=squared)
        name = "squared_distances" if squared else "distances"
        return self._answer("transform", columns, device, {"k": self._k, "squared": squared}, name)

    @checked
    def nearest_clusters(
        self, m: int, *columns: IntoFeatures, squared: bool = False, device: Device = "auto"
    ) -> pl.Expr:
        """Find the `m` nearest clusters of every row, in order.

        The expression is elementwise, so it can stream.

        Parameters
        ----------
        m
            How many clusters, from 1 to `k`.
        *columns
            The features, as in :meth:`predict`.
        squared
            True: the squared distances, which decide the order.
        device
            As in :meth:`predict`.

        Returns
        -------
        Expr
            A column named `nearest_clusters`: structs of `clusters` (`Array(UInt32, m)`) and `distances`
            (`Array(Float64, m)`). The nearest is first. Of clusters that are equally near, the smaller number is. The
            distances are those of :meth:`transform`. Null for rows with nulls, NaNs or infinities.

        Raises
        ------
        InvalidParameterError
            At once, for an `m` below 1 or above the number of clusters.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> df = pl.DataFrame({"x": [0.0, 2.0, 5.0]})
        >>> model = pk.KMeans(k=3, init=[[0.0], [3.0], [5.0]]).fit(df, "x")
        >>> df.select(model.nearest_clusters(2)).to_series().to_list()[1]
        {'clusters': [1, 0], 'distances': [0.0, 2.0]}

        """
        if not isinstance(m, int) or isinstance(m, bool) or not 1 <= m <= self._k:
            msg = f"m: expected an integer from 1 to {self._k}, the number of clusters, got {m!r:.80}"
            raise InvalidParameterError(msg)
        if not isinstance(squared, bool):
            raise InvalidParameterError(f"squared: expected True or False, got {squared!r:.80}")
        expr = _plugin.nearest_clusters(self._features(columns), self._encoded, m, squared=squared, device=device)
        return expr.alias("nearest_clusters")

    @checked
    def sums(
        self,
        *columns: IntoFeatures,
        weight: str | pl.Expr | None = None,
        labels: str | pl.Expr | None = None,
        extents: Mapping[str, float] | Sequence[float] | None = None,
    ) -> pl.Expr:
        """Add up rows by their cluster: an aggregation whose sums are exact, so they can be added and subtracted.

        :meth:`updated` makes a model of the sums. See :doc:`/guide/living-models`.

        Parameters
        ----------
        *columns
            The features, as in :meth:`predict`. They must have the float type of the fit.
        weight
            Non-negative row weights, for a model of a fit with weights.
        labels
            The cluster of each row, in place of the model's own answer: integers, as `predict` gave them. Rows with a
            null are left out. To remove rows later, use the labels that they had when they were added.
        extents
            For a model that no fit made (:meth:`from_centroids`): the largest magnitude of each feature, by name or in
            order. Values may be up to 16 times as large.

        Returns
        -------
        Expr
            A column named `sums`: one list for each group, with a struct for each of the `k` clusters, also for empty
            ones. Its fields are `cluster` (UInt32), `fingerprint` (UInt64: which models take these sums), `size`
            (Int64: rows of positive weight), `weight` (Int128; a row without weights has 2^53) and one Int128 for each
            feature, in quanta of the model.

        Raises
        ------
        InvalidParameterError
            For a model without quanta, if `extents` are not given, and at once for `extents` of other features.
        polars.exceptions.ComputeError
            When the query runs: for rows with nulls (unless the fit had `null_policy="skip"`), for values that are more
            than 16 times as large as those of the fit, for weights where the fit had none, and for columns of another
            type.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> df = pl.DataFrame({"day": [1, 1, 2], "x": [0.0, 2.0, 9.0]})
        >>> model = pk.KMeans(k=2, init=[[1.0], [9.0]]).fit(df, "x")
        >>> days = df.group_by("day").agg(model.sums()).explode("sums").unnest("sums")
        >>> total = days.group_by("cluster", "fingerprint").agg(pl.col("size", "weight", "x").sum()).sort("cluster")
        >>> total["size"].to_list()
        [2, 1]
        >>> model.updated(total, start="zero").centroids["x"].to_list()
        [1.0, 9.0]

        """
        names = self._sum_names()
        found = _living.extents(extents, names)
        return _plugin.sums(self._features(columns), self._encoded, names, weight, labels, found).alias("sums")

    @checked
    def updated(
        self,
        sums: pl.DataFrame | pl.LazyFrame | pl.Series | IntoFrame,
        *,
        removed: pl.DataFrame | pl.LazyFrame | pl.Series | IntoFrame | None = None,
        start: Literal["kept", "zero"] = "kept",
        decay: float | None = None,
        extents: Mapping[str, float] | Sequence[float] | None = None,
    ) -> KMeansModel:
        """Return the model whose centroids are the exact means of the rows in tables of sums.

        A cluster without weight keeps its centroid. The new model keeps its sums.

        Parameters
        ----------
        sums
            A table of :meth:`sums`, or a frame with a column of such tables. Rows of one cluster add up.
        removed
            A table of rows to take away again, with the labels that they had when they were added.
        start
            `"kept"`: the sums that this model keeps, which needs a fit with `keep_sums=True` or an updated model.
            `"zero"`: no rows.
        decay
            What weights and sums of earlier rows are multiplied by first, from 0 to 1. The product is rounded to a
            quantum, and the number to 32 bits. After a decay below 1, rows can no longer be removed.
        extents
            As in :meth:`sums`.

        Returns
        -------
        KMeansModel
            `size` counts the rows in the sums. `inertia` and `converged` are None, and the history is empty.

        Raises
        ------
        InvalidParameterError
            For a table of other models, for totals that no rows can have (as after a table is removed twice), for
            `start="kept"` where no sums are kept, and for `removed` after a decay.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> may, june = pl.DataFrame({"x": [0.0, 2.0, 9.0]}), pl.DataFrame({"x": [11.0]})
        >>> model = pk.KMeans(k=2, init=[[1.0], [9.0]], keep_sums=True).fit(may, "x")
        >>> later = model.updated(june.select(model.sums()))
        >>> later.centroids["x"].to_list()
        [1.0, 10.0]
        >>> later.updated(june.clear().select(model.sums()), removed=june.select(model.sums())).centroids["x"].to_list()
        [1.0, 9.0]

        """
        if decay is not None and (isinstance(decay, bool) or not isinstance(decay, (int, float))):
            raise InvalidParameterError(f"decay: expected a number from 0 to 1, got {decay!r:.80}")
        if start not in ("kept", "zero"):
            raise InvalidParameterError(f'start: expected "kept" or "zero", got {start!r:.80}')
        added = _living.table(sums, "sums")
        taken = None if removed is None else _living.table(removed, "removed")
        found = _living.extents(extents, self._sum_names())
        number = None if decay is None else float(decay)
        return KMeansModel(_internal.update_model(self._encoded, added, taken, start, number, found))

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

    @checked
    def drift(self, data: pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray, *columns: IntoFeatures) -> pl.DataFrame:
        """Compare the rows of today with those of the fit, to see whether the model still describes them.

        `data` and `columns` are those of :meth:`score`. A model of a fit with weights is an `InvalidParameterError`.

        Returns
        -------
        DataFrame
            One row for each cluster: `cluster`, `share_then` and `share_now` (Float64: of the rows; at least half a row
            of them), `distance_then` and `distance_now` (Float64: root of the mean squared distance to the centroid;
            null without rows or inertia), and `stability_index`, which is `(now - then) * ln(now / then)` of the
            shares. Their sum is the population stability index: below 0.1, little has changed; above 0.25, much has.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> model = pk.KMeans(k=2, init=[[0.0], [8.0]]).fit(pl.DataFrame({"x": [0.0, 1.0, 8.0, 9.0]}), "x")
        >>> found = model.drift(pl.DataFrame({"x": [0.5, 8.0, 8.0, 10.0]}))
        >>> found["share_now"].to_list(), found["distance_now"].round(2).to_list()
        ([0.25, 0.75], [0.0, 0.96])
        >>> round(found["stability_index"].sum(), 3)
        0.275

        """
        if self.parameters["weighted"]:
            raise InvalidParameterError("model: expected one of a fit without weights, got one with weights")
        query, columns = self._query(data, columns, ())
        answers = query.select(self.predict(*columns, output="struct")).unnest("cluster")
        return _living.drift(self.centroids, answers)

    def to_expr(self) -> pl.Expr:
        """Return the label as an expression of plain Polars, for programs that do not have this package.

        Without this package there is no fused multiply-add. So distances have other last bits, and a row that is as
        good as equally near to two centroids may get the other one. :meth:`predict` is exact.

        Returns
        -------
        Expr
            A column named `cluster` (UInt32). Rows with nulls, NaNs or infinities are null. It grows with clusters
            times features. A model of an Array column is an `InvalidColumnError`.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> df = pl.DataFrame({"x": [0.0, 2.0, 5.0, None]})
        >>> df.select(pk.KMeansModel.from_centroids([[0.0], [5.0]], ["x"]).to_expr()).to_series().to_list()
        [0, 0, 1, None]

        """
        return _living.Formula(self).polars()

    def to_sql(self, dialect: Literal["duckdb"] = "duckdb") -> str:
        """Return the label as an expression of SQL, for DuckDB without this package.

        Returns
        -------
        str
            One expression for a SELECT, as in `SELECT *, {model.to_sql()} AS cluster FROM rows`. It names the model's
            features. Rows with NULLs, NaNs or infinities are NULL. Labels and errors are as in :meth:`to_expr`.

        Examples
        --------
        >>> import polars_kmeans as pk
        >>> print(pk.KMeansModel.from_centroids([[0.5], [5.0]], ["x"]).to_sql()[:44])
        CASE WHEN isfinite("x"::DOUBLE) THEN (list_p

        """
        if dialect != "duckdb":
            raise InvalidParameterError(f'dialect: expected "duckdb", got {dialect!r:.80}')
        return _living.Formula(self).duckdb()

    @overload
    def label(
        self, data: pl.LazyFrame, /, *columns: IntoFeatures, name: str = ..., device: Device = ...
    ) -> pl.LazyFrame: ...

    @overload
    def label(
        self, data: pl.DataFrame | IntoFrame, /, *columns: IntoFeatures, name: str = ..., device: Device = ...
    ) -> pl.DataFrame: ...

    @checked
    def label(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame,
        /,
        *columns: IntoFeatures,
        name: str = "cluster",
        device: Device = "auto",
    ) -> pl.DataFrame | pl.LazyFrame:
        """Add the labels to a frame, as its last column. `columns` and `device` are those of :meth:`predict`.

        Parameters
        ----------
        data
            A frame of Polars, or of any library with `__arrow_c_stream__`.
        *columns
            The features, as in :meth:`predict`.
        name
            The name of the new column. By default it is that of :attr:`centroids`, so that the two frames join.
        device
            As in :meth:`predict`.

        Returns
        -------
        DataFrame
            All columns of `data`, and the labels (UInt32). A LazyFrame for a LazyFrame.

        Raises
        ------
        InvalidColumnError
            If the frame has a column of this name.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> df = pl.DataFrame({"x": [0.0, 2.0, 5.0]})
        >>> model = pk.KMeans(k=2, init=[0.0, 5.0]).fit(df, "x")
        >>> model.label(df, name="tier").rows()
        [(0.0, 0), (2.0, 0), (5.0, 1)]

        """
        return _frames.with_labels(data, self.predict(*columns, device=device), name)

    @checked
    def score(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray,
        *columns: IntoFeatures,
        weight: str | pl.Expr | IntoArray | None = None,
        device: Device = "auto",
    ) -> float:
        """Return minus the inertia of rows under the model, as in scikit-learn. Rows with nulls are left out.

        Parameters
        ----------
        data
            A frame or an array, as in :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`. The query of a LazyFrame runs
            once.
        *columns
            The features, as in :meth:`predict`.
        weight
            Non-negative row weights: a column or an expression. For an array: an array of one dimension.
        device
            The device to run on. The bits are the same on every device. `"auto"`: a GPU if one can be used, the data
            fit on it and it is predicted to be faster, else the CPU. `"cpu"`, `"cuda"` or `"cuda:1"`: this device, or
            an error.

        Raises
        ------
        KMeansError
            For columns, weights or a device that cannot be used: see :mod:`polars_kmeans.errors`.

        """
        if _arrays.is_array(data):
            _arrays.alone(data, columns, None)
            return _arrays.score(self._encoded, data, cast("IntoArray | None", weight), device)
        frame = _frames.polars_frame(data, *self._asked(columns), weight)
        expr = _plugin.score(self._features(columns), self._encoded, cast("str | pl.Expr | None", weight), device)
        return float(_plugin.item(frame, expr))

    @overload
    def silhouette(
        self, data: pl.DataFrame | pl.LazyFrame | IntoFrame, /, *columns: IntoFeatures, device: Device = ...
    ) -> pl.Series: ...

    @overload
    def silhouette(self, *columns: IntoFeatures, device: Device = ...) -> pl.Expr: ...

    @checked
    def silhouette(
        self, *columns: IntoFeatures | pl.LazyFrame | IntoFrame, device: Device = "auto"
    ) -> pl.Expr | pl.Series:
        """Say how clearly each row belongs to its cluster: the simplified silhouette.

        As an expression, or at once for a frame. It is `(second - first) / second`, from the distances to the nearest
        and to the second nearest centroid. 1 is a row on its centroid. 0 is a row halfway between two. The expression
        is elementwise, so it can stream, and it labels the rows once. Rousseeuw's silhouette needs the distances
        between all rows. The simplified one (Hruschka, de Castro & Campello 2004) needs only the distances to the
        centroids.

        Parameters
        ----------
        *columns
            As in :meth:`predict`, but not an array.
        device
            As in :meth:`predict`.

        Returns
        -------
        Expr
            A column named `silhouette` (Float64), from 0 to 1. Distances are those of the model, which scales and
            normalises rows as the fit did. A row that lies on two centroids has 0. Rows with nulls, NaNs or infinities
            are null. All rows are null if the model has one cluster.

            For a frame: a Series of the same values.

        Raises
        ------
        InvalidParameterError
            At once, for an array in place of columns, or for a text that is not the name of a device.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> df = pl.DataFrame({"x": [0.0, 2.0, 5.0]})
        >>> model = pk.KMeans(k=2, init=[[0.0], [5.0]]).fit(df, "x")
        >>> df.select(model.silhouette().round(3)).to_series().to_list()
        [0.8, 0.667, 1.0]

        """
        if _arrays.in_place_of(columns) is not None:
            msg = 'columns: expected names or expressions, got an array: predict(array, output="struct") has distances'
            raise InvalidParameterError(msg)
        data, features = _frames.ahead_of(columns)
        answer = self.predict(*features, output="struct", device=device)
        expr = _rows.with_silhouette(answer).struct.field("silhouette")
        if data is None:
            return expr
        return _plugin.collect(self._query(data, features, ())[0].select(expr)).to_series()

    @checked
    def profile(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray,
        *columns: IntoFeatures,
        by: IntoFeatures | None = None,
        weight: str | pl.Expr | None = None,
        quantiles: Sequence[float] = (0.25, 0.5, 0.75),
    ) -> pl.DataFrame:
        """Describe the clusters by columns of a frame: how large they are, and what sets them apart.

        Means and standard deviations have the same bits for every number of threads, chunking and Polars engine.

        Parameters
        ----------
        data
            A frame or an array, as in :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`. The query of a LazyFrame runs
            once. The columns that are used are held in memory.
        *columns
            The features, in the model's order. By default, the columns that the model was fitted to, as in
            :meth:`predict`.
        by
            The columns that describe the clusters: names, expressions or selectors of numbers or booleans. They need
            not be features. By default, the features. An Array column `e` is described as `e[0]`, `e[1]`, ...
        weight
            Non-negative row weights: a column or an expression. A row of weight 2 counts as two rows, except in `size`.
        quantiles
            Which quantiles to show, from 0 to 1.

        Returns
        -------
        DataFrame
            One row for each cluster and column, in order. Values are in the units of the columns.

            - `cluster` (UInt32), `size` (UInt64: rows of positive weight), `share` (Float64: of the weight of all rows
              that have a cluster).
            - `feature` (String): the column that the rest of the row describes.
            - `mean`, `std` (Float64; of the population, not of a sample).
            - `25%`, `50%`, `75%`, or what is asked for (Float64): the smallest value that has at least this share of
              the rows at or below it.
            - `overall_mean`, `overall_std` (Float64): those of all rows that have a cluster.
            - `difference` (Float64): `(mean - overall_mean) / overall_std`. How many standard deviations the mean of
              the cluster is away from that of all rows. Null if all rows have one value.
            - `rank` (UInt32): 1 is the feature that sets the cluster apart the most. It has the largest absolute
              difference.

            Rows without a cluster, and rows whose weight is null, NaN or infinite, are left out. So are nulls, NaNs and
            infinities in the columns of `by`. A cluster without rows has nulls.

        Raises
        ------
        KMeansError
            For columns or weights that cannot be used: see :mod:`polars_kmeans.errors`.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> df = pl.DataFrame({"age": [20, 30, 70, 80], "sons": [1, 0, 1, 2]})
        >>> model = pk.KMeans(k=2, init=[[25, 0], [75, 1]], scale="standard").fit(df, "age", "sons")
        >>> found = model.profile(df, quantiles=[0.5])
        >>> found.select("cluster", "size", "feature", "mean", "50%", pl.col("difference").round(2), "rank")
        shape: (4, 7)
        ┌─────────┬──────┬─────────┬──────┬──────┬────────────┬──────┐
        │ cluster ┆ size ┆ feature ┆ mean ┆ 50%  ┆ difference ┆ rank │
        │ ---     ┆ ---  ┆ ---     ┆ ---  ┆ ---  ┆ ---        ┆ ---  │
        │ u32     ┆ u64  ┆ str     ┆ f64  ┆ f64  ┆ f64        ┆ u32  │
        ╞═════════╪══════╪═════════╪══════╪══════╪════════════╪══════╡
        │ 0       ┆ 2    ┆ age     ┆ 25.0 ┆ 20.0 ┆ -0.98      ┆ 1    │
        │ 0       ┆ 2    ┆ sons    ┆ 0.5  ┆ 0.0  ┆ -0.71      ┆ 2    │
        │ 1       ┆ 2    ┆ age     ┆ 75.0 ┆ 70.0 ┆ 0.98       ┆ 1    │
        │ 1       ┆ 2    ┆ sons    ┆ 1.5  ┆ 1.0  ┆ 0.71       ┆ 2    │
        └─────────┴──────┴─────────┴──────┴──────┴────────────┴──────┘

        """
        from polars_kmeans import _profile

        query, columns = self._query(data, columns, (by, weight), weight)
        described = self._features(columns) if by is None else _plugin.features((by,)).exprs
        return _profile.profile(query, self.predict(*columns), described, self.centroids, weight, quantiles)

    @checked
    def nearest(
        self, data: pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray, m: int, *columns: IntoFeatures
    ) -> pl.DataFrame:
        """Find the `m` rows nearest each centroid: typical rows, which show what a cluster holds.

        Parameters
        ----------
        data
            A frame or an array, as in :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`. The query of a LazyFrame runs
            once, in batches, so its rows need not fit into memory.
        m
            How many rows to find for each cluster.
        *columns
            The features, in the model's order. By default, the columns that the model was fitted to, as in
            :meth:`predict`.

        Returns
        -------
        DataFrame
            Rows of the frame, with all their columns, sorted by cluster and distance. Rows that are equally far keep
            their order. The first columns are `cluster` (UInt32), `rank` (UInt32, from 1) and `distance` (Float64). A
            cluster of fewer than `m` rows has all of them. Columns `cluster` and `distance` of the frame are left out
            if they hold what the model says, as those of :meth:`label` do.

        Raises
        ------
        KMeansError
            For columns that cannot be used, an `m` below 1, or a frame that has a column named `rank`, or one named
            `cluster` or `distance` that holds something else.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> df = pl.DataFrame({"name": ["ant", "bee", "cat", "dog"], "kilos": [0.0, 0.1, 4.0, 20.0]})
        >>> model = pk.KMeans(k=2, init=[[0.0], [20.0]]).fit(df, "kilos")
        >>> model.nearest(df, 2)["name"].to_list()
        ['bee', 'ant', 'dog']

        """
        from polars_kmeans import _nearest

        query, columns = self._query(data, columns)
        return _nearest.nearest(query, self.predict(*columns, output="struct"), m)

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
            If the file cannot be written. If the mode of an existing file lets nobody write, the file is not replaced,
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
        except (ValueError, TypeError, KeyError, AttributeError):
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
            fit = _plugin.fit(frame, features, FitOptions(k=frame.height, device="cpu", **options), None)
        except TooFewRowsError:
            msg = f"centroids: expected {frame.height} different rows, got two that are equal"
            raise InvalidParameterError(msg) from None
        # Only `too_few="null"` finds nothing.
        found = cast("Fit", fit)
        # The centroids say little about the size of rows.
        return KMeansModel._of_fit(_internal.model_with(found[0]), *found[1:])

    def _readable(self) -> dict[str, Any]:
        """Return the parts of the JSON that are there to read."""
        table = self.centroids
        features = table.drop(_frames.OWN_COLUMNS)
        nested = features.dtypes[0].is_nested()
        return {
            "n_clusters": self._k,
            "feature_names": self._names,
            "inertia": self._inertia,
            "n_iter": self._n_iter,
            "parameters": self.parameters,
            "factors": self.factors,
            "sizes": table["size"].to_list(),
            "centroids": features.to_series().to_list() if nested else [list(row) for row in features.rows()],
        }

    def _sum_names(self) -> list[str]:
        """Return the names of the features, one by one."""
        features = self.centroids.drop(_frames.OWN_COLUMNS)
        dtype = features.dtypes[0]
        if isinstance(dtype, pl.Array):
            return [f"{features.columns[0]}[{at}]" for at in range(dtype.size)]
        return features.columns

    def _compared(self) -> list[list[float]]:
        """Return the centroids that rows are compared with: in scaled units."""
        return _internal.model_compared(self._encoded)

    def _asked(self, columns: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the columns that will be asked of a frame."""
        if not columns and self._columns is None:
            self._columns = tuple(_internal.model_columns(self._encoded))
        return columns or self._columns or ()

    def _query(
        self, data: Any, columns: tuple[Any, ...], read: tuple[Any, ...] | None = None, weight: Any = None
    ) -> tuple[pl.LazyFrame, tuple[Any, ...]]:
        """Return whatever a fit takes as a query, and its feature columns. `read`: the others. None: all columns."""
        asked = () if read is None or _arrays.is_array(data) else (*self._asked(columns), *read)
        return _rows.query(data, columns, asked, weight)

    def _answer(
        self,
        function: Literal["predict", "transform"],
        columns: tuple[Any, ...],
        device: Device,
        kwargs: dict[str, Any],
        name: str,
    ) -> pl.Expr | pl.Series:
        """Call a function on rows: as an expression, or at once on the rows of a frame."""
        data, features = _frames.ahead_of(columns)
        frame = None
        if data is not None:
            features = tuple(_plugin.items_of(features)) if features else ()
            asked = self._asked(features)
            frame = _frames.polars_frame(data, *asked)
            named = _plugin.plain(frame, asked)
            if named is not None:
                # Columns of numbers need no query, which takes longer than some rows.
                self._check_order(list(features))
                return _plugin.answer_columns(self._encoded, named, device, kwargs)
        expr = _plugin.elementwise(function, self._features(features), self._encoded, device, kwargs).alias(name)
        return expr if frame is None else _plugin.collect(frame.lazy().select(expr)).to_series()

    def _features(self, columns: tuple[Any, ...]) -> list[pl.Expr]:
        exprs = _plugin.features(self._asked(columns), by_name=False).exprs
        if columns:
            self._check_order([expr.meta.output_name(raise_if_undetermined=False) for expr in exprs])
        return exprs

    def _check_order(self, names: list[Any]) -> None:
        """Refuse names of the model at other places. Names that are not known before the query are not checked."""
        places = {name: place for place, name in enumerate(self._names)}
        if len(names) != len(places) or None in names:
            return
        for place, name in enumerate(names):
            if places.get(str(name), place) != place:
                msg = f"features: expected {self._names[place]!r} at place {place + 1}, as in the fit, got {name!r}"
                hint = "values are taken by position: use the order of model.feature_names, or rename with .alias"
                raise InvalidColumnError(f"{msg} ({hint})")


# Pickles name this function, also those of earlier versions.
def _from_file(content: bytes) -> KMeansModel:
    return KMeansModel.from_bytes(content)
