"""
Weights
=======

Most rows of a survey stand for several people each, and one row has weight 0.
"""

from __future__ import annotations

import sys

import polars as pl

import polars_kmeans as pk

survey = pl.DataFrame(
    [
        (19, 31.0, 3),
        (22, 28.5, 2),
        (24, 33.0, 1),
        (35, 14.0, 4),
        (38, 17.5, 1),
        (41, 12.0, 2),
        (66, 3.5, 5),
        (71, 6.0, 2),
        (74, 2.0, 1),
        (30, 90.0, 0),  # a joker: kept in the table, but not to be counted
    ],
    schema=["age", "hours_online", "people"],
    orient="row",
)
features = ["age", "hours_online"]
start = [[20, 30], [40, 10], [70, 5]]


def close(a: pl.DataFrame, b: pl.DataFrame) -> bool:
    """Whether the centroids are the same up to rounding."""
    return a.select((pl.col(name) - b[name]).abs().max() < 1e-12 for name in features).row(0) == (True, True)


# %%
# A weight is a column, or any expression that gives one column.
weighted = pk.KMeans(k=3, init=start, weight="people").fit(survey, features)
print(weighted.centroids)

# %%
# A row of weight 3 counts as three equal rows. Only sizes differ: they count rows of positive weight.
people = survey.select(pl.col(features).repeat_by("people")).explode(features, empty_as_null=False)
repeated = pk.KMeans(k=3, init=start).fit(people, features)
assert people.height == survey["people"].sum() == 21
assert close(weighted.centroids, repeated.centroids)
assert abs(weighted.inertia - repeated.inertia) < 1e-9
assert weighted.centroids["size"].to_list() == [3, 3, 3]
assert repeated.centroids["size"].to_list() == [6, 7, 8]

# %%
# One aggregation gives the sum of the weights in every cluster.
labelled = survey.with_columns(weighted.predict())
assert labelled.group_by("cluster").agg(pl.col("people").sum()).sort("cluster")["people"].to_list() == [6, 7, 8]

# %%
# The row of weight 0 gets the label of its nearest centroid, but it does not move any centroid.
without = pk.KMeans(k=3, init=start, weight="people").fit(survey.filter(pl.col("people") > 0), features)
assert without.centroids.equals(weighted.centroids)
assert without.inertia == weighted.inertia
assert labelled["cluster"].null_count() == 0

# %%
# Without weights, the row counts like any other and pulls a centroid towards it.
unweighted = pk.KMeans(k=3, init=start).fit(survey, features)
print(unweighted.centroids)
assert unweighted.centroids["hours_online"].max() > weighted.centroids["hours_online"].max() + 10

# %%
# The centroids depend only on the proportions of the weights. So weights need not be whole numbers, and their sum does
# not matter. Inertia is in the unit of the weights.
shares = pk.KMeans(k=3, init=start, weight=pl.col("people") / pl.col("people").sum()).fit(survey, features)
assert close(shares.centroids, weighted.centroids)
assert abs(shares.inertia - weighted.inertia / 21) < 1e-9

# %%
# Weights work in an expression too.
assert survey.select(pk.kmeans(features, k=3, init=start, weight="people")).to_series().equals(labelled["cluster"])

# %%
# Give a path to draw the survey: `python examples/05_weights.py survey.png`
if len(sys.argv) > 1:
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(7, 4), layout="constrained")
    sizes = [12 + 30 * people for people in labelled["people"]]
    panel.scatter("age", "hours_online", s=sizes, c="cluster", data=labelled, label="rows of the survey")
    for fit, marker, name in ((weighted, "x", "centroids, with weights"), (unweighted, "+", "centroids, without")):
        panel.scatter(*fit.centroids.select(features).get_columns(), marker=marker, s=90, c="black", label=name)
    panel.set(xlabel="age", ylabel="hours online", title="Larger circles stand for more people")
    panel.legend(frameon=False)
    panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(sys.argv[1], dpi=120)
