"""One model a group: the bits of a separate fit of each group, together in one object, one expression and one file."""

import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import polars_kmeans as pk
from polars_kmeans import KMeansModels

RANDOM = np.random.default_rng(11)
N = 3000
DF = pl.DataFrame(
    {
        "shop": RANDOM.choice(["a", "b", "c"], size=N),
        "year": RANDOM.integers(2020, 2023, size=N),
        "x": RANDOM.normal(size=N) * 10,
        "y": RANDOM.normal(size=N),
        "w": RANDOM.integers(1, 5, size=N),
    }
).with_columns(pl.when(pl.col("shop") != "c").then("shop"))


@pytest.fixture(scope="module")
def models() -> KMeansModels:
    return pk.KMeans(3, seed=2, weight="w").fit(DF, "x", "y", by="shop")


def test_each_group_has_the_bits_of_its_own_fit(models: KMeansModels) -> None:
    assert set(models) == {"a", "b", None} and len(models) == 3
    assert models.by == ["shop"] and repr(models) == "KMeansModels(by=['shop'], groups=3)"
    for shop, model in models.items():
        rows = DF.filter(pl.col("shop").eq_missing(pl.lit(shop)))
        assert model == pk.KMeans(3, seed=2, weight="w").fit(rows, "x", "y")
    with pytest.raises(KeyError):
        models["z"]
    assert pk.KMeans(3, seed=2, weight="w").fit(DF.lazy(), ["x", "y"], by=["shop"]) == models
    other = pk.KMeans(3, seed=3, weight="w").fit(DF, "x", "y", by="shop")
    assert models != other and {models, pickle.loads(pickle.dumps(models)), other} == {models, other}


def test_labels_are_those_of_over(models: KMeansModels) -> None:
    expected = DF.select(pk.kmeans("x", "y", k=3, seed=2, weight="w", output="struct").over("shop")).to_series()
    labels = expected.struct.field("cluster")
    for engine in ("in-memory", "streaming"):
        found = DF.lazy().select(models.predict(), models.predict("x", "y", output="struct").alias("struct"))
        assert found.collect_schema()["cluster"] == pl.UInt32
        result = found.collect(engine=engine)
        assert result["cluster"].equals(labels.alias("cluster"))
        assert result["struct"].equals(expected.alias("struct"))
    assert models.label(DF).equals(DF.with_columns(labels.alias("cluster")))
    lazy = models.label(DF.lazy(), name="c")
    assert isinstance(lazy, pl.LazyFrame) and lazy.collect().columns == [*DF.columns, "c"]


def test_streams_of_many_morsels_have_the_same_labels(models: KMeansModels) -> None:
    many = pl.concat([DF] * 100)
    streamed = many.lazy().select(models.predict()).collect(engine="streaming")
    assert streamed.equals(many.select(models.predict()))


def test_unknown_groups_and_bad_rows_have_no_label(models: KMeansModels) -> None:
    rows = pl.DataFrame({"shop": ["a", "z", "b", "a", None], "x": [1.0, 1.0, None, np.nan, 2.0], "y": [0.0] * 5})
    assert models.label(rows)["cluster"].is_null().to_list() == [False, True, True, True, False]
    structs = rows.select(models.predict(output="struct"))["cluster"]
    assert structs.is_null().to_list() == [False, True, True, True, False]
    assert models.label(rows.clear())["cluster"].len() == 0


def test_several_columns_make_tuples() -> None:
    models = pk.KMeans(2).fit(DF, "x", by=["year", "shop"])
    assert models.by == ["year", "shop"] and len(models) == 9
    rows = DF.filter(pl.col("shop").is_null(), pl.col("year") == 2021)
    assert models[2021, None] == pk.KMeans(2).fit(rows, "x")
    expected = DF.select(pk.kmeans("x", k=2).over("year", "shop"))
    assert DF.select(models.predict()).equals(expected)
    assert models.centroids.columns == ["year", "shop", "cluster", "size", "inertia", "x"]
    assert models.centroids.height == 18 and models.centroids["size"].sum() == N


