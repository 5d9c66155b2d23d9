"""Living models in Python: tables of sums, updates, matches, drift, and models in other engines."""

import pickle
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.exceptions import ComputeError
from polars.testing import assert_frame_equal

import polars_kmeans as pk
from polars_kmeans.errors import InvalidParameterError

pytestmark = pytest.mark.filterwarnings(
    "ignore::polars_kmeans.ConvergenceWarning", "ignore::polars_kmeans.EmptyClusterWarning"
)
SUMS = ["size", "weight", "x", "y"]


def rows(n: int, seed: int, dtype: type[pl.DataType] = pl.Float64) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    return pl.DataFrame(
        {"x": random.normal(size=n), "y": random.normal(size=n) + random.integers(0, 3, n)},
        schema={"x": dtype, "y": dtype},
    ).with_columns(g=pl.Series(random.integers(0, 7, n)), w=pl.Series(random.integers(0, 4, n) / 2))


def flat(tables: pl.DataFrame) -> pl.DataFrame:
    return tables.explode("sums").unnest("sums")


def total(tables: pl.DataFrame) -> pl.DataFrame:
    return tables.group_by("cluster", "fingerprint").agg(pl.col(SUMS).sum()).sort("cluster")


@settings(max_examples=60, deadline=None)
@given(
    st.integers(20, 300),
    st.integers(0, 2**32 - 1),
    st.sampled_from([pl.Float32, pl.Float64]),
    st.booleans(),
    st.sampled_from([{}, {"scale": "standard"}, {"metric": "cosine"}, {"scale": "robust", "metric": "cosine"}]),
)
def test_tables_add_up_in_any_way(n: int, seed: int, dtype: Any, weighted: bool, options: dict[str, Any]) -> None:
    df, weight = rows(n, seed, dtype), "w" if weighted else None
    df = df.with_columns(x=pl.when(pl.int_range(n) % 9 > 0).then("x")) if seed % 3 == 0 else df
    estimator = pk.KMeans(3, seed=seed, weight=weight, null_policy="skip", keep_sums=True, **options)
    model = estimator.fit(df, "x", "y")
    whole = flat(df.select(model.sums(weight=weight)))
    ways = [
        df.group_by("g").agg(model.sums(weight=weight)),
        df.lazy().group_by("g").agg(model.sums(weight=weight)).collect(engine="streaming"),
        df.sample(fraction=1, shuffle=True, seed=1).group_by("g").agg(model.sums("x", "y", weight=weight)),
        pl.concat([part.select(model.sums(weight=weight)) for part in df.iter_slices(17)]),
        df.with_columns(model.predict().alias("then")).group_by("g").agg(model.sums(weight=weight, labels="then")),
        df.group_by("g").agg(model.sums(weight=weight, labels=model.predict())),
    ]
    for way in ways:
        assert_frame_equal(total(flat(way)), whole.select("cluster", "fingerprint", *SUMS))
    nothing = df.clear().select(model.sums(weight=weight))
    same = model.updated(nothing)
    assert same == model.updated(ways[0], start="zero")
    assert same.centroids["size"].to_list() == model.centroids["size"].to_list()
    assert model.updated(ways[1], removed=whole) == same


def test_windows_differences_and_files(tmp_path: Path) -> None:
    df = rows(2_000, 5).with_columns(
        day=pl.date_range(date(2026, 1, 1), date(2026, 1, 20), eager=True).gather(pl.int_range(2_000, eager=True) % 20)
    )
    model = pk.KMeans(3, seed=1, keep_sums=True).fit(df, "x", "y")
    days = flat(df.group_by("day").agg(model.sums())).sort("day", "cluster")
    days.write_parquet(tmp_path / "days.parquet")
    days.write_ipc(tmp_path / "days.arrow")
    assert pl.read_parquet(tmp_path / "days.parquet").equals(days)
    assert pl.read_ipc(tmp_path / "days.arrow").equals(days)
    # Running totals less those of a week ago are a window.
    running = days.with_columns(pl.col(SUMS).cum_sum().over("cluster"))
    window = running.with_columns(pl.col(SUMS) - pl.col(SUMS).shift(7, fill_value=0).over("cluster"))
    week = df.filter(pl.col("day") > date(2026, 1, 10), pl.col("day") <= date(2026, 1, 17))
    expected = model.updated(week.select(model.sums()), start="zero")
    assert model.updated(window.filter(pl.col("day") == date(2026, 1, 17)), start="zero") == expected
    # Other engines have no Int128. Decimals come back as they were.
    decimals = days.with_columns(pl.col("weight", "x", "y").cast(pl.Decimal(38, 0)))
    assert model.updated(decimals, start="zero") == model.updated(days, start="zero")


