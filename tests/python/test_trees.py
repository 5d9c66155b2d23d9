"""Trees of clusters: their fits, frames, searches, files and doors."""

import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pytest
from helpers import columns_of, counted, needs_gpu

import polars_kmeans as pk
from polars_kmeans import KMeansTree
from polars_kmeans.errors import InvalidColumnError, InvalidDataError, InvalidModelError, InvalidParameterError

RANDOM = np.random.default_rng(60)
X = np.concatenate([RANDOM.normal(centre, 1, (500, 3)) for centre in RANDOM.normal(0, 9, (12, 3))]).astype(np.float32)
DF = columns_of(X)
NAMES = DF.columns
ESTIMATORS: list[Any] = [
    pk.HierarchicalKMeans(levels=[6, 5, 3], seed=4, sort_by="column_1"),
    pk.HierarchicalKMeans(leaves=60, seed=4, scale="standard"),
    pk.HierarchicalKMeans(leaves=40, seed=4, refine=3),
    pk.HierarchicalKMeans(levels=[7, 4], metric="cosine"),
    pk.BisectingKMeans(30, seed=2),
    pk.BisectingKMeans(10, split="size", max_size=300),
]
TREES: list[KMeansTree] = [estimator.fit(DF, NAMES) for estimator in ESTIMATORS]
IDS = [repr(estimator) for estimator in ESTIMATORS]
every_tree = pytest.mark.parametrize(("estimator", "tree"), list(zip(ESTIMATORS, TREES, strict=True)), ids=IDS)


# ---- fits -----------------------------------------------------------------------------------------------------------


@every_tree
def test_rows_of_the_fit_get_their_leaves(estimator: Any, tree: KMeansTree) -> None:
    labels = tree.predict(DF)
    assert labels.name == "cluster" and labels.dtype == pl.UInt32
    assert estimator.fit_predict(DF, NAMES).equals(labels)
    assert estimator.fit(X) == tree
    assert estimator.fit_predict(X).tolist() == labels.to_list()
    assert labels.value_counts().sort("cluster")["count"].to_list() == tree.centroids["size"].to_list()
    score = tree.score(DF)
    assert score == pytest.approx(-tree.inertia, rel=1e-12)
    assert tree.score(X) == score
    assert tree.score(DF, search="exact") >= score


@every_tree
def test_nodes(estimator: Any, tree: KMeansTree) -> None:
    nodes = tree.nodes
    assert nodes.schema == {
        **{"node": pl.UInt32, "parent": pl.UInt32, "level": pl.UInt32, "path": pl.List(pl.UInt32), "seed": pl.UInt64},
        **{"leaf": pl.UInt32, "size": pl.UInt64, "inertia": pl.Float64},
        **dict.fromkeys(NAMES, pl.Float32),
    }
    assert nodes["node"].to_list() == list(range(nodes.height)) and nodes.row(0)[:4] == (0, None, 0, [])
    assert nodes["path"].list.len().to_list() == nodes["level"].to_list()
    assert nodes["path"].to_list() == sorted(nodes["path"].to_list(), key=lambda path: (len(path), path))
    below = nodes.join(nodes.select(parent="node", above="path"), on="parent")
    assert below.filter(pl.col("path").list.head(pl.col("level") - 1) != pl.col("above")).is_empty()
    leaves = nodes.drop_nulls("leaf").sort("leaf")
    assert leaves["leaf"].to_list() == list(range(tree.n_leaves))
    assert leaves["path"].to_list() == sorted(leaves["path"].to_list())
    own = ["size", "inertia", *NAMES]
    assert leaves.select(own).equals(tree.centroids.select(own))
    assert tree.depth == nodes["level"].max()
    if tree.search == "tree":
        sizes = below.group_by("parent").agg(pl.col("size").sum()).sort("parent")
        assert sizes["size"].to_list() == nodes.filter(pl.col("leaf").is_null())["size"].to_list()


def test_the_fit_of_a_node_is_that_of_its_rows_alone() -> None:
    """The seeds are in the frame. The factors are those of the root."""
    tree = pk.HierarchicalKMeans(levels=[6, 4], seed=9, scale="standard").fit(DF, NAMES)
    rows = DF.with_columns(tree.path()).unnest("path")
    for node, seed in tree.nodes.filter(pl.col("level") == 1).select("node", "seed").rows():
        own = rows.filter(pl.col("level_1") == node)
        model = pk.KMeans(4, seed=seed, scale=tree.flat.factors).fit(own, NAMES)
        children = tree.nodes.filter(pl.col("parent") == node)
        assert model.centroids.select("size", "inertia", *NAMES).equals(children.select("size", "inertia", *NAMES))
        assert (own.select(model.predict()).to_series() + children["leaf"][0]).equals(
            own["level_2"].replace_strict(children["node"], children["leaf"]), check_names=False
        )


