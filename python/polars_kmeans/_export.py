"""The label of a model in programs without this package: one formula, written for Polars and for dialects of SQL.

The formula follows `predict` step by step: rows are rounded where it rounds them, and the norm of a direction has the
bits of the chain of fused multiply-adds. Only distances are sums without fused multiply-adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partialmethod, reduce
from operator import add, and_
from typing import Any, cast

import polars as pl

from polars_kmeans import _frames, _internal, _plugin
from polars_kmeans.errors import InvalidColumnError, InvalidParameterError

# Columns of these types, and of no others, arrive as float32.
_SINGLE = frozenset({pl.Float32, pl.Float16, pl.Boolean, pl.Int8, pl.Int16, pl.UInt8, pl.UInt16})
# How names of bound values begin. A column of such a name would hide them.
_OWN = "__pk"


def check_case(names: Sequence[str]) -> None:
    """Refuse names that differ by the case of ASCII letters only: DuckDB and SQLite take them for one name."""
    seen: dict[bytes, str] = {}
    for name in names:
        other = seen.setdefault(name.encode().lower(), name)  # the case of bytes is that of ASCII
        if other is not name:
            msg = f"features: expected names that differ by more than case, since SQL takes them for one, got {other!r}"
            raise InvalidColumnError(f"{msg} and {name!r}: fit frame.rename({{{name!r}: {name + '_2'!r}}})")


class Formula:
    """What a label is computed from."""

    def __init__(self, model: Any, types: Any) -> None:
        features = model.centroids.drop(_frames.OWN_COLUMNS)
        self.names = features.columns
        if features.dtypes[0].is_nested():
            msg = f"expected a model of columns of numbers, got one of the Array column {self.names[0]!r}"
            raise InvalidColumnError(f"model: {msg}: fit it to its fields")
        try:
            _internal.model_columns(model._encoded)
        except InvalidColumnError:
            msg = f"model: expected one of columns, got one of expressions named {self.names!r:.80}"
            hint = f"frame.with_columns(new=pl.col({self.names[0]!r}).log1p())"
            raise InvalidColumnError(f"{msg}: make columns first, as in {hint}, and fit to these") from None
        self.cosine = model.parameters["metric"] == "cosine"
        self.factors = None if model.factors is None else list(model.factors.values())
        # As the model compares them: with scaled rows.
        self.centroids: Sequence[Sequence[float]] = model._compared()
        # Whether rows are rounded to float32 when they are transformed.
        single = self._single(types) and features.dtypes[0] == pl.Float32
        self.rounded = single and (self.cosine or self.factors is not None)

    def _single(self, types: Any) -> bool:
        """Whether columns of these types arrive as float32."""
        named = {"float32": pl.Float32, "float64": pl.Float64}
        try:
            given = (
                [types[name] for name in self.names]
                if isinstance(types, Mapping)
                else ["float32" if types is None else types]
            )
            dtypes = [named[dtype] if isinstance(dtype, str) else dtype for dtype in given]
            if all(dtype in _SINGLE or dtype.is_numeric() for dtype in dtypes):
                return all(dtype in _SINGLE for dtype in dtypes)
        except (AttributeError, KeyError, TypeError):
            pass
        msg = 'types: expected "float32", "float64", a dtype of numbers, or one of these for each name, as frame.schema'
        raise InvalidParameterError(f"{msg}, got {types!r:.80}")

    def polars(self) -> pl.Expr:
        """Return the label as an expression of plain Polars."""
        return cast("pl.Expr", self._label(_Polars()))

    def sql(self, dialect: str) -> str:
        """Return the label as an expression of SQL."""
        if dialect not in _DIALECTS:
            raise InvalidParameterError(f'dialect: expected "duckdb", "sqlite" or "ansi", got {dialect!r:.80}')
        check_case(self.names)
        if self.rounded and dialect != "duckdb":
            msg = 'dialect: expected "duckdb" for a float32 model with scale or metric="cosine", got'
            hint = f'{dialect!r}, which cannot round to float32: types="float64" gives the labels of Float64 columns'
            raise InvalidParameterError(f"{msg} {hint}")
        return str(self._label(_DIALECTS[dialect]()))

    def _label(self, to: Any) -> Any:
        to.rounded = to.single if self.rounded else lambda value: value
        x = to.bind([to.column(name) for name in self.names])
        if self.factors is not None:
            x = to.bind([to.rounded(v * to.number(f)) for v, f in zip(x, self.factors, strict=True)])
        if self.cosine:
            x = self._directions(to, x)
        rows = ([(v - to.number(c)) for v, c in zip(x, row, strict=True)] for row in self.centroids)
        distances = [reduce(add, [t * t for t in row]) for row in rows]
        return to.result(reduce(and_, [to.finite(v) for v in x]), distances)

    def _directions(self, to: Any, x: list[Any]) -> list[Any]:
        """Give rows the length 1. A row of zeros becomes NaN or NULL."""
        if self.rounded:
            # The squares are exact, and so sums are those of fused multiply-adds.
            square = reduce(add, [v * v for v in x])
        else:
            # A power of two changes no bit of the result, where no square overflows or vanishes.
            (size,) = to.bind([reduce(add, [to.magnitude(v) for v in x])])
            small = to.choose(size < to.number(2.0**-300), to.number(2.0**700), to.number(1.0))
            (factor,) = to.bind([to.choose(size > to.number(2.0**300), to.number(2.0**-700), small)])
            x = to.bind([v * factor for v in x])
            square = to.chain(x)
        (norm,) = to.bind([to.root(square)])
        return list(to.bind([to.rounded(v / norm) for v in x]))


def _fused(to: Any, s: Any, y: Any) -> Any:
    """Return s + y * y as a fused multiply-add rounds it: the errors of product (Dekker) and sum (Knuth) are added."""
    p = y * y
    much = to.number(134217729.0) * y
    high = much - (much - y)
    low = y - high
    lost = ((high * high - p) + (high * low + high * low)) + low * low
    h = s + p
    return h + (((s - (h - (h - s))) + (p - (h - s))) + lost)


class _Polars:
    """Expressions of Polars. Bound values are fields of a struct."""

    def __init__(self) -> None:
        self.row: Any = None
        self.bound = 0

    column = staticmethod(lambda name: _plugin.column(name).cast(pl.Float64))
    number = staticmethod(lambda value: pl.lit(value, pl.Float64))
    single = staticmethod(lambda value: value.cast(pl.Float32).cast(pl.Float64))
    magnitude = staticmethod(pl.Expr.abs)
    root = staticmethod(pl.Expr.sqrt)
    finite = staticmethod(pl.Expr.is_finite)
    choose = staticmethod(lambda when, one, other: pl.when(when).then(one).otherwise(other))

    def bind(self, values: list[pl.Expr]) -> list[pl.Expr]:
        """Compute values once, for several uses."""
        names = [str(self.bound + place) for place in range(len(values))]
        self.bound += len(values)
        fields = [value.alias(name) for value, name in zip(values, names, strict=True)]
        self.row = pl.struct(fields) if self.row is None else self.row.struct.with_fields(fields)
        return [pl.field(name) for name in names]

    def chain(self, values: list[pl.Expr]) -> pl.Expr:
        """Add up squares from the left. With more fields, the plan would take longer."""
        row = pl.struct(pl.concat_list(values).alias("y"), self.number(0.0).alias("s"))
        for place in range(len(values)):
            row = row.struct.with_fields(_fused(self, pl.field("s"), pl.field("y").list.get(place)).alias("s"))
        return row.struct.field("s")

    def result(self, known: pl.Expr, distances: list[pl.Expr]) -> pl.Expr:
        """Return the place of the first of the least distances."""
        least = pl.concat_list(distances).list.arg_min().cast(pl.UInt32)
        self.bind([pl.when(known).then(least)])
        return cast("pl.Expr", self.row.struct.field(str(self.bound - 1)).alias("cluster"))


@dataclass(frozen=True)
class _Text:
    """An expression of SQL."""

    text: str
    sign: str = ""

    def _with(self, sign: str, other: _Text) -> _Text:
        # Sums need no parentheses from the left, and parsers take few.
        left = self.text[1:-1] if sign == self.sign else self.text
        return _Text(f"({left} {sign} {other.text})", sign)

    __add__ = partialmethod(_with, "+")
    __sub__ = partialmethod(_with, "-")
    __mul__ = partialmethod(_with, "*")
    __truediv__ = partialmethod(_with, "/")
    __lt__ = partialmethod(_with, "<")
    __gt__ = partialmethod(_with, ">")
    __and__ = partialmethod(_with, "AND")


class _Ansi:
    """SQL that many engines read. Bound values are columns of common table expressions with one row.

    DISTINCT keeps an engine from putting an expression in each place of its name: the text would grow with powers.
    """

    quote = '"'
    real = "DOUBLE PRECISION"

    def __init__(self) -> None:
        self.stages: list[str] = []

    finite = staticmethod(lambda value: _Text(f"{value.text} - {value.text} = 0"))
    magnitude = staticmethod(lambda value: _Text(f"ABS({value.text})"))
    root = staticmethod(lambda value: _Text(f"NULLIF(SQRT({value.text}), 0)"))
    choose = staticmethod(lambda when, a, b: _Text(f"CASE WHEN {when.text} THEN {a.text} ELSE {b.text} END"))

    def column(self, name: str) -> _Text:
        """Return a column as float64."""
        return _Text(f"CAST({self.quote}{name.replace(self.quote, self.quote * 2)}{self.quote} AS {self.real})")

    def number(self, value: float) -> _Text:
        """Return a number as an integer and powers of two: engines need not round a decimal to the nearest float64."""
        numerator, denominator = value.as_integer_ratio()
        twos = max(0, numerator.bit_length() - 53)
        text = f"CAST({numerator >> twos} AS {self.real})"
        for sign, power in (("*", twos), ("/", denominator.bit_length() - 1)):
            text += "".join(f" {sign} {1 << min(62, power - done)}" for done in range(0, power, 62))
        return _Text(f"({text})")

    def chain(self, values: list[_Text]) -> _Text:
        """Add up squares from the left."""
        return reduce(lambda s, value: self.bind([_fused(self, s, value)])[0], values, self.number(0.0))

    def bind(self, values: list[_Text]) -> list[_Text]:
        """Compute values once, for several uses."""
        names = [f"{_OWN}{len(self.stages)}_{place}" for place in range(len(values))]
        columns = [f"{value.text} AS {name}" for value, name in zip(values, names, strict=True)]
        select = f"*, {', '.join(columns)} FROM {_OWN}_{len(self.stages)}" if self.stages else ", ".join(columns)
        self.stages.append(f"{_OWN}_{len(self.stages) + 1} AS (SELECT DISTINCT {select})")
        return [_Text(name) for name in names]

    def result(self, known: _Text, distances: list[_Text]) -> str:
        """Return the place of the first of the least distances."""
        names = [value.text for value in self.bind(distances)]
        least = [" AND ".join(f"{name} <= {other}" for other in names[j + 1 :]) for j, name in enumerate(names[:-1])]
        whens = " ".join(f"WHEN {condition} THEN {j}" for j, condition in enumerate([*least, "0 = 0"]))
        # Not a WHERE: SQLite would write its condition in terms of the columns, whose text grows with powers.
        select = f"SELECT CASE WHEN {known.text} THEN CASE {whens} END END FROM {_OWN}_{len(self.stages)}"
        return f"(WITH {', '.join(self.stages)} {select})"


class _Sqlite(_Ansi):
    """SQLite takes a name in double quotes that no column has for a text, and a column may hold texts."""

    quote = "`"
    real = "REAL"

    def column(self, name: str) -> _Text:
        """Return a column as float64. A text has no value."""
        value = super().column(name).text
        return _Text(f"CASE WHEN typeof({value[5:-9]}) IN ('real', 'integer') THEN {value} END")


class _Duckdb(_Ansi):
    """Plain expressions, which can stream. Bound values are fields of the one item of a list."""

    real = "DOUBLE"
    single = staticmethod(lambda value: _Text(f"TRY_CAST({value.text} AS FLOAT)::DOUBLE"))
    # Without an exponent, DuckDB reads a decimal, whose conversion has another rounding.
    number = staticmethod(lambda value: _Text(repr(value) if "e" in repr(value) else f"{value!r}e0"))

    def bind(self, values: list[_Text]) -> list[_Text]:
        """Compute values once, for several uses."""
        name = f"{_OWN}{len(self.stages)}"
        self.stages.append(", ".join(f"'f{place}': {value.text}" for place, value in enumerate(values)))
        return [_Text(f"{name}.f{place}") for place in range(len(values))]

    def chain(self, values: list[_Text]) -> _Text:
        """Add up squares from the left."""
        s, y = _Text(f"{_OWN}s"), _Text(f"{_OWN}y")
        items = ", ".join(value.text for value in values)
        return _Text(f"list_reduce([0e0, {items}], lambda {s.text}, {y.text}: {_fused(self, s, y).text})")

    def result(self, known: _Text, distances: list[_Text]) -> str:
        """Return the place of the first of the least distances."""
        least, items = f"{_OWN}d", ", ".join(value.text for value in distances)
        place = f"[list_position({least}, list_min({least})) - 1 FOR {least} IN [[{items}]]][1]"
        text = f"CASE WHEN {known.text} THEN {place}::UINTEGER END"
        for number, fields in reversed(list(enumerate(self.stages))):
            text = f"[{text} FOR {_OWN}{number} IN [{{{fields}}}]][1]"
        return text


_DIALECTS = {"duckdb": _Duckdb, "sqlite": _Sqlite, "ansi": _Ansi}