def test_a_saved_model_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    for dtype in (pl.Float32, pl.Float64):
        df, more = rows(300, 1, dtype), rows(90, 2, dtype)
        model = pk.KMeans(3, seed=1, keep_sums=True, scale="standard").fit(df, "x", "y").with_metadata({"a": "b"})
        model.save(tmp_path / "model.parquet")
        loaded = [
            pk.KMeansModel.load(tmp_path / "model.parquet"),
            pickle.loads(pickle.dumps(model)),
            pk.KMeansModel.from_json(model.to_json()),
        ]
        later = model.updated(more.select(model.sums()), decay=0.9)
        for again in loaded:
            assert again == model
            assert again.metadata == {"a": "b"}
            assert again.updated(more.select(again.sums()), decay=0.9) == later
        assert later.metadata == {"a": "b"}
        assert pk.KMeansModel.from_bytes(later.to_bytes()) == later
        assert (later.inertia, later.converged, later.history.height) == (None, None, 0)
        assert later.centroids["inertia"].null_count() == 3
        later.save(tmp_path / "later.parquet")
        assert pl.read_parquet(tmp_path / "later.parquet").equals(later.centroids)
        assert repr(later).endswith("inertia=None)") and "unknown (updated)" in later._repr_html_()


def test_array_columns_have_a_sum_for_each_entry() -> None:
    df = rows(100, 1).select(e=pl.concat_arr("x", "y"))
    model = pk.KMeans(3, seed=1, keep_sums=True).fit(df, "e")
    table = flat(df.select(model.sums()))
    assert table.columns[4:] == ["e[0]", "e[1]"]
    assert model.updated(df.clear().select(model.sums())) == model.updated(table, start="zero")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t: m.updated(t.drop("x")), "column"),
        (lambda m, t: m.updated(t.select("size")), "sums: expected a table of model.sums"),
        (lambda m, t: m.updated(t.with_columns(pl.col("x").cast(pl.Float64))), "sums: expected integers"),
        (lambda m, t: m.updated(t.with_columns(fingerprint=pl.lit(7, dtype=pl.UInt64))), "sums of this model"),
        (lambda m, t: m.updated(t, removed=pl.concat([t, t, t])), "removed twice"),
        (lambda m, t: m.updated(t, decay=1.5), "decay: expected a number from 0 to 1"),
        (lambda m, t: m.updated(t, extents=[1.0, 1.0]), "extents: expected none.*the method widened gives a model"),
        (lambda m, t: m.sums(extents={"x": 1.0}), "extents: expected a number for each of"),
        (lambda m, t: m.match(t), "other: expected a KMeansModel"),
        (lambda m, t: pk.moved(t, m, 3), "new: expected a KMeansModel"),  # type: ignore[arg-type]
        (lambda m, t: m.nearest_clusters(4), "m: expected an integer from 1 to 3"),
        (lambda m, t: m.to_sql("oracle"), 'dialect: expected "duckdb"'),
        (lambda m, t: m.with_metadata({"a": 1}), "metadata: expected texts by name"),
        (lambda m, t: pk.KMeans(3, keep_sums=1), "keep_sums: expected True or False"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_refusals_say_what_to_do(call: Any, message: str) -> None:
    df = rows(50, 1)
    model = pk.KMeans(3, seed=1, keep_sums=True).fit(df, "x", "y")
    with pytest.raises(pk.KMeansError, match=message):
        call(model, flat(df.select(model.sums())))


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (pl.DataFrame({"x": [1e9], "y": [0.0]}), {}, 'InvalidDataError: column "x": expected magnitudes of at most'),
        (pl.DataFrame({"x": [None], "y": [0.0]}, schema={"x": pl.Float64, "y": pl.Float64}), {}, "nulls: 1"),
        (pl.DataFrame({"x": [0.0], "y": [0.0]}), {"weight": "x"}, "weight: expected none"),
        (pl.DataFrame({"x": [0.0], "y": [0.0], "l": [3]}), {"labels": "l"}, "labels: expected labels below 3"),
        (pl.DataFrame({"x": [0.0], "y": [0.0], "l": [-1]}), {"labels": "l"}, "labels: expected a column of cluster"),
        (pl.DataFrame({"x": [0.0], "y": [0.0], "l": ["a"]}), {"labels": "l"}, "labels: expected a column of cluster"),
    ],
)  # fmt: skip
def test_rows_that_no_sum_takes(frame: pl.DataFrame, options: dict[str, Any], message: str) -> None:
    model = pk.KMeans(3, seed=1).fit(rows(50, 1), "x", "y")
    with pytest.raises(ComputeError, match=message):
        frame.select(model.sums(**options))
    narrow = pk.KMeans(3, seed=1).fit(rows(50, 1, pl.Float32), "x", "y")
    with pytest.raises(
        ComputeError, match="InvalidColumnError: features: expected float32, as in the fit, got float64"
    ):
        rows(5, 1).select(narrow.sums())