def test_columns_of_any_name_and_kind() -> None:
    odd = DF.select(pl.col("shop").alias("^s.*$"), pl.col("year").alias("cluster"), pl.col("x").alias("*"), "y")
    models = pk.KMeans(2).fit(odd, "*", "y", by=["^s.*$", "cluster"])
    expected = DF.select(pk.kmeans("x", "y", k=2).over("shop", "year"))
    assert odd.select(models.predict()).equals(expected)
    with pytest.raises(pk.InvalidColumnError, match=r"by: expected other names .* got 'cluster'"):
        _ = models.centroids
    array = DF.select("shop", e=pl.concat_list("x", "y").list.to_array(2))
    of_arrays = pk.KMeans(2).fit(array, "e", by="shop")
    assert array.select(of_arrays.predict()).equals(DF.select(pk.kmeans("x", "y", k=2).over("shop")))
    computed = pk.KMeans(2).fit(DF, pl.col("x") * 2, by="shop")
    assert DF.select(computed.predict(pl.col("x") * 2)).equals(DF.select(pk.kmeans(pl.col("x") * 2, k=2).over("shop")))
    with pytest.raises(pk.InvalidColumnError):
        computed.predict()
    with pytest.raises(pk.InvalidColumnError, match="expected 'x' at place 1"):
        pk.KMeans(2).fit(DF, "x", "y", by="shop").predict("y", "x")
    scaled = pk.KMeans(2, scale="standard").fit(DF, "x", "y", by="shop")
    assert DF.select(scaled.predict()).equals(DF.select(pk.kmeans("x", "y", k=2, scale="standard").over("shop")))


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b"]), pl.String])
def test_files_keep_keys_and_models(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = DF.cast({"shop": kind})
    models = pk.KMeans(2, seed=1).fit(typed, "x", "y", by="shop")
    monkeypatch.setenv("HOME", str(tmp_path))
    models.save("~/models.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models.parquet"]
    models.save(tmp_path / "models.parquet")
    buffer = io.BytesIO()
    models.save(buffer)
    buffer.seek(0)
    for same in (
        KMeansModels.load("~/models.parquet"),
        KMeansModels.load(buffer),
        KMeansModels.from_bytes(models.to_bytes()),
        pickle.loads(pickle.dumps(models)),
    ):
        assert same == models
        assert same.label(typed).equals(models.label(typed))


def test_groups_with_too_few_rows() -> None:
    few = pl.DataFrame({"shop": ["a", "a", "b"], "x": [1.0, 2.0, 3.0]})
    with pytest.raises(pk.TooFewRowsError, match=r"group shop = 'b': .* got k = 2 and 1 rows of positive weight"):
        pk.KMeans(2).fit(few, "x", by="shop")
    models = pk.KMeans(2, too_few="null").fit(few, "x", by="shop")
    assert models["b"] is None
    assert models.label(few)["cluster"].is_null().to_list() == [False, False, True]
    assert KMeansModels.from_bytes(models.to_bytes()) == models
    assert models.centroids["shop"].to_list() == ["a", "a"]
    none = pk.KMeans(5, too_few="null").fit(few, "x", by="shop")
    assert none.centroids.is_empty()
    with pytest.raises(pk.InvalidParameterError, match="expected at least one group with a model"):
        none.predict()


def test_errors_name_the_group() -> None:
    holes = DF.with_columns(pl.when(pl.col("year") != 2021).then("x"))
    with pytest.raises(pk.InvalidDataError, match=r"group shop = '?\w+'?, year = 2021: column \"x\": expected finite"):
        pk.KMeans(2).fit(holes, "x", by=["shop", "year"])


def test_one_warning_for_all_groups() -> None:
    with pytest.warns(pk.ConvergenceWarning, match="3 of 3 fits used all 1 iterations") as found:
        pk.KMeans(8, max_iter=1).fit(DF, "x", by="shop")
    assert len(found) == 1 and found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pk.KMeans(8).fit(DF, "x", by="shop")


@pytest.mark.parametrize("by", [[], ["shop", "shop"], 3, [pl.col("shop")]])
def test_what_makes_no_groups_is_refused(by: Any) -> None:
    with pytest.raises(pk.InvalidParameterError, match="by: expected one or several different names"):
        pk.KMeans(2).fit(DF, "x", by=by)


def test_names_that_are_taken_are_refused() -> None:
    with pytest.raises(pk.InvalidColumnError, match="expected another name"):
        pk.KMeans(2).fit(DF.rename({"w": "__group__"}), "x", by="shop")


def test_other_files_are_refused(models: KMeansModels, tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    for write, message in (
        (lambda: DF.write_parquet(path), "got a Parquet file of another program$"),
        (lambda: models["a"].save(path), "got one of another kind: KMeansModel.load reads it"),  # type: ignore[union-attr]
        (lambda: path.write_bytes(models.to_bytes()[:200]), "got one that breaks off"),
        (lambda: path.write_bytes(models.to_bytes() + b"\n"), "got one that was cut or added to"),
        (lambda: path.write_text("Hello"), "got something that is no Parquet file"),
        (lambda: path.write_bytes(b""), "got something that is no Parquet file"),
    ):
        write()
        with pytest.raises(pk.InvalidModelError, match=message):
            KMeansModels.load(path)
    newer = bytearray(models.to_bytes())
    newer[17] = 2
    path.write_bytes(newer)
    with pytest.raises(pk.InvalidModelError, match="format 1, got format 2 of a newer version"):
        KMeansModels.load(path)
    models.save(path)
    with pytest.raises(pk.InvalidModelError, match=r"got one of another kind: KMeansModels\.load reads it"):
        pk.KMeansModel.load(path)
    with pytest.raises(pk.ModelFileError, match="no such file or folder"):
        KMeansModels.load(tmp_path / "missing.parquet")
    with pytest.raises(pk.ModelFileError, match=tmp_path.name):
        KMeansModels.load(tmp_path)
    with pytest.raises(pk.ModelFileError, match="no such file or folder"):
        models.save(tmp_path / "missing" / "models.parquet")
