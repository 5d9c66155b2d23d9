"""Names of clusters: where they are kept, who shows them, and what is no name."""

import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import polars_kmeans as pk
from polars_kmeans import _internal

DF = pl.DataFrame({"x": [0.0, 1.0, 5.0, None, 9.0]})
MODEL = pk.KMeans(3, init=[0.0, 5.0, 9.0], null_policy="skip", keep_sums=True, tol=0).fit(DF, "x")
NAMES = ["small", "medium, 5 €", "large"]
NAMED = MODEL.with_metadata({"rows": "may"}).with_names(NAMES)
KEY = "polars_kmeans.cluster_names"


def test_a_model_keeps_names_wherever_it_is_kept(tmp_path: Path) -> None:
    NAMED.save(tmp_path / "m.parquet")
    groups = pk.KMeans(1).fit(pl.DataFrame({"g": ["a"], "x": [1.0]}), "x", by="g")
    kept = [
        pk.KMeansModel.load(tmp_path / "m.parquet"),
        pk.KMeansModel.from_json(NAMED.to_json()),
        pickle.loads(pickle.dumps(NAMED)),
        pk.KMeansModel.from_bytes(NAMED.to_bytes()),
    ]
    for model in kept:
        assert model.cluster_names == NAMES
        assert model.metadata == {"rows": "may"}
        assert model == MODEL
    assert MODEL.cluster_names is None
    assert groups["a"].cluster_names is None


def test_metadata_and_names_do_not_touch_each_other() -> None:
    assert NAMED.with_metadata({"a": "b"}).cluster_names == NAMES
    assert NAMED.with_metadata({}).cluster_names == NAMES
    for nothing in (None, []):
        cleared = NAMED.with_names(nothing)
        assert (cleared.cluster_names, cleared.metadata) == (None, {"rows": "may"})
    assert MODEL.with_names(NAMES).with_names(None).to_bytes() == MODEL.to_bytes()
    with pytest.raises(pk.InvalidParameterError, match=r"metadata: expected another key .*: model\.with_names"):
        MODEL.with_metadata({KEY: "[]"})


def test_an_update_keeps_names_and_a_fit_does_not() -> None:
    rows = DF.drop_nulls()
    assert NAMED.updated(rows.select(NAMED.sums())).cluster_names == NAMES
    assert pk.KMeans(3, init=NAMED).fit(rows, "x").cluster_names is None
    assert pk.KMeans(3, sort_by=NAMED).fit(rows, "x").cluster_names is None


def test_labels_and_profiles_show_names() -> None:
    expected = ["small", "small", "medium, 5 €", None, "large"]
    for engine in ("in-memory", "streaming"):
        found = NAMED.label(DF.lazy(), name="size", names=True).collect(engine=engine)
        assert found["size"].to_list() == expected
        assert found.schema["size"] == pl.Enum(NAMES)
    assert NAMED.label(DF.lazy(), names=True).collect_schema()["cluster"] == pl.Enum(NAMES)
    assert NAMED.label(DF)["cluster"].dtype == pl.UInt32
    profile = NAMED.profile(DF)
    assert profile.columns[:3] == ["cluster", "name", "size"]
    assert profile["name"].to_list() == NAMES
    assert profile.drop("name").equals(MODEL.profile(DF))
    for model, names in ((MODEL, True), (NAMED, NAMES), (NAMED, 1)):
        with pytest.raises(pk.InvalidParameterError, match=r"names: expected False, or True .*: model\.with_names"):
            model.label(DF, names=names)


def test_charts_show_names_and_sizes() -> None:
    plot = pytest.importorskip("polars_kmeans.plot")
    rows = DF.with_columns(y=pl.lit(1.0))
    scatter, heat, silhouette = (
        plot.scatter(NAMED, rows, "x", "y").to_dict(),
        plot.profile(NAMED, DF).to_dict(),
        plot.silhouette(NAMED, DF).to_dict(),
    )
    titles = ["small (2)", "medium, 5 € (1)", "large (1)"]
    assert scatter["layer"][0]["encoding"]["color"]["scale"]["domain"] == titles
    assert {row["name"] for data in scatter["datasets"].values() for row in data} == set(NAMES)
    assert [row["title"] for row in silhouette["datasets"][silhouette["layer"][2]["data"]["name"]]] == titles
    assert {row["name"].rpartition(" ")[0] for data in heat["datasets"].values() for row in data} == set(NAMES)


BAD: list[Any] = [
    ["a", "b"],
    ["a", "a", "b"],
    "abc",
    [1, 2, 3],
    {"a": 1, "b": 2, "c": 3},
    {"a", "b", "c"},
    0,
    ["\ud800", "b", "c"],
]


@pytest.mark.parametrize("names", BAD)
def test_what_is_no_name(names: Any) -> None:
    with pytest.raises(pk.InvalidParameterError, match="names: expected a list of 3 different texts"):
        MODEL.with_names(names)


@pytest.mark.parametrize("text", ["", "[[", "[" * 100_000, '["a"]', "5", "null", '["a", "b", "b"]', '["a", "b", 3]'])
def test_names_in_a_file_that_something_else_wrote(text: str) -> None:
    model = pk.KMeansModel.from_bytes(pk.KMeansModel(_internal.model_with(MODEL._encoded, {KEY: text})).to_bytes())
    assert model.metadata == {}
    assert model.predict(DF).to_list() == [0, 0, 1, None, 2]
    for call in (lambda: model.cluster_names, lambda: model.profile(DF), lambda: model.label(DF, names=True)):
        with pytest.raises(pk.InvalidModelError, match=r"model: expected names of its clusters, .*with_names\(None\)"):
            call()
    assert model.with_names(None).cluster_names is None
    assert model.with_names(NAMES).cluster_names == NAMES
