"""Calls the functions of the compiled library. No other module knows where it is and how it is called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, SupportsIndex

import polars as pl
import polars.selectors as cs
from polars.exceptions import ComputeError
from polars.plugins import register_plugin_function

from polars_kmeans import _frames, _internal
from polars_kmeans._options import FitOptions, check_name, device_text, text
from polars_kmeans._progress import OnProgress, shown
from polars_kmeans._spill import Spill, gather
from polars_kmeans._typing import Device, Fit, IntoFeatures
from polars_kmeans.errors import InvalidColumnError, InvalidParameterError, typed_errors

_LIBRARY = Path(__file__).parent
# Lists of columns may hold lists. What holds itself, such as a row of a sparse matrix, is no list of columns.
_DEEPEST = 9
# The name of the weights next to the features. A feature is unlikely to have it.
WEIGHT = "__weight__"
_ONE_VALUE = {"returns_scalar": True, "changes_length": True}


def _after_signals(self: ComputeError, *args: object) -> None:
    """Make the exception of a query's error, unless a signal has come: then raise what the program's handler raises."""
    _internal.check_signals()
    super(ComputeError, self).__init__(*args)


# Polars makes this exception when a query is back in Python. If Ctrl-C stopped the query, nothing else runs the handler
# of SIGINT before the program gets the exception.
ComputeError.__init__ = _after_signals  # type: ignore[method-assign,assignment]


@dataclass(frozen=True)
class Features:
    """Feature columns, and whether any of them computes something instead of naming a column."""

    items: list[str | pl.Expr]
    """Names, and expressions without names that cannot be passed on."""
    computed: bool
    names: list[str] | None
    """The names, if these are names of columns and nothing else."""

    @cached_property
    def exprs(self) -> list[pl.Expr]:
        """All of them as expressions. A fit of columns that are named needs none."""
        return [column(item) if isinstance(item, str) else item for item in self.items]


def column(name: str) -> pl.Expr:
    """Select the column of exactly this name. Polars takes `*` and texts from `^` to `$` for patterns."""
    name = text(name)
    check_name(name)
    return cs.by_name(name) if name == "*" or (name.startswith("^") and name.endswith("$")) else pl.col(name)


def _named(expr: pl.Expr) -> pl.Expr:
    """Refuse names with NULs, because Polars panics on them. A name that is not known yet is refused in the query."""
    name = expr.meta.output_name(raise_if_undetermined=False)
    if name is not None:
        check_name(name)
        if not expr.meta.has_multiple_outputs():
            return expr
    return expr.name.replace("\0", _internal.NUL, literal=True)


def flat(columns: Iterable[Any], depth: int = 0) -> Iterator[str | pl.Expr]:
    """Yield names and expressions one by one. Refuse other values, and collections without an order."""
    expected = "features: expected column names or expressions"
    for item in columns:
        if isinstance(item, (str, pl.Expr)):
            yield item
        elif isinstance(item, (set, frozenset)):
            msg = f"features: expected an order, got a {type(item).__name__}, which has none: pass a list"
            raise InvalidColumnError(msg)
        elif any(hasattr(type(item), protocol) for protocol in ("__dlpack__", "__array_interface__")):
            msg = f"{expected}, got an array ({_frames.type_name(item)})"
            raise InvalidColumnError(f"{msg}: KMeans(k).fit(array) takes arrays")
        elif (
            isinstance(item, Iterable)
            and not isinstance(item, (bytes, Mapping, pl.Series, pl.DataFrame))
            and depth < _DEEPEST
        ):
            yield from flat(item, depth + 1)
        else:
            msg = f"{expected}, got {_frames.type_name(item)}"
            if isinstance(item, (pl.DataFrame, pl.LazyFrame)):
                msg += ": an expression is part of a query, as in frame.select(...)"
            elif isinstance(item, pl.Series):
                msg += ": pass its name, and the frame that it is in"
            elif isinstance(item, SupportsIndex):
                msg += f': names are texts, as "{item}"'
            raise InvalidColumnError(msg)


def items_of(columns: tuple[IntoFeatures, ...]) -> list[str | pl.Expr]:
    """Return names and expressions one by one. There must be some."""
    items = [text(item) if isinstance(item, str) else item for item in flat(columns)]
    if not items:
        raise InvalidColumnError("features: expected at least one column, got none: name columns, or pass pl.all()")
    return items


def features(columns: tuple[IntoFeatures, ...], *, by_name: bool = True) -> Features:
    """Feature columns: names, expressions, selectors, or lists of them. A fit (`by_name`) needs different names."""
    items = items_of(columns)
    if by_name:
        seen = set()
        for item in items:
            name = item if isinstance(item, str) else item.meta.output_name(raise_if_undetermined=False)
            if name is not None and name in seen:
                raise InvalidColumnError(f"feature names must differ, got {name!r} twice: rename one with .alias")
            seen.add(name)
    names = [item for item in items if isinstance(item, str)]
    for name in names:
        check_name(name)
    return Features(
        [item if isinstance(item, str) else _named(item) for item in items],
        computed=not all(isinstance(item, str) or item.meta.is_column_selection() for item in items),
        names=names if len(names) == len(items) else None,
    )


def weight_expr(weight: str | pl.Expr) -> pl.Expr:
    """Weights as one expression that gives one column."""
    if isinstance(weight, str):
        return column(weight).alias(WEIGHT)
    if not isinstance(weight, pl.Expr):
        raise InvalidParameterError(f"weight: expected a column name or an expression, got {type(weight).__name__}")
    if weight.meta.has_multiple_outputs():
        raise InvalidParameterError("weight: expected one column, got an expression of several")
    return weight.alias(WEIGHT)


def weights(weight: str | pl.Expr | None) -> list[pl.Expr]:
    """Return the weights as an expression, if there are any."""
    return [] if weight is None else [weight_expr(weight)]


def check_process(*, runs: bool = False) -> None:
    """Refuse to work in a child process that was forked after our queries: it would hang. `runs`: a query runs next."""
    _internal.check_process(runs)


def _call(function: str, args: list[pl.Expr], kwargs: dict[str, Any], **flags: bool) -> pl.Expr:
    """Call a function of the library. The flags tell Polars what the function does with rows."""
    return register_plugin_function(
        plugin_path=_LIBRARY,
        function_name=function,
        args=args,
        kwargs=kwargs,
        input_wildcard_expansion=True,
        **flags,
    )


def expression(
    function: Literal["kmeans", "centroids"], features: Features, options: FitOptions, weight: str | pl.Expr | None
) -> pl.Expr:
    """Call a fitting function of the library over whole columns."""
    check_process()
    # Pass one input: Polars then runs the groups of `over` and `agg` in parallel.
    rows = pl.struct(*features.exprs, *weights(weight))
    kwargs = {**options.keywords, "weighted": weight is not None}
    return _call(function, [rows], kwargs, **(_ONE_VALUE if function == "centroids" else {}))


def fit(
    frame: pl.DataFrame | pl.LazyFrame,
    features: Features,
    options: FitOptions,
    weight: str | pl.Expr | None,
    progress: OnProgress = None,
    spill: Spill | None = None,
    *,
    labels: bool = False,
) -> tuple[Fit, pl.Series | None] | None:
    """Fit columns of a frame on this thread, with the labels of the rows if they are wanted, else None.

    The query of a LazyFrame runs once. `spill`: where its rows go. Returns None if there are too few rows and the
    options ask for it.
    """
    with shown(progress) as call:
        columns = _held(frame, features, weight, spill or Spill())
        keywords = {**options.keywords, "weighted": weight is not None}
        return _internal.fit(columns, keywords, features.computed, call, labels)


def fit_tree(
    frame: pl.DataFrame | pl.LazyFrame,
    features: Features,
    options: FitOptions,
    weight: str | pl.Expr | None,
    growth: dict[str, Any],
) -> tuple[bytes, pl.Series] | None:
    """Fit a tree to columns of a frame: the encoded tree, and the leaf of each row."""
    columns = _held(frame, features, weight, Spill())
    return _internal.fit_tree(columns, {**options.keywords, "weighted": weight is not None}, growth, features.computed)


def fit_each(
    frame: pl.DataFrame, features: Features, options: FitOptions, weight: str | pl.Expr | None, k: list[int]
) -> list[Fit | None]:
    """Fit columns of a frame once for each of these numbers of clusters, instead of that of the options."""
    columns = _held(frame, features, weight, Spill())
    return _internal.fit_each(columns, {**options.keywords, "weighted": weight is not None}, k, features.computed)


_NUMBERS = frozenset({
    pl.Float32, pl.Float64,
    pl.Int8, pl.Int16, pl.Int32, pl.Int64,
    pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64,
})  # fmt: skip


def plain(frame: Any, names: Iterable[Any]) -> list[pl.Series] | None:
    """Return columns of numbers that are named: no query is needed for them. Else None."""
    if not isinstance(frame, pl.DataFrame) or frame.height == 0:
        return None
    try:
        columns = [frame.get_column(name) for name in names]
    except (pl.exceptions.PolarsError, TypeError):
        # These are expressions, or the query says what is wrong.
        return None
    return columns if all(column.dtype in _NUMBERS for column in columns) else None


def _held(
    frame: pl.DataFrame | pl.LazyFrame, features: Features, weight: str | pl.Expr | None, spill: Spill
) -> _internal.Columns:
    """Run the query of a frame, and hold the columns of features and weights for a fit."""
    check_process(runs=True)
    columns = _internal.Columns()
    if features.names is not None and (named := plain(frame, [*features.names, *([] if weight is None else [weight])])):
        columns.take([series.name for series in named], named, weight is not None)
        return columns
    kwargs = {"key": columns.key, "weighted": weight is not None}
    hold = _call("hold", [*features.exprs, *weights(weight)], kwargs, **_ONE_VALUE)
    if isinstance(frame, pl.DataFrame):
        item(frame, hold)
        return columns
    with typed_errors():
        # The schema alone refuses columns, as that of an expression does. No row is read.
        frame.select(hold).collect_schema()
        query = frame.select(features.exprs)
        if weight is not None:
            taken = query.collect_schema().names()
            name = next(name for i in range(len(taken) + 1) if (name := f"{WEIGHT}{i}") not in taken)
            query = frame.select(*features.exprs, weight_expr(weight).alias(name))
    gather(query, columns, spill, weighted=weight is not None)
    return columns


def check_row_by_row(exprs: Iterable[Any]) -> None:
    """Refuse expressions whose values depend on other rows, as far as Polars knows: a part would have its own values.

    Polars takes an aggregation such as `x / x.max()` for one of single rows.
    """
    for expr in exprs:
        if isinstance(expr, pl.Expr) and not cs.is_selector(expr) and not _separable(expr):
            got = f"got {expr!s:.80}: compute it before"
            raise InvalidParameterError(f"columns: expected expressions of single rows for rows in parts, {got}")


def _separable(expr: pl.Expr) -> bool:
    try:
        return expr.meta.is_row_separable()
    except pl.exceptions.PolarsError:
        # Polars does not say it of expressions with selectors.
        return True


def collect(query: pl.LazyFrame) -> pl.DataFrame:
    """Run a query. Its errors are those of this package."""
    check_process(runs=True)
    with typed_errors():
        return query.collect()


def device_name(device: Device) -> str:
    """Return the name of a device. Refuse a text that is not the name of a device."""
    name = device_text(device)
    _internal.check_device(name)
    return name


def _literal(model: bytes) -> pl.Expr:
    """Pass a model on as one value, which Polars pushes filters past. Polars copies no list, but it copies bytes.

    Plans and errors show two values of a list and the last one. These are short, so they show no bytes of the model.
    """
    return pl.lit([b"model", b"", model, b""], dtype=pl.List(pl.Binary))


def row_by_row(function: str, exprs: list[pl.Expr], kwargs: dict[str, Any]) -> pl.Expr:
    """Call a function on rows, one morsel at a time."""
    check_process()
    return _call(function, exprs, kwargs, is_elementwise=True)


def of_model(function: str, exprs: list[pl.Expr], model: bytes, kwargs: dict[str, Any], *, scalar: bool) -> pl.Expr:
    """Call a function on rows under a model or a tree: one morsel at a time, or on all rows for one value."""
    exprs = [*exprs, _literal(model)]
    return _call(function, exprs, kwargs, **_ONE_VALUE) if scalar else row_by_row(function, exprs, kwargs)


def elementwise(
    function: Literal["predict", "transform"],
    exprs: list[pl.Expr],
    model: bytes,
    device: Device,
    kwargs: dict[str, Any],
) -> pl.Expr:
    """Call a function on rows under a model, one morsel at a time."""
    return row_by_row(function, [*exprs, _literal(model)], {**kwargs, "device": device_name(device)})


def nearest_clusters(exprs: list[pl.Expr], model: bytes, m: int, *, squared: bool, device: Device) -> pl.Expr:
    """Find the nearest centroids of rows, one morsel at a time."""
    kwargs = {"m": m, "squared": squared, "device": device_name(device)}
    return row_by_row("nearest_clusters", [*exprs, _literal(model)], kwargs)


def answer_columns(model: bytes, columns: list[pl.Series], device: Device, kwargs: dict[str, Any]) -> pl.Series:
    """Call a function on columns of numbers under a model, without a query."""
    check_process(runs=True)
    names, output, complete = [series.name for series in columns], kwargs.get("output"), kwargs.get("complete", False)
    squared = kwargs.get("squared", False)
    return _internal.answer_columns(model, names, columns, device_name(device), output, complete, squared)


def sums(
    exprs: list[pl.Expr],
    model: bytes,
    names: list[str],
    weight: str | pl.Expr | None,
    labels: str | pl.Expr | None,
    extents: list[float] | None,
) -> pl.Expr:
    """Add up rows by their cluster."""
    check_process()
    label = [] if labels is None else [column(labels) if isinstance(labels, str) else labels]
    kwargs = {"names": names, "weighted": weight is not None, "labelled": labels is not None, "extents": extents}
    return _call("sums", [*exprs, *weights(weight), *label, _literal(model)], kwargs, **_ONE_VALUE)


def assign(exprs: list[pl.Expr], model: bytes, options: FitOptions, weight: str | pl.Expr | None) -> pl.Expr:
    """Label rows under a model, with bounds on the sizes of the clusters."""
    check_process()
    kwargs = {**options.keywords, "weighted": weight is not None}
    return _call("assign", [*exprs, *weights(weight), _literal(model)], kwargs)


def score(exprs: list[pl.Expr], model: bytes, weight: str | pl.Expr | None, device: Device) -> pl.Expr:
    """Score rows under a model."""
    check_process()
    kwargs = {"weighted": weight is not None, "device": device_name(device)}
    return _call("score", [*exprs, *weights(weight), _literal(model)], kwargs, **_ONE_VALUE)


def item(frame: pl.DataFrame | pl.LazyFrame, expr: pl.Expr) -> Any:
    """Evaluate an expression with one value over a frame. The query of a LazyFrame runs once."""
    check_process(runs=True)
    with typed_errors():
        result = frame.select(expr)
        return (result if isinstance(result, pl.DataFrame) else result.collect()).item()
