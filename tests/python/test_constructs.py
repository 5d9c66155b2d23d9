"""What a query of Polars can put around a fit. The right value of each is a fit of the plain frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest

import polars_kmeans as pk

N = 60
K = 2
Options = dict[str, Any]
OPTIONS: Options = {"seed": 1, "too_few": "null"}
ENGINES = pytest.mark.parametrize("engine", ["in-memory", "streaming"])


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    rng = np.random.default_rng(1)
    groups = {"g": rng.integers(0, 3, N), "h": rng.integers(0, 2, N)}
    # Sums of these values are exact, so means are the same on both engines.
    x, y = np.round(rng.normal(size=(2, N)) * 1024) / 1024
    return pl.DataFrame({"t": np.arange(N), **groups, "x": x + 5 * groups["h"], "y": y})


def label(*features: Any, k: int = K) -> pl.Expr:
    return pk.kmeans(*(features or ("x", "y")), k=k, **OPTIONS).alias("label")


def centroids(k: int = K) -> pl.Expr:
    return pk.centroids("x", "y", k=k, **OPTIONS).alias("centroids")


def labels_of(rows: pl.DataFrame, *features: str, k: int = K) -> list[int | None]:
    """The labels of a fit of a plain frame."""
    model = pk.KMeans(k, **OPTIONS).fit(rows, *(features or ("x", "y")))
    return [None] * rows.height if model is None else model.predict(rows).to_list()


def centroids_of(rows: pl.DataFrame, k: int = K) -> list[Any] | None:
    """The centroids of a fit of a plain frame."""
    model = pk.KMeans(k, **OPTIONS).fit(rows, "x", "y")
    return None if model is None else model.centroids.to_dicts()


def in_groups(rows: pl.DataFrame, key: str, of: Callable[[pl.DataFrame], list[Any]] = labels_of) -> list[Any]:
    """The answers for the groups, in the order of the rows."""
    parts = rows.with_row_index("row").partition_by(key)
    found = {row: answer for part in parts for row, answer in zip(part["row"], of(part.drop("row")), strict=True)}
    return [found[row] for row in range(rows.height)]


# Windows


@ENGINES
def test_rolling_windows_overlap(frame: pl.DataFrame, engine: Any) -> None:
    windows = [frame.filter(pl.col("t").is_between(t - 8, t)) for t in range(N)]
    query = frame.lazy().rolling("t", period="9i").agg(label(), centroids(), rows=pl.len())
    found = query.collect(engine=engine)
    assert found["rows"].to_list() == [rows.height for rows in windows]
    assert found["label"].to_list() == [labels_of(rows) for rows in windows]
    assert found["centroids"].to_list() == [centroids_of(rows) for rows in windows]
    in_select = frame.lazy().select(centroids().rolling("t", period="9i"), label().last().rolling("t", period="9i"))
    last = found.select("centroids", pl.col("label").list.last())
    assert in_select.collect(engine=engine).equals(last)


@ENGINES
def test_dynamic_windows_of_groups_overlap(frame: pl.DataFrame, engine: Any) -> None:
    query = frame.lazy().group_by_dynamic("t", every="5i", period="12i", group_by="g").agg(label(), centroids())
    found = query.sort("g", "t").collect(engine=engine)
    starts = {(g, t // 5 * 5 - back) for g, t in frame.select("g", "t").rows() for back in (0, 5, 10)}
    windows = [(g, t, frame.filter(pl.col("t").is_between(t, t + 11), g=g)) for g, t in sorted(starts)]
    expected = [(g, t, labels_of(rows), centroids_of(rows)) for g, t, rows in windows if not rows.is_empty()]
    assert found.rows() == [row for row in expected if (row[0], row[1]) in set(found.select("g", "t").rows())]
    # Polars leaves out some windows before the first row of a group, and no others.
    assert {row[:2] for row in expected} - set(found.select("g", "t").rows()) <= {
        (g, t) for g, t in starts if t < frame.filter(g=g)["t"].min()
    }


@ENGINES
def test_windows_in_windows(frame: pl.DataFrame, engine: Any) -> None:
    """A window inside a window is one inside each group."""
    away = pl.col("x") - pl.col("x").mean().over("h")
    query = frame.lazy().select(
        label(away, "y"),
        by_group=label(away, "y").over("g"),
        largest=label().over("g").max().over("h"),
        mean=pl.col("x").mean().over(label(k=3)),
        again=label("x").over(label(k=3)),
    )
    found = query.collect(engine=engine)

    def of_away(rows: pl.DataFrame) -> list[int | None]:
        return labels_of(rows.with_columns(away))

    labelled = frame.with_columns(label=pl.Series(labels_of(frame, k=3)))
    assert found["label"].to_list() == of_away(frame)
    assert found["by_group"].to_list() == in_groups(frame, "g", of_away)
    assert found["largest"].to_list() == in_groups(frame, "h", lambda rows: [max(in_groups(rows, "g"))] * rows.height)
    assert found["mean"].to_list() == labelled.select(pl.col("x").mean().over("label")).to_series().to_list()
    assert found["again"].to_list() == in_groups(labelled, "label", lambda rows: labels_of(rows, "x"))


@ENGINES
@pytest.mark.parametrize("descending", [False, True])
def test_windows_with_an_order(frame: pl.DataFrame, engine: Any, descending: bool) -> None:
    """The fit sees the rows of a group in this order. Each label goes to its row."""
    ordered = frame.sort("y", descending=descending)
    order = {"order_by": "y", "descending": descending}
    found = frame.lazy().select(
        "t",
        label().over("g", **order),
        whole=label().over(order_by="y", descending=descending),
        centroids=centroids().over("g", **order),
    )
    expected = ordered.select("t", "g", label=pl.Series(in_groups(ordered, "g")), whole=pl.Series(labels_of(ordered)))
    rows = found.collect(engine=engine)
    expected = expected.sort("t")
    assert rows["label"].to_list() == expected["label"].to_list() != in_groups(frame, "g")
    assert rows["whole"].to_list() == expected["whole"].to_list()
    assert rows["centroids"].to_list() == [centroids_of(ordered.filter(g=g)) for g in expected["g"]]


@ENGINES
@pytest.mark.parametrize("key", [pl.lit(1), pl.lit("a"), pl.lit(None), pl.lit(1).alias("x")])
def test_the_group_of_a_literal_is_the_frame(frame: pl.DataFrame, engine: Any, key: pl.Expr) -> None:
    found = frame.lazy().group_by(key).agg(label(), centroids()).collect(engine=engine)
    assert found.row(0)[1:] == (labels_of(frame), centroids_of(frame)) and found.height == 1
    over = frame.lazy().select(label().over(key), centroids=centroids().over(key)).collect(engine=engine)
    assert over["label"].to_list() == labels_of(frame)
    assert over["centroids"].to_list() == [centroids_of(frame)] * N


@ENGINES
def test_keys_and_features_that_the_query_overwrites(frame: pl.DataFrame, engine: Any) -> None:
    """All expressions of one step see the columns as they were before."""
    by_g, whole = in_groups(frame, "g"), labels_of(frame)
    step = frame.lazy().with_columns(
        label().over("g").alias("g"), label().alias("x"), y=pl.lit(0.0), h=label().over("g")
    )
    found = step.collect(engine=engine)
    assert (found["g"].to_list(), found["x"].to_list(), found["h"].to_list()) == (by_g, whole, by_g)
    # The next step sees the new columns.
    twice = step.with_columns(label("t").over("g"), centroids=pl.lit(1)).collect(engine=engine)
    assert twice["label"].to_list() == in_groups(found, "g", lambda rows: labels_of(rows, "t"))
    groups = frame.lazy().group_by(label(k=3).alias("x"), maintain_order=True).agg(pl.len(), label("y"))
    parts = frame.with_columns(x=pl.Series(labels_of(frame, k=3))).partition_by("x", maintain_order=True)
    assert groups.collect(engine=engine).rows() == [(part["x"][0], part.height, labels_of(part, "y")) for part in parts]


# Plans

Step = Callable[[Any], Any]


@pytest.fixture(scope="module")
def model(frame: pl.DataFrame) -> pk.KMeansModel:
    return pk.KMeans(3, seed=1).fit(frame, "x", "y")


@ENGINES
def test_twenty_steps(frame: pl.DataFrame, model: pk.KMeansModel, engine: Any) -> None:
    """Filters, limits and columns that are not needed are pushed down to where they change no fit, and no further."""
    table = model.centroids.select(pl.col("cluster").alias("p"), "size", centre="x").lazy()
    steps: list[Step] = [
        lambda f: f.with_columns(label().alias("a")),
        lambda f: f.filter(pl.col("t") % 7 != 0),
        lambda f: f.with_columns(label("y").over("a").alias("b")),
        lambda f: f.drop("h"),
        lambda f: f.filter((pl.col("b") == 0) | (pl.col("x") > 0)),
        lambda f: f.sort("y"),
        lambda f: f.with_columns(model.predict().alias("p")),
        lambda f: f.filter(pl.col("p") != 0),
        lambda f: f.rename({"x": "u"}),
        lambda f: f.with_columns(label("u").alias("c")),
        lambda f: f.slice(1, 36),
        lambda f: f.with_columns(label("u", "y").alias("d")),
        lambda f: f.lazy().join(table, on="p", how="left", maintain_order="left"),
        lambda f: f.with_columns(label(pl.col("u") - pl.col("centre"), k=3).alias("e")),
        lambda f: f.filter(pl.col("e") + pl.col("d") + pl.col("c") > 0),
        lambda f: f.with_columns(label("y").over("g").alias("f")),
        lambda f: f.tail(14),
        lambda f: f.unique("t", keep="first", maintain_order=True),
        lambda f: f.with_columns(label("u", "y", k=3).alias("last"), model.transform("u", "y").alias("distances")),
        lambda f: f.select("t", "last", "f", pl.col("distances").arr.min()),
    ]  # fmt: skip
    eager, lazy = frame, frame.lazy()
    for number, step in enumerate(steps):
        eager, lazy = step(eager).lazy().collect(), step(lazy)
        assert lazy.collect(engine=engine).equals(eager), f"step {number}"
    assert eager.height == 14 and eager["last"].n_unique() == 3
    assert lazy.collect(engine=engine, optimizations=pl.QueryOptFlags.none()).equals(eager)


def test_filters_go_past_predictions_and_not_past_fits(frame: pl.DataFrame, model: pk.KMeansModel) -> None:
    for expr, past in ((model.predict().alias("p"), True), (model.transform(), True), (label(), False)):
        plan = frame.lazy().with_columns(expr).filter(pl.col("t") < 20).explain()
        assert (plan.index("FILTER") > plan.index("WITH_COLUMNS")) == past, plan


@ENGINES
def test_what_follows_a_fit_does_not_change_it(frame: pl.DataFrame, engine: Any) -> None:
    labelled = frame.with_columns(pl.Series("label", labels_of(frame), dtype=pl.UInt32))
    fitted = frame.lazy().with_columns(label())
    after: list[Step] = [
        lambda f: f.filter(pl.col("t") < 20),
        lambda f: f.filter(pl.col("label") == 0).head(3),
        lambda f: f.select("label").tail(4),
        lambda f: f.slice(5, 5),
        lambda f: f.sort("x").head(5),
        lambda f: f.filter(pl.col("x") > 2).select(pl.col("label").sum(), pl.len()),
        lambda f: f.group_by("label").agg(pl.len()).sort("label"),
        lambda f: f.select("t", "label").filter(pl.col("t").is_in([1, 50])),
    ]
    for step in after:
        assert step(fitted).collect(engine=engine).equals(step(labelled))


# Aggregates and single rows


@ENGINES
def test_aggregates_in_predict(frame: pl.DataFrame, model: pk.KMeansModel, engine: Any) -> None:
    means = [pl.col("x").mean(), pl.col("y").mean()]
    groups = frame.lazy().group_by("g", maintain_order=True)
    plain = frame.group_by("g", maintain_order=True).agg("t", *means, first=pl.col("x").first(), ys="y")

    def of(x: list[float], y: list[float]) -> list[int]:
        return model.predict(pl.DataFrame({"x": x, "y": y})).to_list()

    whole = frame.lazy().select(model.predict(*means).alias("p"), model.transform(*means).alias("d"))
    expected = frame.select(means)
    assert whole.collect(engine=engine).rows() == [(model.predict(expected)[0], model.transform(expected)[0].to_list())]
    each = of(plain["x"].to_list(), plain["y"].to_list())
    mixed = [of([x] * len(ys), ys) for x, ys in plain.select("first", "ys").rows()]
    query = groups.agg(
        model.predict(*means).alias("each"),
        model.predict(pl.col("x").first(), "y").alias("mixed"),
        model.predict().alias("rows"),
        model.predict().mode(maintain_order=True).first().alias("most"),
    )
    found = query.collect(engine=engine)
    assert query.collect_schema() == found.schema
    assert found["each"].to_list() == each
    assert found["mixed"].to_list() == mixed
    assert found["rows"].to_list() == [model.predict(frame[t.to_list()]).to_list() for t in plain["t"]]
    by_row = dict(zip(plain["g"], each, strict=True))
    over = frame.lazy().select(
        "g",
        model.predict(*(mean.over("g") for mean in means)).alias("inside"),
        model.predict(*means).over("g").alias("outside"),
    )
    for name in ("inside", "outside"):
        assert over.select("g", name).collect(engine=engine)[name].to_list() == [by_row[g] for g in frame["g"]]


@ENGINES
def test_aggregates_in_fits(frame: pl.DataFrame, engine: Any) -> None:
    """A fit of one aggregate is a fit of one row. Next to rows, an aggregate is repeated."""
    one = frame.lazy().select(label(pl.col("x").mean(), k=1), centroids=centroids(1)).collect(engine=engine)
    assert one.rows() == [(0, centroids_of(frame, 1))]
    repeated = frame.with_columns(y=pl.col("y").max())
    found = frame.lazy().select(label("x", pl.col("y").max())).collect(engine=engine)
    assert found["label"].to_list() == labels_of(repeated)
    groups = frame.group_by("g", maintain_order=True)
    by_group = frame.lazy().group_by("g", maintain_order=True).agg(label("x", pl.col("y").max())).collect(engine=engine)
    assert by_group["label"].to_list() == [labels_of(rows.with_columns(pl.col("y").max())) for _, rows in groups]
    chosen = pl.col("x", "y").filter(pl.col("h") == 1)
    kept = frame.lazy().group_by("g", maintain_order=True).agg(label(chosen), after=label().filter(pl.col("h") == 1))
    expected = [
        (
            labels_of(rows.filter(h=1)),
            rows.with_columns(label=pl.Series(labels_of(rows))).filter(h=1)["label"].to_list(),
        )
        for _, rows in groups
    ]
    assert kept.collect(engine=engine).drop("g").rows() == expected


@ENGINES
def test_inputs_of_one_row(frame: pl.DataFrame, model: pk.KMeansModel, engine: Any) -> None:
    row = frame.slice(7, 1)
    (x, y), p = row.select("x", "y").row(0), model.predict(frame)[7]
    found = row.lazy().select(
        label(k=1), centroids(1), model.predict().alias("p"), model.transform().alias("d"), none=label(k=2)
    ).collect(engine=engine)  # fmt: skip
    centroid = {"cluster": 0, "size": 1, "inertia": 0.0, "x": x, "y": y}
    assert found.rows() == [(0, [centroid], p, model.transform(frame)[7].to_list(), None)]
    assert model.predict(row).to_list() == [p] and model.transform(row)[0].to_list() == found["d"][0].to_list()
    one = pk.KMeans(1).fit(row, "x", "y")
    assert one == pk.KMeans(1).fit(row.lazy(), "x", "y") and one.centroids.to_dicts() == [centroid]
    assert one.score(row) == one.inertia == 0.0
    assert pk.KMeans(1).fit(np.array([[x, y]])).predict(np.array([[x, y]])).tolist() == [0]
    structs = row.lazy().select(pk.kmeans("x", "y", k=1, output="struct").alias("s")).unnest("s").collect(engine=engine)
    assert structs.row(0) == (0, 0.0, None)
    alone = frame.lazy().group_by("t", maintain_order=True).agg(label(k=1), model.predict().alias("p"))
    assert alone.collect(engine=engine).drop("t").rows() == [([0], [p]) for p in model.predict(frame)]
    over = frame.lazy().select(label(k=1).over("t"), none=label(k=2).over("t")).collect(engine=engine)
    assert over.rows() == [(0, None)] * N
    literals = pl.lit(x).alias("x"), pl.lit(y).alias("y")
    literals = pl.select(label(*literals, k=1), model.predict(*literals).alias("p"))
    assert literals.rows() == [(0, p)]


# Lists


@ENGINES
def test_lists_are_clustered_by_themselves(frame: pl.DataFrame, model: pk.KMeansModel, engine: Any) -> None:
    """The values of a list have no name, and labels need none."""
    groups = frame.group_by("g", maintain_order=True)
    lists = groups.agg("x", points=pl.struct("x", "y"), pairs=pl.concat_list("x", "y"))
    array = lists.with_columns(four=pl.col("x").list.head(4).list.to_array(4)).lazy()
    element = pl.element()
    found = array.select(
        pl.col("x").list.eval(label(element)),
        four=pl.col("four").arr.eval(label(element)),
        points=pl.col("points").list.eval(label(element.struct.unnest())),
        pairs=pl.col("pairs").list.eval(label(element)),
        named=pl.col("points").list.eval(label(element.struct.field("y"), element.struct.field("x").alias("x"))),
        predicted=pl.col("pairs").list.eval(model.predict(element.list.get(0), element.list.get(1).alias("y"))),
        centroids=pl.col("points").list.agg(pk.centroids(element.struct.unnest(), k=K, **OPTIONS)),
    ).collect(engine=engine)
    parts = [rows for _, rows in groups]
    assert found["x"].to_list() == [labels_of(rows, "x") for rows in parts]
    assert found["four"].to_list() == [labels_of(rows.head(4), "x") for rows in parts]
    assert found["points"].to_list() == found["pairs"].to_list() == [labels_of(rows) for rows in parts]
    assert found["named"].to_list() == [labels_of(rows, "y", "x") for rows in parts]
    assert found["predicted"].to_list() == [model.predict(rows).to_list() for rows in parts]
    assert found["centroids"].to_list() == [centroids_of(rows) for rows in parts]
    few = pl.LazyFrame({"v": [[1.0, 1.0, 9.0], [], None, [4.0]]})
    for too_few, alone in (("null", None), ("fewer", 0)):
        expr = pk.kmeans(pl.element(), k=2, seed=1, too_few=too_few, sort_by="size")
        labels = few.select(pl.col("v").list.eval(expr)).collect(engine=engine)["v"].to_list()
        assert labels == [[1, 1, 0], [], None, [alone]]


def test_columns_without_a_name() -> None:
    """A column of centroids needs a name. Labels need none."""
    unnamed, named = pl.DataFrame({"": [0.0, 1.0, 9.0]}), pl.DataFrame({"v": [0.0, 1.0, 9.0]})
    assert unnamed.select(label("")).equals(named.select(label("v")))
    lists = named.select(pl.col("v").implode())
    refused: list[Callable[[], Any]] = [
        lambda: pk.KMeans(2).fit(unnamed, ""),
        lambda: unnamed.select(pk.centroids("", k=2)),
        lambda: lists.select(pl.col("v").list.agg(pk.centroids(pl.element(), k=2))),
    ]
    for use in refused:
        with (
            pytest.raises(pk.InvalidColumnError, match=r"must have a name: .* pl\.element\(\)\.alias"),
            pk.typed_errors(),
        ):
            use()
