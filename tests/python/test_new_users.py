"""What people try first: names from scikit-learn, frames without columns, sets, paths from home, printing things."""

import inspect
import io
import json
import pickle
import pydoc
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
from helpers import run

import polars_kmeans as pk
from polars_kmeans import _keywords

DF = pl.DataFrame({"x": [0.0, 0.1, 5.0, 5.1, 5.2], "y": [1.0, 1.1, 9.0, 9.1, 9.3]})
NORMAL = pl.DataFrame({"x": np.random.default_rng(0).normal(size=2000)})


@pytest.fixture(scope="module")
def model() -> pk.KMeansModel:
    return pk.KMeans(2, seed=1).fit(DF, "x", "y")


@pytest.mark.parametrize("name", _keywords._HINTS)
def test_names_of_other_libraries_are_answered_with_ours(name: str) -> None:
    unknown: dict[str, Any] = {name: 1}
    for call in (
        lambda: pk.KMeans(2, **unknown),
        lambda: pk.kmeans("x", k=2, **unknown),
        lambda: pk.centroids("x", k=2, **unknown),
    ):
        # An expression has an output, which an estimator has not.
        if name != "output":
            with pytest.raises(TypeError, match=f"got {name}: {re.escape(_keywords._HINTS[name])}$"):
                call()
    with pytest.raises(TypeError, match=f"got {name}: {re.escape(_keywords._HINTS[name])}$"):
        pk.KMeans(2, **unknown)
    if found := re.match(r"use (\w+)", _keywords._HINTS[name]):
        assert found[1] in inspect.signature(pk.KMeans).parameters


def test_the_words_that_new_users_tried_have_an_answer() -> None:
    tried = ["nstart", "nredo", "niter", "centers", "spherical", "trace", "haversine", "weights"]
    assert set(tried) <= set(_keywords._HINTS)


@pytest.mark.parametrize("name", ["by", "columns", "memory_limit", "progress", "spill_directory"])
def test_an_argument_of_fit_is_sent_there(name: str) -> None:
    assert name in inspect.signature(pk.KMeans.fit).parameters and "KMeans(k).fit" in _keywords._HINTS[name]


@pytest.mark.parametrize("name", ["weight", "k", *inspect.signature(pk.KMeans).parameters])
def test_an_option_beside_the_data_is_sent_to_the_estimator(name: str) -> None:
    unknown: dict[str, Any] = {name: 1}
    # Beside an array, weight is an array.
    says = rf"got {name}: pass it to KMeans, as in KMeans\(k, {name}="
    says = r"weight: expected none in the fit of a frame, .* KMeans\(k, weight=" if name == "weight" else says
    for method in (pk.KMeans(2).fit, pk.KMeans(2).fit_predict):
        with pytest.raises(pk.InvalidParameterError, match=says):
            method(DF, "x", **unknown)
    if name not in inspect.signature(pk.KMeansModel.predict).parameters:
        with pytest.raises(
            pk.InvalidParameterError, match=f"KMeansModel.predict: .* got {name}: it is an option of the fit"
        ):
            pk.KMeans(2).fit(DF, "x").predict(DF, **unknown)


def test_methods_refuse_keywords_that_they_lack(model: pk.KMeansModel) -> None:
    calls: list[tuple[Any, str, str]] = [
        (model.nearest, "n", "$"),
        (model.profile, "quantile", r"did you mean quantiles\?$"),
        (model.label, "nam", r"did you mean name\?$"),
        (model.score, "weights", "use weight$"),
        (model.silhouette, "devise", r"did you mean device\?$"),
        (model.transform, "output", "pass it to model.predict"),
        (pk.KMeansModel.from_centroids, "scales", r"did you mean scale\?$"),
        (pk.KMeans(2).fit_predict, "progress", "pass it to KMeans"),
    ]
    for method, name, says in calls:
        with pytest.raises(TypeError, match=f"expected keywords that it has, got {name}.*{says}"):
            method(DF, **{name: 1})


