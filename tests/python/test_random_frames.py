"""Random frames and parameters through the public API: refused as the documentation says, or answered rightly.

What must happen is decided here, from the values and the parameters alone. Answers are held to reference distances that
are computed here: float64, in feature order, each step rounded as a fused multiply-add rounds.

By default 300 frames, always the same; RANDOM_FRAMES=10000 takes so many others, and --hypothesis-seed says which.
"""

import math
import os
import re
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from polars.exceptions import ComputeError

import polars_kmeans as pk

EXAMPLES = int(os.environ.get("RANDOM_FRAMES", "300"))

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
# Values that hurt: denormals, the ends of what is accepted, ties made by rounding.
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


def mul_add(t: float, s: float) -> float:
    """Return t * t + s, rounded once."""
    p = t * t
    if s == 0.0:
        return p
    if 2.0**-480 < abs(t) < 2.0**500 and s < 2.0**1000:
        # The rest of the product is a float too (Dekker 1971), and fsum rounds the sum of floats once.
        high = t * 134217729.0
        high -= high - t
        low = t - high
        return math.fsum((s, p, ((high * high - p) + 2.0 * high * low) + low * low))
    if math.isinf(p) or math.isinf(s):
        return math.inf
    try:
        return float(Fraction(t) * Fraction(t) + Fraction(s))
    except OverflowError:
        return math.inf


def squared(x: list[float], c: list[float]) -> float:
    s = 0.0
    for a, b in zip(x, c, strict=True):
        s = mul_add(a - b, s)
    return s


@dataclass
class Case:
    """A frame, parameters, and what they are to the library: numbers."""

    frame: pl.DataFrame
    features: list[str]
    options: dict[str, Any]
    # Families of the refusals that the columns themselves call for.
    refused: set[str] = field(default_factory=set)
    # One a row: its features as float64, None for null; None for a null row.
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
    """Values of a column: few different ones, as ties and duplicates need; or many."""
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
    """Cut a column at random places, also into nothing."""
    cuts = sorted(draw(st.lists(st.integers(0, len(series)), max_size=3)))
    pieces = [series.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, len(series)], strict=True)]
    return pl.concat(pieces, rechunk=False)


def starting_centroids(draw: Any, case: Case, k: int) -> Any:
    """Starting centroids of any form; sometimes of the wrong shape."""
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
        names = draw(st.permutations(["x", "y", "z", "label", "kmeans"]))[:d]
        series = [column(draw, name, n, draw(st.sampled_from(dtypes)), **how) for name in names]
        numbers = [floats(s) for s in series]
        case = Case(pl.DataFrame([in_chunks(draw, s) for s in series]), names, {}, d=d)
        case.rows = [list(row) for row in zip(*numbers, strict=True)]
        case.wide = any(s.dtype in WIDE for s in series)
        fault = draw(st.sampled_from([None] * 30 + ["dtype", "dtype", "beside", "twice", "reserved"]))
        if fault == "dtype":
            _, make = draw(st.sampled_from(NOT_NUMBERS))
            case.frame = case.frame.with_columns(make(n).alias(names[-1]))
        elif fault == "beside" and d > 1:
            case.frame = case.frame.with_columns(pl.Series(names[-1], [[1.0]] * n, dtype=pl.Array(pl.Float64, 1)))
        elif fault == "twice":
            case.features = [*names, names[0]]
        elif fault == "reserved":
            reserved = draw(st.sampled_from(["cluster", "size", "inertia"]))
            case.frame = case.frame.rename({names[0]: reserved})
            case.features = [reserved, *names[1:]]
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
        "too_few": draw(st.sampled_from(["raise", "null"])),
    }
    options["init"] = draw(st.sampled_from(["k-means++", "k-means++", "random", "given"]))
    if options["init"] == "given":
        options["init"] = starting_centroids(draw, case, k) if case.d and not case.refused else "random"
    options["weight"] = weight(draw, case, n)
    case.options = options
    case.output = draw(st.sampled_from(["label", "struct"]))
    case.stream = draw(st.booleans())
    case.groups = draw(st.sampled_from([0, 0, 0, 1, 2, 3]))
    dtypes = [draw(st.sampled_from(FLOATS)) for _ in range(max(d, 1))]
    query = [column(draw, f"q{f}", 5, dtype, dirty=dirty, extreme=extreme) for f, dtype in enumerate(dtypes)]
    case.query = pl.DataFrame(query)
    return case


