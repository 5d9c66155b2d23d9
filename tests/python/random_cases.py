"""Draws frames and parameters of every kind for test_random_frames.py, with the numbers that they mean."""

import math
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
from hypothesis import strategies as st

NARROW = [pl.Float32, pl.Float16, pl.Boolean, pl.Int8, pl.Int16, pl.UInt8, pl.UInt16]
WIDE = [pl.Float64, pl.Int32, pl.Int64, pl.UInt32, pl.UInt64, pl.Int128, pl.UInt128, pl.Decimal(18, 3)]
FLOATS = [pl.Float32, pl.Float64]
RANGES: dict[Any, tuple[int, int]] = {
    **{
        dtype: (-(2**bits), 2**bits - 1)
        for dtype, bits in ((pl.Int8, 7), (pl.Int16, 15), (pl.Int32, 31), (pl.Int64, 63), (pl.Int128, 127))
    },
    **{
        dtype: (0, 2**bits - 1)
        for dtype, bits in ((pl.UInt8, 8), (pl.UInt16, 16), (pl.UInt32, 32), (pl.UInt64, 64), (pl.UInt128, 128))
    },
}
# Values that have caused errors: denormals, the ends of the accepted range, ties made by rounding.
TINY = {
    pl.Float16: [6e-8, 6.1e-5],
    pl.Float32: [2.0**-149, 3e-39, 2.0**-126, 1e-30],
    pl.Float64: [5e-324, 2.0**-1022, 1e-160, 2.0**-451, 2.0**-450, 2.0**-66],
}
HUGE = {
    pl.Float16: [65504.0, -65504.0],
    pl.Float32: [3.4028234663852886e38, -1e38, 9.97e36, 1e17],
    pl.Float64: [2.0**450, -(2.0**450), -1e120, 3e120, 1e17],
}
EXTREME_WEIGHTS = [1.0, 0.0, -0.0, -1.0, 1e-30, 1e-9, 2.0**64, 2.0**65, 2.0**-64, 5e-324]
NOT_NUMBERS: list[tuple[str, Any]] = [
    ("string", lambda n: pl.Series(["a"] * n, dtype=pl.String)),
    ("date", lambda n: pl.Series([date(2020, 1, 1)] * n, dtype=pl.Date)),
    ("categorical", lambda n: pl.Series(["a"] * n, dtype=pl.Categorical)),
    ("struct", lambda n: pl.Series([{"a": 1.0}] * n, dtype=pl.Struct({"a": pl.Float64}))),
    ("null", lambda n: pl.Series([None] * n, dtype=pl.Null)),
    ("list of strings", lambda n: pl.Series([["a"]] * n, dtype=pl.List(pl.String))),
    ("array of arrays", lambda n: pl.Series([[[1.0]]] * n, dtype=pl.Array(pl.Array(pl.Float64, 1), 1))),
    ("object", lambda n: pl.Series([object() for _ in range(n)], dtype=pl.Object)),
]


@dataclass
class Case:
    """A frame, parameters, and the numbers that the library must read from them."""

    frame: pl.DataFrame
    features: list[str]
    options: dict[str, Any]
    # The families of errors that the columns alone must give.
    refused: set[str] = field(default_factory=set)
    # One entry per row: its features as float64, with None for null. The entry is None for a null row.
    rows: list[Any] = field(default_factory=list)
    d: int = 0
    wide: bool = False
    weights: list[Any] | None = None
    # Starting centroids in feature order, as they were given.
    given: list[list[float]] | None = None
    output: str = "label"
    stream: bool = False
    groups: int = 0
    query: pl.DataFrame | None = None

    def is_finite(self, i: int) -> bool:
        row = self.rows[i]
        return row is not None and all(x is not None and math.isfinite(x) for x in row)

    def kept(self) -> list[int]:
        """Return the rows without nulls, NaNs and infinities, weights included."""
        w = self.weights
        return [
            i
            for i in range(len(self.rows))
            if self.is_finite(i) and (w is None or (w[i] is not None and math.isfinite(w[i])))
        ]