VALUES = [
    ("init", "k-means||", 'use "kmeans-parallel"'),
    ("init", "scalable-k-means++", 'use "kmeans-parallel"'),
    ("init", "KMeans++", 'use "k-means++"'),
    ("init", "ramdom", 'did you mean "random"?'),
    ("metric", "haversine", 'use "cosine" and the feature pk.sphere(lat, lon)'),
    ("metric", "l2", 'use "euclidean"'),
    ("metric", "spherical", 'use "cosine"'),
    ("metric", "manhattan", "k-means minimises squared distances, and has no other metric"),
    ("scale", "standardise", 'did you mean "standard"?'),
    ("null_policy", "skipped", 'did you mean "skip"?'),
    ("device", "gpu", 'use "cuda"'),
]


@pytest.mark.parametrize(("name", "value", "hint"), VALUES)
def test_values_of_other_libraries_are_answered_with_ours(name: str, value: str, hint: str) -> None:
    options: dict[str, Any] = {name: value}
    for call in (lambda: pk.KMeans(2, **options), lambda: pk.kmeans("x", k=2, **options)):
        with pytest.raises(
            pk.InvalidParameterError, match=f'^{name}: expected .*, got "{re.escape(value)}": {re.escape(hint)}$'
        ):
            call()
    if found := re.search(r'"(.*?)"', hint):
        pk.KMeans(2, **{name: found[1]})


def test_places_become_directions() -> None:
    """As the error about haversine says: the nearest centroid is that of the smallest angle."""
    places = pl.DataFrame({"lat": [48.9, 51.5, 35.7, 37.6], "lon": [2.4, -0.1, 139.7, 127.0]})
    labels = pk.KMeans(2, metric="cosine").fit_predict(places, pk.sphere("lat", "lon")).to_list()
    assert labels[0] == labels[1] != labels[2] == labels[3]


def test_patterns_are_refused_with_what_takes_them(model: pk.KMeansModel) -> None:
    for name, says in (("^x.*$", 'pl.col("^x.*$") takes a pattern'), ("*", "pl.all() takes all columns")):
        for call in (
            lambda name=name: pk.KMeans(2).fit(DF, name),
            lambda name=name: pk.KMeans(2).fit(DF.lazy(), name),
            lambda name=name: pk.KMeans(2, weight=name).fit(DF, "x"),
            lambda name=name: model.predict(DF, "x", name),
            lambda name=name: pk.choose_k(DF, name),
            lambda name=name: model.profile(DF, by=name),
        ):
            with pytest.raises(
                pl.exceptions.ColumnNotFoundError, match=f"^{re.escape(chr(34) + name)}.*{re.escape(says)}$"
            ):
                call()
        with pytest.raises(pl.exceptions.ColumnNotFoundError, match=re.escape(says)), pk.typed_errors():
            DF.select(pk.kmeans(name, k=2))
        # A column may have this name.
        assert pk.KMeans(2).fit(DF.rename({"x": name}), name).feature_names == [name]
    assert pk.KMeans(2).fit(DF, pl.col("^x.*$")).feature_names == ["x"]


def test_every_keyword_of_scikit_learn_is_ours_or_has_an_answer() -> None:
    cluster = pytest.importorskip("sklearn.cluster")
    ours = inspect.signature(pk.KMeans).parameters
    for name in inspect.signature(cluster.KMeans).parameters:
        assert name in ours or name in _keywords._HINTS


def test_a_misspelt_keyword_is_answered_with_the_nearest() -> None:
    misspelt: dict[str, Any] = {"max_itr": 5}
    with pytest.raises(pk.InvalidParameterError, match=r"KMeans: .* got max_itr: did you mean max_iter\?"):
        pk.KMeans(2, **misspelt)
    unlike: dict[str, Any] = {"qqqq": 5}
    with pytest.raises(pk.InvalidParameterError, match=r"got qqqq$"):
        pk.KMeans(2, **unlike)


