"""What callers pass as it comes: numbers of NumPy, numbers as names, keys of any type, options without effect."""

import warnings
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from polars.exceptions import ColumnNotFoundError

import polars_kmeans as pk

DF = pl.DataFrame({"x": [0.0, 1.0, 5.0, 6.0, 0.5, 1.5, 5.5, 9.0], "g": ["a", "b"] * 4})
MODEL = pk.KMeans(2, init=[[0.0], [5.0]], keep_sums=True).fit(DF, "x")
WRITTEN = pk.KMeansModel.from_centroids([[0.0], [5.0]], ["x"])


def fit(**options: Any) -> pl.DataFrame:
    return pk.KMeans(**{"k": 2, **options}).fit(DF, "x").centroids


def label(**options: Any) -> pl.Series:
    return DF.select(pk.kmeans("x", **{"k": 2, **options})).to_series()


def in_parts(count: Any) -> pl.DataFrame:
    halves = [pk.parts.Part(DF[:4], "x"), pk.parts.Part(DF[4:], "x")]
    model = pk.parts.fit(pk.KMeans(2), lambda asked: [halves[part].answer(sent) for part, sent in asked], count)
    return model.centroids


def in_sql(**options: Any) -> list:
    import duckdb

    with duckdb.connect() as connection:
        connection.sql("CREATE TABLE t AS SELECT unnest([0.0, 1.0, 5.0, 6.0]) AS x")
        pk.sql.register(connection, **options)
        return connection.sql("SELECT kmeans_centroids([x], 2) FROM t").fetchall()


INTEGERS: dict[str, Callable[[Any], Any]] = {
    "k": lambda n: fit(k=n(2)),
    "k of an expression": lambda n: label(k=n(2)),
    "n_init": lambda n: fit(n_init=n(3)),
    "seed": lambda n: fit(seed=n(2)),
    "rounds": lambda n: fit(init="kmeans-parallel", rounds=n(2)),
    "chain_length": lambda n: fit(init="afk-mc2", chain_length=n(9)),
    "init_sample": lambda n: fit(init_sample=n(4)),
    "max_iter": lambda n: fit(max_iter=n(9)),
    "device_memory_limit": lambda n: fit(device_memory_limit=n(10**9)),
    "memory_limit": lambda n: pk.KMeans(2).fit(DF.lazy(), "x", memory_limit=n(10**9)).centroids,
    "tol": lambda n: fit(tol=n(0)),
    "scale": lambda n: fit(scale={"x": n(2)}),
    "init": lambda n: fit(init=[n(0), n(5)]),
    "nearest_clusters": lambda n: DF.select(MODEL.nearest_clusters(n(2))),
    "nearest": lambda n: MODEL.nearest(DF, n(2)),
    "choose_k": lambda n: pk.choose_k(DF, "x", k=[n(2), n(3)]).drop("seconds"),
    "plan": lambda n: pk.KMeans(2, device="cpu").plan(shape=(n(10**6), n(8))).host_bytes,
    "parts": lambda n: in_parts(n(2)),
    "sql": lambda n: in_sql(seed=n(2), n_init=n(2)),
    "sphere_km": lambda n: DF.select(pk.sphere_km(pl.col("x") / 9, radius=n(6371))),
    "decay": lambda n: MODEL.updated(DF.clear().select(MODEL.sums()), decay=n(1)).centroids,
    "extents": lambda n: DF.select(WRITTEN.sums(extents=[n(9)])),
    "extents of a fit": lambda n: fit(extents=[n(99)]),
    "widened": lambda n: MODEL.widened([n(99)]).to_bytes(),
    "stability": lambda n: pk.stability(DF, "x", k=2, resamples=n(2), sort_by="x"),
    "quantiles": lambda n: MODEL.profile(DF, quantiles=[n(0), n(1)]),
}
FLOATS: dict[str, Callable[[Any], Any]] = {
    "tol": lambda n: fit(tol=n(0.25)),
    "tol_labels": lambda n: fit(tol_labels=n(0.25)),
    "oversampling": lambda n: fit(init="kmeans-parallel", oversampling=n(0.5)),
    "scale": lambda n: fit(scale={"x": n(0.25)}),
    "init": lambda n: fit(init=[[n(0.5)], [n(4.5)]]),
    "sphere_km": lambda n: DF.select(pk.sphere_km(pl.col("x") / 9, radius=n(6371.5))),
    "decay": lambda n: MODEL.updated(DF.clear().select(MODEL.sums()), decay=n(0.5)).centroids,
    "extents": lambda n: DF.select(WRITTEN.sums(extents={"x": n(9.5)})),
    "quantiles": lambda n: MODEL.profile(DF, quantiles=[n(0.25), n(0.5)]),
    "sql": lambda n: in_sql(tol=n(0.25)),
}


