"""A name stands for the column of exactly that name, even `*`, `^...$` or one with a NUL. `pl.col` takes patterns."""

import pickle
from pathlib import Path

import polars as pl
import polars.selectors as cs
import pytest
from polars.exceptions import ColumnNotFoundError

import polars_kmeans as pk

# Some columns have patterns as their names. There are also the columns that these patterns match.
DF = pl.DataFrame(
    {
        "^b.*$": [0.0, 0.1, 5.0, 5.1, 9.0, 9.3],
        "b1": [9.0, 0.0, 9.0, 0.0, 9.0, 0.0],
        "b2": [7.0, 7.0, 0.0, 0.0, 3.0, 3.0],
        "*": [1.0, 1.1, 9.0, 9.1, 2.0, 2.1],
        "g": [0, 0, 0, 1, 1, 1],
        "^w$": [1.0, 2.0, 3.0, 1.0, 2.0, 3.0],
        "w": [3.0, 1.0, 1.0, 1.0, 1.0, 0.0],
    }
)
NAMES = ["^b.*$", "*"]
PLAIN = DF.rename({"^b.*$": "p", "*": "q", "^w$": "v"})


def plain(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.rename({"p": "^b.*$", "q": "*"}, strict=False)


@pytest.mark.parametrize("names", [NAMES, NAMES[:1], NAMES[1:]])
@pytest.mark.parametrize("weight", [None, "^w$"])
def test_patterns_are_names(names: list[str], weight: str | None, tmp_path: Path) -> None:
    to_plain = {"^b.*$": "p", "*": "q"}
    other, other_weight = [to_plain[name] for name in names], weight and "v"
    model = pk.KMeans(2, weight=weight).fit(DF, names)
    expected = pk.KMeans(2, weight=other_weight).fit(PLAIN, other)
    assert model.feature_names == names
    assert model.centroids.equals(plain(expected.centroids))
    model.save(tmp_path / "model.parquet")
    for used in (model, pk.KMeansModel.load(tmp_path / "model.parquet"), pickle.loads(pickle.dumps(model))):
        got = DF.select(used.predict(), used.transform(), used.predict(output="struct").alias("s"))
        want = PLAIN.select(expected.predict(), expected.transform(), expected.predict(output="struct").alias("s"))
        assert got.equals(want)
        assert used.score(DF, weight=weight) == expected.score(PLAIN, weight=other_weight)
        assert used.score(DF.lazy(), *names, weight=weight) == used.score(DF, weight=weight)
        lazy = DF.lazy().with_columns(used.predict(), used.transform(names))
        assert lazy.collect_schema()["cluster"] == pl.UInt32
        for engine in ("in-memory", "streaming"):
            assert lazy.collect(engine=engine)["cluster"].equals(want["cluster"])


@pytest.mark.parametrize("weight", [None, "^w$"])
def test_patterns_are_names_in_expressions(weight: str | None) -> None:
    other = weight and "v"
    whole, group = {"k": 2, "weight": weight}, {"k": 2, "weight": weight, "output": "struct"}
    assert DF.select(pk.kmeans(*NAMES, **whole)).equals(PLAIN.select(pk.kmeans("p", "q", k=2, weight=other)))
    got = DF.with_columns(pk.kmeans(NAMES, **group).over("g"))["cluster"]
    assert got.equals(PLAIN.with_columns(pk.kmeans("p", "q", k=2, weight=other, output="struct").over("g"))["cluster"])
    got = DF.group_by("g", maintain_order=True).agg(pk.centroids("^b.*$", k=2, weight=weight))
    want = PLAIN.group_by("g", maintain_order=True).agg(pk.centroids("p", k=2, weight=other))
    fields = [field.name for field in got.schema["centroids"].inner.fields]
    assert fields == ["cluster", "size", "inertia", "^b.*$"]
    assert got.explode("centroids").unnest("centroids").rows() == want.explode("centroids").unnest("centroids").rows()
    start = DF.head(2).select("b1", cs.by_name("*"), cs.by_name("^b.*$"))
    expected = PLAIN.select(pk.kmeans("p", "q", k=2, init=PLAIN.head(2)))
    assert DF.select(pk.kmeans(*NAMES, k=2, init=start)).equals(expected)
    structs = DF.select(s=pl.struct(cs.by_name("^b.*$"), "b1"))
    field = pl.col("s").struct.field("b1")
    assert structs.select(pk.kmeans(field, k=2)).equals(DF.select(pk.kmeans("b1", k=2)))


def test_patterns_of_expressions_are_patterns() -> None:
    assert pk.KMeans(2).fit(DF, pl.col("^b.*$")).feature_names == ["b1", "b2"]
    assert pk.KMeans(2).fit(DF, cs.matches("^b.$")).feature_names == ["b1", "b2"]
    assert pk.KMeans(2).fit(DF.select("b1", "b2"), pl.all()).feature_names == ["b1", "b2"]
    assert DF.select(pk.KMeans(2).fit(DF, "b1", "b2").predict(pl.col("^b.*$"))).height == DF.height


def test_a_missing_column_is_said_to_be_missing() -> None:
    model = pk.KMeans(2).fit(DF, NAMES)
    for frame in (DF.drop("*"), DF.lazy().drop("*")):
        with pytest.raises(ColumnNotFoundError, match=r"\*"):
            frame.lazy().select(model.predict()).collect()
        with pytest.raises(ColumnNotFoundError, match=r"\*"):
            pk.KMeans(2).fit(frame, "*")
    with pytest.raises(ColumnNotFoundError, match='"z"; valid columns'):
        DF.select(pk.kmeans("z", k=2))
    with pytest.raises(ColumnNotFoundError, match=r"\^z\$"):
        DF.select(pk.kmeans("b1", k=2, weight="^z$"))
    with pytest.raises(pk.InvalidColumnError, match="twice"):
        pk.kmeans("^b.*$", "^b.*$", k=2)


NUL = pl.DataFrame({"a\0b": [0.0, 1.0, 5.0], "x": [0.0, 1.0, 5.0]})


@pytest.mark.parametrize(
    "features",
    [
        "a\0b",
        pl.col("a\0b"),
        pl.col("x").alias("\0"),
        pl.col("x").name.suffix("\0"),
        cs.numeric(),
        cs.starts_with("a"),
        pl.all(),
        pl.col("^a.*$"),
        pl.col("x", "a\0b"),
        pl.all().name.suffix("_"),
        cs.numeric() * 2,
    ],
    ids=str,
)
def test_a_nul_in_a_name_is_refused(features: pl.Expr | str) -> None:
    model = pk.KMeans(1).fit(NUL, "x")
    for use in (
        lambda: NUL.select(pk.kmeans(features, k=1)),
        lambda: NUL.lazy().select(pk.kmeans(features, k=1)).collect(engine="streaming"),
        lambda: NUL.group_by("x").agg(pk.centroids(features, k=1)),
        lambda: pk.KMeans(1).fit(NUL, features),
        lambda: NUL.select(model.predict(features)),
        lambda: NUL.select(model.transform(features)),
        lambda: model.score(NUL, features),
    ):
        with pytest.raises(pk.InvalidColumnError, match="without NUL characters"), pk.typed_errors():
            use()


def test_a_nul_beside_the_features_does_not_matter() -> None:
    model = pk.KMeans(1).fit(NUL, "x")
    assert NUL.select(model.predict())["cluster"].to_list() == [0, 0, 0]
    with pytest.raises(pk.InvalidColumnError, match="without NUL characters"):
        pk.KMeans(1, init=NUL)
    nested = pl.DataFrame({"x": [1.0], "s": [{"a\0b": 1.0}], "l": [[{"\0": 1}]]})
    assert pk.KMeans(1, init=nested).fit(NUL, "x").centroids["x"].to_list() == [2.0]
    with pytest.raises(pk.InvalidColumnError, match="without NUL characters"):
        pk.KMeans(1, weight="a\0b")
    weighted = NUL.rename({"a\0b": "w"})
    assert pk.KMeans(1, weight=pl.col("a\0b")).fit(NUL, "x") == pk.KMeans(1, weight="w").fit(weighted, "x")


def test_selectors_keep_the_names_that_they_find() -> None:
    """The handling of NULs in a query must not change any other name, nor the names that an expression gives."""
    df = pl.DataFrame({"x": [0.0, 1.0, 5.0], "y\\0": [1.0, 2.0, 9.0], "\N{BALLOT BOX}": [1.0, 1.0, 0.0]})
    assert pk.KMeans(2).fit(df, cs.all()).feature_names == df.columns
    assert pk.KMeans(2).fit(df, cs.all().name.suffix("_s")).feature_names == [f"{name}_s" for name in df.columns]
    assert pk.KMeans(2).fit(df, (cs.all() * 2).name.prefix("p_")).feature_names == [f"p_{name}" for name in df.columns]
    assert pk.KMeans(2).fit(df, pl.col("x").name.map(str.upper)).feature_names == ["X"]
    twice = df.select(pk.kmeans(cs.first(), cs.last(), k=2), pk.kmeans(cs.all(), k=2).alias("all"))
    assert twice.equals(df.select(pk.kmeans("x", df.columns[2], k=2), pk.kmeans(df.columns, k=2).alias("all")))


def test_a_column_named_cluster_is_replaced() -> None:
    df = pl.DataFrame({"cluster": [0.0, 0.1, 5.0], "x": [7.0, 7.0, 7.0]})
    plain = df.rename({"cluster": "c"})
    labels = plain.select(pk.kmeans("c", "x", k=2)).to_series()
    assert labels.name == "cluster"
    for query in (df, df.lazy()):
        found = query.with_columns(pk.kmeans("cluster", "x", k=2)).lazy().collect()
        assert found.equals(df.with_columns(labels)) and found.columns == df.columns
    model = pk.KMeans(2).fit(plain, "c", "x")
    assert df.with_columns(model.predict("cluster", "x")).equals(found)
    structs = df.with_columns(model.predict("cluster", "x", output="struct")).unnest("cluster")
    assert structs.columns == ["cluster", "distance", "second_distance", "x"]
    assert structs["cluster"].equals(labels)
    lazy = df.lazy().with_columns(model.predict("cluster", "x", output="struct")).unnest("cluster")
    assert lazy.collect(engine="streaming").equals(structs)
    with pytest.raises(pk.InvalidColumnError, match=r'may not be named "cluster".*: rename it'):
        pk.KMeans(2).fit(df, "cluster", "x")
