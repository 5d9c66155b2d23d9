"""Progress of fits, and Ctrl-C: fits, seedings, queries and predictions stop soon, and leave nothing behind."""

import copy
import itertools
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from helpers import run

import polars_kmeans as pk

SMALL = pl.DataFrame({"x": np.random.default_rng(1).random(500), "y": np.random.default_rng(2).random(500)})


@pytest.mark.filterwarnings("ignore::polars_kmeans.ConvergenceWarning")  # it stops early
@pytest.mark.parametrize("data", [SMALL, SMALL.lazy(), SMALL.to_numpy()], ids=["frame", "lazy", "array"])
def test_every_stage_is_seen(data: Any) -> None:
    seen: list[pk.Progress] = []
    columns = () if isinstance(data, np.ndarray) else ("x", "y")
    estimator = pk.KMeans(4, init="random", n_init=2, max_iter=3, tol=0.0, history="full")
    model = estimator.fit(data, *columns, progress=seen.append)
    restart = ["seeds", "iteration", "iteration", "iteration"]
    assert [p.stage for p in seen] == ["rows", *restart, *restart]
    assert [p.restart for p in seen] == [0] * 5 + [1] * 4
    assert [p.iteration for p in seen] == [0, 0, 1, 2, 3, 0, 1, 2, 3]
    assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(seen))
    last = [(p.iteration, p.changed, p.shift, p.inertia) for p in seen if p.stage == "iteration"]
    rows = model.history.select("iteration", "changed", "shift", "inertia").rows()
    assert rows in (last[:3], last[3:])
    assert model == estimator.fit(data, *columns), "progress changes nothing"


@pytest.mark.parametrize("data", [SMALL, SMALL.to_numpy()], ids=["frame", "array"])
def test_a_fit_goes_on_from_centroids_of_the_middle(data: Any) -> None:
    columns = () if isinstance(data, np.ndarray) else ("x", "y")
    middle: list[Any] = []

    def stop(progress: pk.Progress) -> bool:
        middle.append(progress.centroids())
        return progress.iteration == 3

    stopped = pk.KMeans(9, seed=3, tol=0.0).fit(data, *columns, progress=stop)
    assert middle[0] is None
    assert [len(row) for row in middle[-1]] == [2] * 9
    assert stopped.centroids.drop("cluster", "size", "inertia").rows() == [tuple(row) for row in middle[-1]]
    whole = pk.KMeans(9, seed=3, tol=0.0).fit(data, *columns)
    rest = pk.KMeans(9, init=middle[-1], tol=0.0).fit(data, *columns)
    assert rest.centroids.equals(whole.centroids)
    assert rest.n_iter == whole.n_iter - 3


def same(one: pk.KMeansModel, other: pk.KMeansModel) -> bool:
    """Whether two models have the same bits, whatever their parameters."""
    costs = ("settled", "rescored", "skipped", "groups", "passes", "seconds")
    return one.centroids.equals(other.centroids) and one.history.drop(costs).equals(other.history.drop(costs))


