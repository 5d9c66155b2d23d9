"""What a model holds: centroids, how its fit went, and the columns that it asks for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from polars_kmeans import _centroids, _frames, _internal, _names, _plugin, _warned
from polars_kmeans.errors import InvalidColumnError, WeightWarning

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A wide model shows the first names of its columns.
_SHOWN = 6


class Ran(NamedTuple):
    """How a fit ran."""

    device: str
    device_reason: str
    method: str | None
    method_reason: str | None
    seconds: tuple[float, float, float]
    relocated: list[int]


class Facts:
    """What a model holds."""

    # Whether the model has warned that it counts rows without their weights.
    _told = False

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded
        self._names, self._k, self._inertia, self._n_iter, self._stopped = _internal.model_facts(encoded)
        # The columns of the fit, once they are asked for.
        self._columns: tuple[str, ...] | None = None
        # None in a model that was loaded.
        self._ran: Ran | None = None

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
            "device": self.device or "unknown (loaded)",
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

        The last six columns say how much work an iteration was. They depend on the device, so they are neither saved
        nor compared, and are null in a model that was loaded:

        - `settled`: the share of the rows whose label needed more precise distances, because a fast computation could
          not prove it. See :doc:`/exact`.
        - `rescored`: the share of the rows that a second computation, of twice as many bits, looked at before. Null
          where there is none: on the CPU, and on GPUs without tensor cores or for few features.
        - `skipped`: the share of the scores of a row and a centroid that were not computed, because a bound rules the
          centroid out. Null where the CPU computes all, and counts nothing.
        - `groups`: into how many groups the rows were put, each of which is compared only with the centroids that can
          be nearest. Null if there are none.
        - `passes`: how often an assignment within `min_size` and `max_size` looked at the rows, samples in proportion.
          Null if sizes have no bounds.
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
        return self._ran and dict(zip(("rows", "seeding", "iterations"), self._ran.seconds, strict=True))

    @property
    def relocated(self) -> list[int] | None:
        """The numbers of the starting centroids that lost all of their rows, in ascending order.

        A row far from its centroid took the place of each. So these clusters are others than at the start. The numbers
        are those of the start, also with `sort_by`. None in a model that was loaded or unpickled.
        """
        return self._ran and list(self._ran.relocated)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the fit by name, as they are saved. Starting centroids are not kept."""
        with _internal.FloatEnvironment():
            parameters: dict[str, Any] = json.loads(_internal.model_parameters(self._encoded))
        return parameters

    @property
    def metadata(self) -> dict[str, str]:
        """The texts that :meth:`with_metadata` gave the model."""
        return {key: text for key, text in _internal.model_metadata(self._encoded).items() if key != _names.KEY}

    @property
    def cluster_names(self) -> list[str] | None:
        """The names that :meth:`with_names` gave the clusters, in order. None without names.

        Names that are not those of the clusters, in a file that something else wrote, are an `InvalidModelError`.
        """
        return _names.decoded(_internal.model_metadata(self._encoded), self._k)

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
    def weights(self) -> pl.Series:
        """The weight of each cluster (Float64), in the order of :attr:`centroids`.

        It is the weight of the rows of the fit. In a model that keeps sums, it is that of the rows in the sums, after
        decays. Rows without weights weigh 1 each. Null in a file of a weighted fit that does not say it.
        """
        weights: list[Any] = [*_internal.model_weights(self._encoded)] or [None] * self._k
        return pl.Series("weight", weights, dtype=pl.Float64)

    @property
    def batches(self) -> dict[str, list[str]]:
        """The keys of the batches that :meth:`updated` has `added`, and of those that it has `removed`, sorted."""
        return dict(zip(("added", "removed"), _internal.model_batches(self._encoded), strict=True))

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
        return self._ran and self._ran.device

    @property
    def device_reason(self) -> str | None:
        """Why the fit ran on that device, as a sentence. None if :attr:`device` is None."""
        return self._ran and self._ran.device_reason

    @property
    def method(self) -> str | None:
        """What the fit tried to find labels by. :meth:`KMeans.plan <polars_kmeans.KMeans.plan>` says it before a fit.

        On the CPU: `"differences"` (for up to 8 features of float32) or `"products"`, then what may save distances:
        `", groups"` of rows, and `", copies"` of the rows in 8 or 16 bits. On a GPU: the name of its kernel. The labels
        do not depend on it. None for fits in parts, and in a model that was loaded or unpickled.
        """
        return self._ran and self._ran.method

    @property
    def method_reason(self) -> str | None:
        """What the CPU decided when it had seen the rows, and why, as a sentence.

        It says whether rows were compared with all centroids or only with those near their group, whether by integer
        copies first, and by which instructions. The :attr:`history` has the share of the distances that each iteration
        left out. None for fits on GPUs, and where :attr:`method` is None.
        """
        return self._ran and self._ran.method_reason

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

    def _named(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Put the names, if there are any, into a column `name` right of the column `cluster`."""
        names = self.cluster_names
        return frame if names is None else frame.insert_column(1, _names.of(frame["cluster"], names).alias("name"))

    def _weigh(self, weight: object) -> None:
        """Warn, once, if the model of a fit with weights is asked about rows without them."""
        if weight is None and not self._told and self.parameters["weighted"]:
            self._told = True
            msg = "the model is of a fit with weights, and each row counts as 1 here: pass weight= to count as the fit"
            _warned.warn(msg, WeightWarning)

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
