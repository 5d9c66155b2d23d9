"""Columns that are scaled and rows that are normalised: models take raw rows, groups have their own factors."""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import pairwise_distances_argmin
from sklearn.preprocessing import normalize

import polars_kmeans as pk

FEATURES = ["x", "y", "z"]


def data(n: int = 5_000, seed: int = 1) -> pl.DataFrame:
    """Columns of different units, which are none of the factors' fault."""
    rng = np.random.default_rng(seed)
    blob = rng.integers(0, 6, n)
    centres = rng.normal(size=(6, 3)) * 3
    values = (centres[blob] + rng.normal(size=(n, 3))) * [1.0, 1e3, 1e-3] + [0.0, 5e4, 1.0]
    return pl.DataFrame({name: values[:, f] for f, name in enumerate(FEATURES)}).with_columns(
        shop=pl.Series(rng.integers(0, 3, n))
    )


def by_hand(frame: pl.DataFrame, factors: dict[str, float]) -> pl.DataFrame:
    return frame.select(pl.col(name) * factor for name, factor in factors.items())


@pytest.mark.parametrize("scale", ["standard", "robust", {"y": 1e-3, "z": 1000}])
def test_a_model_takes_raw_rows(scale: pk._typing.Scale, tmp_path: Path) -> None:
    df, new = data(), data(1_000, seed=2)
    model = pk.KMeans(k=6, seed=3, scale=scale).fit(df, FEATURES)
    factors = model.factors
    assert factors is not None and list(factors) == FEATURES
    hand = pk.KMeans(k=6, seed=3).fit(by_hand(df, factors), FEATURES)
    assert model.inertia == hand.inertia and model.n_iter == hand.n_iter
    model.save(tmp_path / "model.parquet")
    loaded = pk.KMeansModel.load(tmp_path / "model.parquet")
    assert loaded == model and loaded.factors == factors
    for one in (model, loaded):
        for frame in (df, new):
            expected = by_hand(frame, factors)
            assert frame.select(one.predict()).equals(expected.select(hand.predict()))
            assert frame.lazy().select(one.predict()).collect(engine="streaming").equals(frame.select(one.predict()))
            assert frame.select(one.transform()).equals(expected.select(hand.transform()))
            assert one.score(frame) == hand.score(expected)
    assert df.select(pk.kmeans(*FEATURES, k=6, seed=3, scale=scale)).equals(df.select(model.predict()))
    # Centroids are in the units of the columns.
    in_units = model.centroids.select(pl.col(name) * factors[name] for name in FEATURES)
    assert np.allclose(in_units.to_numpy(), hand.centroids.select(FEATURES).to_numpy(), rtol=1e-15, atol=0)
    assert model.parameters["scale"] == (scale if isinstance(scale, str) else "given")
    # They start a fit again.
    again = pk.KMeans(k=6, init=model, scale=factors).fit(df, FEATURES)
    assert math.isclose(again.inertia, model.inertia, rel_tol=1e-3)


def test_factors_are_those_of_the_columns() -> None:
    df = data(4_001)
    standard = pk.KMeans(k=2, scale="standard").fit(df, FEATURES).factors
    robust = pk.KMeans(k=2, scale="robust").fit(df, FEATURES).factors
    assert standard is not None and robust is not None
    for name in FEATURES:
        assert math.isclose(1 / standard[name], df[name].std(ddof=0), rel_tol=1e-12)
        ranks = np.sort(df[name].to_numpy())[[1000, 3000]]
        assert robust[name] == 1 / (ranks[1] - ranks[0])
    given = pk.KMeans(k=2, scale={"y": 2}).fit(df, FEATURES)
    assert given.factors == {"x": 1.0, "y": 2.0, "z": 1.0}
    assert pk.KMeans(k=2).fit(df, FEATURES).factors is None
    entries = pk.KMeans(k=2, scale={"e": 0.5}).fit(df.select(e=pl.concat_arr(FEATURES)), "e")
    assert entries.factors == {"e[0]": 0.5, "e[1]": 0.5, "e[2]": 0.5}


