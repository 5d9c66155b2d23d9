"""The estimator: it takes the parameters first and the data later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Literal, cast, overload

import polars as pl

from polars_kmeans import _arrays, _plugin
from polars_kmeans._options import FitOptions
from polars_kmeans._progress import OnProgress
from polars_kmeans._typing import Device, Init, IntoArray, IntoFeatures, Scale
from polars_kmeans.model import KMeansModel

if TYPE_CHECKING:
    # Type checkers know this module. For them, plain `KMeans` is the estimator whose fit always returns a model.
    from typing_extensions import TypeVar

    _Fitted = TypeVar("_Fitted", bound="KMeansModel | None", default=KMeansModel, covariant=True)
else:
    from typing import TypeVar

    _Fitted = TypeVar("_Fitted")


class KMeans(Generic[_Fitted]):
    """A k-means estimator. It takes the parameters of :func:`polars_kmeans.kmeans`, with the same meaning.

    Examples
    --------
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
        k: int,
        *,
        weight: str | pl.Expr | None = ...,
        init: Init = ...,
        n_init: int | Literal["auto"] = ...,
        seed: int = ...,
        oversampling: float = ...,
        rounds: int = ...,
        chain_length: int = ...,
        init_sample: int | None = ...,
        max_iter: int = ...,
        tol: float = ...,
        tol_labels: float = ...,
        metric: Literal["euclidean", "cosine"] = ...,
        scale: Scale = ...,
        null_policy: Literal["raise", "skip"] = ...,
        row_order: Literal["given", "values"] = ...,
        history: Literal["light", "full"] = ...,
        device: Device = ...,
        device_memory_limit: int | None = ...,
        too_few: Literal["raise"] = ...,
    ) -> None: ...

    @overload
    def __init__(
        self: KMeans[KMeansModel | None],
        k: int,
        *,
        weight: str | pl.Expr | None = ...,
        init: Init = ...,
        n_init: int | Literal["auto"] = ...,
        seed: int = ...,
        oversampling: float = ...,
        rounds: int = ...,
        chain_length: int = ...,
        init_sample: int | None = ...,
        max_iter: int = ...,
        tol: float = ...,
        tol_labels: float = ...,
        metric: Literal["euclidean", "cosine"] = ...,
        scale: Scale = ...,
        null_policy: Literal["raise", "skip"] = ...,
        row_order: Literal["given", "values"] = ...,
        history: Literal["light", "full"] = ...,
        device: Device = ...,
        device_memory_limit: int | None = ...,
        too_few: Literal["null"],
    ) -> None: ...

    def __init__(
        self,
        k: int,
        *,
        weight: str | pl.Expr | None = None,
        init: Init = "k-means++",
        n_init: int | Literal["auto"] = "auto",
        seed: int = 0,
        oversampling: float = 2.0,
        rounds: int = 5,
        chain_length: int = 200,
        init_sample: int | None = None,
        max_iter: int = 300,
        tol: float = 0.0001,
        tol_labels: float = 0.0,
        metric: Literal["euclidean", "cosine"] = "euclidean",
        scale: Scale = None,
        null_policy: Literal["raise", "skip"] = "raise",
        row_order: Literal["given", "values"] = "given",
        history: Literal["light", "full"] = "light",
        device: Device = "auto",
        device_memory_limit: int | None = None,
        too_few: Literal["raise", "null"] = "raise",
    ) -> None:
        self._options = FitOptions(
            k=k,
            init=init,
            n_init=n_init,
            seed=seed,
            oversampling=oversampling,
            rounds=rounds,
            chain_length=chain_length,
            init_sample=init_sample,
            max_iter=max_iter,
            tol=tol,
            tol_labels=tol_labels,
            metric=metric,
            scale=scale,
            null_policy=null_policy,
            row_order=row_order,
            history=history,
            device=device,
            device_memory_limit=device_memory_limit,
            too_few=too_few,
        )
        if weight is not None:
            _plugin.weight_expr(weight)
        self._weight = weight

    @overload
    def fit(self, data: pl.DataFrame | pl.LazyFrame, *columns: IntoFeatures, progress: OnProgress = ...) -> _Fitted: ...

    @overload
    def fit(self, data: IntoArray, *, sample_weight: IntoArray | None = ..., progress: OnProgress = ...) -> _Fitted: ...

    def fit(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoArray,
        *columns: IntoFeatures,
        sample_weight: IntoArray | None = None,
        progress: OnProgress = None,
    ) -> _Fitted:
        """Fit the columns of a frame, or an array. The query of a LazyFrame runs once.

        An array is read where it is: in the memory of the host or of a GPU, row-major, column-major or any part of an
        array. Nothing may write to it during the call. A fit of an array on a GPU runs there, after the work that is
        queued for the array.

        Parameters
        ----------
        data
            A frame. Or an array of rows x features (one dimension: one feature) of float16, bfloat16, float32 or
            float64, with `__dlpack__` or `__array_interface__`: of NumPy, torch, CuPy, JAX. Or a data frame on a GPU
            with `__arrow_c_device_array__`: of cuDF. The features of an array are named `column_0`, `column_1`, ...
        *columns
            The features of a frame: column names, expressions or selectors of numbers or booleans, or one Array or List
            column of such values with rows of one width.
        sample_weight
            Beside an array: one non-negative weight a row, as an array of one dimension.
        progress
            True shows a bar (with tqdm). A function is called with a :class:`polars_kmeans.Progress` when the rows are
            there, when a restart has its starting centroids, and after each iteration. On a GPU, the calls for several
            iterations come together. If it returns True, the fit stops with a :class:`CancelledError`; an exception
            that it raises stops the fit too. Ctrl-C stops a fit without it.

        Returns
        -------
        KMeansModel
            The fitted model. With `too_few="null"`, None if there are fewer distinct rows than clusters.

        Raises
        ------
        KMeansError
            For values, columns or parameters that cannot be clustered, or a device that cannot be used: see
            :mod:`polars_kmeans.errors`.

        """
        if _arrays.is_array(data):
            _arrays.alone(data, columns, self._weight)
            fit = _arrays.fit(data, sample_weight, self._options, progress)
        else:
            _plugin.check_frame(data)
            _arrays.no_weights(sample_weight)
            fit = _plugin.fit(data, _plugin.features(columns), self._options, self._weight, progress)
        # The overloads of `__init__` tell type checkers when the result can be None.
        return cast("_Fitted", None if fit is None else KMeansModel._of_fit(*fit))