def test_k_of_an_expression_is_a_keyword() -> None:
    for call in (lambda: pk.kmeans("x", 3), lambda: pk.kmeans("x"), lambda: pk.centroids("x")):  # type: ignore[call-arg, arg-type]
        with pytest.raises(TypeError, match=r"expected the number of clusters as a keyword, as in k=3, got none"):
            call()


def test_columns_have_an_order() -> None:
    for columns in ({"x", "y"}, frozenset(["x"]), [{"x"}, "y"]):
        with pytest.raises(pk.InvalidColumnError, match="which has none: pass a list"):
            pk.KMeans(2).fit(DF, columns)
    assert pk.KMeans(2).fit(DF, dict.fromkeys(["y", "x"]).keys()).feature_names == ["y", "x"]


def test_no_columns_at_all() -> None:
    with pytest.raises(pk.InvalidColumnError, match=r"name columns, or pass pl.all\(\)"):
        pk.KMeans(2).fit(DF)
    with pytest.raises(
        pk.InvalidColumnError, match=r"got an array \(numpy.ndarray\): KMeans\(k\).fit\(array\) takes arrays"
    ):
        pk.kmeans(DF.to_numpy(), k=2)  # type: ignore[arg-type]


def test_names_of_the_model_in_another_order_are_refused(model: pk.KMeansModel) -> None:
    for call in (model.predict, model.transform, lambda *columns: model.score(DF, *columns)):
        with pytest.raises(pk.InvalidColumnError, match="expected 'x' at place 1, as in the fit, got 'y'"):
            call("y", "x")
        with pytest.raises(pk.InvalidColumnError, match="expected 'y' at place 2, as in the fit, got 'x'"):
            call(pl.col("z"), pl.col("x") * 2)
    # Names that the model does not know are taken by position.
    other = DF.rename({"x": "a", "y": "b"})
    expected = DF.select(model.predict())
    assert other.select(model.predict("a", "b")).equals(expected)
    assert other.rename({"b": "y"}).select(model.predict("a", "y")).equals(expected)
    swapped = DF.select(x=pl.col("y"), y=pl.col("x"))
    assert swapped.select(model.predict(pl.col("y").alias("x"), pl.col("x").alias("y"))).equals(expected)
    assert DF.select(model.predict(cs.numeric())).equals(expected)
    array = DF.select(pl.concat_list("y", "x").list.reverse().list.to_array(2))
    assert array.select(model.predict("y")).equals(expected)


def test_a_fit_that_uses_all_iterations_warns(model: pk.KMeansModel) -> None:
    with pytest.warns(pk.ConvergenceWarning, match="the fit used all 1 iterations, .*: raise max_iter") as found:
        short = pk.KMeans(5, max_iter=1).fit(NORMAL, "x")
    assert found[0].filename == __file__
    assert not short.converged
    assert not pk.KMeansModel.from_bytes(short.to_bytes()).converged
    with pytest.warns(pk.ConvergenceWarning) as found:
        pk.KMeans(5, max_iter=1).fit_predict(NORMAL, "x")
    assert found[0].filename == __file__
    with pytest.warns(pk.ConvergenceWarning) as found:
        pk.KMeans(5, max_iter=1).fit_predict(NORMAL.to_numpy())
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pk.KMeans(5).fit(NORMAL, "x").converged
        NORMAL.select(pk.kmeans("x", k=5, max_iter=1))
        # It stops in its last iteration, in which no centroid moves.
        assert pk.KMeans(2, init=model, max_iter=1, tol=0.0).fit(DF, "x", "y").converged
        assert model.converged