@pytest.mark.parametrize("history", ["light", "full"])
@pytest.mark.parametrize("data", [SMALL, SMALL.lazy(), SMALL.to_numpy()], ids=["frame", "lazy", "array"])
def test_true_stops_a_fit_and_gives_the_model_of_its_iterations(data: Any, history: Any, tmp_path: Path) -> None:
    columns = () if isinstance(data, np.ndarray) else ("x", "y")
    for last in (1, 2, 5):
        seen: list[pk.Progress] = []

        def stop(progress: pk.Progress, last: int = last) -> bool:
            seen.append(progress)  # noqa: B023
            return progress.iteration == last

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # The first one also stops in the last iteration that it may have.
            model = pk.KMeans(9, tol=0.0, history=history, max_iter=9 if last > 1 else 1).fit(
                data, *columns, progress=stop
            )
        assert seen[-1].iteration == model.n_iter == last
        with pytest.warns(pk.ConvergenceWarning):
            expected = pk.KMeans(9, tol=0.0, history=history, max_iter=last).fit(data, *columns)
        assert same(model, expected) and model.inertia == expected.inertia
        rows = data.collect() if isinstance(data, pl.LazyFrame) else data
        assert (model.predict(rows) == expected.predict(rows)).all()
        model.save(tmp_path / "model.parquet")
        loaded = pk.KMeansModel.load(tmp_path / "model.parquet")
        others = [loaded, pk.KMeansModel.from_bytes(model.to_bytes()), pk.KMeansModel.from_json(model.to_json())]
        others += [pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
        for one in [model, *others]:
            assert not one.converged and one == model != expected


def test_a_stop_is_no_convergence() -> None:
    """Also where no centroid moves in the last iteration."""
    whole = pk.KMeans(4).fit(SMALL, "x", "y")
    model = pk.KMeans(4).fit(SMALL, "x", "y", progress=lambda p: p.iteration == whole.n_iter)
    assert same(model, whole) and whole.converged and not model.converged


def test_finished_restarts_and_the_running_one_compete() -> None:
    winners = set()
    for restart, iteration in itertools.product(range(1, 4), range(4)):
        at = (restart, iteration)
        seeds: list[Any] = []

        def stop(progress: pk.Progress, at: tuple[int, int] = at, seeds: list[Any] = seeds) -> bool:
            if progress.stage == "seeds":
                seeds.append(progress.centroids())
            return progress[1:3] == at

        model = pk.KMeans(9, init="random", n_init=5, tol=0.0).fit(SMALL, "x", "y", progress=stop)
        best = pk.KMeans(9, init="random", n_init=restart, tol=0.0).fit(SMALL, "x", "y")
        if iteration > 0:
            with pytest.warns(pk.ConvergenceWarning):
                running = pk.KMeans(9, init=seeds[-1], tol=0.0, max_iter=iteration).fit(SMALL, "x", "y")
            winners.add(running.inertia < best.inertia)
            best = min(best, running, key=lambda model: model.inertia)
        assert same(model, best) and not model.converged, at
    assert winners == {False, True}


def test_there_is_no_model_before_the_first_iteration() -> None:
    for stage in ("rows", "seeds"):
        with pytest.raises(pk.CancelledError, match="cancelled"):
            pk.KMeans(9).fit(SMALL, "x", "y", progress=lambda p, stage=stage: p.stage == stage)


def test_true_stops_the_fit_of_one_group() -> None:
    frame = SMALL.with_columns(g=pl.int_range(pl.len()) % 2)
    models = pk.KMeans(5, tol=0.0).fit(frame, "x", "y", by="g", progress=lambda p: p.iteration == 2)
    assert [model.n_iter for model in models.values() if model] == [2, 2]


@pytest.mark.parametrize("stage", ["rows", "seeds", "iteration"])
def test_an_exception_stops_a_fit(stage: str) -> None:
    def fail(progress: pk.Progress) -> None:
        if progress.stage == stage:
            raise LookupError(f"seen {progress.stage}")

    with pytest.raises(LookupError, match=f"seen {stage}"):
        pk.KMeans(9, tol=0.0).fit(SMALL, "x", "y", progress=fail)


def test_what_is_not_true_goes_on() -> None:
    model = pk.KMeans(3).fit(SMALL, "x", "y", progress=lambda p: 1)
    assert model == pk.KMeans(3).fit(SMALL, "x", "y", progress=False)
    with pytest.raises(pk.InvalidParameterError, match="progress"):
        pk.KMeans(3).fit(SMALL, "x", "y", progress="yes")  # type: ignore[call-overload]


@pytest.mark.filterwarnings("ignore::polars_kmeans.ConvergenceWarning")  # it stops early
def test_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    pk.KMeans(5, max_iter=7, tol=0.0).fit(SMALL, "x", "y", progress=True)
    shown = capsys.readouterr().err
    assert "k-means" in shown and "7 iterations" in shown


# What runs in a process of its own. The fits take minutes on any machine.
PRELUDE = """
import os, signal, sys, threading, time
import numpy as np, polars as pl, polars_kmeans as pk
x = np.random.default_rng(1).random((400_000, 8), dtype=np.float32)
df = pl.DataFrame({f"c{i}": x[:, i] for i in range(8)})
names = df.columns
given = pl.DataFrame(x[:4000].astype(float), schema=names)
device = "cpu"
def fit(**options):
    return pk.KMeans(4000, tol=0.0, max_iter=100_000, device=device, **options).fit(df, names)
small = pk.KMeans(3, seed=1, device=device).fit(df.head(5000), names)
def stopped(work, wait=0.7):
    threading.Timer(wait, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.perf_counter()
    try:
        work()
        raise AssertionError("it was not stopped")
    except KeyboardInterrupt:
        end = time.perf_counter()
    assert pk.KMeans(3, seed=1, device=device).fit(df.head(5000), names) == small
    print("stopped after", end - start - wait)
"""


def seconds_to_stop(code: str) -> list[float]:
    """Run code that ends with calls of `stopped`. Return the seconds from SIGINT to Python."""
    return [float(line.split()[2]) for line in run(PRELUDE + code).splitlines() if line.startswith("stopped after")]


# Other work may take the processors, so these limits are wide. The stop itself takes some hundredths of a second.
LIMIT = 2.0


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize(
    "options",
    ["init=given", "init='k-means++'", "init='kmeans-parallel'", "init='afk-mc2'", "init=given, history='full'"],
)
def test_ctrl_c_stops_a_fit(options: str) -> None:
    took = seconds_to_stop(f"stopped(lambda: fit({options}))\nstopped(lambda: fit({options}), wait=0.1)")
    assert len(took) == 2 and max(took) < LIMIT, took


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_ctrl_c_stops_queries_and_predictions() -> None:
    took = seconds_to_stop(
        """
big = pk.KMeans(4000, init=given, max_iter=1, device=device).fit(df, names)
wide, many = pl.concat([df] * 30), np.concatenate([x] * 30)
kmeans = lambda: pk.kmeans(*names, k=4000, init=given, tol=0.0, max_iter=100_000, device=device)
stopped(lambda: df.lazy().select(kmeans()).collect())
stopped(lambda: wide.lazy().select(big.predict(device=device)).collect(), wait=0.15)
stopped(lambda: df.with_columns(g=pl.int_range(pl.len()) % 2).select(kmeans().over("g")))
stopped(lambda: big.predict(many, device=device), wait=0.15)
"""
    )
    assert len(took) == 4 and max(took) < LIMIT, took


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_ctrl_c_stops_fits_in_all_threads() -> None:
    took = seconds_to_stop(
        """
errors = []
def run():
    try:
        fit(init=given)
    except pk.CancelledError as error:
        errors.append(error)
threads = [threading.Thread(target=run) for _ in range(3)]
for thread in threads:
    thread.start()
def joined():
    try:
        for thread in threads:
            thread.join()
    finally:
        for thread in threads:
            thread.join()
stopped(joined)
assert len(errors) == 3, errors
"""
    )
    assert len(took) == 1 and max(took) < LIMIT, took


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_a_handler_of_the_program_decides() -> None:
    """A handler that only takes a note lets the fit on the main thread go on."""
    code = """
notes, later = [], []
signal.signal(signal.SIGINT, lambda *_: notes.append(1))
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
def stop(progress):
    later.extend([progress] * len(notes))
    return len(later) == 3
assert not pk.KMeans(4000, init=given, tol=0.0, device=device).fit(df, names, progress=stop).converged
assert notes == [1] and len(later) == 3, (notes, later)
"""
    assert seconds_to_stop(code) == []


def test_a_fit_in_another_thread_may_be_stopped_by_its_function() -> None:
    stop, results = threading.Event(), []

    def run(fit: Callable[[], object]) -> None:
        try:
            results.append(fit())
        except pk.CancelledError as error:
            results.append(error)

    frame = pl.DataFrame({"x": np.random.default_rng(3).random(50_000)})
    fit = lambda: pk.KMeans(100, tol=0.0, max_iter=10_000_000).fit(frame, "x", progress=lambda p: stop.is_set())  # noqa: E731
    thread = threading.Thread(target=run, args=(fit,))
    thread.start()
    time.sleep(0.1)
    stop.set()
    thread.join(20)
    assert not thread.is_alive()
    assert isinstance(results[0], (pk.CancelledError, pk.KMeansModel))
