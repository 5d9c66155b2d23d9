"""Fits that start from a model or from given centroids: the scale goes on, and lost starts are named."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pytest
from helpers import run

import polars_kmeans as pk

NAMES = ["minutes", "miles"]


def orders(seed: int, n: int = 3_000) -> pl.DataFrame:
    """Return columns of which the second would decide alone if values were not scaled."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 4, n)
    return pl.DataFrame({"minutes": rng.normal(kind % 2, 0.1), "miles": rng.normal(kind // 2 * 3_000, 900)})


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("scale", ["standard", "robust", {"minutes": 500.0}])
def test_a_model_brings_its_scale(scale: pk._typing.Scale, metric: Literal["euclidean", "cosine"]) -> None:
    old, new = orders(1), orders(2).with_columns(pl.col("miles") * 2)
    model = pk.KMeans(4, seed=1, scale=scale, metric=metric, tol=0).fit(old, NAMES)
    estimator = pk.KMeans(4, init=model, metric=metric, tol=0)
    for frame in (old, new):
        again = estimator.fit(frame, NAMES)
        assert again.factors == model.factors
        assert again == pk.KMeans(4, init=model, metric=metric, tol=0, scale=model.factors).fit(frame, NAMES)
        expression = pk.kmeans(NAMES, k=4, init=model, metric=metric, tol=0)
        assert frame.select(expression).to_series().equals(again.predict(frame))
    # The old rows have nothing to change: the fit ends where it began.
    assert estimator.fit(old, NAMES).predict(old).equals(model.predict(old))
    # A scale that is given goes first.
    own = pk.KMeans(4, init=model, metric=metric, scale="standard").fit(new, NAMES)
    assert own.factors == pk.KMeans(4, metric=metric, scale="standard").fit(new, NAMES).factors != model.factors
    # A frame of centroids has no scale.
    assert pk.KMeans(4, init=model.centroids, metric=metric).fit(new, NAMES).factors is None
    assert estimator.parameters["init"] is model and estimator.parameters["scale"] is None


def test_a_model_of_one_column_of_rows_brings_its_scale() -> None:
    frame = orders(1).select(e=pl.concat_arr(NAMES))
    model = pk.KMeans(4, seed=1, scale="standard").fit(frame, "e")
    assert pk.KMeans(4, init=model).fit(frame, "e").factors == model.factors


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_a_start_of_another_metric_is_refused(metric: Any) -> None:
    other: Any = {"euclidean": "cosine", "cosine": "euclidean"}[metric]
    model = pk.KMeans(2, metric=metric).fit(orders(1), NAMES)
    for call in (pk.KMeans, lambda k, **options: pk.kmeans(NAMES, k=k, **options)):
        with pytest.raises(
            pk.InvalidParameterError, match=f'metric: expected "{metric}", as in the model that is init'
        ):
            call(2, init=model, metric=other)
    assert pk.KMeans(2, init=model, metric=metric).fit(orders(1), NAMES).n_clusters == 2


FAR = pl.DataFrame({"x": [0.0, 1.0, 10.0, 11.0, 50.0], "g": [0, 0, 0, 1, 1]})
# The second and the last start have no rows.
STARTS = [[0.5], [-700.0], [10.5], [900.0]]


def test_lost_starts_are_named() -> None:
    with pytest.warns(pk.EmptyClusterWarning, match=r"^starting centroids lost .* took their places: 1, 3$") as caught:
        model = pk.KMeans(4, init=STARTS).fit(FAR, "x")
    assert len(caught) == 1 and caught[0].filename == __file__
    assert model.relocated == [1, 3]
    assert pk.KMeansModel.from_bytes(model.to_bytes()).relocated is None
    with pytest.warns(pk.EmptyClusterWarning, match=": 1, 3$"):
        labels = pk.KMeans(4, init=STARTS).fit_predict(FAR, "x")
    assert labels.n_unique() == 4
    with pytest.warns(pk.EmptyClusterWarning, match=": 1, 3$"):
        assert pk.KMeans(4, init=STARTS, sort_by="x").fit(FAR, "x").relocated == [1, 3]
    with pytest.warns(pk.EmptyClusterWarning, match=": 1, 3$"):
        pk.KMeans(4, init=STARTS).fit(FAR["x"].to_numpy())
    part = pk.parts.Part(FAR, "x")
    with pytest.warns(pk.EmptyClusterWarning, match=": 1, 3$"):
        pk.parts.fit(pk.KMeans(4, init=STARTS), lambda requests: [part.answer(request) for _, request in requests], 1)


@pytest.mark.filterwarnings("error")
def test_starts_that_keep_rows_are_not_named() -> None:
    assert pk.KMeans(3, init=[[0.5], [10.5], [50.0]]).fit(FAR, "x").relocated == []
    # What a seeding draws has no meaning that could be lost.
    assert pk.KMeans(3, seed=1).fit(FAR, "x").relocated == []


def test_lost_starts_of_groups() -> None:
    with pytest.warns(pk.EmptyClusterWarning, match=r"in 1 of 2 fits, and .*: 1$"):
        models = pk.KMeans(2, init=[[0.5], [45.0]]).fit(FAR, "x", by="g")
    assert [model.relocated for model in models.values() if model is not None] == [[1], []]


def test_a_table_of_a_scaled_model_is_read_without_this_package(tmp_path: Path) -> None:
    """The lesson's formula: differences times factors, squared and added up."""
    frame, path = orders(3), tmp_path / "model.parquet"
    for metric in ("euclidean", "cosine"):
        model = pk.KMeans(4, seed=1, scale="standard", metric=metric).fit(frame, NAMES)
        model.save(path)
        assert pl.read_parquet(path).equals(model.centroids)
        reader = f"""
import json, polars as pl
table = pl.read_parquet({str(path)!r})
factors = json.loads(pl.read_parquet_metadata({str(path)!r})["polars-kmeans"])["scaling"]["factors"]
rows = pl.read_ipc({str(tmp_path / "rows.arrow")!r})
terms = dict(zip(rows.columns, factors))
squares = [pl.sum_horizontal(((pl.col(f) - c[f]) * terms[f]) ** 2 for f in terms) for c in table.iter_rows(named=True)]
print(rows.select(pl.concat_list(squares).list.arg_min()).to_series().to_list())
"""
        frame.write_ipc(tmp_path / "rows.arrow")
        assert json.loads(run(reader)) == model.predict(frame).to_list(), metric


def test_centroids_of_a_model_say_what_is_missing() -> None:
    frame = orders(3)
    scaled = pk.KMeans(4, seed=1, scale="standard").fit(frame, NAMES)
    with pytest.raises(
        pk.InvalidParameterError, match=r"scale: expected the factors .*, got none: scale=model\.factors"
    ):
        pk.KMeansModel.from_centroids(scaled.centroids)
    again = pk.KMeansModel.from_centroids(scaled.centroids, scale=scaled.factors)
    assert again.predict(frame).equals(scaled.predict(frame))
    directions = pk.KMeans(4, seed=1, metric="cosine").fit(frame, NAMES)
    with pytest.raises(pk.InvalidParameterError, match='metric: expected "cosine", as in the model of these centroids'):
        pk.KMeansModel.from_centroids(directions.centroids)
    again = pk.KMeansModel.from_centroids(directions.centroids, metric="cosine")
    assert again.predict(frame).equals(directions.predict(frame))
    plain = pk.KMeans(4, seed=1).fit(frame, NAMES)
    assert pk.KMeansModel.from_centroids(plain.centroids).predict(frame).equals(plain.predict(frame))
