"""Whatever holds rows: what a fit takes, every method takes. An error about anything else says what to pass."""

import json
import re
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from helpers import ByDLPack
from scipy import sparse

import polars_kmeans as pk

RANDOM = np.random.default_rng(7)
DF = pl.DataFrame(RANDOM.normal(size=(60, 2)) + RANDOM.integers(0, 3, size=(60, 1)) * 6, schema=["x", "y"])
MODEL = pk.KMeans(3, seed=1).fit(DF, "x", "y")
ROWS = {"k": [2, 3], "seed": 1}
HIDDEN = ["seconds"]


def plot(name: str, data: Any, *columns: Any) -> Any:
    pytest.importorskip("altair")
    return getattr(pk.plot, name)(MODEL, data, *columns).to_dict()


# What people do with rows. Each gets the data and the names of its columns.
CALLS: dict[str, Callable[[Any], Any]] = {
    "fit": lambda data: pk.KMeans(3, seed=1).fit(data, "x", "y"),
    "fit_predict": lambda data: pk.KMeans(3, seed=1).fit_predict(data, "x", "y"),
    "predict": lambda data: MODEL.predict(data),
    "predict, names": lambda data: MODEL.predict(data, "x", "y"),
    "predict, structs": lambda data: MODEL.predict(data, output="struct"),
    "transform": lambda data: MODEL.transform(data),
    "silhouette": lambda data: MODEL.silhouette(data),
    "score": lambda data: MODEL.score(data),
    "label": lambda data: MODEL.label(data),
    "nearest": lambda data: MODEL.nearest(data, 4),
    "profile": lambda data: MODEL.profile(data),
    "profile, by": lambda data: MODEL.profile(data, by="y", weight="w"),
    "choose_k": lambda data: pk.choose_k(data, "x", "y", **ROWS).drop(HIDDEN),
    "stability": lambda data: pk.stability(data, "x", "y", k=3, resamples=2),
    "plot.scatter": lambda data: plot("scatter", data),
    "plot.scatter, axes": lambda data: plot("scatter", data, "w", "y"),
    "plot.silhouette": lambda data: plot("silhouette", data),
    "plot.profile": lambda data: plot("profile", data),
}
WEIGHTED = DF.with_columns(w=pl.Series(RANDOM.uniform(1, 2, 60)))
FRAMES: dict[str, Callable[[], Any]] = {
    "LazyFrame": WEIGHTED.lazy,
    "pandas": lambda: pd.DataFrame(
        {name: WEIGHTED[name].to_numpy() for name in WEIGHTED.columns}, index=range(60, 0, -1)
    ),
    "pyarrow": WEIGHTED.to_arrow,
    "a reader": lambda: WEIGHTED.to_arrow().to_reader(),
}


def plain(answer: Any) -> Any:
    """Return an answer as something that `==` compares."""
    if isinstance(answer, pl.LazyFrame):
        answer = answer.collect()
    return answer.to_dict(as_series=False) if isinstance(answer, pl.DataFrame) else answer


def same(one: Any, other: Any) -> bool:
    equal = one.equals(other) if isinstance(one, pl.Series) else plain(one) == plain(other)
    return bool(equal)


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("name", CALLS)
def test_every_method_takes_every_frame(name: str, kind: str) -> None:
    assert same(CALLS[name](FRAMES[kind]()), CALLS[name](WEIGHTED))


def test_a_frame_of_mixed_objects_needs_no_more_than_the_columns_that_are_read() -> None:
    mixed = DF.to_pandas().assign(other=[object()] * 60)
    for name in ("fit", "predict", "silhouette", "score", "profile", "choose_k", "plot.scatter", "plot.silhouette"):
        assert same(CALLS[name](mixed), CALLS[name](DF)), name


