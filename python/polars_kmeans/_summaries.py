"""What a model says of rows as a whole: inertia, profiles, typical rows, drift and sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import polars as pl

from polars_kmeans import _arrays, _frames, _living, _plugin, _rows
from polars_kmeans._answers import Answers
from polars_kmeans._keywords import checked
from polars_kmeans._typing import Device, IntoArray, IntoFeatures, IntoFrame
from polars_kmeans.errors import InvalidParameterError


class Summaries(Answers):
    """A model's summaries of rows."""

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
            Non-negative row weights: a column or an expression. For an array: an array of one dimension. Without them,
            the model of a fit with weights warns once (:class:`WeightWarning <polars_kmeans.WeightWarning>`).
        device
            The device to run on. The bits are the same on every device. `"auto"`: a GPU if one can be used, the data
            fit on it and it is predicted to be faster, else the CPU. `"cpu"`, `"cuda"` or `"cuda:1"`: this device, or
            an error.

        Raises
        ------
        KMeansError
            For columns, weights or a device that cannot be used: see :mod:`polars_kmeans.errors`.

        """
        self._weigh(weight)
        return self._score(data, columns, weight, device)

    def _score(self, data: Any, columns: tuple[IntoFeatures, ...], weight: Any, device: Device) -> float:
        if _arrays.is_array(data):
            _arrays.alone(data, columns, None)
            return _arrays.score(self._encoded, data, weight, device)
        frame = _frames.polars_frame(data, *self._asked(columns), weight)
        expr = _plugin.score(self._features(columns), self._encoded, weight, device)
        return float(_plugin.item(frame, expr))

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
            Non-negative row weights, as in :meth:`score`. A row of weight 2 counts as two rows, except in `size`.
        quantiles
            Which quantiles to show, from 0 to 1.

        Returns
        -------
        DataFrame
            One row for each cluster and column, in order. Values are in the units of the columns.

            - `cluster` (UInt32). Then `name` (Enum), if :meth:`with_names <polars_kmeans.KMeansModel.with_names>` gave
              names.
            - `size` (UInt64: rows of positive weight), `share` (Float64: of the weight of all rows
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

        self._weigh(weight)
        query, columns = self._query(data, columns, (by, weight), weight)
        described = self._features(columns) if by is None else _plugin.features((by,)).exprs
        label, features = self.predict(*columns), by is None
        found = _profile.profile(query, label, described, self.centroids, weight, quantiles, features=features)
        return self._named(found)

    @checked
    def nearest(
        self, data: pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray, m: SupportsIndex, *columns: IntoFeatures
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

    @checked
    def drift(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray,
        *columns: IntoFeatures,
        weight: str | pl.Expr | None = None,
    ) -> pl.DataFrame:
        """Compare the rows of today with those of the fit, to see whether the model still describes them.

        `data` and `columns` are those of :meth:`score`, and `weight` is that of :meth:`profile`. With weights, shares
        and distances are those of the weight: then of :attr:`weights`.

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
        self._weigh(weight)
        then = self.centroids.select("cluster", "size", "inertia", self.weights)
        if weight is not None and then["weight"].has_nulls():
            raise InvalidParameterError("weight: expected a model that knows the weights of its clusters: fit it again")
        then = then.with_columns(mass=pl.col("size" if weight is None else "weight").cast(pl.Float64))
        query, columns = self._query(data, columns, (weight,), weight)
        answers = query.select(self.predict(*columns, output="struct"), *_plugin.weights(weight))
        found = _rows.collect(answers).unnest("cluster")
        return _living.drift(then, found, weighted=weight is not None)

    def limits(self) -> pl.DataFrame:
        """Return the cut points between the clusters of a model of one feature.

        They are exact: :meth:`predict` gives a value of the type of the fit this cluster if, and only if, `from < value
        <= to`. They lie halfway between centroids, up to rounding, and where a value is equally near to two, the
        smaller number gets it. (This is also so for values that are some 10^15 times farther out than the centroids are
        apart: float64 cannot tell their distances apart.) The values are in the units of the column, also if the fit
        scaled it.

        Returns
        -------
        DataFrame
            One row for each cluster, in the order of the centroids: `cluster` (UInt32), `from` and `to` (the type of
            the fit). The first `from` and the last `to` are null: there is no limit. Of equal centroids, all
            but the first one have an empty interval.

        Raises
        ------
        InvalidParameterError
            For a model of several features, and for one of `metric="cosine"`.

        Examples
        --------
        >>> import polars_kmeans as pk
        >>> pk.KMeansModel.from_centroids([[20.0], [40.0], [70.0]], ["age"]).limits().rows()
        [(0, None, 30.0), (1, 30.0, 55.0), (2, 55.0, None)]

        """
        names = self._sum_names()
        if len(names) != 1 or self.parameters["metric"] == "cosine":
            got = f'{len(names)} features and metric="{self.parameters["metric"]}"'
            raise InvalidParameterError(f'model: expected one of one feature and metric="euclidean", got {got}')
        feature = self.centroids.to_series(len(_frames.OWN_COLUMNS))
        values = feature.explode(empty_as_null=True) if feature.dtype.is_nested() else feature
        numbered = pl.Series("value", self._compared()).explode(empty_as_null=True).to_frame().with_row_index("cluster")
        order = numbered.sort("value", "cluster")["cluster"]
        places = order.arg_sort()
        low, high = values[order][:-1], values[order][1:]
        below = pl.Series(range(self._k - 1), dtype=pl.UInt32)
        # Between two neighbours, labels change once. Halve until the two floats are next to each other.
        while True:
            middle = (low.cast(pl.Float64) / 2 + high.cast(pl.Float64) / 2).cast(low.dtype)
            if ((middle == low) | (middle == high)).all():
                break
            rows = (middle.reshape((-1, 1)) if feature.dtype.is_nested() else middle).alias(feature.name).to_frame()
            lower = places[self.predict(rows, feature.name, device="cpu")] <= below
            low, high = middle.zip_with(lower, low), high.zip_with(lower, middle)
        # Of equal centroids, the smallest number has all rows, and the others have none.
        low = low.zip_with(values[order][:-1] != values[order][1:], pl.Series([None], dtype=low.dtype))
        low = low.fill_null(strategy="backward").fill_null(float("inf"))
        none = pl.Series([None], dtype=low.dtype)
        ends = {"from": pl.concat([none, low]), "to": pl.concat([low, none])}
        return pl.DataFrame({"cluster": order.cast(pl.UInt32), **ends})

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