def test_models_without_quanta_need_extents() -> None:
    model = pk.KMeansModel.from_centroids([[0.0], [5.0]], ["x"])
    df = pl.DataFrame({"x": [0.0, 1.0, 50.0]})
    with pytest.raises(ComputeError, match="extents: expected the largest magnitude"):
        df.select(model.sums())
    later = model.updated(df.select(model.sums(extents=[10])), start="zero", extents={"x": 10})
    assert later.centroids["x"].to_list() == [0.5, 50.0]
    assert later.updated(df.select(later.sums())).centroids["size"].to_list() == [4, 2]
    # A feature may not have the name of a column of the table.
    odd = pk.KMeans(2, seed=1).fit(pl.DataFrame({"weight": [0.0, 1.0, 5.0]}), "weight")
    with pytest.raises(ComputeError, match="features: expected names other than"):
        pl.DataFrame({"weight": [0.0]}).select(odd.sums())


@pytest.mark.parametrize("dtype", [pl.Float32, pl.Float64])
def test_the_nearest_clusters_are_the_first_of_all(dtype: type[pl.DataType]) -> None:
    df = rows(3_000, 8, dtype).with_columns(x=pl.when(pl.int_range(3_000) != 5).then("x"))
    model = pk.KMeans(20, seed=1, null_policy="skip").fit(df, "x", "y")
    for squared in (False, True):
        near = df.select(model.nearest_clusters(6, squared=squared)).unnest("nearest_clusters")
        distances = df.select(model.transform(squared=squared)).to_series()
        assert near["distances"].to_list() == distances.arr.sort().arr.head(6).to_list()
        assert near["clusters"].arr.get(0).equals(df.select(model.predict()).to_series(), check_names=False)
    lazy = df.lazy().select(model.nearest_clusters(6, squared=True)).collect(engine="streaming")
    assert lazy.unnest("nearest_clusters").equals(near)
    assert df.clear().select(model.nearest_clusters(2)).height == 0


def test_numbers_stay() -> None:
    old_rows, new_rows = rows(2_000, 1), rows(2_000, 2)
    old = pk.KMeans(6, seed=1).fit(old_rows, "x", "y")
    plain, sorted_by = (pk.KMeans(7, seed=9, sort_by=by).fit(new_rows, "x", "y") for by in (None, old))
    assert sorted(plain.centroids["x"]) == sorted(sorted_by.centroids["x"])
    match = sorted_by.match(old)
    assert match["matched"].to_list() == [0, 1, 2, 3, 4, 5, None]
    assert match["cluster"].to_list() == list(range(7))
    assert plain.match(old)["distance"].to_list() == match["distance"].to_list()
    expression = new_rows.select(pk.kmeans("x", "y", k=7, seed=9, sort_by=old)).to_series()
    assert expression.equals(new_rows.select(sorted_by.predict()).to_series(), check_names=False)
    moved = pk.moved(new_rows.lazy(), old, sorted_by)
    assert moved["size"].sum() == 2_000
    assert moved.filter(pl.col("before") == pl.col("after"))["size"].sum() > 1_000
    # A model that is scaled measures in its own units, and matches itself.
    wide = old_rows.with_columns(pl.col("x") * 1e6)
    scaled = pk.KMeans(6, seed=1, scale="standard").fit(wide, "x", "y")
    assert scaled.match(scaled)["cluster"].to_list() == list(range(6))
    assert pk.KMeans(6, seed=4, scale="robust", sort_by=scaled).fit(wide, "x", "y").match(scaled)["cluster"].is_sorted()
    for other, message in (
        (pk.KMeans(2, seed=1).fit(old_rows, "x"), "a model of the same features"),
        (pk.KMeans(2, seed=1, metric="cosine").fit(old_rows, "x", "y"), "metric"),
    ):
        with pytest.raises(InvalidParameterError, match=message):
            old.match(other)
        with pytest.raises(InvalidParameterError, match=message):
            pk.KMeans(2, sort_by=other).fit(old_rows, "x", "y")