BAD_OPTIONS: list[dict[str, Any]] = [
    *({"k": k} for k in (0, -1, 2.5, True, "2", None, 2**32, 2**64, math.nan)),
    *({"seed": seed} for seed in (-1, 2**64, 1.0, None, "0", True)),
    *({"max_iter": it} for it in (0, -1, 2**32, 1.5, True, "1")),
    *({"tol": tol} for tol in (-1.0, math.nan, math.inf, "x", None, True)),
    *({"tol_labels": tol} for tol in (-0.5, math.nan, math.inf, "x", None)),
    *({"n_init": n} for n in (0, -1, "many", 2**32, 1.5, None)),
    *({"init": init} for init in ("best", "kmeans-parallel", [], [1.0], [[1.0], [1.0, 2.0]], [["a"]], 3, None)),
    {"init": np.zeros(3)},
    *({"null_policy": policy} for policy in ("drop", None, 1)),
    *({"too_few": what} for what in ("maybe", None)),
    *({"weight": w} for w in (1.0, [1.0], pl.col("x", "y"))),
]


def weight_hat(w: float, largest: float) -> float:
    """Return a weight rounded to 53 bits below the power of two at or above the largest; a positive one stays so."""
    if w <= 0.0:
        return 0.0
    mantissa, exponent = math.frexp(largest)
    exponent -= mantissa == 0.5
    quantum = math.ldexp(1.0, exponent - 53)
    return max(round(Fraction(w) / Fraction(quantum)), 1) * quantum


@dataclass
class Verdict:
    """What must happen: refusal by one of these families, or nulls, or an answer."""

    families: set[str]
    nulls: bool
    answer: bool


def verdict(case: Case) -> Verdict:
    options = case.options
    k, too_few = options["k"], options["too_few"]
    families = set(case.refused)
    if families:
        # Faults of the values may be met first.
        families |= {"InvalidParameterError", "InvalidDataError", "TooFewRowsError"}
        return Verdict(families, too_few == "null", False)
    kept = case.kept()
    if len(kept) < len(case.rows) and options["null_policy"] == "raise":
        families.add("InvalidDataError")
    w = [1.0] * len(case.rows) if case.weights is None else case.weights
    if any(w[i] < 0.0 for i in kept):
        families.add("InvalidDataError")
    # A row that is left out by its features alone may have any weight.
    largest_weight = max((w[i] for i in kept), default=0.0)
    positive = [i for i in kept if w[i] > 0.0]
    few: set[str] = set()
    maybe_few = False
    if not positive:
        few.add("InvalidDataError")
    elif not 2.0**-64 <= largest_weight <= 2.0**64:
        families.add("InvalidDataError")
    x: list[list[float]] = case.rows
    if case.wide:
        for some in (kept, positive):
            magnitude = max((abs(v) for i in some for v in x[i]), default=0.0)
            if magnitude and not 2.0**-450 <= magnitude <= 2.0**450:
                families.add("InvalidDataError")
    if case.given is not None:
        with np.errstate(over="ignore"):
            given = [v if case.wide else float(np.float32(v)) for row in case.given for v in row]
        if len(case.given) != k or not all(math.isfinite(v) for v in given):
            families.add("InvalidParameterError")
        if any(len(row) != case.d for row in case.given):
            families |= {"InvalidColumnError", "InvalidParameterError"}
        magnitude = max(map(abs, given))
        if case.wide and magnitude and not 2.0**-450 <= magnitude <= 2.0**450:
            families |= {"InvalidDataError", "InvalidParameterError"}
    if positive and 2.0**-64 <= largest_weight <= 2.0**64:
        hats = {i: weight_hat(w[i], largest_weight) for i in positive}
        for f in range(case.d):
            parts = [abs(hats[i] * x[i][f]) for i in positive]
            nonzero = [v for v in parts if v > 0.0]
            if 2 * sum(v * 2.0**66 < max(parts) for v in nonzero) > len(nonzero):
                families.add("InvalidDataError")
        distinct = {tuple(v + 0.0 for v in x[i]) for i in positive}
        if len(positive) < k or (len(distinct) < k and case.given is None and options["init"] == "k-means++"):
            few.add("TooFewRowsError")
        elif len(distinct) < k:
            maybe_few = True
        elif any(0.0 < b - a < 2.0**-530 for v in zip(*distinct, strict=True) for a, b in pairwise(sorted(v))):
            maybe_few = True  # Squares of such differences vanish.
    elif len(positive) < k:
        few.add("TooFewRowsError")
    if families:
        return Verdict(families | few | {"TooFewRowsError"}, too_few == "null", False)
    if few:
        return Verdict(set() if too_few == "null" else few, too_few == "null", False)
    if maybe_few:
        return Verdict(set() if too_few == "null" else {"TooFewRowsError"}, too_few == "null", True)
    return Verdict(set(), False, True)


