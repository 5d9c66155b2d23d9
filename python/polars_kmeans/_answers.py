"""What a model says of each row: labels, distances and silhouettes."""

from __future__ import annotations

from typing import Any, Literal, SupportsIndex, overload

import polars as pl

from polars_kmeans import _arrays, _frames, _names, _numeric, _plugin, _rows
from polars_kmeans._facts import Facts
from polars_kmeans._keywords import checked
from polars_kmeans._options import FitOptions, text
from polars_kmeans._typing import Device, IntoArray, IntoFeatures, IntoFrame, Output
from polars_kmeans.errors import InvalidParameterError, typed_errors


class Answers(Facts):
    """A model's answer for each row."""

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

    @overload
    def nearest_clusters(
        self,
        m: SupportsIndex,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame,
        /,
        *columns: IntoFeatures,
        squared: bool = ...,
        device: Device = ...,
    ) -> pl.Series: ...

    @overload
    def nearest_clusters(
        self, m: SupportsIndex, data: IntoArray, /, *, squared: bool = ..., device: Device = ...
    ) -> Any: ...

    @overload
    def nearest_clusters(
        self, m: SupportsIndex, *columns: IntoFeatures, squared: bool = ..., device: Device = ...
    ) -> pl.Expr: ...

    @checked
    def nearest_clusters(
        self,
        m: SupportsIndex,
        *columns: IntoFeatures | pl.LazyFrame | IntoFrame | IntoArray,
        squared: bool = False,
        device: Device = "auto",
    ) -> pl.Expr | pl.Series | Any:
        """Find the `m` nearest clusters of every row, in order: as an expression, or at once for a frame or an array.

        The expression is elementwise, so it can stream. An array is copied.

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

            For a frame: a Series of the same values.

            For an array: a tuple of two arrays of its library, rows x m: `clusters` (int32; -1 for such rows) and
            `distances` (float64; NaN for such rows).

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
        expected = f"an integer from 1 to {self._k}, the number of clusters"
        m = _numeric.integer("m", m, expected, most=self._k)
        if not isinstance(squared, bool):
            raise InvalidParameterError(f"squared: expected True or False, got {squared!r:.80}")
        array = _arrays.in_place_of(columns)
        data, features = (array, ()) if array is not None else _frames.ahead_of(columns)
        query = None
        if data is not None:
            query, features = self._query(data, features, ())
        expr = _plugin.nearest_clusters(self._features(features), self._encoded, m, squared=squared, device=device)
        expr = expr.alias("nearest_clusters")
        if query is None:
            return expr
        found = _plugin.collect(query.select(expr)).to_series()
        return found if array is None else _arrays.nearest_clusters(array, found, m)

    @overload
    def label(
        self, data: pl.LazyFrame, /, *columns: IntoFeatures, name: str = ..., names: bool = ..., device: Device = ...
    ) -> pl.LazyFrame: ...

    @overload
    def label(
        self,
        data: pl.DataFrame | IntoFrame,
        /,
        *columns: IntoFeatures,
        name: str = ...,
        names: bool = ...,
        device: Device = ...,
    ) -> pl.DataFrame: ...

    @checked
    def label(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame,
        /,
        *columns: IntoFeatures,
        name: str = "cluster",
        names: bool = False,
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
        names
            True: the names of the clusters in place of their numbers. They are an `Enum`: texts that sort in the order
            of the clusters, and a type that is known before a query runs.
        device
            As in :meth:`predict`.

        Returns
        -------
        DataFrame
            All columns of `data`, and the labels (UInt32, or Enum). A LazyFrame for a LazyFrame.

        Raises
        ------
        InvalidColumnError
            If the frame has a column of this name.
        InvalidParameterError
            For `names=True`, if the model has no :attr:`cluster_names`.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> df = pl.DataFrame({"x": [0.0, 2.0, 5.0]})
        >>> model = pk.KMeans(k=2, init=[0.0, 5.0]).fit(df, "x")
        >>> model.label(df, name="tier").rows()
        [(0.0, 0), (2.0, 0), (5.0, 1)]

        """
        labels = self.predict(*columns, device=device)
        if names is not False:
            known = self.cluster_names if names is True else None
            if known is None:
                msg = "names: expected False, or True for a model that has names"
                raise InvalidParameterError(f"{msg}, got {names!r:.80}: model.with_names gives names")
            labels = _names.of(labels, known)
        return _frames.with_labels(data, labels, name)

    @overload
    def assign(
        self,
        data: pl.LazyFrame,
        /,
        *columns: IntoFeatures,
        min_size: SupportsIndex | None = ...,
        max_size: SupportsIndex | None = ...,
        balanced: bool = ...,
        weight: str | pl.Expr | None = ...,
        name: str = ...,
    ) -> pl.LazyFrame: ...

    @overload
    def assign(
        self,
        data: pl.DataFrame | IntoFrame,
        /,
        *columns: IntoFeatures,
        min_size: SupportsIndex | None = ...,
        max_size: SupportsIndex | None = ...,
        balanced: bool = ...,
        weight: str | pl.Expr | None = ...,
        name: str = ...,
    ) -> pl.DataFrame: ...

    @checked
    def assign(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame,
        /,
        *columns: IntoFeatures,
        min_size: SupportsIndex | None = None,
        max_size: SupportsIndex | None = None,
        balanced: bool = False,
        weight: str | pl.Expr | None = None,
        name: str = "cluster",
    ) -> pl.DataFrame | pl.LazyFrame:
        """Assign rows to clusters of bounded size: add the labels to a frame, as its last column.

        Of all labels within the bounds, the rows get those of least inertia. The centroids stay as they are. See
        :doc:`/guide/sizes`.

        Parameters
        ----------
        data
            A frame, as in :meth:`label`. A label depends on all rows, so a LazyFrame does not stream.
        *columns
            The features, as in :meth:`predict`.
        min_size, max_size, balanced
            As in :class:`KMeans <polars_kmeans.KMeans>`, but a cluster may be empty unless `min_size` says otherwise.
            There may be fewer rows than clusters.
        weight
            Non-negative row weights: a column or an expression. Only rows of positive weight count.
        name
            The name of the new column.

        Returns
        -------
        DataFrame
            All columns of `data`, and the labels (UInt32). Rows with nulls, NaNs or infinities are null. A LazyFrame
            for a LazyFrame.

        Raises
        ------
        InvalidParameterError
            For bounds that no labels can keep.
        InvalidColumnError
            If the frame has a column of this name.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> model = pk.KMeans(k=2, init=[0.0, 5.0]).fit(pl.DataFrame({"x": [0.0, 5.0]}), "x")
        >>> model.assign(pl.DataFrame({"x": [0.0, 1.0, 2.0, 5.0]}), max_size=2).rows()
        [(0.0, 0), (1.0, 0), (2.0, 1), (5.0, 1)]

        """
        options = FitOptions(
            k=self.n_clusters, min_size=min_size, max_size=max_size, balanced=balanced, null_policy="skip"
        )
        labels = _plugin.assign(self._features(columns), self._encoded, options, weight)
        with typed_errors():
            return _frames.with_labels(data, labels, name)

    @overload
    def silhouette(
        self, data: pl.DataFrame | pl.LazyFrame | IntoFrame, /, *columns: IntoFeatures, device: Device = ...
    ) -> pl.Series: ...

    @overload
    def silhouette(self, data: IntoArray, /, *, device: Device = ...) -> Any: ...

    @overload
    def silhouette(self, *columns: IntoFeatures, device: Device = ...) -> pl.Expr: ...

    @checked
    def silhouette(
        self, *columns: IntoFeatures | pl.LazyFrame | IntoFrame | IntoArray, device: Device = "auto"
    ) -> pl.Expr | pl.Series | Any:
        """Say how clearly each row belongs to its cluster: the simplified silhouette.

        As an expression, or at once for a frame or an array. It is `(second - first) / second`, from the distances to
        the nearest and to the second nearest centroid. 1 is a row on its centroid. 0 is a row halfway between two. The
        expression is elementwise, so it can stream, and it labels the rows once. Rousseeuw's silhouette needs the
        distances between all rows. The simplified one (Hruschka, de Castro & Campello 2004) needs only the distances to
        the centroids.

        Parameters
        ----------
        *columns
            As in :meth:`predict`.
        device
            As in :meth:`predict`.

        Returns
        -------
        Expr
            A column named `silhouette` (Float64), from 0 to 1. Distances are those of the model, which scales and
            normalises rows as the fit did. A row that lies on two centroids has 0. Rows with nulls, NaNs or infinities
            are null. All rows are null if the model has one cluster.

            For a frame: a Series of the same values.

            For an array: an array of its library on its device (float64; NaN in place of null).

        Raises
        ------
        InvalidParameterError
            At once, for a text that is not the name of a device.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> df = pl.DataFrame({"x": [0.0, 2.0, 5.0]})
        >>> model = pk.KMeans(k=2, init=[[0.0], [5.0]]).fit(df, "x")
        >>> df.select(model.silhouette().round(3)).to_series().to_list()
        [0.8, 0.667, 1.0]

        """
        array = _arrays.in_place_of(columns)
        if array is not None:
            return _arrays.silhouette(self._encoded, array, device)
        data, features = _frames.ahead_of(columns)
        answer = self.predict(*features, output="struct", device=device)
        expr = _rows.with_silhouette(answer).struct.field("silhouette")
        if data is None:
            return expr
        return _plugin.collect(self._query(data, features, ())[0].select(expr)).to_series()

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

    def _query(
        self, data: Any, columns: tuple[Any, ...], read: tuple[Any, ...] | None = None, weight: Any = None
    ) -> tuple[pl.LazyFrame, tuple[Any, ...]]:
        """Return data that a fit takes, as a query, and its feature columns. `read`: the others. None: all columns."""
        asked = () if read is None or _arrays.is_array(data) else (*self._asked(columns), *read)
        return _rows.query(data, columns, asked, weight)
