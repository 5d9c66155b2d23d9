"""A fitted model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal, overload

import polars as pl

from polars_kmeans import _arrays, _describing, _frames, _internal, _plugin, _storage
from polars_kmeans._options import text
from polars_kmeans._typing import Device, IntoArray, IntoFeatures, IntoFrame, Output
from polars_kmeans.errors import InvalidColumnError, InvalidParameterError

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
        self._names, self._k, self._inertia, self._n_iter = _internal.model_facts(encoded)
        self._device: str | None = None
        self._device_reason: str | None = None
        self._method: str | None = None
        self._seconds: tuple[float, float, float] | None = None

    @classmethod
    def _of_fit(
        cls, model: bytes, device: str, reason: str, method: str | None, seconds: tuple[float, float, float]
    ) -> KMeansModel:
        """Make the model of a fit that has just run: the device and why, how labels were found, where the time went."""
        fitted = cls(model)
        fitted._device, fitted._device_reason = device, reason
        fitted._method, fitted._seconds = method, seconds
        return fitted

    def __eq__(self, other: object) -> bool:
        """Whether two models are equal. Wall times do not count."""
        if not isinstance(other, KMeansModel):
            return NotImplemented
        return _internal.models_equal(self._encoded, other._encoded)

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

        return _html.model(self)

    @property
    def centroids(self) -> pl.DataFrame:
        """A frame of `k` rows: cluster (UInt32), size (UInt64: rows of positive weight), inertia (Float64), features.

        The features are one column each, in the fit's float type, or the one Array column. They are in the units of the
        columns, even if the fit scaled the columns. With `metric="cosine"`, they are directions: points on the unit
        sphere.
        """
        return _internal.model_centroids(self._encoded)

    @property
    def history(self) -> pl.DataFrame:
        """One row per iteration: iteration, changed rows, squared shift, inertia (if the history is full), and costs.

        The last three columns say how much work an iteration was. They depend on the device, so they are neither saved
        nor compared, and are null in a model that was loaded:

        - `settled`: the share of the rows whose label needed float64 distances, because a fast computation could not
          prove it. See :doc:`/exact`.
        - `skipped`: the share of the scores of a row and a centroid that were not computed, because a bound rules the
          centroid out. Null where the CPU computes all, and counts nothing.
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
    def parameters(self) -> dict[str, Any]:
        """The parameters of the fit by name, as they are saved. Starting centroids are not kept."""
        with _internal.FloatEnvironment():
            parameters: dict[str, Any] = json.loads(_internal.model_parameters(self._encoded))
        return parameters

    @property
    def factors(self) -> dict[str, float] | None:
        """What the model multiplies the values of each feature by. None if the fit did not scale them."""
        return _internal.model_factors(self._encoded)

    @property
    def n_clusters(self) -> int:
        """The number of clusters."""
        return self._k

    @property
    def feature_names(self) -> list[str]:
        """The names of the columns that the model was fitted to, in order."""
        return list(self._names)

    @property
    def inertia(self) -> float:
        """Weighted sum of squared distances of the rows to their centroids."""
        return self._inertia

    @property
    def n_iter(self) -> int:
        """Iterations of the winning restart."""
        return self._n_iter

    @property
    def converged(self) -> bool:
        """Whether the fit stopped by itself.

        False if it used all `max_iter` iterations and a centroid moved in the last one.
        """
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
        """How the CPU compared rows with centroids, and why, as a sentence.

        It says whether rows were compared with all centroids or only with those near their group, whether by integer
        copies first, and by which instructions. The labels do not depend on it. The :attr:`history` has the share of
        the distances that each iteration left out. None for fits on GPUs and in parts, and in a model that was loaded
        or unpickled.
        """
        return self._method

    @overload
    def predict(
        self,
        data: pl.DataFrame | IntoFrame,
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

    def predict(
        self,
        *columns: IntoFeatures | IntoFrame | IntoArray,
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

            A DataFrame may come first: of Polars, or of any library with `__arrow_c_stream__`. Or pass only an array.
            Frames and arrays are those of :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`.
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
            A column named `kmeans`. Rows with nulls, NaNs or infinities get a null label (or a null struct).

            For a frame: a Series of the same values.

            For an array: an array of its library on its device, with the labels (int32; -1 for such rows). With
            `output="struct"`: a tuple of three arrays `label`, `distance` and `second_distance`.

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
            msg = f'output: expected "label" or "struct", got {output!r}'
            raise InvalidParameterError(msg)
        if null_policy not in ("raise", "skip"):
            msg = f'null_policy: expected "raise" or "skip", got {null_policy!r}'
            raise InvalidParameterError(msg)
        complete = null_policy == "raise"
        array = _arrays.in_place_of(columns)
        if array is not None:
            return _arrays.predict(self._encoded, array, output, device, complete)
        frame, features = _frames.ahead_of(columns)
        exprs, kwargs = self._features(features), {"output": text(output), "complete": complete}
        expr = _plugin.elementwise("predict", exprs, self._encoded, device, kwargs).alias("kmeans")
        return expr if frame is None else self._of_frame(expr, frame, features)

    @overload
    def transform(
        self, data: pl.DataFrame | IntoFrame, /, *columns: IntoFeatures, device: Device = ...
    ) -> pl.Series: ...

    @overload
    def transform(self, data: IntoArray, /, *, device: Device = ...) -> Any: ...

    @overload
    def transform(self, *columns: IntoFeatures, device: Device = ...) -> pl.Expr: ...

    def transform(
        self, *columns: IntoFeatures | IntoFrame | IntoArray, device: Device = "auto"
    ) -> pl.Expr | pl.Series | Any:
        """Measure the distance of every row to every centroid: as an expression, or at once for a frame or an array.

        The expression is elementwise, so it can stream.

        Parameters
        ----------
        *columns
            As in :meth:`predict`.
        device
            As in :meth:`predict`.

        Returns
        -------
        Expr
            A column named `distances`: `Array(Float64, k)`, Euclidean. Rows and centroids are scaled and normalised
            first, if they were in the fit. Rows with nulls, NaNs or infinities are null.

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

        """
        array = _arrays.in_place_of(columns)
        if array is not None:
            return _arrays.transform(self._encoded, array, device)
        frame, features = _frames.ahead_of(columns)
        exprs, kwargs = self._features(features), {"k": self._k}
        expr = _plugin.elementwise("transform", exprs, self._encoded, device, kwargs).alias("distances")
        return expr if frame is None else self._of_frame(expr, frame, features)

    @overload
    def label(
        self, data: pl.LazyFrame, /, *columns: IntoFeatures, name: str = ..., device: Device = ...
    ) -> pl.LazyFrame: ...

    @overload
    def label(
        self, data: pl.DataFrame | IntoFrame, /, *columns: IntoFeatures, name: str = ..., device: Device = ...
    ) -> pl.DataFrame: ...

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

    def score(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray,
        *columns: IntoFeatures,
        weight: str | pl.Expr | None = None,
        sample_weight: IntoArray | None = None,
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
            Non-negative row weights: a column or an expression.
        sample_weight
            For an array: one non-negative weight per row, as an array of one dimension.
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
            _arrays.alone(data, columns, weight)
            return _arrays.score(self._encoded, data, sample_weight, device)
        frame = _frames.polars_frame(data, *self._asked(columns), *([] if weight is None else [weight]))
        _arrays.no_weights(sample_weight)
        expr = _plugin.score(self._features(columns), self._encoded, weight, device)
        return float(_plugin.item(frame, expr))

    # Methods that other files define. What a model says of its clusters:
    silhouette = _describing.silhouette
    profile = _describing.profile
    nearest = _describing.nearest

    # A model as a file, as bytes and as JSON, and a model of centroids alone:
    save = _storage.save
    load = staticmethod(_storage.load)
    to_bytes = _storage.to_bytes
    from_bytes = staticmethod(_storage.from_bytes)
    to_json = _storage.to_json
    from_json = staticmethod(_storage.from_json)
    from_centroids = staticmethod(_storage.from_centroids)

    def _asked(self, columns: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the columns that will be asked of a frame."""
        return columns or (_internal.model_columns(self._encoded),)

    def _of_frame(self, expr: pl.Expr, data: Any, columns: tuple[Any, ...]) -> pl.Series:
        """Evaluate an expression over a frame."""
        return _plugin.column_of(_frames.polars_frame(data, *self._asked(columns)), expr)

    def _features(self, columns: tuple[Any, ...]) -> list[pl.Expr]:
        exprs = _plugin.features(self._asked(columns), by_name=False).exprs
        if columns:
            self._check_order(exprs)
        return exprs

    def _check_order(self, exprs: list[pl.Expr]) -> None:
        """Refuse names of the model at other places. Names that are not known before the query are not checked."""
        places = {name: place for place, name in enumerate(self._names)}
        names = [expr.meta.output_name(raise_if_undetermined=False) for expr in exprs]
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