ARRAYS: dict[str, Callable[[Any], Any]] = {
    "row-major": lambda x: x,
    "column-major": np.asfortranarray,
    "backwards": lambda x: x[::-1].copy()[::-1],
    "float32": lambda x: x.astype(np.float32),
    "float16": lambda x: x.astype(np.float16),
    "by DLPack": ByDLPack,
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_every_method_takes_every_array(kind: str) -> None:
    data = ARRAYS[kind](DF.to_numpy())
    rows = np.asarray(getattr(data, "array", data))
    wide = np.float32 if rows.dtype == np.float16 else rows.dtype
    frame = pl.DataFrame({f"column_{at}": rows[:, at].astype(wide) for at in (0, 1)})
    names = frame.columns
    assert same(MODEL.nearest(data, 4), MODEL.nearest(frame, 4, *names))
    assert same(MODEL.profile(data), MODEL.profile(frame, *names))
    assert same(MODEL.profile(data, by="column_1"), MODEL.profile(frame, *names, by="column_1"))
    assert same(pk.choose_k(data, **ROWS).drop(HIDDEN), pk.choose_k(frame, names, **ROWS).drop(HIDDEN))
    assert pk.choose_k(data, **ROWS)["inertia"][1] == pk.KMeans(3, seed=1).fit(data).inertia
    for name in ("scatter", "silhouette", "profile"):
        columns = {"columns": names} if name == "scatter" else {}
        pytest.importorskip("altair")
        expected = getattr(pk.plot, name)
        positions = () if name == "scatter" else names
        assert plot(name, data) == expected(MODEL, frame, *positions, **columns).to_dict()


def test_an_array_has_no_names_of_columns_and_no_column_of_weights() -> None:
    x = DF.to_numpy()
    for call in (lambda: MODEL.nearest(x, 1, "x", "y"), lambda: MODEL.profile(x, "x"), lambda: pk.choose_k(x, "x")):
        with pytest.raises(pk.InvalidParameterError, match="columns: expected none beside an array"):
            call()
    for call in (lambda: MODEL.profile(x, weight="w"), lambda: pk.choose_k(x, weight="w")):
        with pytest.raises(pk.InvalidParameterError, match=r"weight: expected none for an array.*pl.from_numpy"):
            call()


def test_masked_values_are_no_numbers() -> None:
    x = np.ma.array(DF.to_numpy())
    assert MODEL.predict(x).tolist() == MODEL.predict(DF).to_list()
    masked = np.ma.masked_greater(x, x.max() - 1)
    for call in (pk.KMeans(3).fit, MODEL.predict, MODEL.transform, MODEL.score, MODEL.profile, pk.choose_k):
        with pytest.raises(pk.InvalidParameterError, match=r"got one with a mask: call filled\(numpy.nan\) on it"):
            call(masked)
    assert (MODEL.predict(masked.filled(np.nan)) == -1).sum() == masked.mask.any(axis=1).sum() > 0


def test_one_dimension_is_one_feature() -> None:
    x = DF["x"].to_numpy()
    model = pk.KMeans(2, seed=1).fit(x)
    assert same(model.nearest(x, 2), model.nearest(pl.DataFrame({"column_0": x}), 2))
    assert model.nearest(np.empty((0, 1)), 2).height == 0


# Rows in forms that are not taken: what an error says, and what it makes of them.
FORMS: dict[str, tuple[Any, str]] = {
    "a sparse matrix": (
        sparse.csr_matrix(DF.to_numpy()),
        r"got scipy.sparse._csr.csr_matrix: call (toarray\(\)) on it",
    ),
    "a sparse array": (sparse.coo_array(DF.to_numpy()), r"got scipy.sparse._coo.coo_array: call (toarray\(\)) on it"),
    "tuples": (DF.rows(), r'got list: (pl.DataFrame\(data, orient="row"\)) makes a frame of rows'),
    "lists": (
        [list(row) for row in DF.rows()],
        r'got list: (pl.DataFrame\(data, orient="row"\)) makes a frame of rows',
    ),
    "arrays": (list(DF.to_numpy()), r'got list: (pl.DataFrame\(data, orient="row"\)) makes a frame of rows'),
    "dicts": (DF.to_dicts(), r"got list: (pl.DataFrame) makes a frame of it"),
    "a dict": (DF.to_dict(as_series=False), r"got dict: (pl.DataFrame) makes a frame of it"),
    "a row of JSON": ({"x": 1.0, "y": 2.0}, r"got dict: (pl.DataFrame) makes a frame of it"),
    "numbers": ([1.0, 2.0], r'got list: .* and (pl.DataFrame\(\[data\], orient="row"\)) a row'),
    "none": (None, "got NoneType()$"),
}
REFUSING: dict[str, Callable[[Any], Any]] = {
    "fit": lambda data: pk.KMeans(3).fit(data),
    "fit_predict": lambda data: pk.KMeans(3).fit_predict(data),
    "predict": lambda data: MODEL.predict(data),
    "transform": lambda data: MODEL.transform(data),
    "silhouette": lambda data: MODEL.silhouette(data),
    "score": lambda data: MODEL.score(data),
    "label": lambda data: MODEL.label(data),
    "nearest": lambda data: MODEL.nearest(data, 1),
    "profile": lambda data: MODEL.profile(data),
    "choose_k": lambda data: pk.choose_k(data, "x", "y"),
    "stability": lambda data: pk.stability(data, "x", "y", k=2),
    "plot.scatter": lambda data: plot("scatter", data),
    "plot.silhouette": lambda data: plot("silhouette", data),
    "plot.profile": lambda data: plot("profile", data),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_error_about_rows_says_what_to_pass_and_that_works(form: str) -> None:
    data, says = FORMS[form]
    for call in REFUSING.values():
        with pytest.raises(pk.InvalidParameterError, match=f"data: expected a frame or an array, {says}") as raised:
            call(data)
    found = re.search(says, str(raised.value))
    assert found is not None
    if form == "none":
        return
    made = eval(f"data.{found[1]}" if found[1].startswith("to") else found[1], {"pl": pl, "data": data})
    made = made(data) if callable(made) else made
    names = [] if isinstance(made, np.ndarray) else made.columns
    if made.shape[0] == DF.height:
        assert pk.KMeans(3, seed=1).fit(made, *names).inertia == MODEL.inertia
    assert len(MODEL.predict(made, *names)) == made.shape[0]


def test_a_frame_of_an_older_pandas_says_how_to_pass_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polars_kmeans._frames.is_foreign", lambda _: False)
    with pytest.raises(pk.InvalidParameterError, match=r"got pandas\..*DataFrame: pl\.from_pandas makes a frame"):
        pk.KMeans(2).fit(DF.to_pandas(), "x")


def test_what_holds_itself_is_no_list_of_columns() -> None:
    endless: list[Any] = []
    endless.append(endless)
    matrix = sparse.csr_matrix(DF.to_numpy())
    for columns in (endless, matrix, [matrix]):
        for call in (
            lambda columns=columns: pk.kmeans(columns, k=2),
            lambda columns=columns: pk.KMeans(2).fit(DF, columns),
            lambda columns=columns: MODEL.predict("x", columns),
        ):
            with pytest.raises(
                pk.InvalidColumnError, match=r"expected column names or expressions, got (list|scipy\.)"
            ):
                call()
    assert pk.KMeans(3, seed=1).fit(DF, [[["x"], "y"]]) == MODEL


def test_nearest_leaves_out_what_label_and_predict_have_added() -> None:
    expected = MODEL.nearest(DF, 3)
    labelled = MODEL.label(DF)
    structs = DF.with_columns(MODEL.predict(output="struct").struct.unnest())
    for frame in (labelled, labelled.cast({"cluster": pl.Int64}), structs.drop("second_distance")):
        assert MODEL.nearest(frame, 3).equals(expected)
        assert MODEL.nearest(frame.lazy(), 3).equals(expected)
    assert MODEL.nearest(structs, 3).columns == [*expected.columns, "second_distance"]
    # Rows without a label have none in both.
    holes = pl.concat([DF, DF.head(2).with_columns(x=None)])
    assert MODEL.nearest(MODEL.label(holes), 3).equals(expected)
    assert MODEL.nearest(MODEL.label(DF).clear(), 3).equals(expected.clear())
    for other in (pl.col("cluster") + 1, pl.lit("a"), pl.lit(None, pl.UInt32)):
        with pytest.raises(pk.InvalidColumnError, match=r'column "cluster": .* other values: rename or drop'):
            MODEL.nearest(labelled.with_columns(cluster=other), 3)


SERVED = {
    "floats": DF.head(5),
    "narrow": DF.head(5).cast({"x": pl.Float32, "y": pl.Int8}),
    "wide integers": DF.head(5).cast({"x": pl.Int64, "y": pl.UInt16}, strict=False),
    "nulls and NaNs": pl.DataFrame({"x": [0.0, None, 3.0], "y": [float("nan"), 1.0, 9.0]}),
    "chunks": pl.concat([DF.head(2), DF.tail(2)], rechunk=False),
    "a slice": DF.slice(7, 3),
    "booleans": DF.head(2).with_columns(y=pl.lit(True)),
    "no rows": DF.clear(),
}


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("model", [MODEL, pk.KMeans(1).fit(DF.cast(pl.Float32), "x", "y")], ids=["three", "one"])
def test_a_frame_has_the_answers_of_a_query(name: str, model: pk.KMeansModel) -> None:
    frame = SERVED[name]
    other = frame.rename({"x": "a", "y": "b"})
    for one, query in (
        (model.predict(frame), model.predict()),
        (model.predict(frame, output="struct"), model.predict(output="struct")),
        (model.transform(frame), model.transform()),
        (model.transform(frame, squared=True), model.transform(squared=True)),
        (model.silhouette(frame), model.silhouette()),
    ):
        assert one.equals(frame.select(query).to_series(), check_dtypes=True, check_names=True)
    assert model.predict(other, "a", iter(["b"])).equals(model.predict(frame))
    with pytest.raises(pk.InvalidColumnError, match="expected 'x' at place 1, as in the fit, got 'y'"):
        model.predict(frame, "y", "x")
    if frame.height > 0:
        with pytest.raises(pk.InvalidColumnError, match="features: expected 2 features, got 1"):
            model.predict(frame, "x")
    with pytest.raises(pk.InvalidParameterError, match="device"):
        model.predict(frame, device="gpu")
    if name == "nulls and NaNs":
        with pytest.raises(pk.InvalidDataError, match='column "x": expected finite values, got nulls: 1'):
            model.predict(frame, null_policy="raise")


def test_one_row_needs_no_query() -> None:
    """A query takes 500 microseconds. This is the least of many times, because other programs may run here."""
    one = DF.head(1)
    for call in (lambda: MODEL.predict(one), lambda: MODEL.transform(one)):
        assert min(timeit.repeat(call, number=1, repeat=100)) < 2e-4


ARRAY_MODEL = pk.KMeans(3, seed=1).fit(DF.select(e=pl.concat_arr("x", "y")), "e")
JSON: dict[str, tuple[pk.KMeansModel, list[str]]] = {
    "one column": (MODEL, ['{"x": 1.0, "y": null}']),
    "all columns": (MODEL, ['{"x": null, "y": null}', '{"x": null, "y": null}']),
    "an array": (ARRAY_MODEL, ['{"e": null}']),
    "an array of nulls": (ARRAY_MODEL, ['{"e": [null, null]}']),
    "float32": (pk.KMeans(3).fit(DF.cast(pl.Float32), "x", "y"), ['{"x": 1, "y": null}']),
}


@pytest.mark.parametrize("name", JSON)
@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_a_row_of_json_with_a_null_has_no_label(name: str, engine: str) -> None:
    """Its column has no type. The answers are those of a column of numbers that is null."""
    model, lines = JSON[name]
    frame = pl.DataFrame([json.loads(line) for line in lines])
    assert any(dtype in (pl.Null, pl.List(pl.Null)) for dtype in frame.dtypes)
    typed = pl.DataFrame({name: [None] * len(lines) for name in frame.columns}).cast(
        {name: model.centroids.schema[name] for name in frame.columns}
    )
    for expr in (model.predict(), model.predict(output="struct"), model.transform(), model.silhouette()):
        found = frame.lazy().select(expr).collect(engine=engine)
        assert found.equals(typed.select(expr)) and found.to_series().null_count() == len(lines)
    for data in (frame, frame.lazy(), frame.to_arrow(), frame.to_pandas()):
        assert model.predict(data).to_list() == model.transform(data).to_list() == [None] * len(lines)
        assert model.label(data).lazy().collect()["cluster"].to_list() == [None] * len(lines)
    assert model.score(frame) == model.score(typed)
    assert model.nearest(frame, 2).height == 0
    if model is not ARRAY_MODEL:
        assert model.profile(frame)["mean"].null_count() == 6
    untyped = next(name for name, dtype in frame.schema.items() if dtype in (pl.Null, pl.List(pl.Null)))
    # A query may split two rows.
    with pytest.raises(pk.InvalidDataError, match=f'column "{untyped}": expected finite values, got nulls: [12]'):
        model.predict(frame, null_policy="raise")
    # A fit needs types.
    with pytest.raises(pk.InvalidColumnError, match=r"got (null|list)"):
        pk.KMeans(1, null_policy="skip").fit(frame, *frame.columns)


def test_an_empty_frame_of_no_types_has_no_labels() -> None:
    assert MODEL.predict(pl.DataFrame(schema=["x", "y"])).to_list() == []
    with pytest.raises(pk.InvalidColumnError, match="expected 2 features, got 3"):
        MODEL.predict(pl.DataFrame({"x": [None], "y": [1.0], "z": [1.0]}), "x", "y", "z")
