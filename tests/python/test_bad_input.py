"""The answers to bad input. The cases make docs/bad-input.md, and check that the package does what it says.

The golden file has every message as it is. WRITE_GOLDEN=1 writes both again.
"""

import io
import math
import os
import re
import tempfile
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
from polars.exceptions import ColumnNotFoundError, InvalidOperationError, ShapeError

import polars_kmeans as pk
from polars_kmeans import (
    InvalidColumnError,
    InvalidDataError,
    InvalidModelError,
    InvalidParameterError,
    ModelFileError,
    SpillError,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "bad-input.md"
GOLDEN = Path(__file__).parents[1] / "golden" / "errors.txt"
HEAD = """# Bad input and its errors

Our exceptions are subclasses of `pk.KMeansError`, which is a `polars.exceptions.ComputeError`. Errors in Polars' own
words are exceptions of Polars. A query raises a plain `ComputeError` whose text has the name of our exception:
`the plugin failed with message: TooFewRowsError: ...`. `with pk.typed_errors():` raises our exception instead
([errors](guide/errors.md)).

Calls share a line if their messages differ only in a name or in what was got. The line has the message of the first
call. `...` stands for the first words of the message above. `model` was fitted to two columns, `x` and `y`.
`tests/python/test_bad_input.py` makes all of these calls and writes this page.
"""

Case = tuple[str, type[Exception], Callable[[], Any]]

DF = pl.DataFrame({"x": [0.0, 0.1, 5.0, 5.1], "y": [1.0, 1.1, 9.0, 9.1]})
FOLDER = Path(tempfile.mkdtemp())


def fitted() -> pk.KMeansModel:
    return pk.KMeans(k=2, seed=1).fit(DF, ["x", "y"])


def kmeans(values: Any, dtype: Any = None, k: Any = 2, name: str = "x", **options: Any) -> Callable[[], Any]:
    """Cluster one column of these values."""
    return lambda: pl.DataFrame({name: pl.Series(values, dtype=dtype)}).select(pk.kmeans(name, k=k, **options))


def centroids(values: Any, name: str) -> Callable[[], Any]:
    return lambda: pl.DataFrame({name: values}).select(pk.centroids(name, k=2))


def option(**options: Any) -> Callable[[], Any]:
    return lambda: pk.kmeans("x", "y", **{"k": 2, **options})


def weighted(weights: list[Any], dtype: Any = pl.Float64) -> Callable[[], Any]:
    return lambda: DF.with_columns(w=pl.Series(weights, dtype=dtype)).select(pk.kmeans("x", k=2, weight="w"))


def started(init: Any, *columns: str, k: int = 2) -> Callable[[], Any]:
    return lambda: DF.select(pk.kmeans(*(columns or ("x", "y")), k=k, init=init))


def query(expr: Callable[[], pl.Expr]) -> Callable[[], Any]:
    return lambda: DF.select(expr())


def load(name: str, write: Callable[[Path], Any]) -> Callable[[], Any]:
    """Load a file that was just written."""

    def call() -> pk.KMeansModel:
        write(FOLDER / name)
        return pk.KMeansModel.load(FOLDER / name)

    return call


def edited(edit: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Write a model, and edit the bytes of its file."""

    def write(path: Path) -> None:
        fitted().save(path)
        path.write_bytes(edit(path.read_bytes()))

    return write


def copied(path: Path) -> None:
    """Write the table of a model with Polars, and all of its metadata."""
    fitted().save(path)
    metadata = {name: text for name, text in pl.read_parquet_metadata(path).items() if name != "ARROW:schema"}
    pl.read_parquet(path).write_parquet(path, metadata=metadata)


def read_only() -> None:
    path = FOLDER / "read-only.parquet"
    if not path.exists():
        fitted().save(path)
        path.chmod(0o444)
    fitted().save(path)


VALUES: list[Case] = [
    ("a null", InvalidDataError, kmeans([1.0, None, 2.0])),
    ("NaNs and infinities", InvalidDataError, kmeans([1.0, math.nan, math.inf, -math.inf])),
    ("a null in an Array", InvalidDataError, kmeans([[1.0, None], [2.0, 3.0]], pl.Array(pl.Float64, 2))),
    ("a null Array", InvalidDataError, kmeans([[1.0, 2.0], None], pl.Array(pl.Float64, 2))),
    (
        "no rows (of a model: an expression gives no labels)",
        InvalidDataError,
        lambda: pk.KMeans(k=2).fit(DF.clear(), "x"),
    ),
    ('only nulls, `null_policy="skip"`', InvalidDataError, kmeans([None, None], pl.Float64, null_policy="skip")),
    ("one row, `k=2`", pk.TooFewRowsError, kmeans([1.0])),
    ("`k` greater than the number of rows", pk.TooFewRowsError, kmeans([1.0, 2.0, 3.0], k=4)),
    ("`k` greater than the number of distinct rows", pk.TooFewRowsError, kmeans([1.0, 1.0, 2.0, 2.0], k=3)),
    ("float64 beyond 2.9e135", InvalidDataError, kmeans([1.0, 1e200])),
    ("float64 below 3.4e-136", InvalidDataError, kmeans([0.0, 1e-200])),
    ("a sentinel beside small values", InvalidDataError, kmeans([1e-10, 2e-10, 3e-10, 1e30])),
    ("all weights 0", InvalidDataError, weighted([0.0, 0.0, 0.0, 0.0])),
    ("a negative weight", InvalidDataError, weighted([1.0, 1.0, -0.5, 1.0])),
    ("a null weight", InvalidDataError, weighted([1.0, 1.0, None, 1.0])),
    ("a NaN weight", InvalidDataError, weighted([1.0, 1.0, math.nan, 1.0])),
    ("a weight beyond 1.8e19", InvalidDataError, weighted([1.0, 1.0, 1.0, 1e30])),
    ('a row of zeros, `metric="cosine"`', InvalidDataError, kmeans([1.0, 0.0, 2.0], metric="cosine")),
    ("a factor that is too large", InvalidDataError, kmeans([1.0, 1e30], pl.Float32, scale={"x": 1e10})),
    ("a factor that is too small", InvalidDataError, kmeans([1.0, 2.0], pl.Float32, scale={"x": 1e-60})),
]
COLUMNS: list[Case] = [
    ("String", InvalidColumnError, kmeans(["a", "b"])),
    ("Date", InvalidColumnError, kmeans([date(2020, 1, 1), date(2020, 1, 2)])),
    ("Datetime", InvalidColumnError, kmeans([datetime(2020, 1, 1), datetime(2020, 1, 2)])),
    ("Duration", InvalidColumnError, kmeans([timedelta(1), timedelta(2)])),
    ("Time", InvalidColumnError, kmeans([time(1), time(2)])),
    ("Categorical", InvalidColumnError, kmeans(["a", "b"], pl.Categorical)),
    ("Enum", InvalidColumnError, kmeans(["a", "b"], pl.Enum(["a", "b"]))),
    ("Binary", InvalidColumnError, kmeans([b"a", b"b"])),
    ("Null", InvalidColumnError, kmeans([None, None])),
    ("Object", InvalidColumnError, kmeans([object(), object()], pl.Object)),
    ("Struct", InvalidColumnError, kmeans([{"a": 1.0}, {"a": 2.0}])),
    ("a List of String", InvalidColumnError, kmeans([["a"], ["b"]])),
    ("an Array of Array", InvalidColumnError, kmeans([[[1.0]], [[2.0]]], pl.Array(pl.Array(pl.Float64, 1), 1))),
    (
        "an Array beside another column",
        InvalidColumnError,
        query(lambda: pk.kmeans(pl.concat_list("x", "y").list.to_array(2).alias("a"), "x", k=2)),
    ),
    ("an Array of width 0", InvalidColumnError, kmeans([[], []], pl.Array(pl.Float64, 0))),
    ("lists of unequal lengths", InvalidParameterError, kmeans([[1.0, 2.0], [3.0]])),
    ("columns of unequal lengths", ShapeError, query(lambda: pk.kmeans("x", pl.col("y").head(3), k=2))),
    (
        "columns of unequal lengths, of a model",
        InvalidParameterError,
        lambda: pk.KMeans(k=2).fit(DF, "x", pl.col("y").head(3)),
    ),
    (
        "weights of another length",
        ShapeError,
        query(lambda: pk.kmeans("x", k=2, weight=pl.col("y").head(3))),
    ),
    ("a String as weight", InvalidParameterError, weighted(["a", "b", "c", "d"], pl.String)),
    ("a feature named `cluster`, of centroids", InvalidColumnError, centroids([1.0, 2.0], name="cluster")),
    ("a feature named `size`, of centroids", InvalidColumnError, centroids([1.0, 2.0], name="size")),
    ("a feature named `inertia`, of centroids", InvalidColumnError, centroids([1.0, 2.0], name="inertia")),
    ("a NUL in a name", InvalidColumnError, kmeans([1.0, 2.0], name="a\0b")),
    (
        "a NUL in a name that a selector finds",
        InvalidColumnError,
        lambda: pl.DataFrame({"a\0b": [1.0, 2.0]}).select(pk.kmeans(cs.all(), k=2)),
    ),
    ("a feature twice", InvalidColumnError, query(lambda: pk.kmeans("x", "y", "x", k=2))),
    ("a feature twice, `fit`", InvalidColumnError, lambda: pk.KMeans(k=2).fit(DF, ["x", "x"])),
    ("no features", InvalidColumnError, lambda: pk.kmeans(k=2)),
    ("a selector that finds nothing", InvalidOperationError, query(lambda: pk.kmeans(cs.string(), k=2))),
    ("a set of features", InvalidColumnError, lambda: pk.kmeans({"x", "y"}, k=2)),
    ("a dict of features", InvalidColumnError, lambda: pk.kmeans({"x": "y"}, k=2)),
    ("an array as a feature", InvalidColumnError, lambda: pk.kmeans(np.zeros((3, 2)), k=2)),  # type: ignore[arg-type]
    ("a Series as a feature", InvalidColumnError, lambda: pk.kmeans(DF["x"], k=2)),  # type: ignore[arg-type]
    ("a number as a feature", InvalidColumnError, lambda: pk.kmeans(1, k=2)),  # type: ignore[arg-type]
    ("a column that is not there", ColumnNotFoundError, query(lambda: pk.kmeans("z", k=2))),
    ("a column that is not there, `fit`", ColumnNotFoundError, lambda: pk.KMeans(k=2).fit(DF, "z")),
    ("a weight that is not there", ColumnNotFoundError, query(lambda: pk.kmeans("x", k=2, weight="w"))),
]
PARAMETERS: list[Case] = [
    *(
        (f"`{name}={value!r}`", InvalidParameterError, option(**{name: value}))
        for name, values in {
            "k": [0, -1, 2.5, True, "2"],
            "seed": [-1, 2**64, 1.0],
            "tol": [-1, math.nan, math.inf, "x"],
            "tol_labels": [-0.5],
            "max_iter": [0, 2.0],
            "n_init": [0, "many"],
            "init": ["best", "k-means||", 3, [], [[]], [["a", "b"], ["c", "d"]], [[1.0, 2.0], [3.0]]],
            "metric": ["angle", "haversine", None],
            "scale": ["minmax", 2.0, {"x": 0}, {"x": -1.5}, {"x": "2"}, {"x": math.inf}, {1: 2.0}],
            "oversampling": [0.0, math.nan, "2"],
            "rounds": [0, 256],
            "chain_length": [0, 1.5],
            "init_sample": [0, 2**32],
            "null_policy": ["drop", None],
            "row_order": ["sorted", None],
            "too_few": ["maybe"],
            "device": ["gpu", "cuda:-1", "cuda:x", None],
            "device_memory_limit": [0, -1, 1.5],
            "output": ["both", None],
            "weight": [1.0],
        }.items()
        for value in values
    ),
    ("`init=[1.0, 2.0]`, 2 columns", InvalidParameterError, started([1.0, 2.0])),
    ("`init=np.zeros(2)`, 2 columns", InvalidParameterError, started(np.zeros(2))),
    ("`init=np.zeros((2, 2, 2))`", InvalidParameterError, option(init=np.zeros((2, 2, 2)))),
    ("`KMeans(n_clusters=2)`", InvalidParameterError, lambda: pk.KMeans(n_clusters=2)),  # type: ignore[call-overload]
    ("`KMeans(2, random_state=0)`", InvalidParameterError, lambda: pk.KMeans(2, random_state=0)),  # type: ignore[call-overload]
    ('`pk.kmeans("x", "y")`', InvalidParameterError, lambda: pk.kmeans("x", "y")),  # type: ignore[call-arg]
    ("`max_itr=5`", InvalidParameterError, option(max_itr=5)),
    (
        "`sort_by` of a column that is no feature",
        InvalidParameterError,
        query(lambda: pk.kmeans("x", k=2, sort_by="y")),
    ),
    ("`sort_by=1`", InvalidParameterError, option(sort_by=1)),
    ('`model.predict(null_policy="null")`', InvalidParameterError, lambda: fitted().predict(null_policy="null")),  # type: ignore[call-overload]
    (
        '`model.predict(null_policy="raise")` of a null',
        InvalidDataError,
        lambda: fitted().predict(pl.DataFrame({"x": [None], "y": [1.0]}, schema=DF.schema), null_policy="raise"),
    ),
    ("`model.sums` of values beyond the fit", InvalidDataError, query(lambda: fitted().sums(pl.col("x") * 1e9, "y"))),
    ("`model.with_names` of one name", InvalidParameterError, lambda: fitted().with_names(["a"])),
    ("`model.label(names=True)` without names", InvalidParameterError, lambda: fitted().label(DF, names=True)),
    ("`pk.stability(resamples=0)`", InvalidParameterError, lambda: pk.stability(DF, "x", k=2, resamples=0)),
    ("`model.updated` without kept sums", InvalidParameterError, lambda: fitted().updated(DF.select(fitted().sums()))),
    ('`weight=pl.col("x", "y")`', InvalidParameterError, option(weight=pl.col("x", "y"))),
    ('`KMeans(2, history="some")`', InvalidParameterError, lambda: pk.KMeans(2, history="some")),  # type: ignore[arg-type]
    ('`model.predict(output="both")`', InvalidParameterError, lambda: fitted().predict(output="both")),  # type: ignore[arg-type]
    ("`init` of 3 features, 2 columns", InvalidParameterError, started([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])),
    ("`init` of 3 rows, `k=2`", InvalidParameterError, started([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])),
    ('`init="optimal"`, 2 columns', InvalidParameterError, started("optimal")),
    ("`init` with a null", InvalidParameterError, started([[1.0, 2.0], [None, 4.0]])),
    (
        "`init`: a masked array",
        InvalidParameterError,
        started(np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[False, False], [True, False]])),
    ),
    ("`init`: a frame with a NUL in a name", InvalidColumnError, started(pl.DataFrame({"x\0": [1.0, 2.0]}))),
    (
        '`init` with a row of zeros, `metric="cosine"`',
        InvalidParameterError,
        lambda: DF.select(pk.kmeans("x", "y", k=2, init=[[0.0, 0.0], [1.0, 1.0]], metric="cosine")),
    ),
    (
        "`scale` of a column that is not there",
        InvalidParameterError,
        query(lambda: pk.kmeans("x", k=2, scale={"z": 1.0})),
    ),
    ("`init` with an infinity", InvalidParameterError, started([[1.0, 2.0], [math.inf, 4.0]])),
    ("`init` beyond 2.9e135", InvalidDataError, started([[1.0, 2.0], [1e200, 4.0]])),
    (
        "`init` with strings in a frame",
        InvalidParameterError,
        started(pl.DataFrame({"x": ["a", "b"], "y": ["c", "d"]})),
    ),
    ("`init`: a frame without `y`", InvalidParameterError, started(pl.DataFrame({"x": [1.0, 2.0]}))),
    ("`init`: a frame without rows", InvalidParameterError, started(DF.clear())),
    ("`init`: a frame of 4 rows, `k=2`", InvalidParameterError, started(DF)),
    (
        "`init`: a frame of lists of unequal lengths",
        InvalidParameterError,
        kmeans([[1.0, 2.0], [3.0, 4.0]], init=pl.DataFrame({"x": [[1.0, 2.0, 3.0], [4.0]]})),
    ),
]


def full_disk() -> None:
    """Fit a query while files may have 100,000 bytes."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        rows = pl.DataFrame({"x": np.arange(50_000, dtype=np.float32)}).lazy()
        pk.KMeans(2).fit(rows, "x", memory_limit=0, spill_directory=FOLDER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


MODELS: list[Case] = [
    ("`fit` on a dict", InvalidParameterError, lambda: pk.KMeans(k=2).fit({"x": [1.0]}, "x")),  # type: ignore[arg-type]
    ("`fit` on a Series", InvalidParameterError, lambda: pk.KMeans(k=2).fit(DF["x"], "x")),  # type: ignore[arg-type]
    ("`model.score` of a dict", InvalidParameterError, lambda: fitted().score({"x": [1.0]})),  # type: ignore[arg-type]
    ('`model.predict("y", "x")`', InvalidColumnError, lambda: fitted().predict("y", "x")),
    ("`fit` on a list of rows", InvalidParameterError, lambda: pk.KMeans(k=2).fit(DF.rows())),  # type: ignore[arg-type]
    ("`model.predict` of a list of dicts", InvalidParameterError, lambda: fitted().predict(DF.to_dicts())),  # type: ignore[call-overload]
    ("`model.predict` of a dict", InvalidParameterError, lambda: fitted().predict({"x": 1.0, "y": None})),  # type: ignore[call-overload]
    ("`weight` beside the data", InvalidParameterError, lambda: pk.KMeans(k=2).fit(DF, "x", weight="y")),  # type: ignore[call-overload]
    ("`memory_limit` in the estimator", InvalidParameterError, lambda: pk.KMeans(k=2, memory_limit=9)),  # type: ignore[call-overload]
    ('`model.label` of a frame with "cluster"', InvalidColumnError, lambda: fitted().label(fitted().label(DF))),
    (
        "centroids that are equal",
        InvalidParameterError,
        lambda: pk.KMeansModel.from_centroids([[1.0, 2.0], [1.0, 2.0]]),
    ),
    (
        "centroids of unequal widths",
        InvalidParameterError,
        lambda: pk.KMeansModel.from_centroids([[1.0, 2.0], [1.0]]),
    ),
    (
        "`model.centroids` of a scaled model without its factors",
        InvalidParameterError,
        lambda: pk.KMeansModel.from_centroids(pk.KMeans(k=2, scale="standard").fit(DF, "x").centroids),
    ),
    (
        'a fit that starts from `model`, with `metric="cosine"`',
        InvalidParameterError,
        lambda: pk.KMeans(k=2, init=fitted(), metric="cosine"),
    ),
    ("JSON of something else", InvalidModelError, lambda: pk.KMeansModel.from_json("[1]")),
    (
        "JSON of a model with a changed centroid",
        InvalidModelError,
        lambda: pk.KMeansModel.from_json(fitted().to_json().replace("5.05", "5.5")),
    ),
    ("bytes in place of a path", InvalidParameterError, lambda: pk.KMeansModel.load(fitted().to_bytes())),  # type: ignore[arg-type]
    (
        "a text file in place of a file of bytes",
        InvalidParameterError,
        lambda: fitted().save(io.StringIO()),  # type: ignore[arg-type]
    ),
    ("a group with too few rows", pk.TooFewRowsError, lambda: pk.KMeans(k=2).fit(DF, "x", by="y")),
    ("`by` beside an array", InvalidParameterError, lambda: pk.KMeans(k=2).fit(DF.to_numpy(), by="y")),  # type: ignore[call-overload]
    (
        "one model where those of groups are expected",
        InvalidModelError,
        lambda: pk.KMeansModels.from_bytes(fitted().to_bytes()),
    ),
    ("`model.predict` with 1 column", InvalidColumnError, query(lambda: fitted().predict("x"))),
    (
        "`model.predict` with 3 columns",
        InvalidColumnError,
        query(lambda: fitted().predict("x", "y", pl.col("x").alias("z"))),
    ),
    (
        "`model.predict` with an Array of 3",
        InvalidColumnError,
        query(lambda: fitted().predict(pl.concat_list("x", "y", "x").list.to_array(3))),
    ),
    (
        "`model.predict` with a String",
        InvalidColumnError,
        query(lambda: fitted().predict("x", pl.col("y").cast(pl.String))),
    ),
    ("`model.transform` with 1 column", InvalidColumnError, query(lambda: fitted().transform("x"))),
    ('`model.transform(squared="no")`', InvalidParameterError, lambda: fitted().transform(squared="no")),
    ("`model.score` with a negative weight", InvalidDataError, lambda: fitted().score(DF, weight=pl.lit(-1.0))),
    ("`model.predict` of a frame without `y`", ColumnNotFoundError, lambda: DF.select("x").select(fitted().predict())),
    ("a truncated model file", InvalidModelError, load("truncated.parquet", edited(lambda content: content[:100]))),
    (
        "a model file that was added to",
        InvalidModelError,
        load("longer.parquet", edited(lambda content: content + b"\n")),
    ),
    ("an empty file", InvalidModelError, load("empty.parquet", lambda path: path.write_bytes(b""))),
    ("a text file", InvalidModelError, load("notes.txt", lambda path: path.write_text("Hello, world!\n"))),
    ("another Parquet file", InvalidModelError, load("other.parquet", DF.write_parquet)),
    (
        "a model file of a newer version",
        InvalidModelError,
        load("newer.parquet", edited(lambda content: content.replace(b"polars-kmeans\x01", b"polars-kmeans\x03", 1))),
    ),
    (
        "a model file that was altered",
        InvalidModelError,
        load(
            "altered.parquet",
            edited(lambda content: content.replace(np.float64(5.05).tobytes(), np.float64(5.5).tobytes())),
        ),
    ),
    ("a model file that another program wrote", InvalidModelError, load("copy.parquet", copied)),
    ("a model file that is not there", ModelFileError, lambda: pk.KMeansModel.load(FOLDER / "missing.parquet")),
    ("a folder as a model file", ModelFileError, lambda: pk.KMeansModel.load(FOLDER)),
    (
        "saving into a folder that is not there",
        ModelFileError,
        lambda: fitted().save(FOLDER / "missing" / "model.parquet"),
    ),
    ("saving over a file that nobody may write", ModelFileError, read_only),
    ("a query of more rows than the disk holds, with `memory_limit=0`", SpillError, full_disk),
    (
        "a `spill_directory` that is not there",
        InvalidParameterError,
        lambda: pk.KMeans(2).fit(DF.lazy(), "x", spill_directory=FOLDER / "missing"),
    ),
    (
        "a `memory_limit` with a unit",
        InvalidParameterError,
        lambda: pk.KMeans(2).fit(DF.lazy(), "x", memory_limit="4GB"),
    ),  # type: ignore[call-overload]
    ("a model from other bytes", InvalidModelError, lambda: pk.KMeansModel(b"Hello, world!")),
]
SECTIONS = {"Values": VALUES, "Columns": COLUMNS, "Parameters": PARAMETERS, "Models and files": MODELS}
CASES = [case for section in SECTIONS.values() for case in section]
POLARS = "Polars' own words"
Answer = tuple[str, str, str]  # what the call is, its exception, its message


def answer(call: Callable[[], Any]) -> tuple[type[BaseException], str]:
    """Return the exception that a call raises, and its message without the parts that change from run to run."""
    try:
        with pk.typed_errors():
            call()
    except Exception as error:
        if not isinstance(error, pk.KMeansError):
            return type(error), POLARS
        message = str(error).split("\n\n")[0].replace("\n", " ")
        return type(error), re.sub(r"\.polars-kmeans-\w+", ".polars-kmeans-...", message.replace(str(FOLDER), "..."))
    return type(None), "nothing"


def kind(exception: str, message: str) -> tuple[str, str, str]:
    """Return what messages of one kind have in common: the exception, what was expected, and the hint."""
    expected, _, got = message.partition(", got ")
    if not got:
        return exception, re.sub('".*?"', "", message), ""
    hint = re.search(r"(: | \().*", re.sub(r"\{.*?\}", "", got))
    return exception, re.sub(r'^(\w+|column ".*?"): ', "", expected), re.sub(r'".*?"|\d', "", hint[0] if hint else "")


def lists(answers: dict[str, list[Answer]]) -> list[str]:
    """Return a list for each section. Calls of one kind share a line, in the first section that has one of them."""
    kinds: dict[tuple[str, str], dict[str, list[tuple[str, str, str]]]] = {}
    for title, some in answers.items():
        for what, name, message in some:
            exception, expected, hint = kind(name, message)
            kinds.setdefault((exception, expected), {}).setdefault(hint, []).append((title, what, message))
    lines = []

    def called(calls: list[tuple[str, str, str]]) -> str:
        return "; ".join(what for _, what, _ in calls)

    for title in answers:
        lines += [f"## {title}", ""]
        for (exception, _), hints in kinds.items():
            first, *others = hints.values()
            if first[0][0] == title:
                lines.append(f"- {called(first)}: `{exception}: {first[0][2]}`")
                lines += [f"  - {called(calls)}: `... got {calls[0][2].split(', got ', 1)[1]}`" for calls in others]
        lines.append("")
    return lines


@pytest.mark.parametrize(("exception", "call"), [pytest.param(e, call, id=what) for what, e, call in CASES])
def test_exception(exception: type[Exception], call: Callable[[], Any]) -> None:
    assert answer(call)[0] is exception


def test_document() -> None:
    def answered(what: str, call: Callable[[], Any]) -> Answer:
        exception, message = answer(call)
        return what, exception.__name__, message

    answers = {title: [answered(what, call) for what, _, call in cases] for title, cases in SECTIONS.items()}
    texts = {
        DOCUMENT: "\n".join([HEAD, *lists(answers)]),
        GOLDEN: "".join("\t".join(each) + "\n" for some in answers.values() for each in some),
    }
    for file, text in texts.items():
        if "WRITE_GOLDEN" in os.environ:
            file.write_text(text)
        assert text == file.read_text()