IN_QUERY = re.compile(r"the plugin failed with message: (\w+): (.*?)(\n\n|$)", re.DOTALL)


def attempt(query: Any) -> tuple[str | None, Any]:
    """Return the family and the message of a refusal, or None and the answer."""
    try:
        return None, query()
    except pk.KMeansError as error:
        return type(error).__name__, str(error)
    except ComputeError as error:
        found = IN_QUERY.match(str(error))
        assert found is not None, f"not one of our errors: {error}"
        return found[1], found[2]


def same(a: float | None, b: float | None) -> bool:
    return a == b and (a is None or math.copysign(1.0, a) == math.copysign(1.0, b))


def check_rows(rows: list[Any], skip: set[int], centroids: list[list[float]], labels: list[Any], what: str) -> None:
    for i, (row, got) in enumerate(zip(rows, labels, strict=True)):
        if i in skip or row is None or not all(v is not None and math.isfinite(v) for v in row):
            assert got is None or set(got.values()) == {None}, f"{what}, row {i}: {got} where there is no answer"
            continue
        s = [squared(row, c) for c in centroids]
        label = s.index(min(s))
        second = math.sqrt(sorted(s)[1]) if len(s) > 1 else None
        want = {"label": label, "distance": math.sqrt(s[label]), "second_distance": second}
        assert got == want, f"{what}, row {i}: {got} instead of {want}"


