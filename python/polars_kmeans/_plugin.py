"""The one place that knows where the library is and how its functions are called."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl
from polars.plugins import register_plugin_function

from polars_kmeans._typing import History, Init, IntoFeatures, NullPolicy, Output, TooFew

_LIBRARY = Path(__file__).parent


def features(columns: tuple[IntoFeatures, ...]) -> list[pl.Expr]:
    """Feature columns as expressions: names, expressions, selectors, or lists of them."""
    exprs: list[pl.Expr] = []
    for item in columns:
        if isinstance(item, str):
            exprs.append(pl.col(item))
        elif isinstance(item, pl.Expr):
            exprs.append(item)
        elif isinstance(item, Iterable):
            exprs.extend(features(tuple(item)))
        else:
            msg = f"features: expected column names or expressions, got {type(item).__name__}"
            raise TypeError(msg)
    if not exprs:
        msg = "features: expected at least one column, got none"
        raise ValueError(msg)
    return exprs


@dataclass(frozen=True)
class FitOptions:
    """How a fit is asked for; checked by the engine, which has all the rules."""

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

    def __post_init__(self) -> None:
        """Refuse what cannot travel to the engine: integers that are none."""
        for name in ("k", "max_iter", "seed", "n_init"):
            value = getattr(self, name)
            if name == "n_init" and value == "auto":
                continue
            if isinstance(value, bool) or not hasattr(type(value), "__index__"):
                msg = f"{name}: expected an integer, got {value!r}"
                raise TypeError(msg)
            if name != "seed" and not -(2**63) <= value < 2**63:
                msg = f"{name}: expected an integer below 2^63, got {value}"
                raise ValueError(msg)

    def kwargs(self, output: Output) -> dict[str, Any]:
        """Return the keywords of the plugin call."""
        return {
            "k": int(self.k),
            "init": self.init if isinstance(self.init, str) else "given",
            "n_init": None if self.n_init == "auto" else int(self.n_init),
            "max_iter": int(self.max_iter),
            "tol": float(self.tol),
            "tol_labels": float(self.tol_labels),
            "seed": str(int(self.seed)),
            "null_policy": self.null_policy,
            "too_few": self.too_few,
            "history": self.history,
            "output": output,
        }


def _expr(weight: str | pl.Expr) -> pl.Expr:
    """Weights as one expression of one column."""
    expr = pl.col(weight) if isinstance(weight, str) else weight
    if expr.meta.has_multiple_outputs():
        msg = "weight: expected one column, got an expression of several"
        raise ValueError(msg)
    return expr


def _centroids(init: pl.DataFrame | Sequence[Sequence[float]]) -> tuple[bytes, int, list[str] | None]:
    """Encode starting centroids (float64, row-major); also return their width and the names of a frame's columns."""
    names = None
    if isinstance(init, pl.DataFrame):
        init = init.drop("cluster", "size", "inertia", strict=False).cast(pl.Float64)
        names = init.columns
    rows = [
        [float("nan") if value is None else float(value) for value in row]
        for row in (init.rows() if isinstance(init, pl.DataFrame) else init)
    ]
    widths = {len(row) for row in rows}
    if len(widths) != 1:
        msg = f"init: expected rows of one width, got {sorted(widths)}"
        raise ValueError(msg)
    return array("d", [value for row in rows for value in row]).tobytes(), widths.pop(), names


def fit(
    function: Literal["kmeans", "fit_model"],
    exprs: list[pl.Expr],
    options: FitOptions,
    weight: str | pl.Expr | None,
    output: Output = "label",
) -> pl.Expr:
    """Call a fitting function of the library over whole columns."""
    args = list(exprs)
    if weight is not None:
        args.append(_expr(weight))
    given = not isinstance(options.init, str)
    width, names = 0, None
    if not isinstance(options.init, str):
        values, width, names = _centroids(options.init)
        args.append(pl.lit(values, dtype=pl.Binary))
    return register_plugin_function(
        plugin_path=_LIBRARY,
        function_name=function,
        args=args,
        kwargs={
            **options.kwargs(output),
            "weighted": weight is not None,
            "given": given,
            "given_width": width,
            "given_names": names,
        },
        is_elementwise=False,
        returns_scalar=function == "fit_model",
        changes_length=function == "fit_model",
        pass_name_to_apply=True,
        input_wildcard_expansion=True,
    )


def predict(exprs: list[pl.Expr], model: bytes, output: Output) -> pl.Expr:
    """Label rows under a model, morsel by morsel."""
    return register_plugin_function(
        plugin_path=_LIBRARY,
        function_name="predict",
        args=[*exprs, pl.lit(model, dtype=pl.Binary)],
        kwargs={"output": output},
        is_elementwise=True,
        input_wildcard_expansion=True,
    )


def score(exprs: list[pl.Expr], model: bytes, weight: str | pl.Expr | None) -> pl.Expr:
    """Score rows under a model."""
    args = list(exprs)
    if weight is not None:
        args.append(_expr(weight))
    return register_plugin_function(
        plugin_path=_LIBRARY,
        function_name="score",
        args=[*args, pl.lit(model, dtype=pl.Binary)],
        kwargs={"weighted": weight is not None},
        returns_scalar=True,
        changes_length=True,
        input_wildcard_expansion=True,
    )


def item(frame: pl.DataFrame | pl.LazyFrame, expr: pl.Expr) -> Any:
    """Evaluate an expression of one value over a frame; a LazyFrame's query runs once."""
    result = frame.select(expr)
    return (result if isinstance(result, pl.DataFrame) else result.collect()).item()