def values(draw: Any, n: int, dtype: Any, *, dirty: bool, extreme: bool) -> list[Any]:
    """Values of a column: a few different ones, to get ties and duplicates, or many."""
    if dtype == pl.Boolean:
        palette: list[Any] = [False, True]
    elif dtype in RANGES:
        low, high = RANGES[dtype]
        palette = [v for v in range(-3, 4) if v >= low] + ([low, high] if extreme else [])
    elif isinstance(dtype, pl.Decimal):
        palette = [Decimal(v) for v in ("0", "1", "-1", "0.1", "2.125", "7", *["99999999999.999"][:extreme])]
    else:
        kind = draw(st.sampled_from(["integers", "palette", "normal"]))
        if kind == "normal":
            rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
            scale, offset = draw(st.sampled_from([1.0, 1e-3, 100.0])), draw(st.sampled_from([0.0, 0.0, 1e3]))
            palette = (rng.normal(offset, scale, n + 1)).tolist()
        elif kind == "integers":
            palette = [0.0, 1.0, -1.0, 2.0, 3.0, -0.0]
        else:
            palette = draw(st.lists(st.floats(-100, 100), min_size=1, max_size=6))
        if extreme:
            tiny, huge = TINY[dtype], HUGE[dtype]
            pool = draw(st.sampled_from([tiny, huge, huge, tiny + huge, [*huge, 2.0**451, -1.7976931348623157e308]]))
            few = draw(st.lists(st.sampled_from([0.0, *pool]), min_size=1, max_size=4))
            palette = few if draw(st.booleans()) else palette + few[:2]
        if dirty:
            palette += [math.nan, math.inf, -math.inf]
    if dirty:
        palette.append(None)
    return [palette[place % len(palette)] for place in draw(st.binary(min_size=n, max_size=n))]


def column(draw: Any, name: str, n: int, dtype: Any, **how: bool) -> pl.Series:
    got = values(draw, n, dtype, **how)
    if dtype in (pl.Float16, pl.Float32):
        with np.errstate(over="ignore"):
            got = [None if v is None else float(np.float16(v) if dtype == pl.Float16 else np.float32(v)) for v in got]
    return pl.Series(name, got, dtype=dtype)


def floats(series: pl.Series) -> list[float | None]:
    if isinstance(series.dtype, pl.Decimal):
        series = series.cast(pl.Float64)
    return [None if v is None else float(v) for v in series.to_list()]


def in_chunks(draw: Any, series: pl.Series) -> pl.Series:
    """Cut a column at random places. Some pieces are empty."""
    cuts = sorted(draw(st.lists(st.integers(0, len(series)), max_size=3)))
    pieces = [series.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, len(series)], strict=True)]
    return pl.concat(pieces, rechunk=False)