def test_starting_centroids_of_one_feature_are_numbers() -> None:
    expected = pk.KMeans(2, init=[[0.0], [5.0]]).fit(DF, "x")
    for init in ([0.0, 5.0], (0, 5), range(0, 6, 5), np.array([0.0, 5.0]), pl.Series([0, 5]), [np.float64(0), 5]):
        assert pk.KMeans(2, init=init).fit(DF, "x") == expected
        assert DF.select(pk.kmeans("x", k=2, init=init)).equals(DF.select(expected.predict()))
    with pytest.raises(pk.InvalidParameterError, match="expected 2 features, got 1"):
        pk.KMeans(2, init=[0.0, 5.0]).fit(DF, "x", "y")


def test_estimators_show_what_was_chosen() -> None:
    assert repr(pk.KMeans(3)) == "KMeans(k=3)"
    estimator = pk.KMeans(3, init=DF.head(3), seed=7, scale={"x": 2.0}, weight="w")
    assert repr(estimator) == "KMeans(k=3, init=DataFrame(...), seed=7, scale={'x': 2.0}, weight='w')"
    assert (estimator.k, estimator.parameters["seed"], estimator.parameters["tol"]) == (3, 7, 0.0001)
    assert pk.KMeans(**estimator.parameters).parameters == estimator.parameters
    assert set(estimator.parameters) == set(inspect.signature(pk.KMeans).parameters)
    # The parameters are a copy.
    estimator.parameters["seed"] = 8
    assert estimator.parameters["seed"] == 7
    assert repr(pk.KMeans(np.int64(3), seed=np.int32(0))).startswith("KMeans(k=")


def test_a_wide_model_shows_some_of_its_names() -> None:
    wide = pl.DataFrame({f"c{number}": [0.0, 1.0] for number in range(256)})
    text = repr(pk.KMeans(2).fit(wide, pl.all()))
    assert text == "KMeansModel(k=2, columns=['c0', 'c1', 'c2', 'c3', 'c4', 'c5', ... 250 more], inertia=0.0)"


def test_help_is_about_what_people_call() -> None:
    text = pydoc.plain(pydoc.render_doc(pk))
    assert "class KMeans(" in text and "kmeans(" in text
    assert "class InvalidDataError" not in text and "add_note" not in text
    for name in pk.errors.__all__:
        assert getattr(pk, name) is getattr(pk.errors, name)


def test_modules_with_more_packages_are_listed_and_not_imported() -> None:
    pytest.importorskip("altair")
    pytest.importorskip("ray")
    code = """
import sys
import polars_kmeans as pk
names = set(dir(pk))
assert {"KMeans", "kmeans", "parts", "plot", "ray", "sklearn", "sql", "__version__"} <= names, names
assert not {"altair", "numpy", "pyarrow", "ray", "sklearn"} & set(sys.modules)
sys.modules["altair"] = None
print(set(names) - set(dir(pk)))
"""
    assert run(code).strip() == "{'plot'}"


def test_fit_predict(model: pk.KMeansModel) -> None:
    estimator = pk.KMeans(2, seed=1)
    expected = DF.select(pk.kmeans("x", "y", k=2, seed=1)).to_series()
    for data in (DF, DF.lazy()):
        assert estimator.fit_predict(data, "x", "y").equals(expected)
        assert estimator.fit_predict(data, (name for name in ("x", "y"))).equals(expected)
    assert estimator.fit_predict(DF.to_numpy()).tolist() == expected.to_list()
    holes = pl.DataFrame({"x": [0.0, None, 5.0], "w": [1.0, 1.0, 2.0]})
    skipping = pk.KMeans(2, weight="w", null_policy="skip")
    expression = pk.kmeans("x", k=2, weight="w", null_policy="skip")
    assert skipping.fit_predict(holes, "x").equals(holes.select(expression).to_series())
    few = pk.KMeans(9, too_few="null").fit_predict(DF, "x")
    assert few.dtype == pl.UInt32 and few.null_count() == DF.height
    with pytest.raises(pk.InvalidParameterError, match="there are no null labels"):
        pk.KMeans(9, too_few="null").fit_predict(DF.to_numpy())