def test_drift_counts_half_a_row_for_none() -> None:
    model = pk.KMeans(2, init=[[0.0], [8.0]]).fit(pl.DataFrame({"x": [0.0, 1.0, 8.0, 9.0]}), "x")
    found = model.drift(pl.DataFrame({"x": [8.0, 9.0, None]}))
    assert found["share_now"].to_list() == [0.25, 1.0]
    assert found["distance_now"].to_list() == [None, 0.5]
    assert found["distance_then"].to_list() == [0.5, 0.5]
    assert found["stability_index"][0] == pytest.approx((0.25 - 0.5) * np.log(0.25 / 0.5))
    assert model.drift(model.centroids.rename({"cluster": "c"}))["share_now"].to_list() == [0.5, 0.5]


@pytest.mark.parametrize("dtype", [pl.Float32, pl.Float64])
@pytest.mark.parametrize(
    "options", [{}, {"scale": "standard"}, {"metric": "cosine"}, {"scale": "robust", "metric": "cosine"}]
)
def test_other_engines_give_the_labels(dtype: type[pl.DataType], options: dict[str, Any]) -> None:
    import duckdb

    df = rows(1_000_000, 4, dtype).select("x", "y")
    edges = pl.DataFrame({"x": [None, np.nan, np.inf, 0.0, -0.0], "y": [1.0, 1.0, 1.0, 0.0, 0.0]}, schema=df.schema)
    model = pk.KMeans(8, seed=1, max_iter=4, **options).fit(df[:20_000], "x", "y")
    df = pl.concat([df, edges])
    label = df.select(model.predict()).to_series()
    plain = df.select(model.to_expr()).to_series()
    sql = duckdb.sql(f"SELECT {model.to_sql()} AS cluster FROM df").pl().to_series()
    for other in (plain, sql):
        assert other.dtype == pl.UInt32
        assert other[-5:].is_null().equals(label[-5:].is_null())
        # Without a fused multiply-add, only rows that are as good as equally near may differ.
        differ = (label != other).sum()
        assert differ <= 5, f"{differ} of a million"


FIVE = {"x": [0.0, 1.0, 100.0, 101.0, 1000.0]}


@pytest.mark.parametrize("dtype", [pl.Float32, pl.Float64])
def test_clusters_without_rows_stay_where_they_are_through_decays(dtype: Any) -> None:
    rows = pl.DataFrame(FIVE, schema={"x": dtype})
    model = pk.KMeans(3, init=[[0.0], [100.0], [1000.0]], keep_sums=True).fit(rows, "x")
    for step in range(320):
        model = model.updated(rows.clear().select(model.sums()), decay=0.9)
        if step == 160:
            model = pk.KMeansModel.from_bytes(model.to_bytes())
    assert model.centroids["x"].to_list() == [0.5, 100.5, 1000.0]
    assert model.weights.to_list() == pytest.approx([2 * 0.9**320, 2 * 0.9**320, 0.9**320], rel=1e-6)
    assert model.centroids["size"].to_list() == [2, 2, 1]
    # What is left of the earlier rows counts when rows come.
    later = model.updated(pl.DataFrame({"x": [110.0]}, schema={"x": dtype}).select(model.sums()))
    assert later.centroids["x"].to_list() == pytest.approx([0.5, 110.0, 1000.0])


def test_a_batch_counts_once() -> None:
    rows = pl.DataFrame({"x": [0.0, 1.0, 2.0, 100.0]})
    model = pk.KMeans(2, init=[[0.0], [100.0]], keep_sums=True).fit(rows, "x")
    table = rows.head(1).select(model.sums())
    added = model.updated(table, batch="2026-11-28")
    for again in (added, pickle.loads(pickle.dumps(added)), pk.KMeansModel.from_json(added.to_json())):
        assert again.batches == {"added": ["2026-11-28"], "removed": []}
        with pytest.raises(InvalidParameterError, match='"2026-11-28", which was added: each batch counts once'):
            again.updated(table, batch="2026-11-28")
    gone = added.updated(removed=table, removed_batch="2026-11-28")
    assert gone.batches == {"added": [], "removed": ["2026-11-28"]}
    assert gone.centroids.equals(model.updated().centroids)
    for options in ({"batch": "2026-11-28", "sums": table}, {"removed_batch": "2026-11-28", "removed": table}):
        with pytest.raises(InvalidParameterError, match="which was removed"):
            gone.updated(**options)  # type: ignore[arg-type]
    assert gone.updated(table, start="zero").batches == {"added": [], "removed": []}
    with pytest.raises(InvalidParameterError, match="batch: expected a text, as in batch='2026-11-28', got 3"):
        model.updated(table, batch=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"scale": {"x": 3.0}}, {"weight": "w"}, {"scale": "standard", "weight": "w"}])