def same(one: Any, other: Any) -> bool:
    return one.equals(other) if hasattr(one, "equals") else bool(one == other)


@pytest.mark.filterwarnings("ignore::polars_kmeans.NoClearKWarning")
@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.array], ids=["int64", "uint8", "0-d array"])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_numpy(name: str, kind: Any) -> None:
    def number(value: int) -> Any:
        return kind(value) if kind is not np.uint8 or value < 256 else np.uint64(value)

    assert same(INTEGERS[name](number), INTEGERS[name](int))


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.array], ids=["float32", "float64", "0-d array"])
@pytest.mark.parametrize("name", FLOATS)
def test_floats_of_numpy(name: str, kind: Any) -> None:
    assert same(FLOATS[name](kind), FLOATS[name](float))


@pytest.mark.parametrize(
    "value", [True, np.True_, "2", b"2", np.array([2]), np.array([2, 3]), np.datetime64(2, "s"), None, 1j, np.str_("2")]
)
@pytest.mark.parametrize(
    "call",
    [
        lambda value: MODEL.nearest_clusters(value),
        lambda value: MODEL.nearest(DF, value),
        lambda value: pk.KMeans(value),
        lambda value: pk.sphere_km("x", radius=value),
        lambda value: MODEL.profile(DF, quantiles=[value]),
        lambda value: WRITTEN.sums(extents=[value]),
        lambda value: pk.KMeans(2, scale={"x": value}),
        lambda value: in_parts(value),
    ],
)
def test_what_is_no_number_is_refused(call: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(pk.InvalidParameterError, match="expected"):
        call(value)


def test_estimators_show_numbers_of_numpy() -> None:
    assert eval(repr(pk.KMeans(np.int64(3), tol=np.float64(0.5))), {"np": np, "KMeans": pk.KMeans}).k == 3


# ---- starting centroids ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"n_init": 5}, {"init_sample": 3}, {"rounds": 7}, {"n_init": np.int64(2)}])
def test_options_beside_starting_centroids_warn(options: dict[str, Any]) -> None:
    for make in (lambda **given: pk.KMeans(2, **given), lambda **given: pk.kmeans("x", k=2, **given)):
        for init in ([[0.0], [5.0]], np.array([[0.0], [5.0]]), MODEL):
            with pytest.warns(pk.OptionWarning, match=f"^{next(iter(options))}: no effect, since init has") as caught:
                make(init=init, **options)
            assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(pk.OptionWarning):
        assert fit(init=[[0.0], [5.0]], **options).equals(MODEL.centroids)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pk.KMeans(2, n_init=5)
        pk.KMeans(2, n_init=1, init=[[0.0], [5.0]], max_iter=5, seed=3)
        pk.KMeans(2, n_init="auto", init=MODEL)


def test_models_of_groups_are_not_starting_centroids() -> None:
    models = pk.KMeans(2).fit(DF, "x", by="g")
    with pytest.raises(pk.InvalidParameterError, match=r"fit each group from its own, as in KMeans\(k, init=models"):
        pk.KMeans(2, init=models)
    rows = DF.filter(g="a")
    assert pk.KMeans(2, init=models["a"]).fit(rows, "x").centroids.equals(models["a"].centroids)


def test_other_objects_with_centroids_are_starting_centroids() -> None:
    class Index:
        centroids = np.array([[0.0], [5.0]])

    assert pk.KMeans(2, init=Index()).fit(DF, "x").centroids.equals(MODEL.centroids)


# ---- keys of groups -------------------------------------------------------------------------------------------------

KEYS: dict[str, tuple[list, Any]] = {
    "int": ([1, 2], pl.Int64),
    "int8": ([1, 2], pl.Int8),
    "int128": ([1, 2], pl.Int128),
    "float": ([1.5, float("nan")], pl.Float64),
    "string": (["a", "b"], pl.String),
    "categorical": (["a", "b"], pl.Categorical),
    "enum": (["a", "b"], pl.Enum(["b", "a"])),
    "boolean": ([True, False], pl.Boolean),
    "binary": ([b"a", b"b"], pl.Binary),
    "decimal": ([Decimal("1.5"), Decimal("2.5")], pl.Decimal(9, 2)),
    "date": ([date(2020, 1, 1), date(2021, 1, 1)], pl.Date),
    "datetime": ([datetime(2020, 1, 1), datetime(2021, 1, 1)], pl.Datetime("ms")),
    "zoned": ([datetime(2020, 1, 1), datetime(2021, 1, 1)], pl.Datetime("us", "UTC")),
    "duration": ([timedelta(1), timedelta(2)], pl.Duration("us")),
    "time": ([time(1), time(2)], pl.Time),
    "with nulls": ([None, "b"], pl.String),
    "only nulls": ([None, None], pl.Null),
}


def keyed(kind: str) -> pl.DataFrame:
    values, dtype = KEYS[kind]
    return DF.with_columns(g=pl.Series(values, dtype=dtype).gather([0, 1] * 4))


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_of_single_values(kind: str) -> None:
    frame = keyed(kind)
    models = pk.KMeans(2, seed=1).fit(frame, "x", by="g")
    assert models.label(frame).equals(frame.with_columns(pk.kmeans("x", k=2, seed=1).over("g")))
    assert pk.KMeansModels.from_bytes(models.to_bytes()) == models


@pytest.mark.parametrize("name", ["g", "the key"])
@pytest.mark.parametrize(
    "key", [pl.concat_list("x", "x"), pl.concat_arr("x", "x"), pl.struct("x", y="x"), pl.lit(pl.Series([object()] * 8))]
)
def test_keys_of_several_values_are_refused(key: pl.Expr, name: str) -> None:
    frame = DF.with_columns(key.alias(name))
    with pytest.raises(pk.InvalidColumnError, match=f'by: column "{name}": expected single values as keys, got') as got:
        pk.KMeans(1).fit(frame, "x", by=name)
    if "make texts: " in str(got.value):
        texts = frame.with_columns(eval(str(got.value).rpartition("make texts: ")[2], {"pl": pl}))
        assert len(pk.KMeans(1).fit(texts, "x", by=name)) == 8


@pytest.mark.parametrize("known", KEYS)
@pytest.mark.parametrize("given", KEYS)
def test_keys_of_another_type_are_compared_or_refused_by_name(known: str, given: str) -> None:
    """The remedy in the error makes the types agree, as far as Polars can cast the values."""
    models = pk.KMeans(2, seed=1).fit(keyed(known).rename({"g": "the key"}), "x", by=["the key"])
    rows = keyed(given).rename({"g": "the key"})
    try:
        labels = models.label(rows)["cluster"]
    except pk.InvalidColumnError as error:
        said = str(error)
        assert said.startswith('column "the key": expected keys of type ') and ", as in the fit, got " in said
        remedy = eval(said[said.index('pl.col("the key")') :].partition("\n")[0], {"pl": pl})
        try:
            models.label(rows.with_columns(remedy))
        except pl.exceptions.InvalidOperationError:
            pass
    else:
        texts = {"string", "categorical", "enum"}
        if known in texts and given in texts:
            assert labels.null_count() == 0


# ---- names that are numbers -----------------------------------------------------------------------------------------


def test_pandas_frames_with_numbers_as_names() -> None:
    frame = pd.DataFrame(np.arange(12.0).reshape(6, 2) % 5)
    renamed = frame.set_axis(["0", "1"], axis=1)
    model = pk.KMeans(2).fit(frame, "0", "1")
    assert model == pk.KMeans(2).fit(renamed, "0", "1") == pk.KMeans(2).fit(frame, pl.all())
    assert model.predict(frame).equals(model.predict(renamed))
    assert model.score(frame) == model.score(renamed)
    assert pk.KMeans(2).fit(frame, "1").feature_names == ["1"]
    with pytest.raises(pk.InvalidColumnError, match=r'got int: names are texts, as "0"$'):
        pk.KMeans(2).fit(frame, 0, 1)
    with pytest.raises(pk.InvalidColumnError, match=r'names are texts, as "0"$'):
        model.predict(frame, 0, 1)
    with pytest.raises(ColumnNotFoundError, match=r""""z" not found: expected one of the columns \['0', '1'\]"""):
        pk.KMeans(2).fit(frame, "0", "z")
    with pytest.raises(ColumnNotFoundError, match=r"pl.all\(\) takes all columns"):
        pk.KMeans(2).fit(frame, "*")


# ---- answers at once, files and updates -----------------------------------------------------------------------------


def test_nearest_clusters_and_silhouettes_of_frames_and_arrays() -> None:
    rows = np.array([[0.0, 0.0], [1.0, 1.0], [np.nan, 0.0], [5.0, 5.0], [9.0, -3.0]])
    frame = pl.DataFrame(rows, schema=["column_0", "column_1"])
    model = pk.KMeansModel.from_centroids([[0.0, 0.0], [2.0, 2.0], [6.0, 6.0]])
    for options in ({}, {"squared": True}):
        expr = frame.select(model.nearest_clusters(2, **options)).to_series()
        for data in (frame, frame.lazy(), frame.to_arrow()):
            assert model.nearest_clusters(2, data, **options).equals(expr)
            assert model.nearest_clusters(2, data, "column_0", "column_1", **options).equals(expr)
        found = model.nearest_clusters(2, rows, **options)
        assert found.clusters.dtype == np.int32 and found.clusters[2].tolist() == [-1, -1]
        assert np.isnan(found.distances[2]).all()
        for at in (0, 1, 3, 4):
            assert {name: values[at].tolist() for name, values in found._asdict().items()} == expr[at]
    narrow = model.nearest_clusters(1, np.asfortranarray(rows.astype("float32")))
    assert narrow.clusters[:, 0].tolist() == model.predict(rows).tolist()
    expected = frame.select(model.silhouette()).to_series()
    assert model.silhouette(frame.to_arrow()).equals(expected)
    assert pl.Series(model.silhouette(rows), nan_to_null=True).to_list() == expected.to_list()
    unknown = type("Rows", (), {"__array_interface__": rows.__array_interface__, "kept": rows})()
    np.testing.assert_array_equal(model.silhouette(unknown), model.silhouette(rows))
    np.testing.assert_array_equal(model.nearest_clusters(2, unknown).clusters, model.nearest_clusters(2, rows).clusters)
    one = pk.KMeansModel.from_centroids([[0.0, 0.0]])
    assert np.isnan(one.silhouette(rows)).all() and one.silhouette(rows).shape == (5,)
    with pytest.raises(pk.InvalidParameterError, match="m: expected an integer from 1 to 3, the number of clusters"):
        model.nearest_clusters(8, rows)
    with pytest.raises(pk.InvalidColumnError, match="expected 2 features, got 1"):
        model.nearest_clusters(2, rows[:, :1])


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 900 + "]" * 900, "null", "\0", "NaN"])
def test_json_that_is_no_model_is_refused(text: str) -> None:
    with pytest.raises(pk.InvalidModelError, match="expected JSON that"):
        pk.KMeansModel.from_json(text)


