"""A child that was forked after queries were run gets a typed error and does not wait forever."""

import os

import pytest
from helpers import run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

HEAD = """
import os, pickle, signal, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import polars as pl
import polars_kmeans as pk
df = pl.DataFrame({"x": [float(i * 7919 % 101) for i in range(100_000)]})

def in_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            print(work(), flush=True)
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    print("ended", os.waitstatus_to_exitcode(status), flush=True)
"""


def lines_of(body: str) -> list[str]:
    return run(HEAD + body).splitlines()


@pytest.mark.parametrize(
    "first",
    ['pk.KMeans(3).fit(df, "x")', 'df.select(pk.kmeans("x", k=3))', 'df.lazy().select(pk.kmeans("x", k=3)).collect()'],
)
@pytest.mark.parametrize(
    "then",
    [
        'pk.KMeans(3).fit(df, "x")',
        'df.select(pk.kmeans("x", k=3))',
        'df.group_by("x").agg(pk.centroids("x", k=1))',
        "df.select(model.predict())",
        "df.select(model.transform())",
        "model.score(df)",
    ],
)
def test_a_forked_child_is_told_so(first: str, then: str) -> None:
    body = 'model = pk.KMeans(3).fit(df, "x")\n' if "model" in then else ""
    said, ended = lines_of(f"{body}{first}\nin_child(lambda: {then})")
    assert said.startswith("ForkedProcessError process: expected one with threads of its own")
    assert "spawn" in said and "forkserver" in said
    assert ended == "ended 0"


def test_what_needs_no_threads_works_in_a_forked_child() -> None:
    body = """
model = pk.KMeans(3).fit(df, "x")
in_child(lambda: (model.inertia, pickle.loads(pickle.dumps(model)) == model, model.centroids.shape))
"""
    said, ended = lines_of(body)
    assert said.endswith("True, (3, 4))") and ended == "ended 0"


def test_a_child_that_was_forked_before_any_query_fits() -> None:
    for before in ("", 'expr = pk.kmeans("x", k=3); estimator = pk.KMeans(3)'):
        said, ended = lines_of(f'{before}\nin_child(lambda: pk.KMeans(3).fit(df, "x").n_clusters)')
        assert (said, ended) == ("3", "ended 0")


def test_both_sides_of_a_spawn_fit() -> None:
    body = """
import multiprocessing
model = pk.KMeans(3).fit(df, "x")
with multiprocessing.get_context("spawn").Pool(1) as pool:
    print(pool.apply(model.score, (df,)) == model.score(df))
"""
    assert lines_of(body) == ["True"]
