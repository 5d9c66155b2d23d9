"""`row_order="values"`: the same rows in another order give the same centroids, and each row gets the same label."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import polars_kmeans as pk

FEATURES = ["x", "y"]


def data(n: int = 2_000) -> pl.DataFrame:
    """Rows of which some are equal, some have nulls, and both zeros occur."""
    rng = np.random.default_rng(5)
    values = np.round(rng.normal(size=(n, 2)) * 4, 1) * rng.choice([-1.0, 1.0], size=(n, 2))
    frame = pl.DataFrame({"x": values[:, 0], "y": values[:, 1], "w": rng.choice([0.0, 1.0, 2.5], n)})
    holes = pl.Series(rng.random(n) < 0.02)
    frame = frame.with_columns(x=pl.when(~holes).then("x"), group=pl.Series(rng.integers(0, 4, n)))
    return frame.with_row_index("row")


def shuffles(frame: pl.DataFrame) -> list[pl.DataFrame]:
    return [frame.reverse(), *(frame.sample(fraction=1.0, shuffle=True, seed=seed) for seed in (1, 2))]


SEEDINGS: list[dict[str, Any]] = [
    {"init": "k-means++"},
    {"init": "random"},
    {"init": "kmeans-parallel"},
    {"init": "afk-mc2", "chain_length": 20},
    {"init_sample": 200},
    {"init": [[0.0, 0.0]] * 5},
    {"metric": "cosine"},
    {"scale": "standard", "n_init": 3},
]


@pytest.mark.parametrize("options", SEEDINGS, ids=str)
@pytest.mark.parametrize("weight", [None, "w"])
def test_the_order_of_the_rows_does_not_matter(options: dict[str, Any], weight: str | None, tmp_path: Path) -> None:
    df = data()
    options = {"k": 5, "seed": 2, "row_order": "values", "null_policy": "skip", "weight": weight, **options}
    model = pk.KMeans(**options).fit(df, FEATURES)
    labels = df.select("row", pk.kmeans(*FEATURES, **options))
    assert labels["cluster"].equals(df.select(model.predict())["cluster"])
    model.save(tmp_path / "model.parquet")
    assert pk.KMeansModel.load(tmp_path / "model.parquet") == model
    assert model.parameters["row_order"] == "values"
    for other in shuffles(df):
        again = pk.KMeans(**options).fit(other.lazy(), FEATURES)
        assert again.centroids.equals(model.centroids)
        assert again.inertia == model.inertia and again.n_iter == model.n_iter
        costs = ("settled", "rescored", "skipped", "groups", "passes", "seconds")
        assert again.history.drop(costs).equals(model.history.drop(costs))
        assert other.select("row", pk.kmeans(*FEATURES, **options)).sort("row").equals(labels)


def test_groups_do_not_depend_on_the_order_either() -> None:
    df = data().drop_nulls()
    fit = pk.kmeans(*FEATURES, k=3, row_order="values", output="struct").over("group")
    frames = pk.centroids(*FEATURES, k=3, row_order="values")
    labels, centroids = df.select("row", fit), df.group_by("group").agg(frames).sort("group")
    for other in shuffles(df):
        assert other.select("row", fit).sort("row").equals(labels)
        assert other.group_by("group").agg(frames).sort("group").equals(centroids)


@pytest.mark.filterwarnings("ignore::polars_kmeans.ConvergenceWarning")  # it stops early
def test_rows_as_given_show_their_order() -> None:
    df = data().drop_nulls()
    given = [pk.KMeans(k=5, max_iter=1).fit(frame, FEATURES).centroids for frame in (df, df.reverse())]
    assert not given[0].equals(given[1])
    assert "row_order" not in pk.KMeans(k=5).fit(df, FEATURES).parameters
