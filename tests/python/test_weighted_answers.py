"""Models of fits with weights: what they say of the rows of the fit, with weights and without."""

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import polars as pl
import pytest
from helpers import counted

import polars_kmeans as pk

RNG = np.random.default_rng(4)
DF = pl.DataFrame({
    "x": np.concatenate([RNG.normal(0, 1, 60), RNG.normal(9, 1, 40)]),
    "y": RNG.normal(0, 1, 100),
    "w": RNG.integers(1, 9, 100).astype(float),
})  # fmt: skip
# Each row as often as its weight says.
REPEATED = DF.select(pl.all().repeat_by(pl.col("w").cast(pl.UInt32)).explode(empty_as_null=True))
START = pl.DataFrame({"x": [0.0, 9.0], "y": [0.0, 0.0]})


def weighted(**options: Any) -> pk.KMeansModel:
    return pk.KMeans(2, init=START, weight="w", **options).fit(DF, "x", "y")


@pytest.fixture
def model() -> pk.KMeansModel:
    return weighted()


ASKED = {
    "score": lambda model, **given: model.score(DF, **given),
    "profile": lambda model, **given: model.profile(DF, **given),
    "drift": lambda model, **given: model.drift(DF, **given),
    "moved": lambda model, **given: pk.moved(DF, model, model, **given),
    "an array": lambda model, **given: model.score(DF.to_numpy()[:, :2]) if not given else None,
}


@pytest.mark.parametrize("name", ASKED)
def test_a_weighted_model_that_counts_rows_warns_once(name: str, model: pk.KMeansModel) -> None:
    ask = ASKED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ask(model, weight="w")
        ask(pk.KMeans(2, init=START).fit(DF, "x", "y"))
    with pytest.warns(pk.WeightWarning, match="each row counts as 1 here: pass weight=") as caught:
        ask(model)
        ask(model)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for other in ASKED.values():
            other(model)
    with pytest.warns(pk.WeightWarning):
        ask(pickle.loads(pickle.dumps(model)))
    with pytest.warns(pk.WeightWarning):
        ask(copy.copy(weighted()))


def test_drift_of_weights_is_that_of_repeated_rows(model: pk.KMeansModel) -> None:
    found = model.drift(DF, weight="w")
    expected = pk.KMeans(2, init=START).fit(REPEATED, "x", "y").drift(REPEATED)
    for name in ("share_then", "share_now", "distance_then", "distance_now"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)
    assert found["stability_index"].abs().max() < 1e-12
    np.testing.assert_allclose(found["distance_now"], found["distance_then"], rtol=1e-12)
    # Half a row stands for none, of the mean weight.
    near = model.drift(DF.filter(pl.col("x") < 4), weight=pl.col("w"))
    weights = DF.filter(pl.col("x") < 4)["w"]
    assert near["share_now"].to_list() == pytest.approx([1.0, 0.5 * weights.mean() / weights.sum()])
    plain = pk.KMeans(2, init=START).fit(DF, "x", "y")
    assert plain.drift(DF).equals(plain.drift(DF, weight=pl.lit(1.0)))


def test_without_weights_drift_compares_numbers_of_rows(model: pk.KMeansModel) -> None:
    with pytest.warns(pk.WeightWarning):
        found = model.drift(DF)
    assert found["share_then"].to_list() == found["share_now"].to_list() == [0.6, 0.4]


def test_moved_takes_columns_weights_and_arrays() -> None:
    old, new = weighted(), pk.KMeans(2, init=START, scale={"x": 0.01}, weight="w").fit(DF, "x", "y")
    nulls = DF.with_columns(x=pl.when(pl.int_range(pl.len()) % 9 > 0).then("x"))
    found = pk.moved(nulls, old, new, weight="w")
    assert found.schema == {"before": pl.UInt32, "after": pl.UInt32, "size": pl.UInt64, "weight": pl.Float64}
    labels = nulls.select(old.predict().alias("before"), new.predict().alias("after"), "w")
    expected = labels.group_by("before", "after").agg(size=pl.len().cast(pl.UInt64), weight=pl.col("w").sum())
    assert found.equals(expected.sort("before", "after", nulls_last=True))
    assert found["size"].sum() == 100 and found.height > 3
    with pytest.warns(pk.WeightWarning):
        assert pk.moved(nulls, old, new).equals(found.drop("weight"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = nulls.rename({"x": "a", "y": "b"})
        assert pk.moved(other, old, new, "a", pl.col("b"), weight=pl.col("w")).equals(found)
        assert pk.moved(other.lazy(), old, new, ["a", "b"]).equals(found.drop("weight"))
        assert pk.moved(other.to_arrow(), old, new, "a", "b").equals(found.drop("weight"))
        assert pk.moved(nulls.select("x", "y").to_numpy(), old, new).equals(found.drop("weight"))
        query, runs = counted(nulls)
        pk.moved(query, old, new, weight="w"), pk.moved(query, old, new)
        assert runs == [100, 100]
        assert pk.moved(nulls[::-1], old, new, weight="w").equals(found)
    logs = pk.KMeans(2).fit(DF, pl.col("x").abs().log1p())
    assert pk.moved(DF, logs, logs, pl.col("x").abs().log1p())["size"].sum() == 100


def test_weights_that_do_not_count(model: pk.KMeansModel) -> None:
    weights = pl.when(pl.int_range(pl.len()) < 90).then(pl.lit(2.0)).otherwise(pl.lit(None))
    assert pk.moved(DF, model, model, weight=weights).select(pl.col("size", "weight").sum()).row(0) == (90, 180.0)
    for ask in (ASKED["drift"], ASKED["moved"]):
        with pytest.raises(pk.InvalidDataError, match="weight: expected non-negative values, got -"):
            ask(model, weight=-pl.col("w"))
        with pytest.raises(pk.InvalidColumnError, match="weight: expected numbers, got String"):
            ask(model, weight=pl.col("w").cast(pl.String))
    with pytest.raises(pk.InvalidParameterError, match="weight: expected none for an array, got a column"):
        pk.moved(DF.to_numpy(), model, model, weight="w")


def test_a_query_runs_once(model: pk.KMeansModel) -> None:
    for options in ({}, {"weight": "w"}):
        query, runs = counted(DF)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.drift(query, **options)
        assert runs == [100]
