"""The fit of an estimator runs on the calling thread, without the interpreter's lock."""

import threading
import time

import numpy as np
import polars as pl
import pytest
from helpers import counted, in_threads

import polars_kmeans as pk
from polars_kmeans import _internal, _options, _plugin

DF = pl.DataFrame({"x": [0.0, 1.0, 5.0, 6.0], "y": [1.0, 1.0, 9.0, 9.0]})


def hold(columns: _internal.Columns, *names: str) -> None:
    """Put columns into the room for a fit."""
    features = _plugin.features(names)
    kwargs = {"key": columns.key, "weighted": False}
    hold = _plugin.register_plugin_function(
        plugin_path=_plugin._LIBRARY, function_name="hold", args=features.exprs, kwargs=kwargs, changes_length=True
    )
    assert DF.select(hold).item()


def keywords(k: int) -> dict:
    return {**_options.FitOptions(k=k).keywords, "weighted": False}


@pytest.mark.filterwarnings("ignore::polars_kmeans.ConvergenceWarning")  # it stops early
def test_other_threads_run_during_a_fit() -> None:
    frame = pl.DataFrame(np.random.default_rng(0).random((300_000, 16)))
    estimator = pk.KMeans(32, init="random", n_init=1, max_iter=20, tol=0, device="cpu")
    seconds = []

    def fit() -> None:
        start = time.perf_counter()
        estimator.fit(frame, pl.all())
        seconds.append(time.perf_counter() - start)

    thread = threading.Thread(target=fit)
    thread.start()
    gap, last = 0.0, time.perf_counter()
    while thread.is_alive():
        time.sleep(0.001)
        now = time.perf_counter()
        gap, last = max(gap, now - last), now
    assert gap < seconds[0] / 2


def test_fits_of_several_threads_keep_their_columns_apart() -> None:
    frames = [DF.select(pl.col("x") * factor + 1) for factor in range(1, 9)]
    expected = [pk.KMeans(2).fit(frame, "x") for frame in frames]
    found: list[pk.KMeansModel | None] = [None] * len(frames)

    def fit(number: int) -> None:
        for _ in range(20):
            found[number] = pk.KMeans(2).fit(frames[number].lazy(), "x")
            assert found[number] == expected[number]

    in_threads(fit, len(frames))
    assert found == expected


def test_a_room_gives_its_columns_once() -> None:
    columns = _internal.Columns()
    with pytest.raises(pk.InvalidColumnError, match="expected at least one column, got none"):
        _internal.fit(columns, keywords(2), False)
    hold(columns, "x")
    fitted = _internal.fit(columns, keywords(2), False)
    assert fitted is not None
    assert pk.KMeansModel(fitted[0][0]) == pk.KMeans(2).fit(DF, "x")
    with pytest.raises(pk.InvalidColumnError, match="expected at least one column, got none"):
        _internal.fit(columns, keywords(2), False)


def test_a_panic_is_an_error() -> None:
    """Keywords that the package never writes make the library panic: centroids of a column without a width."""
    columns = _internal.Columns()
    hold(columns, "x")
    wrong = {**keywords(2), "given": bytes(16), "given_names": ["x"]}
    with pytest.raises(pk.KMeansError, match="a fault of polars-kmeans, please report it: index out of bounds"):
        _internal.fit(columns, wrong, False)


def test_wrong_dtypes_are_refused_before_a_query_runs() -> None:
    texts, runs = counted(DF.with_columns(s=pl.lit("a")), schema=None)
    with pytest.raises(pk.InvalidColumnError, match='column "s": expected numbers'):
        pk.KMeans(2).fit(texts, "x", "s")
    assert runs == []
    assert pk.KMeans(2).fit(texts, "x") == pk.KMeans(2).fit(DF, "x")
    assert runs == [DF.height]


def test_columns_of_other_lengths_and_equal_names_have_the_errors_of_this_package() -> None:
    with pytest.raises(pk.InvalidParameterError, match='column "y": expected 4 values, got 3'):
        pk.KMeans(2).fit(DF, "x", pl.col("y").head(3))
    with pytest.raises(pk.InvalidParameterError, match="expected 4 values, got 3"):
        pk.KMeans(2, weight=pl.col("y").head(3)).fit(DF, "x")
    with pytest.raises(pk.InvalidColumnError, match='feature names must differ, got "x" twice'):
        pk.KMeans(2).fit(DF, pl.all(), pl.col("y").alias("x"))
    repeated = pk.KMeans(2).fit(DF, "x", pl.lit(2.0).alias("two"))
    assert repeated.centroids["two"].to_list() == [2.0, 2.0]