def test_a_removal_needs_no_additions() -> None:
    gone, none = DF[:1].select(MODEL.sums()), DF.clear().select(MODEL.sums())
    assert MODEL.updated(removed=gone) == MODEL.updated(none, removed=gone)
    assert MODEL.updated(removed=gone).centroids["size"].to_list() == [3, 4]
    assert MODEL.updated(decay=0.5) == MODEL.updated(none, decay=0.5)
    array = pk.KMeans(2, keep_sums=True).fit(DF.select(e=pl.concat_arr("x", "x")), "e")
    assert array.updated().centroids["size"].sum() == 8


def test_no_message_advises_an_install_of_this_package() -> None:
    package = Path(pk.__file__).parent
    sources = [file.read_text() for file in package.rglob("*.py")]
    assert len(sources) > 30
    assert not [text for text in sources if "pip install polars" in text or "polars-kmeans[" in text]


@pytest.mark.parametrize(
    "keys",
    [
        pl.Series("g", [1, 2, 3]).cast(pl.Datetime("ns")),
        pl.Series("g", [1, 2, 3]).cast(pl.Duration("ns")),
        pl.Series("g", [1, 2, 3]).cast(pl.Time),
        pl.Series("g", [2**31 - 1, 1, 2], dtype=pl.Int32).cast(pl.Date),
    ],
)
def test_keys_that_python_cannot_tell_apart_are_refused(keys: pl.Series) -> None:
    frame = pl.DataFrame({"x": [0.0, 1.0, 2.0]}).with_columns(keys)
    with pytest.raises(pk.errors.InvalidColumnError, match='by: column "g": expected keys that Python can hold'):
        pk.KMeans(1).fit(frame, "x", by="g")
    assert len(pk.KMeans(1).fit(frame.with_columns(pl.col("g").cast(pl.Int64)), "x", by="g")) == 3


def test_names_that_are_arrays_and_names_that_are_equal() -> None:
    model = pk.KMeansModel.from_centroids([[0.0], [5.0]], ["x"])
    assert model.with_names(np.array(["low", "high"])).cluster_names == ["low", "high"]
    with pytest.raises(pk.InvalidParameterError, match="columns: expected different names"):
        pk.KMeansModel.from_centroids([[0.0, 1.0], [2.0, 3.0]], ["a", "a"])
    with pytest.raises(pk.InvalidParameterError, match="batch: expected a text"):
        model.updated(batch="\ud800")
