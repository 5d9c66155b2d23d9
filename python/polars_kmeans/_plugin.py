"""Calls the functions of the compiled library. No other module knows where it is and how it is called."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import index
from pathlib import Path
from typing import Any, Literal

import polars as pl
import polars.selectors as cs
from polars.plugins import register_plugin_function

from polars_kmeans import _internal
from polars_kmeans._typing import Device, History, Init, IntoFeatures, NullPolicy, Output, TooFew
from polars_kmeans.errors import InvalidColumnError, InvalidParameterError, typed_errors

_LIBRARY = Path(__file__).parent
# The name of the weights next to the features. A feature is unlikely to have it.
_WEIGHT = "__weight__"
_OWN_COLUMNS = ("cluster", "size", "inertia")


@dataclass(frozen=True)
class Features:
    """Feature columns as expressions, and whether any of them computes something instead of naming a column."""

    exprs: list[pl.Expr]
    computed: bool


def text(value: Any) -> str:
    """Return a plain string. Enum members and NumPy's strings have classes of their own, which cannot be passed on."""
    return str.__str__(value) if isinstance(value, str) else str(value)


def _check_name(name: str) -> None:
    if "\0" in name:
        shown = name.replace("\0", "\\0")
        msg = f'column "{shown}": expected a name without NUL characters: rename it'
        raise InvalidColumnError(msg)


def column(name: str) -> pl.Expr:
    """Select the column of exactly this name. Polars takes `*` and texts from `^` to `$` for patterns."""
    name = text(name)
    _check_name(name)
    return cs.by_name(name) if name == "*" or (name.startswith("^") and name.endswith("$")) else pl.col(name)


def _named(expr: pl.Expr) -> pl.Expr:
    """Refuse names with NULs, because Polars panics on them. A name that is not known yet is refused in the query."""
    name = expr.meta.output_name(raise_if_undetermined=False)
    if name is not None:
        _check_name(name)
        if not expr.meta.has_multiple_outputs():
            return expr
    return expr.name.replace("\0", _internal.NUL, literal=True)


def _flat(columns: Iterable[Any]) -> Iterator[str | pl.Expr]:
    for item in columns:
        if isinstance(item, (str, pl.Expr)):
            yield item
        elif isinstance(item, Iterable) and not isinstance(item, (bytes, pl.Series, pl.DataFrame)):
            yield from _flat(item)
        else:
            msg = f"features: expected column names or expressions, got {type(item).__name__}"
            if isinstance(item, (pl.DataFrame, pl.LazyFrame)):
                msg += "; these are expressions: frame.select(model.predict())"
            raise InvalidColumnError(msg)


def features(columns: tuple[IntoFeatures, ...], *, by_name: bool = True) -> Features:
    """Feature columns: names, expressions, selectors, or lists of them. A fit (`by_name`) needs different names."""
    items = [text(item) if isinstance(item, str) else item for item in _flat(columns)]
    if not items:
        msg = "features: expected at least one column, got none"
        raise InvalidColumnError(msg)
    if by_name:
        seen = set()
        for item in items:
            name = item if isinstance(item, str) else item.meta.output_name(raise_if_undetermined=False)
            if name is not None and name in seen:
                msg = f"feature names must differ, got {name!r} twice"
                raise InvalidColumnError(msg)
            seen.add(name)
    return Features(
        [column(item) if isinstance(item, str) else _named(item) for item in items],
        computed=not all(isinstance(item, str) or item.meta.is_column_selection() for item in items),
    )


def _integer(name: str, value: Any) -> int:
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        integer = index(value)
    except TypeError:
        expected = '"auto" or an integer' if name == "n_init" else "an integer"
        msg = f"{name}: expected {expected}, got {value!r:.80}"
        raise InvalidParameterError(msg) from None
    if integer.bit_length() > 128:
        msg = f"{name}: expected an integer, got one of {integer.bit_length()} bits"
        raise InvalidParameterError(msg)
    return integer


def _limit(value: Any) -> int | None:
    """Return a number of bytes as the engine takes it. A number above 2^63 - 1 becomes 2^63 - 1."""
    if value is None:
        return None
    limit = _integer("device_memory_limit", value)
    if limit < 0:
        msg = f"device_memory_limit: expected a positive number of bytes, or none for what is free, got {limit}"
        raise InvalidParameterError(msg)
    return min(limit, 2**63 - 1)


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        with _internal.FloatEnvironment():
            return float(value)
    except (TypeError, ValueError, OverflowError):
        msg = f"{name}: expected a number, got {value!r:.80}"
        raise InvalidParameterError(msg) from None