def test_label_adds_a_column(model: pk.KMeansModel) -> None:
    expected = DF.with_columns(model.predict())
    assert model.label(DF).equals(expected)
    lazy = model.label(DF.lazy(), name="segment")
    assert isinstance(lazy, pl.LazyFrame)
    assert lazy.collect(engine="streaming").equals(expected.rename({"cluster": "segment"}))
    joined = model.label(DF).join(model.centroids, on="cluster", suffix="_centroid")
    assert joined.height == DF.height and "x_centroid" in joined.columns
    with pytest.raises(pk.InvalidColumnError, match="a name that is not in the frame, got 'x'"):
        model.label(DF, name="x")


MODELS = {
    "columns": lambda: pk.KMeans(2, seed=1).fit(DF, "x", "y"),
    "float32": lambda: pk.KMeans(2).fit(DF.cast(pl.Float32), "x", "y"),
    "an Array": lambda: pk.KMeans(2).fit(DF.select(e=pl.concat_list("x", "y").list.to_array(2)), "e"),
    "scaled": lambda: pk.KMeans(2, scale="standard", history="full").fit(DF, "x", "y"),
    "directions": lambda: pk.KMeans(2, metric="cosine").fit(DF, "x", "y"),
    "an expression": lambda: pk.KMeans(2).fit(DF, pl.col("x") / 3),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_have_k_a_hash_and_an_array_of_centroids(name: str) -> None:
    model, again = MODELS[name](), MODELS[name]()
    assert model.k == model.centroids.height == 2
    again = pickle.loads(pickle.dumps(again))
    assert {model, again, MODELS["columns"]()} == {model, MODELS["columns"]()}
    centroids = model.centroids_array()
    table = model.centroids.drop("cluster", "size", "inertia")
    nested = table.dtypes[0] == pl.Array
    rows = table.to_series().to_list() if nested else table.rows()
    assert centroids.dtype == (np.float32 if name == "float32" else np.float64)
    assert centroids.flags.c_contiguous and np.array_equal(centroids, np.array(rows))
    centroids[:] = 0.0
    assert not np.array_equal(model.centroids_array(), centroids)


@pytest.mark.parametrize("name", MODELS)
def test_bytes_json_files_and_pickles_give_the_same_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[name]()
    content = model.to_bytes()
    text = model.to_json()
    buffer = io.BytesIO()
    model.save(buffer)
    assert buffer.getvalue() == content
    buffer.seek(0)
    monkeypatch.setenv("HOME", str(tmp_path))
    model.save("~/model.parquet")
    model.save(Path("~") / "same.parquet")
    assert (tmp_path / "model.parquet").read_bytes() == (tmp_path / "same.parquet").read_bytes() == content
    with (tmp_path / "model.parquet").open("rb") as file:
        assert pk.KMeansModel.load(file) == model
    for same in (
        pk.KMeansModel.from_bytes(content),
        pk.KMeansModel.from_json(text),
        pk.KMeansModel.from_json(text.encode()),
        pk.KMeansModel.load(buffer),
        pk.KMeansModel.load("~/model.parquet"),
        pickle.loads(pickle.dumps(model)),
    ):
        assert same == model
        assert same.to_bytes() == content and same.to_json() == text


def test_json_is_there_to_read(model: pk.KMeansModel) -> None:
    parts = json.loads(model.to_json())
    table = model.centroids
    assert parts["feature_names"] == ["x", "y"]
    assert parts["centroids"] == [list(row) for row in table.select("x", "y").rows()]
    assert parts["sizes"] == table["size"].to_list()
    assert parts["parameters"] == model.parameters
    for changed in ({"centroids": [[0.0, 0.0], [1.0, 1.0]]}, {"inertia": 0.0}, {"note": "mine"}):
        with pytest.raises(pk.InvalidModelError, match="expected parts that agree"):
            pk.KMeansModel.from_json(json.dumps({**parts, **changed}))
    cut = {**parts, "polars_kmeans_file": parts["polars_kmeans_file"][:-8]}
    for wrong in ("", "{", "[]", "3", "null", "{}", b"\xff", '{"polars_kmeans_file": 3}', json.dumps(cut)):
        with pytest.raises(pk.InvalidModelError):
            pk.KMeansModel.from_json(wrong)


@pytest.mark.parametrize("file", [io.StringIO(), 3, None], ids=["text", "a number", "none"])
def test_what_is_no_file_is_refused(model: pk.KMeansModel, file: Any) -> None:
    for call in (lambda: model.save(file), lambda: pk.KMeansModel.load(file)):
        with pytest.raises(pk.InvalidParameterError, match="path: expected a"):
            call()


def test_centroids_of_every_kind_make_a_model(model: pk.KMeansModel) -> None:
    points = [[0.05, 1.05], [5.1, 9.1]]
    frame = pl.DataFrame(points, schema=["x", "y"], orient="row")
    expected = DF.select((pl.col("x") > 3).cast(pl.UInt32).alias("cluster"))
    made = [
        pk.KMeansModel.from_centroids(frame),
        pk.KMeansModel.from_centroids(points, ["x", "y"]),
        pk.KMeansModel.from_centroids(np.array(points), ["x", "y"]),
        pk.KMeansModel.from_centroids(np.asfortranarray(points), ["x", "y"]),
        pk.KMeansModel.from_centroids(frame.with_columns(cluster=pl.Series([0, 1]), size=3, inertia=1.0)),
        pk.KMeansModel.from_centroids(frame.reverse().with_columns(cluster=pl.Series([1, 0]))),
    ]
    for one in made:
        assert one.feature_names == ["x", "y"] and one.converged
        assert one.centroids.select("x", "y").equals(frame)
        assert DF.select(one.predict()).equals(expected)
        assert one == made[0]
        assert pk.KMeansModel.from_bytes(one.to_bytes()) == one
    assert pk.KMeansModel.from_centroids(np.array(points)).feature_names == ["column_0", "column_1"]
    assert pk.KMeansModel.from_centroids([1.0, 4.0], "x").predict(DF).to_list() == [0, 0, 1, 1, 1]
    assert pk.KMeansModel.from_centroids(np.float32([1, 4])).centroids.schema["column_0"] == pl.Float32
    array = frame.select(e=pl.concat_list("x", "y").list.to_array(2))
    assert pk.KMeansModel.from_centroids(array).centroids["e"].to_list() == points
    # The frame of the caller keeps its names.
    pk.KMeansModel.from_centroids(frame, ["a", "b"])
    assert frame.columns == ["x", "y"]


def test_a_table_without_metadata_becomes_a_model_again(model: pk.KMeansModel, tmp_path: Path) -> None:
    model.save(tmp_path / "model.parquet")
    pl.read_parquet(tmp_path / "model.parquet").write_parquet(tmp_path / "again.parquet")
    with pytest.raises(pk.InvalidModelError):
        pk.KMeansModel.load(tmp_path / "again.parquet")
    again = pk.KMeansModel.from_centroids(pl.read_parquet(tmp_path / "again.parquet"))
    assert DF.select(again.predict(output="struct"), again.transform()).equals(
        DF.select(model.predict(output="struct"), model.transform())
    )


def test_centroids_of_scaled_values_and_of_directions() -> None:
    factors = {"x": 2.0, "y": 0.25}
    scaled = pk.KMeansModel.from_centroids([[0.0, 0.0], [4.0, 8.0]], ["x", "y"], scale=factors)
    assert scaled.factors == factors
    assert scaled.transform(pl.DataFrame({"x": [4.0], "y": [0.0]})).to_list() == [[8.0, 2.0]]
    directions = pk.KMeansModel.from_centroids([[3.0, 0.0], [0.0, 0.5]], metric="cosine")
    assert directions.centroids.drop("cluster", "size", "inertia").rows() == [(1.0, 0.0), (0.0, 1.0)]
    for seed in range(9):
        points = np.random.default_rng(seed).normal(size=(9, 3))
        rounded = pk.KMeansModel.from_centroids(points, metric="cosine")
        assert rounded.converged and pk.KMeansModel.from_bytes(rounded.to_bytes()).converged
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pk.KMeans(9, init=rounded, metric="cosine").fit(points)


@pytest.mark.parametrize(
    ("centroids", "columns", "message"),
    [
        ([[1.0], [1.0]], None, "expected 2 different rows"),
        ([], None, "expected at least one row"),
        (DF.clear(), None, "expected at least one row"),
        ([["a"], ["b"]], None, "expected numbers or booleans"),
        (DF, ["x"], "expected a name for each of 2 features, got 1"),
        (DF.with_columns(cluster=7), None, "clusters numbered from 0"),
        (np.zeros((2, 2, 2)), None, "expected a frame, an array of clusters x features"),
        (3, None, "expected a frame, an array of clusters x features"),
        ([[1.0, None], [2.0, 3.0]], None, "expected finite starting centroids"),
    ],
)
def test_what_are_no_centroids_is_refused(centroids: Any, columns: Any, message: str) -> None:
    with pytest.raises(pk.KMeansError, match=message):
        pk.KMeansModel.from_centroids(centroids, columns)


def test_pickles_of_earlier_versions_are_read(model: pk.KMeansModel) -> None:
    """They name this function."""
    old = b"cpolars_kmeans.model\n_from_file\n(" + pickle.dumps(model.to_bytes(), 4)[2:-1] + b"tR."
    assert pickle.loads(old) == model


CALLS = """
import numpy as np
import polars as pl
import polars_kmeans as pk
from typing_extensions import assert_type

df = pl.DataFrame({"x": [1.0], "g": [1]})
pk.kmeans("x", k=np.int64(3), seed=np.uint32(1), n_init=np.int8(2), init_sample=np.int64(9))
pk.centroids("x", k=np.int32(3), max_iter=np.int64(9))
model = pk.KMeans(np.int64(3), seed=np.int64(1), init=[1.0, 2.0, 3.0]).fit(df, "x")
assert_type(model, pk.KMeansModel)
assert_type(pk.KMeans(3, too_few="null").fit(df, "x"), pk.KMeansModel | None)
assert_type(model.predict("x"), pl.Expr)
assert_type(model.predict(), pl.Expr)
assert_type(model.predict(df), pl.Series)
assert_type(model.predict(df, "x"), pl.Series)
assert_type(model.transform(df), pl.Series)
model.score(df, weight="g")
model.score(np.zeros((1, 1)), weight=np.ones(1))
pk.KMeans(1).fit(np.zeros((1, 1)), weight=np.ones(1))
assert_type({model: model.k}, dict[pk.KMeansModel, int])
assert_type(model.label(df), pl.DataFrame)
assert_type(model.label(df.lazy()), pl.LazyFrame)
assert_type(pk.KMeans(3).fit_predict(df, "x"), pl.Series)
assert_type(pk.KMeans(3).fit(df, "x", by="g"), pk.KMeansModels)
pk.KMeansModel.from_centroids(np.zeros((1, 2)), ["x", "y"])
try:
    with open("model.parquet", "wb") as file:
        model.save(file)
except pk.ModelFileError:
    pass
"""


def test_type_checkers_agree(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    (tmp_path / "calls.py").write_text(CALLS)
    package = str(Path(pk.__file__).parents[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MYPYPATH", package)
        report, errors, status = api.run(["--strict", "--config-file=", str(tmp_path / "calls.py")])
    assert (status, errors) == (0, ""), report