def test_refined_leaves_are_a_flat_fit_from_the_leaves() -> None:
    leaves = pk.HierarchicalKMeans(leaves=40, seed=4).fit(DF, NAMES)
    with pytest.warns(pk.ConvergenceWarning):
        flat = pk.KMeans(leaves.n_leaves, init=leaves.flat, max_iter=3, tol=0).fit(DF, NAMES)
    tree = TREES[2]
    assert tree.search == "exact"
    assert tree.centroids.equals(flat.centroids) and tree.inertia == flat.inertia
    assert tree.predict(DF).equals(flat.predict(DF))


def test_leaves_are_shared_by_rows() -> None:
    tree = TREES[1]
    assert tree.n_leaves == 60
    children = tree.nodes.filter(pl.col("level") == 1).select("node", pl.col("size"))
    found = tree.nodes.group_by("parent").len().select(node="parent", quota="len").drop_nulls()
    shares = children.join(found, on="node", how="left").select(
        pl.col("quota").fill_null(1), exact=60 * pl.col("size") / DF.height
    )
    assert shares.height == 8 and shares["quota"].sum() == 60
    assert ((shares["quota"] - shares["exact"]).abs() <= 1).all()


def test_a_bound_on_sizes_cuts_equal_rows() -> None:
    rows = pl.DataFrame({"x": [0.0] * 100_000 + [1.0]})
    estimator = pk.BisectingKMeans(2, max_size=1_000)
    labels, tree = estimator.fit_predict(rows, "x"), estimator.fit(rows, "x")
    sizes = labels.value_counts()["count"]
    assert max(sizes) <= 1_000 and sum(sizes) == 100_001
    assert max(tree.centroids["size"]) <= 1_000
    # A prediction gives equal rows the first of their leaves.
    assert tree.predict(rows).n_unique() == 2


def test_weights() -> None:
    weight = RANDOM.integers(0, 3, len(X)).astype(float)
    rows = DF.with_columns(w=pl.Series(weight))
    tree = pk.HierarchicalKMeans(leaves=30, weight="w").fit(rows, NAMES)
    assert pk.HierarchicalKMeans(leaves=30).fit(X, weight=weight) == tree
    assert tree.nodes["size"][0] == (weight > 0).sum()
    assert tree.score(rows, weight="w") == pytest.approx(-tree.inertia, rel=1e-12)
    assert tree.score(X, weight=weight) == tree.score(rows, weight="w")
    with pytest.warns(pk.WeightWarning):
        tree.score(rows)
    # Rows with a weight that is null or not finite are left out by both searches.
    flat = pk.HierarchicalKMeans(levels=[9]).fit(DF, NAMES)
    for bad in (None, float("nan"), float("inf")):
        some = DF.with_columns(w=pl.when(pl.int_range(pl.len()) % 5 > 0).then(pl.lit(1.0)).otherwise(pl.lit(bad)))
        assert flat.score(some, weight="w") == flat.score(some, weight="w", search="exact") > flat.score(DF)
    with pytest.raises(InvalidParameterError, match="weight: expected"):
        pk.HierarchicalKMeans(leaves=30).fit(X, weight=weight[1:])


def test_too_few_rows() -> None:
    rows = pl.DataFrame({"x": [1.0, 1.0, 2.0, 5.0]})
    with pytest.raises(pk.TooFewRowsError):
        pk.HierarchicalKMeans(levels=[4, 2]).fit(rows, "x")
    with pytest.raises(pk.TooFewRowsError):
        pk.BisectingKMeans(4).fit(rows, "x")
    assert pk.BisectingKMeans(4, too_few="fewer").fit(rows, "x").n_leaves == 3
    assert pk.BisectingKMeans(4, too_few="null").fit(rows, "x") is None
    assert pk.BisectingKMeans(4, too_few="null").fit_predict(rows, "x").to_list() == [None] * 4
    with pytest.raises(InvalidParameterError, match="too_few"):
        pk.BisectingKMeans(4, too_few="null").fit_predict(rows.to_numpy())
    same = pl.DataFrame({"x": [1.0] * 5, "w": [1.0, 0.0, 0.0, 0.0, 0.0]})
    assert pk.HierarchicalKMeans(levels=[2, 2], too_few="fewer", refine=1).fit(same, "x").n_leaves == 1
    assert pk.HierarchicalKMeans(levels=[2], too_few="fewer", weight="w").fit_predict(same, "x").to_list() == [0] * 5
    # A node with too few rows is a leaf.
    assert pk.HierarchicalKMeans(levels=[2, 2]).fit(rows, "x").n_leaves == 3