@dataclass(frozen=True)
class Given:
    """Starting centroids: float64, row-major. Also the columns' names (None if matched by position) and widths."""

    values: bytes
    names: list[str] | None
    widths: list[int]


@dataclass(frozen=True)
class FitOptions:
    """The options of a fit. The engine has all the rules, so it checks the options at once."""

    k: int
    init: Init = "k-means++"
    n_init: int | Literal["auto"] = "auto"
    max_iter: int = 300
    tol: float = 1e-4
    tol_labels: float = 0.0
    seed: int = 0
    null_policy: NullPolicy = "raise"
    too_few: TooFew = "raise"
    history: History = "light"
    device: Device = "auto"
    device_memory_limit: int | None = None
    given: Given | None = None

    def __post_init__(self) -> None:
        """Refuse values that cannot be passed to the engine, then values that the engine refuses."""
        for name in ("k", "max_iter", "n_init"):
            value = getattr(self, name)
            if not isinstance(value, str) and not -(2**63) <= _integer(name, value) < 2**63:
                msg = f"{name}: expected an integer below 2^63, got {value}"
                raise InvalidParameterError(msg)
        _internal.check_options(self.kwargs("label"))
        if not isinstance(self.init, str):
            # Convert with the engine's own rounding, so that centroids have the same bits in every host program.
            with _internal.FloatEnvironment():
                object.__setattr__(self, "given", _given(self.init))

    def kwargs(self, output: Output, *, weighted: bool = False, computed: bool = False) -> dict[str, Any]:
        """Return the keywords of the plugin call."""
        return {
            "k": _integer("k", self.k),
            "init": text(self.init) if isinstance(self.init, str) else None,
            "n_init": None
            if isinstance(self.n_init, str) and self.n_init == "auto"
            else _integer("n_init", self.n_init),
            "max_iter": _integer("max_iter", self.max_iter),
            "tol": _number("tol", self.tol),
            "tol_labels": _number("tol_labels", self.tol_labels),
            "seed": str(_integer("seed", self.seed)),
            "null_policy": text(self.null_policy),
            "too_few": text(self.too_few),
            "history": text(self.history),
            "device": text(self.device),
            "device_memory_limit": _limit(self.device_memory_limit),
            "output": text(output),
            "weighted": weighted,
            "computed": computed,
            "given": self.given.values if self.given else None,
            "given_names": self.given.names if self.given else None,
            "given_widths": self.given.widths if self.given else [],
        }


def _given(init: Any) -> Given:
    """Encode starting centroids: a frame, a model, an array, or rows of numbers."""
    if hasattr(init, "centroids"):
        init = init.centroids
    if isinstance(init, pl.DataFrame):
        frame = init.drop(_OWN_COLUMNS, strict=False)
        if frame.is_empty():
            msg = "init: expected starting centroids, got a frame without rows or columns"
            raise InvalidParameterError(msg)
        for name in frame.columns:
            _check_name(name)
        # Leave out the other columns: Polars panics on NULs in the names of a struct's fields.
        numbers = pl.DataFrame([series for series in frame if _numbers(series.dtype)])
        return Given(*_internal.encode_centroids(numbers))
    expected = "init: expected a method, a frame, or k rows of numbers"
    if _is_masked(init):
        msg = f"{expected}, got an array with masked values"
        raise InvalidParameterError(msg)
    if hasattr(init, "__array__"):
        init = init.__array__()
        if init.ndim != 2:
            msg = f"{expected}, got an array of {init.ndim} dimensions"
            raise InvalidParameterError(msg)
        if init.dtype.kind in "biuf" and init.size > 0:
            return Given(init.astype("<f8").tobytes(), None, [1] * init.shape[1])
        init = init.tolist()
    try:
        rows = [[float("nan") if value is None else float(value) for value in row] for row in init]
    except (TypeError, ValueError, OverflowError) as error:
        msg = f"{expected}, got {init!r:.80} ({error})"
        raise InvalidParameterError(msg) from None
    widths = {len(row) for row in rows}
    if len(widths) != 1 or 0 in widths:
        msg = f"init: expected rows of one width, got {sorted(widths)}"
        raise InvalidParameterError(msg)
    values = array("d", chain.from_iterable(rows))
    if sys.byteorder == "big":
        values.byteswap()
    return Given(values.tobytes(), None, [1] * widths.pop())