def check_answer(case: Case, model: pk.KMeansModel, labels: pl.Series) -> None:
    frame, options, k = case.frame, case.options, case.options["k"]
    kept = case.kept()
    skip = set(range(len(case.rows))) - set(kept)
    w = [1.0] * len(case.rows) if case.weights is None else case.weights
    positive = [i for i in kept if w[i] > 0.0]
    table = model.centroids
    assert table.columns == ["cluster", "size", "inertia", *case.features]
    assert table["cluster"].to_list() == list(range(k))
    nested = isinstance(frame[case.features[0]].dtype, (pl.List, pl.Array))
    dtype = pl.Float64 if case.wide else pl.Float32
    assert set(table.schema[name] for name in case.features) == {pl.Array(dtype, case.d) if nested else dtype}
    c = table[case.features[0]].to_list() if nested else [list(row) for row in table.select(case.features).iter_rows()]

    for f in range(case.d):
        x = [case.rows[i][f] for i in positive]
        assert all(min(x) <= row[f] <= max(x) for row in c), f"a centroid beyond feature {f}"

    structs = frame.select(model.predict(output="struct")).to_series()
    assert structs.dtype == pl.Struct({"label": pl.UInt32, "distance": pl.Float64, "second_distance": pl.Float64})
    check_rows(case.rows, set(), c, structs.to_list(), "predict")
    predicted = frame.select(model.predict()).to_series()
    assert predicted.name == "kmeans" and predicted.dtype == pl.UInt32
    assert predicted.to_list() == structs.struct.field("label").to_list()
    assert predicted.equals(frame.lazy().select(model.predict()).collect(engine="streaming").to_series())
    if case.output == "struct":
        check_rows(case.rows, skip, c, labels.to_list(), "kmeans")
        labels = labels.struct.field("label")
    assert labels.to_list() == [None if i in skip else v for i, v in enumerate(predicted)], "predict gives other labels"

    got = labels.to_list()
    assert table["size"].to_list() == [sum(got[i] == j for i in positive) for j in range(k)]
    distances = frame.select(model.transform()).to_series()
    assert distances.name == "distances" and distances.dtype == pl.Array(pl.Float64, k)
    assert distances.equals(frame.lazy().select(model.transform()).collect(engine="streaming").to_series())
    for i, row in enumerate(distances.to_list()):
        want = [math.sqrt(squared(case.rows[i], centroid)) for centroid in c] if case.is_finite(i) else None
        assert row == want, f"transform, row {i}"

    # Inertia and score: as fixed-point sums, to within a quantum a row.
    largest = max(w[i] for i in kept)
    hats = {i: weight_hat(w[i], largest) for i in positive}
    parts = [(got[i], hats[i] * squared(case.rows[i], c[got[i]])) for i in positive]
    points = [*(case.rows[i] for i in positive), *c, *(case.given or [])]
    columns = [*zip(*points, strict=True)]
    box = squared([max(v) for v in columns], [min(v) for v in columns])
    slack = len(positive) * max(16.0 * 2.0**-90 * box * max(hats.values()), 5e-324 * max(hats.values(), default=1.0))
    for j, inertia in enumerate(table["inertia"]):
        exact = math.fsum(part for label, part in parts if label == j)
        assert abs(inertia - exact) <= slack + 2.0**-50 * exact, f"cluster {j}: {inertia}, by distances {exact}"
    exact = math.fsum(part for _, part in parts)
    assert abs(model.inertia - exact) <= slack + 2.0**-50 * exact
    score = model.score(frame, weight=options["weight"])
    assert abs(score + exact) <= slack + 2.0**-50 * exact, f"score {score}, by distances {-exact}"
    assert same(score, model.score(frame.lazy(), weight=options["weight"]))

    history = model.history
    changed = history["changed"].to_list()
    assert history["iteration"].to_list() == list(range(1, model.n_iter + 1)) and model.n_iter <= options["max_iter"]
    assert changed[0] == len(positive)
    assert all(v > options["tol_labels"] * len(positive) for v in changed[:-1]), "an iteration after the stop"

    query = case.query
    assert query is not None
    if not nested:
        names = query.columns
        rows = [list(row) for row in query.iter_rows()]
    else:
        names = ["q"]
        rows = [list(row) for row in query.cast(pl.Float64).iter_rows()]
        query = pl.DataFrame({"q": pl.Series(rows, dtype=pl.List(pl.Float64))})
    check_rows(rows, set(), c, query.select(model.predict(*names, output="struct")).to_series().to_list(), "other rows")
    check = query.select(model.predict(*names)).to_series().to_list()
    structs = query.select(model.predict(*names, output="struct").struct.field("label")).to_series()
    assert check == structs.to_list()


def facts(model: pk.KMeansModel | None) -> Any:
    if model is None:
        return None
    return model.centroids.rows(), model.inertia, model.n_iter, model.history.drop("seconds").rows()


def check_groups(case: Case, expr: pl.Expr) -> None:
    """One fit a group, as if the groups were frames of their own."""
    frame = case.frame.with_columns(pl.Series("group", [i % case.groups for i in range(case.frame.height)]))
    parts = [frame.filter(group=group) for group in range(min(case.groups, frame.height))]
    alone = [attempt(lambda part=part: part.select(expr).to_series()) for part in parts]
    family, labels = attempt(lambda: frame.select(expr.over("group")).to_series())
    centroids = pk.centroids(*case.features, **case.options)
    listed = attempt(lambda: frame.group_by("group", maintain_order=True).agg(centroids)["centroids"].to_list())
    families = {name for name, _ in alone} - {None}
    assert (family in families) if families else (family is None), f"over: {family} ({labels}), alone: {families}"
    assert (listed[0] in families) if families else (listed[0] is None), f"agg: {listed}, alone: {families}"
    if family is None:
        places = [i for group in range(case.groups) for i in range(group, frame.height, case.groups)]
        assert labels.gather(places).to_list() == [label for _, part in alone for label in part.to_list()]
        assert listed[1] == [part.select(centroids).to_series().to_list()[0] for part in parts]