def test_nulls() -> None:
    rows = DF.with_columns(pl.when(pl.int_range(pl.len()) % 7 > 0).then("column_0"))
    with pytest.raises(InvalidDataError):
        pk.BisectingKMeans(5).fit(rows, NAMES)
    estimator = pk.BisectingKMeans(5, null_policy="skip")
    labels, tree = estimator.fit_predict(rows, NAMES), estimator.fit(rows, NAMES)
    assert labels.is_null().equals(rows["column_0"].is_null(), check_names=False)
    assert tree.predict(rows).equals(labels)
    assert tree.path(rows).struct.field("level_1").is_null().equals(labels.is_null(), check_names=False)
    assert tree.predict(rows.to_numpy()).tolist() == labels.cast(pl.Int32).fill_null(-1).to_list()
    with pytest.raises(InvalidDataError, match="expected finite values, got nulls"):
        tree.predict(rows, null_policy="raise")


# ---- predictions ----------------------------------------------------------------------------------------------------


@every_tree
def test_searches(estimator: Any, tree: KMeansTree) -> None:
    rows = columns_of(RANDOM.normal(0, 8, (3_000, 3)).astype(np.float32))
    exact = tree.predict(rows, search="exact")
    assert exact.equals(tree.flat.predict(rows))
    nearest = tree.nearest_clusters(3, rows)
    if pl.Series(tree.centroids_array()).n_unique() == tree.n_leaves or "max_size" not in repr(estimator):
        assert nearest.struct.field("clusters").arr.first().equals(exact, check_names=False)
    descended = tree.predict(rows, search="tree")
    # By the frame of nodes: the nearest child again and again.
    nodes = tree.nodes
    scaled = list(tree.flat.factors.values()) if tree.flat.factors else [1.0] * 3
    centroids, points = nodes.select(NAMES).to_numpy().astype(float) * scaled, rows.to_numpy().astype(float) * scaled
    if tree.parameters["metric"] == "cosine":
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    children = {node: nodes.filter(pl.col("parent") == node)["node"].to_numpy() for node in nodes["node"]}
    wrong = 0
    for point, leaf in zip(points, descended, strict=True):
        node = 0
        while len(children[node]):
            node = children[node][((centroids[children[node]] - point) ** 2).sum(axis=1).argmin()]
        wrong += nodes["leaf"][int(node)] != leaf
    assert wrong <= 3  # NumPy rounds otherwise


@every_tree
def test_expressions_and_paths(estimator: Any, tree: KMeansTree, tmp_path: Path) -> None:
    labels, path = tree.predict(DF), tree.path(DF)
    query = DF.lazy().with_columns(tree.predict(), tree.path())
    engines: list[Literal["in-memory", "streaming"]] = ["in-memory", "streaming"]
    for engine in engines:
        found = query.collect(engine=engine)
        assert found["cluster"].equals(labels) and found["path"].equals(path)
    DF.write_parquet(tmp_path / "rows.parquet")
    pl.scan_parquet(tmp_path / "rows.parquet").with_columns(tree.predict()).sink_parquet(tmp_path / "labels.parquet")
    assert pl.read_parquet(tmp_path / "labels.parquet")["cluster"].equals(labels)
    assert tree.label(DF, name="leaf")["leaf"].equals(labels, check_names=False)
    assert tree.label(DF.lazy()).collect()["cluster"].equals(labels)
    levels = path.struct.unnest()
    assert levels.columns == [f"level_{level}" for level in range(1, tree.depth + 1)]
    nodes = tree.nodes
    deepest = levels.select(pl.coalesce(reversed(levels.columns))).to_series()
    assert deepest.replace_strict(nodes["node"], nodes["leaf"]).equals(labels, check_names=False)
    for above, level in zip(levels.columns, levels.columns[1:], strict=False):
        parents = levels[level].drop_nulls().replace_strict(nodes["node"], nodes["parent"])
        assert parents.equals(levels.drop_nulls(level)[above], check_names=False)
    assert tree.path(X).tolist() == levels.cast(pl.Int32).fill_null(-1).to_numpy().tolist()