def starting_centroids(draw: Any, case: Case, k: int) -> Any:
    """Starting centroids in any form. Sometimes they have the wrong shape."""
    names, d = case.features, case.d
    finite = [case.rows[i] for i in range(len(case.rows)) if case.is_finite(i)]
    places = draw(st.binary(min_size=k, max_size=k))
    if finite and draw(st.booleans()):
        start = [[float(x) for x in finite[place % len(finite)]] for place in places]
    else:
        start = [[float((place >> f) % 4) for f in range(d)] for place in places]
    fault = draw(st.sampled_from([None] * 12 + ["k", "width", "shape", "nan", "huge", "tiny", "name"]))
    if fault == "k":
        start = [*start, start[-1]]
    elif fault == "width":
        start = [[*row, 1.0] for row in start]
    elif fault == "shape" and d > 1:
        start = [[x] for row in start for x in row]
    elif fault == "nan":
        start[-1][-1] = draw(st.sampled_from([math.nan, math.inf]))
    elif fault == "huge":
        start[0][0] = draw(st.sampled_from([1e39, 2.0**451, 2.0**450]))
    elif fault == "tiny":
        start = [[2.0**-460] * d for _ in start]
    case.given = start
    width = len(start[0])
    nested = isinstance(case.frame[names[0]].dtype, (pl.List, pl.Array)) and len(names) == 1
    form = draw(st.sampled_from(["rows", "array", "frame", "lists"]))
    if fault == "name" or (form in ("frame", "lists") and nested):
        dtype = pl.List(pl.Float64) if form == "lists" else pl.Array(pl.Float64, width)
        if nested:
            frame = pl.DataFrame({names[0]: pl.Series(start, dtype=dtype)})
        else:
            frame = pl.DataFrame({name: [row[f % width] for row in start] for f, name in enumerate(names)})
        if fault == "name":
            case.refused.add("InvalidParameterError")
            frame = frame.rename({names[-1]: "another"})
        return frame
    if form in ("frame", "lists") and width == d:
        order = draw(st.permutations(range(d)))
        frame = pl.DataFrame({names[f]: [row[f] for row in start] for f in order})
        extra = draw(st.sampled_from([{}, {"extra": 1.0}, {"size": 3}]))
        return frame.with_columns(**{name: pl.lit(value) for name, value in extra.items()})
    return np.array(start) if form == "array" else start


def weight(draw: Any, case: Case, n: int) -> Any:
    """Weights as a column, an expression or a literal."""
    common = ["none"] * 4 + ["ones", "counts", "counts", "floats", "literal"]
    kind = draw(st.sampled_from([*common, *common, *common, "dirty", "extreme", "extreme", "bad"]))
    if kind == "none":
        return None
    if kind == "literal":
        value = draw(st.sampled_from([1.0, 2, 0.25, True, 1e-9, 7, 0, -1.0, math.nan, 2.0**-65, None, "a"]))
        if value is None or value == "a":
            case.refused.add("InvalidColumnError")
            value = None if value is None else "a"
        else:
            case.weights = [float(value)] * n
        return pl.lit(value)
    if kind == "bad":
        case.refused.add("InvalidColumnError")
        case.frame = case.frame.with_columns(w=pl.Series(["1"] * n, dtype=pl.String))
        return "w"
    palette: list[Any] = {
        "ones": [1.0],
        "counts": [0.0, 1.0, 2.0, 3.0],
        "floats": draw(st.lists(st.floats(0, 10), min_size=1, max_size=4)),
        "dirty": [1.0, 0.5, None, math.nan, math.inf],
        "extreme": draw(st.lists(st.sampled_from(EXTREME_WEIGHTS), min_size=1)),
    }[kind]
    dtypes = [pl.UInt8, pl.Int64, pl.Float32, pl.Float64] if kind in ("ones", "counts") else [pl.Float64]
    dtype = draw(st.sampled_from(dtypes))
    got = [palette[place % len(palette)] for place in draw(st.binary(min_size=n, max_size=n))]
    series = in_chunks(draw, pl.Series("w", got, dtype=pl.Float64).cast(dtype))
    case.weights = floats(series)
    case.frame = case.frame.with_columns(series)
    return draw(st.sampled_from(["w", pl.col("w"), pl.col("w").alias("v")]))