@settings(
    max_examples=EXAMPLES,
    derandomize="RANDOM_FRAMES" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)
@given(cases())
def test_random_frames(case: Case) -> None:
    frame, options, expected = case.frame, case.options, verdict(case)
    early, expr = attempt(lambda: pk.kmeans(*case.features, **options, output=case.output))
    if early is not None:
        # Before the query: also by the others, or in theirs.
        assert early in expected.families, f"{early} ({expr}) instead of {expected}"
        fit = attempt(lambda: pk.KMeans(**options).fit(frame, case.features))
        for name, what in (attempt(lambda: pk.centroids(*case.features, **options)), fit):
            assert name in expected.families, f"{name} ({what}) instead of {expected}"
        return
    family, labels = attempt(lambda: frame.select(expr).to_series())
    refused, model = attempt(lambda: pk.KMeans(**options).fit(frame, case.features))
    engine = "streaming" if case.stream else "in-memory"
    again = attempt(lambda: frame.lazy().select(expr).collect(engine=engine).to_series())
    listed = attempt(lambda: frame.select(pk.centroids(*case.features, **options)).to_series())
    if case.groups and not case.refused and frame.height:
        check_groups(case, expr)
    # Of several faults, each of them may meet another one first.
    for who, (name, what) in {"kmeans": (family, labels), "fit": (refused, model), "centroids": listed}.items():
        assert name is None or name in expected.families, f"{who}: {name} ({what}) instead of {expected}"
        if frame.is_empty() and who != "kmeans":
            continue
        assert (name is None) == (family is None), f"kmeans: {family} ({labels}), {who}: {name} ({what})"
    if frame.is_empty() and family is None:
        # No rows have no labels, whatever a fit of no rows would say.
        assert refused is not None or model is None
        assert again[1].equals(labels) and len(labels) == 0 and listed[1].to_list() == [None]
        return
    if family is not None:
        assert again == (family, labels), "lazy or streaming gave something else"
        return
    assert again[0] is None and labels.equals(again[1]), "lazy or streaming gave something else"
    assert labels.name == "kmeans" and len(labels) == frame.height
    if model is None:
        assert expected.nulls, f"nulls instead of {expected}"
        assert labels.null_count() == frame.height or set(labels.struct.unnest().null_count().row(0)) == {frame.height}
        assert listed[1].to_list() == [None]
        return
    assert expected.answer, f"an answer instead of {expected}"
    check_answer(case, model, labels)
    assert listed[1].name == "centroids"
    assert [tuple(row.values()) for row in listed[1].to_list()[0]] == model.centroids.rows()
    assert facts(pk.KMeans(**options).fit(frame.lazy(), case.features)) == facts(model)
    assert facts(pk.KMeans(**options).fit(frame.rechunk(), case.features)) == facts(model), "chunks matter"

    # Rows that are left out leave no trace; nor do rows of weight zero, nor weights of one.
    kept = case.kept()
    if len(kept) < frame.height:
        clean = frame[kept]
        assert facts(pk.KMeans(**{**options, "null_policy": "raise"}).fit(clean, case.features)) == facts(model)
    if case.weights is not None and set(case.weights) == {1.0}:
        assert facts(pk.KMeans(**{**options, "weight": None}).fit(frame, case.features)) == facts(model)
    if case.weights is not None and any(case.weights[i] == 0.0 for i in kept):
        clean = frame[[i for i in kept if case.weights[i] > 0.0]]
        assert facts(pk.KMeans(**options).fit(clean, case.features)) == facts(model), "a weight of zero left a trace"


def test_bad_options_are_refused_at_once() -> None:
    for bad in BAD_OPTIONS:
        for call in (lambda **o: pk.kmeans("x", **o), lambda **o: pk.centroids("x", **o)):
            family, message = attempt(lambda call=call, bad=bad: call(**{"k": 2, **bad}))
            assert family == "InvalidParameterError", f"{bad}: {family}: {message}"


if __name__ == "__main__":
    test_random_frames()