def test_doubles_ask_a_tree_of_floats_in_doubles() -> None:
    tree = TREES[0]
    rows = DF.select(pl.all().cast(pl.Float64) + 1e-12)
    assert tree.predict(rows).equals(tree.predict(DF))
    doubles = pk.HierarchicalKMeans(levels=[6, 5]).fit(DF.cast(pl.Float64), NAMES)
    assert doubles.predict(DF).equals(doubles.predict(DF.cast(pl.Float64)))


@every_tree
def test_cuts(estimator: Any, tree: KMeansTree) -> None:
    nodes = tree.nodes
    assert tree.cut(0).k == 1
    for level in range(1, tree.depth + 1):
        model = tree.cut(level)
        chosen = nodes.filter((pl.col("level") == level) | (pl.col("leaf").is_not_null() & (pl.col("level") < level)))
        chosen = chosen.sort(pl.col("path").map_elements(lambda path: str(path.to_list()), pl.String))
        assert model.k == chosen.height
        assert sorted(model.centroids["column_0"]) == sorted(chosen["column_0"])
    assert tree.cut(99).centroids.equals(tree.centroids)


def test_a_column_of_arrays_and_computed_features() -> None:
    frame = pl.DataFrame({"e": X}, schema={"e": pl.Array(pl.Float32, 3)})
    tree = pk.BisectingKMeans(8, seed=1).fit(frame, "e")
    assert tree.nodes.schema["e"] == pl.Array(pl.Float32, 3)
    assert tree.predict(frame).equals(pk.BisectingKMeans(8, seed=1).fit_predict(DF, NAMES))
    assert KMeansTree.from_bytes(tree.to_bytes()) == tree
    computed = pk.BisectingKMeans(8, seed=1).fit(DF, *(pl.col(name) * 2 for name in NAMES))
    with pytest.raises(InvalidColumnError):
        computed.predict(DF)
    assert computed.predict(DF, *(pl.col(name) * 2 for name in NAMES)).equals(tree.predict(frame))
    with pytest.raises(InvalidColumnError):
        KMeansTree.from_bytes(computed.to_bytes()).path()


def test_the_query_of_a_lazy_frame_runs_once() -> None:
    for call in ("fit", "fit_predict"):
        query, runs = counted(DF)
        getattr(pk.BisectingKMeans(3), call)(query, NAMES)
        assert runs == [DF.height]
    query, runs = counted(DF)
    TREES[0].score(query)
    assert runs == [DF.height]


# ---- files ----------------------------------------------------------------------------------------------------------


@every_tree
def test_files(estimator: Any, tree: KMeansTree, tmp_path: Path) -> None:
    tree.save(tmp_path / "tree.parquet")
    loaded = KMeansTree.load(tmp_path / "tree.parquet")
    assert loaded == tree and hash(loaded) == hash(tree) and loaded.nodes.equals(tree.nodes)
    assert pl.read_parquet(tmp_path / "tree.parquet").equals(tree.nodes)
    assert loaded.predict(DF).equals(tree.predict(DF)) and loaded.search == tree.search
    assert pickle.loads(pickle.dumps(tree)) == tree
    assert loaded.to_bytes() == (tmp_path / "tree.parquet").read_bytes()
    with (tmp_path / "tree.parquet").open("rb") as file:
        assert KMeansTree.load(file) == tree
    assert loaded.cut(1) == tree.cut(1)


def test_other_files_are_refused(tmp_path: Path) -> None:
    model = pk.KMeans(2).fit(DF, NAMES)
    with pytest.raises(InvalidModelError, match=r"KMeansModel\.load reads it"):
        KMeansTree.from_bytes(model.to_bytes())
    with pytest.raises(InvalidModelError, match=r"KMeansTree\.load reads it"):
        pk.KMeansModel.from_bytes(TREES[0].to_bytes())
    with pytest.raises(InvalidModelError):
        KMeansTree(model._encoded)
    with pytest.raises(InvalidParameterError, match=r"KMeansTree\.from_bytes takes bytes"):
        KMeansTree.load(TREES[0].to_bytes())  # type: ignore[arg-type]