def _numbers(dtype: pl.DataType) -> bool:
    """Whether a column can hold starting centroids."""
    inner = dtype.inner if isinstance(dtype, (pl.Array, pl.List)) else dtype
    return inner == pl.Boolean or inner.is_numeric()


def _is_masked(values: Any) -> bool:
    """Whether a NumPy array, or any array in a list, has masked values. Without this check, the mask would be lost."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    rows = values if isinstance(values, (list, tuple)) else ()
    return any(numpy.ma.is_masked(value) for value in (values, *rows))


def weight_expr(weight: str | pl.Expr) -> pl.Expr:
    """Weights as one expression that gives one column."""
    if isinstance(weight, str):
        return column(weight).alias(_WEIGHT)
    if not isinstance(weight, pl.Expr):
        msg = f"weight: expected a column name or an expression, got {type(weight).__name__}"
        raise InvalidParameterError(msg)
    if weight.meta.has_multiple_outputs():
        msg = "weight: expected one column, got an expression of several"
        raise InvalidParameterError(msg)
    return weight.alias(_WEIGHT)


def check_process(*, runs: bool = False) -> None:
    """Refuse to work in a child that was forked after our queries, where it would hang. `runs`: a query runs next."""
    _internal.check_process(runs)


def fit(
    function: Literal["kmeans", "centroids", "fit_model"],
    features: Features,
    options: FitOptions,
    weight: str | pl.Expr | None,
    output: Output = "label",
) -> pl.Expr:
    """Call a fitting function of the library over whole columns."""
    check_process()
    args = list(features.exprs)
    if weight is not None:
        args.append(weight_expr(weight))
    kwargs = options.kwargs(output, weighted=weight is not None, computed=features.computed)
    if output != "label":
        _internal.check_options(kwargs)
    if function != "fit_model":
        # Pass one input: Polars then runs the groups of `over` and `agg` in parallel.
        args = [pl.struct(args)]
    return register_plugin_function(
        plugin_path=_LIBRARY,
        function_name=function,
        args=args,
        kwargs=kwargs,
        is_elementwise=False,
        returns_scalar=function != "kmeans",
        changes_length=function != "kmeans",
        input_wildcard_expansion=True,
    )


def _device(device: Device) -> str:
    """Return the name of a device. Refuse a text that is not the name of a device."""
    name = text(device)
    _internal.check_device(name)
    return name


def elementwise(
    function: Literal["predict", "transform"],
    exprs: list[pl.Expr],
    model: bytes,
    device: Device,
    kwargs: dict[str, Any],
) -> pl.Expr:
    """Call a function on rows under a model, one morsel at a time."""
    check_process()
    return register_plugin_function(
        plugin_path=_LIBRARY,
        function_name=function,
        args=[*exprs, pl.lit(model, dtype=pl.Binary)],
        kwargs={**kwargs, "device": _device(device)},
        is_elementwise=True,
        input_wildcard_expansion=True,
    )


def score(exprs: list[pl.Expr], model: bytes, weight: str | pl.Expr | None, device: Device) -> pl.Expr:
    """Score rows under a model."""
    check_process()
    args = list(exprs)
    if weight is not None:
        args.append(weight_expr(weight))
    return register_plugin_function(
        plugin_path=_LIBRARY,
        function_name="score",
        args=[*args, pl.lit(model, dtype=pl.Binary)],
        kwargs={"weighted": weight is not None, "device": _device(device)},
        returns_scalar=True,
        changes_length=True,
        input_wildcard_expansion=True,
    )


def item(frame: pl.DataFrame | pl.LazyFrame, expr: pl.Expr) -> Any:
    """Evaluate an expression with one value over a frame. The query of a LazyFrame runs once."""
    if not isinstance(frame, (pl.DataFrame, pl.LazyFrame)):
        msg = f"frame: expected a DataFrame or a LazyFrame, got {type(frame).__name__}"
        raise InvalidParameterError(msg)
    check_process(runs=True)
    with typed_errors():
        result = frame.select(expr)
        return (result if isinstance(result, pl.DataFrame) else result.collect()).item()