def test_groups_are_scaled_by_their_own_factors() -> None:
    df = data()
    options = {"k": 3, "seed": 2, "scale": "standard"}
    over = df.select("shop", *FEATURES, label=pk.kmeans(*FEATURES, **options).over("shop"))
    frames = dict(df.group_by("shop").agg(pk.centroids(*FEATURES, **options)).iter_rows())
    for (shop,), group in over.group_by("shop"):
        model = pk.KMeans(**options).fit(group, FEATURES)
        assert group.select(model.predict()).to_series().equals(group["label"], check_names=False)
        assert frames[shop] == model.centroids.to_dicts()


def exact_distance(row: np.ndarray, centroid: np.ndarray) -> Fraction:
    return sum((Fraction(float(x)) - Fraction(float(c))) ** 2 for x, c in zip(row, centroid, strict=True))


def test_cosine_labels_are_those_of_scikit_learn_on_normalised_rows() -> None:
    rng = np.random.default_rng(5)
    # Many rows lie on lattices, so that there are ties.
    rows = np.vstack([rng.normal(size=(4_000, 6)), rng.integers(-2, 3, size=(4_000, 6)).astype(np.float64)])
    rows = rows[np.abs(rows).sum(axis=1) > 0]
    df = pl.DataFrame({"v": rows}, schema={"v": pl.Array(pl.Float64, 6)})
    model = pk.KMeans(k=40, seed=1, metric="cosine").fit(df, "v")
    centroids = model.centroids["v"].to_numpy()
    assert np.allclose(np.linalg.norm(centroids, axis=1), 1, rtol=1e-15)
    unit = normalize(rows)
    ours = df.select(model.predict()).to_series().to_numpy()
    theirs = pairwise_distances_argmin(unit, centroids)
    differ = np.flatnonzero(ours != theirs)
    for i in differ:
        # Both centroids are equally near, but for the rounding of the rows.
        mine, other = (exact_distance(unit[i], centroids[j]) for j in (ours[i], theirs[i]))
        assert abs(mine - other) < Fraction(1, 10**14)
    assert len(differ) < 50
    # The mean of normalised rows has the direction of the centroid.
    means = np.stack([unit[ours == j].mean(axis=0) for j in range(40)])
    assert np.allclose(normalize(means), centroids, atol=0.05)
    similarity = df.select(model.predict(output="struct")).unnest("cluster")["distance"].to_numpy() ** 2
    assert np.allclose(1 - similarity / 2, (unit * centroids[ours]).sum(axis=1), atol=1e-12)


def test_rows_without_a_direction_are_null() -> None:
    df = pl.DataFrame({"x": [1.0, 0.0, 0.0, 5.0, None], "y": [1.0, 0.0, 3.0, 5.5, 1.0]})
    model = pk.KMeans(k=2, metric="cosine", null_policy="skip").fit(df, "x", "y")
    labels = df.select(model.predict()).to_series()
    assert labels.is_null().to_list() == [False, True, False, False, True]
    assert labels[0] == labels[3] != labels[2]
    assert df.select(pk.kmeans("x", "y", k=2, metric="cosine", null_policy="skip")).to_series().equals(labels)
    assert model.parameters["metric"] == "cosine"
    with pytest.raises(pk.InvalidDataError, match="got 1 rows of zeros"):
        pk.KMeans(k=2, metric="cosine").fit(df.drop_nulls(), "x", "y")


def test_narrow_floats_and_integers_arrive_as_wider_ones() -> None:
    df = data(500).select(pl.col("x", "z").cast(pl.Float16), pl.col("y").cast(pl.Int32))
    wide = df.cast({"x": pl.Float32, "z": pl.Float32, "y": pl.Float64})
    for options in ({"scale": "robust"}, {"metric": "cosine"}):
        narrow = df.select(pk.kmeans("x", "z", k=3, **options))
        assert narrow.equals(wide.select(pk.kmeans("x", "z", k=3, **options)))
        assert df.select(pk.kmeans("y", "x", k=2, **options)).equals(wide.select(pk.kmeans("y", "x", k=2, **options)))