@st.composite
def cases(draw: Any) -> Case:
    n = draw(st.integers(0, 40))
    dirty, extreme = draw(st.integers(0, 3)) == 0, draw(st.integers(0, 3)) == 0
    dtypes = draw(st.sampled_from([NARROW, [*NARROW, *WIDE], FLOATS]))
    layout = draw(st.sampled_from(["columns"] * 6 + ["array", "list"]))
    d = draw(st.integers(1, 5))
    how = {"dirty": dirty, "extreme": extreme}
    if layout == "columns":
        names = draw(st.permutations(["x", "y", "z", "distance", "kmeans"]))[:d]
        series = [column(draw, name, n, draw(st.sampled_from(dtypes)), **how) for name in names]
        numbers = [floats(s) for s in series]
        case = Case(pl.DataFrame([in_chunks(draw, s) for s in series]), names, {}, d=d)
        case.rows = [list(row) for row in zip(*numbers, strict=True)]
        case.wide = any(s.dtype in WIDE for s in series)
        fault = draw(st.sampled_from([None] * 30 + ["dtype", "dtype", "beside", "twice"]))
        if fault == "dtype":
            _, make = draw(st.sampled_from(NOT_NUMBERS))
            case.frame = case.frame.with_columns(make(n).alias(names[-1]))
        elif fault == "beside" and d > 1:
            case.frame = case.frame.with_columns(pl.Series(names[-1], [[1.0]] * n, dtype=pl.Array(pl.Float64, 1)))
        elif fault == "twice":
            case.features = [*names, names[0]]
        else:
            fault = None
        if fault:
            case.refused.add("InvalidColumnError")
            case.d = len(case.features)
    else:
        dtype = draw(st.sampled_from(dtypes))
        flat = column(draw, "x", n * d, dtype, **how)
        items, as_float = flat.to_list(), floats(flat)
        rows: list[Any] = [items[i * d : i * d + d] for i in range(n)]
        numbers = [as_float[i * d : i * d + d] for i in range(n)]
        for i in draw(st.sets(st.integers(0, n - 1), max_size=2)) if dirty and n else ():
            rows[i] = numbers[i] = None
        if layout == "list" and n > 1 and draw(st.integers(0, 11)) == 0:
            rows[0], rows[1] = items[: d + 1], items[:d]
        outer = pl.Array(dtype, d) if layout == "array" else pl.List(dtype)
        x = in_chunks(draw, pl.Series("x", rows, dtype=outer))
        case = Case(pl.DataFrame([x]), ["x"], {}, rows=numbers, d=d, wide=dtype in WIDE)
        widths = {len(row) for row in rows if row is not None}
        if layout == "list" and len(widths) > 1:
            case.refused.add("InvalidParameterError")
        if layout == "list" and not widths:
            case.d = 0  # Unknown.
    k = draw(st.sampled_from([1, 2, 2, 3, 3, 4, 5, 6, 7, 8]))
    options = {
        "k": k,
        "seed": draw(st.sampled_from([0, 1, 2, 3, 2**63, 2**64 - 1])),
        "max_iter": draw(st.sampled_from([300, 300, 1, 2, 3])),
        "tol": draw(st.sampled_from([1e-4, 1e-4, 0.0, 1e10, 1e-300])),
        "tol_labels": draw(st.sampled_from([0.0, 0.0, 0.5, 2.0])),
        "n_init": draw(st.sampled_from(["auto", "auto", 1, 3])),
        "null_policy": draw(st.sampled_from(["skip", "skip", "raise"])),
        "row_order": draw(st.sampled_from(["given", "given", "values"])),
        "sort_by": draw(st.sampled_from([None, None, "size"])),
        "too_few": draw(st.sampled_from(["raise", "null"])),
    }
    inits = ["k-means++", "k-means++", "random", "given", "kmeans-parallel", "afk-mc2"]
    options["init"] = draw(st.sampled_from([*inits, "optimal"] if case.d == 1 else inits))
    if options["init"] == "given":
        options["init"] = starting_centroids(draw, case, k) if case.d and not case.refused else "random"
    options["chain_length"] = draw(st.sampled_from([200, 1, 5]))
    options["init_sample"] = draw(st.sampled_from([None, None, 1, 3, 1000]))
    options["weight"] = weight(draw, case, n)
    case.options = options
    case.output = draw(st.sampled_from(["label", "struct"]))
    case.stream = draw(st.booleans())
    case.groups = draw(st.sampled_from([0, 0, 0, 1, 2, 3]))
    dtypes = [draw(st.sampled_from(FLOATS)) for _ in range(max(d, 1))]
    query = [column(draw, f"q{f}", 5, dtype, dirty=dirty, extreme=extreme) for f, dtype in enumerate(dtypes)]
    case.query = pl.DataFrame(query)
    return case