# ---- refusals and doors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: pk.HierarchicalKMeans(), "levels: expected levels or leaves, and not both"),
        (lambda: pk.HierarchicalKMeans(levels=[2], leaves=3), "levels: expected levels or leaves, and not both"),
        (lambda: pk.HierarchicalKMeans(levels=[2, 0]), "levels: expected positive integers, as in"),
        (lambda: pk.HierarchicalKMeans(levels=3), "levels: expected positive integers, as in"),
        (lambda: pk.HierarchicalKMeans(levels=[]).fit(DF, NAMES), "levels: expected at least one level"),
        (lambda: pk.HierarchicalKMeans(leaves=0), "leaves: expected a positive integer, got 0"),
        (lambda: pk.HierarchicalKMeans(leaves=3, refine=-1), "refine: expected an integer of at least 0"),
        (lambda: pk.HierarchicalKMeans(leaves=3, max_size=4), "expected keywords that it has, got max_size"),
        (lambda: pk.HierarchicalKMeans(leaves=3, keep_sums=True), "expected keywords that it has, got keep_sums"),
        (lambda: pk.HierarchicalKMeans(leaves=2, init=[[0.0], [1.0]]), "init: expected"),
        (lambda: pk.HierarchicalKMeans(leaves=9, metric="l1"), "metric: expected"),
        (lambda: pk.BisectingKMeans(3, split="rows"), 'split: expected "inertia" or "size"'),
        (lambda: pk.BisectingKMeans(3, max_size=0), "max_size: expected a positive integer, got 0"),
        (lambda: pk.BisectingKMeans(0), "k: expected"),
        (lambda: pk.BisectingKMeans(3, sort_by=TREES[0].flat).fit(DF, NAMES), "sort_by: expected"),
        (lambda: TREES[0].predict(search="best"), 'search: expected "tree", "exact" or None'),
        (lambda: TREES[0].predict(device="cuda"), 'device: expected "auto" or "cpu" for search="tree"'),
        (lambda: TREES[0].predict(null_policy="keep"), "null_policy: expected"),
        (lambda: TREES[0].cut(-1), "level: expected an integer of at least 0"),
        (lambda: TREES[0].nearest_clusters(10**6), "m: expected an integer from 1 to"),
    ],
)
def test_wrong_parameters(make: Any, match: str) -> None:
    with pytest.raises(InvalidParameterError, match=match):
        make()


def test_names_of_the_frame_of_nodes_are_no_features() -> None:
    with pytest.raises(InvalidColumnError, match="leaf"):
        pk.BisectingKMeans(2).fit(DF.rename({"column_0": "leaf"}), "leaf", "column_1")
    with pytest.raises(InvalidColumnError, match="place 1"):
        TREES[0].predict(DF, "column_1", "column_0", "column_2")


def test_equal_leaves_cannot_be_refined_or_cut() -> None:
    rows = pl.DataFrame({"x": [0.0, 0.0, 0.0, 0.0, 8.0]})
    tree = pk.BisectingKMeans(2, max_size=2).fit(rows, "x")
    with pytest.raises(InvalidParameterError, match="level: expected nodes with different centroids"):
        tree.cut(2)
    assert tree.predict(rows, search="exact").n_unique() == 2


def test_estimators_say_their_parameters() -> None:
    assert IDS[0] == "HierarchicalKMeans(levels=[6, 5, 3], seed=4, sort_by='column_1')"
    assert IDS[-1] == "BisectingKMeans(k=10, split='size', max_size=300)"
    for estimator in ESTIMATORS:
        assert repr(type(estimator)(**estimator.parameters)) == repr(estimator)
    assert ESTIMATORS[-1].k == 10
    assert repr(TREES[-1]).startswith("KMeansTree(n_leaves=")


def test_duckdb_takes_a_tree() -> None:
    duckdb = pytest.importorskip("duckdb")
    from polars_kmeans import sql

    for tree in TREES[:3]:
        with duckdb.connect() as connection:
            sql.register(connection, models={"leaf": tree})
            points = DF.to_arrow()
            found = connection.sql(f"SELECT leaf({', '.join(NAMES)}) AS leaf FROM points").pl()
        assert points.num_rows == found.height and found["leaf"].equals(tree.predict(DF), check_names=False)


@needs_gpu
def test_a_gpu_gives_the_same_tree_and_leaves() -> None:
    for estimator, tree in zip(ESTIMATORS, TREES, strict=True):
        assert type(estimator)(**{**estimator.parameters, "device": "cuda"}).fit(DF, NAMES) == tree
        assert tree.predict(DF, search="exact", device="cuda").equals(tree.predict(DF, search="exact"))