def test_the_remedies_for_larger_values_work_when_typed(options: dict[str, Any]) -> None:
    rows = pl.DataFrame({"x": [0.0, 1.0, 9.0], "y": [0.0, 0.0, 0.0], "w": [1.0, 0.3, 2.0]})
    later = pl.DataFrame({"x": [5e4], "y": [-7.0], "w": [9.5]})
    weight = options.get("weight")
    model = pk.KMeans(2, keep_sums=True, **options).fit(rows, "x", "y")
    tables = 0
    while True:
        try:
            with pk.typed_errors():
                table = later.select(model.sums(weight=weight))
        except pk.InvalidDataError as error:
            remedy = str(error).partition("got")[2].partition(": ")[2].partition(" makes")[0]
            model, tables = eval(remedy, {"model": model}), tables + 1
        else:
            break
    assert 1 <= tables <= 3
    updated = model.updated(table)
    assert updated.centroids["size"].sum() == 4
    # A fit with such extents takes them at once, and its centroids stay within its rows.
    wide = pk.KMeans(2, keep_sums=True, extents={"x": 5e4, "y": 7.0}, **options).fit(rows, "x", "y")
    assert wide.centroids.equals(pk.KMeans(2, **options).fit(rows, "x", "y").centroids)
    assert later.select(wide.sums(weight=weight)).height == 1


def test_tables_from_before_a_model_was_widened_are_refused_with_the_reason() -> None:
    rows = pl.DataFrame(FIVE)
    model = pk.KMeans(3, seed=1, keep_sums=True).fit(rows, "x")
    old = rows.select(model.sums())
    wide = model.widened([1e9])
    assert wide != model
    with pytest.raises(InvalidParameterError, match="from before the model was widened: make the table again"):
        wide.updated(old)
    assert wide.updated(rows.select(wide.sums())).centroids["size"].sum() == 10
    assert pk.KMeansModel.from_bytes(wide.to_bytes()) == wide
    assert model.widened({}) == model == model.widened([1.0])
    for call in (
        lambda: model.widened({"z": 1.0}),
        lambda: model.widened([1.0, 2.0]),
        lambda: model.widened(weight=2.0),
    ):
        with pytest.raises(InvalidParameterError):
            call()
    for call in (
        lambda: model.widened([1e37]),
        lambda: pl.DataFrame({"x": [1e37]}).select(model.sums()),
    ):
        with pytest.raises(pk.InvalidDataError, match="leave out what stands for missing values"), pk.typed_errors():
            call()
    given = pk.KMeansModel.from_centroids([[0.0], [5.0]], ["x"])
    with pytest.raises(pk.InvalidDataError, match="give larger extents to sums"), pk.typed_errors():
        pl.DataFrame({"x": [1e5]}).select(given.sums(extents=[5.0]))


def test_models_know_the_weights_of_their_clusters() -> None:
    rows = pl.DataFrame({"x": [0.0, 1.0, 9.0], "w": [0.25, 0.5, 4.0]})
    for keep_sums in (False, True):
        model = pk.KMeans(2, init=[0.0, 9.0], weight="w", keep_sums=keep_sums).fit(rows, "x")
        assert pk.KMeansModel.from_bytes(model.to_bytes()).weights.to_list() == model.weights.to_list() == [0.75, 4.0]
    assert pk.KMeans(2, init=[0.0, 9.0]).fit(rows, "x").weights.to_list() == [2.0, 1.0]


def test_what_needs_the_second_format_alone_has_it() -> None:
    rows = pl.DataFrame({"x": [0.0, 1.0, 9.0], "w": [0.25, 0.5, 4.0]})
    model = pk.KMeans(2, init=[0.0, 9.0], keep_sums=True).fit(rows, "x")
    table = rows.select(model.sums())

    def format_of(model: pk.KMeansModel) -> int:
        return model.to_bytes()[4 + len("polars-kmeans")]

    first = [model, model.updated(table), model.updated(table, decay=0.5), model.with_metadata({"a": "b"})]
    assert [format_of(model) for model in first] == [1, 1, 1, 1]
    second = [
        model.updated(table, batch="a"),
        model.updated(decay=0.5),
        model.widened([1e3]),
        pk.KMeans(2, init=[0.0, 9.0], weight="w").fit(rows, "x"),
    ]
    assert [format_of(model) for model in second] == [2, 2, 2, 2]
    for found in (*first, *second):
        assert pk.KMeansModel.from_bytes(found.to_bytes()) == found
