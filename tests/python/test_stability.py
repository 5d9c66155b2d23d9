"""How many rows keep their cluster: beside the same computation in NumPy, and what is refused."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from helpers import counted

import polars_kmeans as pk
from polars_kmeans import _internal

RANDOM = np.random.default_rng(5)
X = np.concatenate([RANDOM.normal(centre, 1.0, (80, 2)) for centre in ((0, 0), (5, 0), (0, 5))])
DF = pl.DataFrame(X, schema=["x", "y"])


@pytest.mark.parametrize("k", [3, 5])
def test_it_is_the_share_of_the_rows_that_keep_their_cluster(k: int) -> None:
    found = pk.stability(DF, "x", "y", k=k, resamples=6, seed=4)
    model = pk.KMeans(k, seed=4).fit(DF, "x", "y")
    labels, shares = model.predict(DF).to_numpy(), []
    for step in range(6):
        drawn = np.frombuffer(_internal.draw_rows(4, step, 240, 240), dtype="<i8")
        assert 0.55 < len(set(drawn)) / 240 < 0.7
        other = pk.KMeans(k, seed=4).fit(DF[drawn], "x", "y")
        numbers = dict(other.match(model).select("cluster", "matched").iter_rows())
        again = np.array([numbers[label] for label in other.predict(DF)])
        shares.append([(again == labels)[labels == cluster].mean() for cluster in range(k)])
    np.testing.assert_allclose(found["kept"], np.mean(shares, axis=0), rtol=1e-15)
    assert found["least"].to_list() == np.min(shares, axis=0).tolist()
    assert found.select("cluster", "size").equals(model.centroids.select("cluster", "size"))


def test_clusters_that_are_there_are_kept_and_others_are_not() -> None:
    assert pk.stability(DF, "x", "y", k=3)["kept"].min() > 0.98
    assert pk.stability(DF, "x", "y", k=5)["kept"].min() < 0.8


def test_arrays_queries_and_weights() -> None:
    expected = pk.stability(DF, "x", "y", k=3, resamples=3)
    query, runs = counted(DF)
    assert pk.stability(query, "x", "y", k=3, resamples=3).equals(expected)
    assert runs == [240]
    assert pk.stability(X, k=3, resamples=3).equals(expected)
    weighted = DF.with_columns(w=pl.lit(2.0))
    assert pk.stability(weighted, "x", "y", k=3, resamples=3, weight="w").equals(expected)


def test_rows_without_a_label_do_not_count() -> None:
    holes = DF.with_columns(x=pl.when(pl.int_range(pl.len()) % 5 > 0).then("x"))
    found = pk.stability(holes, "x", "y", k=3, resamples=3, null_policy="skip")
    assert found["size"].sum() == 192
    assert found["kept"].min() > 0.9


@pytest.mark.parametrize(
    "options", [{"resamples": 0}, {"resamples": True}, {"resamples": "9"}, {"too_few": "null"}, {"n": 1}]
)
def test_what_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(pk.InvalidParameterError, match=next(iter(options))):
        pk.stability(DF, "x", k=2, **options)


def test_a_resample_may_have_too_few_rows() -> None:
    with pytest.raises(pk.TooFewRowsError):
        pk.stability(DF.head(4), "x", k=4)
    assert pk.stability(DF.head(4), "x", k=4, too_few="fewer")["size"].sum() == 4
