"""The estimator: it takes the parameters first and the data later."""

from __future__ import annotations

import os
from collections.abc import Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any, Generic, Literal, SupportsIndex, cast, overload

import polars as pl

from polars_kmeans import _arrays, _frames, _plan, _plugin, _warned
from polars_kmeans._generated import ModelOptions
from polars_kmeans._keywords import checked, takes
from polars_kmeans._options import FitOptions
from polars_kmeans._plan import Plan
from polars_kmeans._progress import OnProgress
from polars_kmeans._spill import Spill
from polars_kmeans._typing import IntoArray, IntoFeatures, IntoFrame
from polars_kmeans.errors import ConvergenceWarning, EmptyClusterWarning, InvalidParameterError
from polars_kmeans.groups import KMeansModels, fit_groups
from polars_kmeans.model import KMeansModel

if TYPE_CHECKING:
    # Type checkers know this module. For them, plain `KMeans` is the estimator whose fit always returns a model.
    from typing_extensions import TypeVar, Unpack

    _Fitted = TypeVar("_Fitted", bound="KMeansModel | None", default=KMeansModel, covariant=True)
else:
    from typing import TypeVar

    _Fitted = TypeVar("_Fitted")


class KMeans(Generic[_Fitted]):
    """A k-means estimator. It takes the parameters of :func:`polars_kmeans.kmeans`, with the same meaning.

    Examples
    --------
    >>> KMeans(3, seed=1)
    KMeans(k=3, seed=1)
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"x": [0.0, 0.1, 5.0, 5.1], "y": [1.0, 1.1, 9.0, 9.1]})
    >>> model = pk.KMeans(k=2, seed=1).fit(df, ["x", "y"])
    >>> model.centroids.sort("x")
    shape: (2, 5)
    ┌─────────┬──────┬─────────┬──────┬──────┐
    │ cluster ┆ size ┆ inertia ┆ x    ┆ y    │
    │ ---     ┆ ---  ┆ ---     ┆ ---  ┆ ---  │
    │ u32     ┆ u64  ┆ f64     ┆ f64  ┆ f64  │
    ╞═════════╪══════╪═════════╪══════╪══════╡
    │ 1       ┆ 2    ┆ 0.01    ┆ 0.05 ┆ 1.05 │
    │ 0       ┆ 2    ┆ 0.01    ┆ 5.05 ┆ 9.05 │
    └─────────┴──────┴─────────┴──────┴──────┘

    """

    @overload
    def __init__(
        self: KMeans[KMeansModel],
        k: SupportsIndex,
        *,
        weight: str | pl.Expr | None = ...,
        too_few: Literal["raise", "fewer"] = ...,
        **options: Unpack[ModelOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: KMeans[KMeansModel | None],
        k: SupportsIndex,
        *,
        weight: str | pl.Expr | None = ...,
        too_few: Literal["null"],
        **options: Unpack[ModelOptions],
    ) -> None: ...

    @takes(ModelOptions)
    def __init__(
        self,
        k: SupportsIndex,
        *,
        weight: str | pl.Expr | None = None,
        too_few: Literal["raise", "null", "fewer"] = "raise",
        **options: Unpack[ModelOptions],
    ) -> None:
        self._options = FitOptions(k=k, **options, too_few=too_few)
        if weight is not None:
            _plugin.weight_expr(weight)
        self._weight = weight

    def __repr__(self) -> str:
        """Show the parameters that are not the default."""
        shown = self._options.chosen | ({} if self._weight is None else {"weight": self._weight})
        plain = (str, Number, dict, type(None))
        texts = (
            f"{value!r:.80}" if isinstance(value, plain) else f"{type(value).__name__}(...)" for value in shown.values()
        )
        return f"KMeans({', '.join(f'{name}={text}' for name, text in zip(shown, texts, strict=True))})"

    @property
    def k(self) -> int:
        """The number of clusters."""
        return int(self._options.given["k"])

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters by name, as they were passed. `KMeans(**estimator.parameters)` makes an equal estimator."""
        return {**self._options.given, "weight": self._weight}

    @overload
    def fit(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame,
        *columns: IntoFeatures,
        progress: OnProgress = ...,
        memory_limit: SupportsIndex | None = ...,
        spill_directory: str | os.PathLike[str] | None = ...,
    ) -> _Fitted: ...

    @overload
    def fit(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame,
        *columns: IntoFeatures,
        by: str | Sequence[str],
        progress: OnProgress = ...,
    ) -> KMeansModels: ...

    @overload
    def fit(self, data: IntoArray, *, weight: IntoArray | None = ..., progress: OnProgress = ...) -> _Fitted: ...

    @checked
    def fit(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame | IntoArray,
        *columns: IntoFeatures,
        by: str | Sequence[str] | None = None,
        weight: IntoArray | None = None,
        progress: OnProgress = None,
        memory_limit: SupportsIndex | None = None,
        spill_directory: str | os.PathLike[str] | None = None,
    ) -> _Fitted | KMeansModels:
        """Fit the columns of a frame, or an array. The query of a LazyFrame runs once.

        A LazyFrame may give more rows than memory holds. Then its features and weights go to a file, which the fit
        reads where it is mapped. The result has the same bits.

        An array is read where it is, in the memory of the host or of a GPU. It may be row-major, column-major or a view
        of any part of an array. Nothing may write to it during the call. A fit of an array on a GPU runs there, after
        the work that is queued for the array. Frames of other libraries come as Arrow streams. Their columns of numbers
        are not copied if the library keeps them in Arrow's layout.

        Parameters
        ----------
        data
            A frame: of Polars, or of any library with `__arrow_c_stream__`, such as pandas, pyarrow, DuckDB and
            DataFusion. Or an array of rows x features (with one dimension: of one feature) of float16, bfloat16,
            float32 or float64, from any library with `__dlpack__` or `__array_interface__`, such as NumPy, torch, CuPy
            and JAX. Or a data frame on a GPU with `__arrow_c_device_array__`, such as one of cuDF. The features of an
            array are named `column_0`, `column_1`, ...
        *columns
            The features of a frame: column names, expressions or selectors of numbers or booleans, or one Array or List
            column of such values with rows of one width. `pl.all()` takes all columns.
        by
            One or several names of columns. There is one fit for each of their values.
        weight
            For an array: one non-negative weight per row, as an array of one dimension.
        progress
            True shows a bar (with tqdm). A function is called with a :class:`polars_kmeans.Progress` when the rows are
            there, when a restart has its starting centroids, and after each iteration. On a GPU, the calls for several
            iterations come together. If it returns True, the fit stops, and the model is that of the last iteration
            that is done. Before the first iteration, this is a :class:`CancelledError`. If it raises an exception, the
            fit stops without a model, and the caller gets the exception. Ctrl-C stops a fit too, even without
            `progress`. With `by`, True stops the fit of one group.
        memory_limit
            For a LazyFrame: how many bytes of memory its features and weights may take. If they take more, they go to a
            file. None: they go there when less than half of the memory is free that was free before. Where the system
            does not say how much is free, they stay in memory. Without effect on a DataFrame, which is in memory.
        spill_directory
            The folder of this file. None: the system's temporary folder (`TMPDIR`, else `/tmp`), which is memory on
            some machines. The file has no name there, and it is gone when the fit ends or the process does.

        Returns
        -------
        KMeansModel
            The fitted model. With `too_few="null"`, None if there are fewer distinct rows than clusters. With `by`,
            :class:`KMeansModels <polars_kmeans.KMeansModels>`.

        Warns
        -----
        ConvergenceWarning
            If the fit used all `max_iter` iterations and the centroids still moved. Not if `progress` stopped it.
        EmptyClusterWarning
            If starting centroids were given (`init`), and some of them lost all of their rows.

        Raises
        ------
        KMeansError
            For values, columns or parameters that cannot be clustered, or a device that cannot be used: see
            :mod:`polars_kmeans.errors`.

        """
        spill = Spill.checked(memory_limit, spill_directory)
        if by is not None:
            if _arrays.is_array(data):
                msg = "by: expected none beside an array, which has no column names: pass a frame"
                raise InvalidParameterError(msg)
            _arrays.no_weight(weight)
            spill.refuse("beside by")
            features = tuple(_plugin.flat(columns))
            models = fit_groups(data, by, lambda rows: self._fit(rows, features, None, progress))
            self._warn([model for model in models.values() if model is not None])
            return models
        model = self._fit(data, columns, weight, progress, spill)
        self._warn([] if model is None else [model])
        # The overloads of `__init__` tell type checkers when the result can be None.
        return cast("_Fitted", model)

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
        """Fit, and label the same rows. :meth:`fit` has the parameters, warnings and errors.

        Returns
        -------
        Series
            The labels: UInt32, in the order of the rows, named `cluster`. Null for rows that were left out. With
            `too_few="null"`, all null if there are fewer distinct rows than clusters.

            For an array: an array of its library on its device (int32; -1 for such rows).

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> df = pl.DataFrame({"x": [0.0, 0.1, 5.0]})
        >>> pk.KMeans(2, seed=1).fit_predict(df, "x").to_list()
        [1, 1, 0]

        """
        if _arrays.is_array(data):
            _arrays.alone(data, columns, self._weight)
            found = self._fit_array(data, weight)
            if found is None:
                msg = 'too_few: expected "raise" where an array is labelled, got "null": there are no null labels in it'
                raise InvalidParameterError(msg)
            self._warn([found[0]])
            return found[1]
        features = tuple(_plugin.flat(columns))
        frame = _frames.collected(data, *features, self._weight)
        _arrays.no_weight(weight)
        # Predictions know no bounds on sizes, so those labels are the ones of the fit itself.
        of_fit = self._options.bounds_sizes
        fit = _plugin.fit(frame, _plugin.features(features), self._options, self._weight, labels=of_fit)
        if fit is None:
            return pl.repeat(None, frame.height, dtype=pl.UInt32, eager=True).alias("cluster")
        encoded, labels = fit
        model = KMeansModel._of_fit(*encoded)
        self._warn([model])
        return frame.select(model.predict(*features)).to_series() if labels is None else labels.alias("cluster")

    @overload
    def plan(self, data: pl.DataFrame | IntoFrame | IntoArray, *columns: IntoFeatures) -> Plan: ...

    @overload
    def plan(self, *, shape: Sequence[SupportsIndex], dtype: Any = ...) -> Plan: ...

    def plan(
        self,
        data: pl.DataFrame | IntoFrame | IntoArray | None = None,
        *columns: IntoFeatures,
        shape: Sequence[SupportsIndex] | None = None,
        dtype: Any = pl.Float64,
    ) -> Plan:
        """Say what a fit is expected to take, before anything runs: the device, the method, memory and time.

        Only the number of the rows and the types of the columns count, so a plan takes no time, and there need be no
        rows yet. A fit takes at most the bytes of the plan. The first fit of a process takes some megabytes more,
        because it loads the library and starts threads.

        The seconds are rough: a fit may take a third or three times as long. How many distances it leaves out depends
        on the rows, and the rates are those of the machines that were measured. The number of iterations is not known
        before. A fit also reads and checks its rows, and labels them at its end.

        Parameters
        ----------
        data
            A frame or an array that :meth:`fit` takes. A LazyFrame is refused, because its rows are not counted, and so
            is an array on a GPU.
        *columns
            The features of the frame, as :meth:`fit` takes them. A fit that leaves rows out has fewer than planned for.
        shape
            The number of rows and of features, in place of a frame: of an array, or of an Array column.
        dtype
            The type of these features: Float16, Float32 or Float64, of Polars or of NumPy.

        Returns
        -------
        Plan
            A :class:`polars_kmeans.Plan`.

        Raises
        ------
        KMeansError
            As a fit, for what is wrong with columns, parameters, the number of rows or a device.

        Examples
        --------
        >>> import polars_kmeans as pk
        >>> plan = pk.KMeans(50, device="cpu").plan(shape=(1_000_000, 8), dtype=pl.Float32)
        >>> plan.device, plan.reason, plan.method
        ('cpu', 'device="cpu" was asked for', 'differences, groups')
        >>> plan.host_bytes < 10**9 and plan.device_bytes == 0
        True
        >>> 0 < plan.seconds_iteration < 10
        True

        """
        if shape is None:
            of_data = _plan.of_array if _arrays.is_array(data) else _plan.of_frame
            return of_data(data, columns, self._options, self._weight)
        if data is not None:
            raise InvalidParameterError("shape: expected none beside rows, which have one")
        return _plan.of_shape(shape, dtype, self._options, weighted=self._weight is not None)

    def _fit(
        self,
        data: Any,
        columns: tuple[IntoFeatures, ...],
        weight: Any,
        progress: OnProgress = None,
        spill: Spill | None = None,
    ) -> KMeansModel | None:
        """Fit a frame or an array once."""
        if _arrays.is_array(data):
            _arrays.alone(data, columns, self._weight)
            if spill is not None:
                spill.refuse("beside an array")
            found = _arrays.fit(data, weight, self._options, progress)
        else:
            frame = _frames.polars_frame(data, *columns, self._weight)
            _arrays.no_weight(weight)
            found = _plugin.fit(frame, _plugin.features(columns), self._options, self._weight, progress, spill)
        return None if found is None else KMeansModel._of_fit(*found[0])

    def _fit_array(
        self, data: IntoArray, weight: IntoArray | None, progress: OnProgress = None
    ) -> tuple[KMeansModel, Any] | None:
        """Fit an array, and label its rows. Those on the host, and within bounds, have the labels of the fit itself."""
        of_fit = self._options.bounds_sizes or not _arrays.on_gpu(data)
        found = _arrays.fit(data, weight, self._options, progress, labels=of_fit)
        if found is None:
            return None
        model = KMeansModel._of_fit(*found[0])
        return model, model.predict(data) if found[1] is None else found[1]

    def _warn(self, models: list[KMeansModel]) -> None:
        """Warn the caller of the public method of what a fit says beside its model."""
        most = self._options.given["max_iter"]
        unfinished = sum(model.n_iter >= most and not (model._stopped or model.converged) for model in models)
        if unfinished:
            which = "the fit" if len(models) == 1 else f"{unfinished} of {len(models)} fits"
            msg = f"{which} used all {most} iterations, and the centroids still moved: raise max_iter, or raise tol"
            _warned.warn(msg, ConvergenceWarning)
        lost = [model.relocated for model in models if model.relocated]
        if lost and not isinstance(self._options.given["init"], str):
            numbers = ", ".join(map(str, sorted(set().union(*lost))))
            where = "" if len(models) == 1 else f" in {len(lost)} of {len(models)} fits"
            msg = f"starting centroids lost all of their rows{where}, and rows far away took their places: {numbers}"
            _warned.warn(msg, EmptyClusterWarning)
