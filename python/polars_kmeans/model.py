"""A fitted model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, overload

import polars as pl

from polars_kmeans import _arrays, _internal, _plugin
from polars_kmeans._options import text
from polars_kmeans._typing import Device, IntoArray, IntoFeatures, Output
from polars_kmeans.errors import InvalidParameterError


class KMeansModel:
    """A fitted model. Made by :meth:`polars_kmeans.KMeans.fit` or :meth:`KMeansModel.load`.

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

    @classmethod
    def _of_fit(cls, model: bytes, device: str, reason: str) -> KMeansModel:
        """Make the model of a fit that has just run, with the device and the reason for it."""
        fitted = cls(model)
        fitted._device, fitted._device_reason = device, reason
        return fitted

    def __eq__(self, other: object) -> bool:
        """Whether two models are equal. Wall times do not count."""
        if not isinstance(other, KMeansModel):
            return NotImplemented
        return _internal.models_equal(self._encoded, other._encoded)

    def __reduce__(self) -> tuple[Callable[[bytes], KMeansModel], tuple[bytes]]:
        """Pickle the bytes of the file that :meth:`save` writes. Later versions can read it."""
        return _from_file, (_internal.model_to_file(self._encoded),)

    def __repr__(self) -> str:
        return f"KMeansModel(k={self._k}, columns={self._names}, inertia={self._inertia})"

    def _repr_html_(self) -> str:
        """Show the model in a notebook."""
        from polars_kmeans import _html

        return _html.model(self)

    @property
    def centroids(self) -> pl.DataFrame:
        """A frame of `k` rows: cluster (UInt32), size (UInt64: rows of positive weight), inertia (Float64), features.

        The features are one column each, in the fit's float type, or the one Array column. They are in the units of the
        columns, also if the fit scaled these. With `metric="cosine"`, they are directions: points on the unit sphere.
        """
        return _internal.model_centroids(self._encoded)

    @property
    def history(self) -> pl.DataFrame:
        """One row per iteration: iteration, changed rows, squared shift, inertia (if the history is full), seconds.

        Seconds are null in a model that was loaded, since wall times are not saved.
        """
        return _internal.model_history(self._encoded)

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

    @overload
    def predict(self, data: IntoArray, /, *, output: Output = ..., device: Device = ...) -> Any: ...

    @overload
    def predict(self, *columns: IntoFeatures, output: Output = ..., device: Device = ...) -> pl.Expr: ...

    def predict(
        self, *columns: IntoFeatures | IntoArray, output: Output = "label", device: Device = "auto"
    ) -> pl.Expr | Any:
        """Label rows: by an expression, or those of an array at once. The expression is elementwise, so it can stream.

        Parameters
        ----------
        *columns
            An array, as in :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`. Or the features, in the model's order. By
            default, the columns that the model was fitted to. A model that was fitted to expressions has no default,
            since columns with their names may hold other values.
        output
            `"label"`, or `"struct"` with the distances to the nearest and to the second nearest centroid.
        device
            The device to run on. The bits are the same on every device. `"auto"` decides for each morsel: it takes a
            GPU if one can be used and the morsel is so much work (many clusters of many features) that the transfer
            costs little beside it, else the CPU. `"cpu"`, `"cuda"` (the GPU with the most free memory) or `"cuda:1"`:
            this device, or an error when the query runs.

        Returns
        -------
        Expr
            A column named `kmeans`. Rows with nulls, NaNs or infinities get a null label (or a null struct).

            For an array: an array of its library on its device, with the labels (int32; -1 for such rows). With
            `output="struct"`: a tuple of three arrays `label`, `distance` and `second_distance`.

        Raises
        ------
        InvalidParameterError
            At once, for a parameter outside its domain.

        """
        if output not in ("label", "struct"):
            msg = f'output: expected "label" or "struct", got {output!r}'
            raise InvalidParameterError(msg)
        array = self._array(columns)
        if array is not None:
            return _arrays.predict(self._encoded, array, output, device)
        exprs = self._features(columns)
        kwargs = {"output": text(output)}
        return _plugin.elementwise("predict", exprs, self._encoded, device, kwargs).alias("kmeans")

    @overload
    def transform(self, data: IntoArray, /, *, device: Device = ...) -> Any: ...

    @overload
    def transform(self, *columns: IntoFeatures, device: Device = ...) -> pl.Expr: ...

    def transform(self, *columns: IntoFeatures | IntoArray, device: Device = "auto") -> pl.Expr | Any:
        """Measure the distance of every row to every centroid: by an expression, or for an array at once.

        The expression is elementwise, so it can stream.

        Parameters
        ----------
        *columns
            An array, as in :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`. Or the features, in the model's order. By
            default, the columns that the model was fitted to. A model that was fitted to expressions has no default,
            since columns with their names may hold other values.
        device
            As in :meth:`predict`.

        Returns
        -------
        Expr
            A column named `distances`: `Array(Float64, k)`, Euclidean. Rows and centroids are scaled and normalised
            first, if they were in the fit. Rows with nulls, NaNs or infinities are null.

            For an array: an array of its library on its device, rows x clusters (float64; NaN for such rows).

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
        >>> df.select(model.transform()).to_series().to_list()
        [[1.0, 5.0], [1.0, 3.0], [4.0, 0.0]]

        """
        array = self._array(columns)
        if array is not None:
            return _arrays.transform(self._encoded, array, device)
        exprs = self._features(columns)
        return _plugin.elementwise("transform", exprs, self._encoded, device, {"k": self._k}).alias("distances")

    def score(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoArray,
        *columns: IntoFeatures,
        weight: str | pl.Expr | None = None,
        sample_weight: IntoArray | None = None,
        device: Device = "auto",
    ) -> float:
        """Return minus the inertia of rows under the model, as in scikit-learn. Rows with nulls are left out.

        Parameters
        ----------
        data
            A frame, or an array as in :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`. The query of a LazyFrame runs
            once.
        *columns
            The features, in the model's order. By default, the columns that the model was fitted to. A model that was
            fitted to expressions has no default, since columns with their names may hold other values.
        weight
            Non-negative row weights: a column or an expression.
        sample_weight
            Beside an array: one non-negative weight a row, as an array of one dimension.
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
        _plugin.check_frame(data)
        _arrays.no_weights(sample_weight)
        expr = _plugin.score(self._features(columns), self._encoded, weight, device)
        return float(_plugin.item(data, expr))

    def silhouette(self, *columns: IntoFeatures, device: Device = "auto") -> pl.Expr:
        """Say how clearly each row belongs to its cluster: the simplified silhouette, by an expression.

        It is `(second - first) / second`, from the distances to the nearest and to the second nearest centroid. 1 is a
        row on its centroid. 0 is a row halfway between two. The expression is elementwise, so it can stream, and it
        labels the rows once. Rousseeuw's silhouette needs the distances between all rows. The simplified one (Hruschka,
        de Castro & Campello 2004) needs those to the centroids.

        Parameters
        ----------
        *columns
            The features, in the model's order. By default, the columns that the model was fitted to, as in
            :meth:`predict`.
        device
            As in :meth:`predict`.

        Returns
        -------
        Expr
            A column named `silhouette` (Float64), from 0 to 1. Distances are those of the model, which scales and
            normalises rows as the fit did. A row on two centroids has 0. Null for rows with nulls, NaNs or infinities,
            and if the model has one cluster.

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
        if self._array(columns) is not None:
            msg = 'columns: expected names or expressions, got an array: predict(array, output="struct") has distances'
            raise InvalidParameterError(msg)
        answer = self.predict(*columns, output="struct", device=device)
        return self._with_silhouette(answer).struct.field("silhouette")

    @staticmethod
    def _with_silhouette(answer: pl.Expr) -> pl.Expr:
        """Add a field to the structs of :meth:`predict`. The rows are labelled once, however many fields are used."""
        first, second = pl.field("distance"), pl.field("second_distance")
        # If the second distance is 0, so is the first.
        value = pl.when(second > 0).then((second - first) / second).when(second == 0).then(0.0)
        return answer.struct.with_fields(value.alias("silhouette"))

    def profile(
        self,
        data: pl.DataFrame | pl.LazyFrame,
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
            A frame. The query of a LazyFrame runs once. The columns that are used are held in memory.
        *columns
            The features, in the model's order. By default, the columns that the model was fitted to, as in
            :meth:`predict`.
        by
            The columns that describe the clusters: names, expressions or selectors of numbers or booleans. They need
            not be features. By default, the features. An Array column `e` is described as `e[0]`, `e[1]`, ...
        weight
            Non-negative row weights: a column or an expression. A row of weight 2 counts as two rows, but in `size`.
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
            - `rank` (UInt32): 1 is the feature that sets the cluster apart the most: the one of the largest absolute
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

        return _profile.profile(self, data, columns, by, weight, quantiles)

    def nearest(self, data: pl.DataFrame | pl.LazyFrame, m: int, *columns: IntoFeatures) -> pl.DataFrame:
        """Find the `m` rows nearest each centroid: typical rows, which show what a cluster holds.

        Parameters
        ----------
        data
            A frame. The query of a LazyFrame runs once, in batches, so its rows need not fit into memory.
        m
            How many rows to find for each cluster.
        *columns
            The features, in the model's order. By default, the columns that the model was fitted to, as in
            :meth:`predict`.

        Returns
        -------
        DataFrame
            Rows of the frame, with all their columns, by cluster and distance. Of rows that are equally far, the first
            comes first. In front: `cluster` (UInt32), `rank` (UInt32, from 1) and `distance` (Float64). A cluster of
            fewer rows has fewer.

        Raises
        ------
        KMeansError
            For columns that cannot be used, an `m` below 1, or a frame that has a column named `cluster`, `rank` or
            `distance`.

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

        return _nearest.nearest(self, data, m, columns)

    def save(self, path: str | PathLike[str]) -> None:
        """Save as a Parquet file: the centroid frame, with the parameters in the file's metadata.

        Any Parquet reader reads it as a table. If the fit scaled the columns, the table has the scaled centroids, bit
        for bit, and the metadata have the factors. An existing file is replaced only after the new file is complete.
        Links are followed.

        Raises
        ------
        ModelFileError
            If the file cannot be written. If the mode of an existing file lets nobody write, the file is not replaced,
            not even by root.

        """
        _internal.save_model(self._encoded, path)

    @staticmethod
    def load(path: str | PathLike[str]) -> KMeansModel:
        """Read a model that :meth:`save` wrote, in Python or in Rust. Its predictions have the same bits.

        Raises
        ------
        ModelFileError
            If the file cannot be read.
        InvalidModelError
            If the file is truncated, altered (it has a checksum), not a model, or of a newer version. Also if it needs
            something that this version does not know, such as another metric.

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
        return KMeansModel(_internal.load_model(path))

    @staticmethod
    def _array(columns: tuple[IntoFeatures | IntoArray, ...]) -> IntoArray | None:
        """Return the array, if one was passed in place of columns."""
        arrays = [item for item in columns if _arrays.is_array(item)]
        if not arrays:
            return None
        _arrays.alone(arrays[0], columns[1:], None)
        return arrays[0]

    def _features(self, columns: tuple[Any, ...]) -> list[pl.Expr]:
        return _plugin.features(columns or (_internal.model_columns(self._encoded),), by_name=False).exprs


def _from_file(content: bytes) -> KMeansModel:
    return KMeansModel(_internal.model_from_file(content))
