"""Fits of rows that several processes hold."""

import multiprocessing
import os
import pickle
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

import polars as pl
import pytest

import polars_kmeans as pk

ROWS = 6_000


def _frame() -> pl.DataFrame:
    rows = pl.int_range(ROWS, eager=True)
    return pl.DataFrame(
        {
            "x": (rows * 7919 % 1009).cast(pl.Float32) + (rows % 5) * 500,
            "y": (rows * 104729 % 997).cast(pl.Float32),
            "w": (rows % 4).cast(pl.Float64) * 0.7,
        }
    )


def _serve(connection: Connection, path: str, first: int, rows: int, instructions: str | None) -> None:
    """Hold some rows, and answer what comes."""
    frame = pl.scan_parquet(path).slice(first, rows)
    part = pk.parts.Part(frame, "x", "y", weight="w", _instructions=instructions)
    while True:
        connection.send_bytes(part.answer(connection.recv_bytes()))


class Processes:
    """An executor: one process a part. A process that was killed is started again."""

    def __init__(self, path: str, cuts: list[int], instructions: list[str | None]) -> None:
        self.context = multiprocessing.get_context("spawn")
        self.rows = [(path, a, b - a, instructions[i % len(instructions)]) for i, (a, b) in enumerate(pairwise(cuts))]
        self.messages = 0
        self.kill: tuple[int, int] | None = None
        self.processes = [self.start(part) for part in range(len(self.rows))]

    def start(self, part: int) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        here, there = self.context.Pipe()
        process = self.context.Process(target=_serve, args=(there, *self.rows[part]), daemon=True)
        process.start()
        there.close()
        return process, here

    def ask(self, requests: list[tuple[int, bytes]]) -> list[bytes]:
        self.messages += 1
        for part, request in requests:
            self.send(part, request)
        if self.kill is not None and self.kill[0] == self.messages:
            process = self.processes[self.kill[1]][0]
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        return [self.answer(part, request) for part, request in requests]

    def send(self, part: int, request: bytes) -> None:
        try:
            self.processes[part][1].send_bytes(request)
        except ConnectionError:
            self.processes[part] = self.start(part)
            self.processes[part][1].send_bytes(request)

    def answer(self, part: int, request: bytes) -> bytes:
        try:
            return self.processes[part][1].recv_bytes()
        except (EOFError, ConnectionError):
            self.processes[part] = self.start(part)
            self.send(part, request)
            return self.processes[part][1].recv_bytes()

    def stop(self) -> None:
        for process, connection in self.processes:
            process.kill()
            process.join()
            connection.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("parts") / "rows.parquet"
    _frame().write_parquet(path)
    return str(path)


@contextmanager
def processes(path: str, cuts: list[int], *instructions: str | None) -> Iterator[Processes]:
    started = Processes(path, cuts, list(instructions) or [None])
    try:
        yield started
    finally:
        started.stop()


def _fit(started: Processes, estimator: "pk.KMeans[pk.KMeansModel]") -> pk.KMeansModel:
    model = pk.parts.fit(estimator, started.ask, len(started.processes))
    assert model is not None
    return model


def _whole(**parameters: object) -> pk.KMeansModel:
    return pk.KMeans(**parameters, weight="w").fit(_frame(), "x", "y")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "cuts", [[0, ROWS], [0, 17, ROWS], [0, 900, 900, ROWS], [0, 1, 2, 1000, 1001, 3000, 4000, ROWS]]
)
def test_processes_give_the_bits_of_one_process(path: str, cuts: list[int]) -> None:
    with processes(path, cuts) as started:
        for init in ("k-means++", "kmeans-parallel"):
            model = _fit(started, pk.KMeans(9, seed=3, init=init))
            assert model == _whole(k=9, seed=3, init=init)


def test_processes_of_other_instruction_sets_give_the_same_bits(path: str) -> None:
    with processes(path, [0, 2000, 4000, ROWS], "avx512", "avx2", "portable") as started:
        assert _fit(started, pk.KMeans(9, seed=3)) == _whole(k=9, seed=3)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_a_killed_process_changes_no_bit(path: str) -> None:
    with processes(path, [0, 1500, ROWS]) as started:
        whole = _fit(started, pk.KMeans(6, seed=1))
        messages, started.messages = started.messages, 0
        # While seeding, and in the loop.
        for message in (8, messages - 4):
            started.kill, started.messages = (message, message % 2), 0
            assert _fit(started, pk.KMeans(6, seed=1)) == whole == _whole(k=6, seed=1)


def _local(*frames: pl.DataFrame, columns: tuple[str, ...] = ("x",)) -> pk.parts.Ask:
    parts = [pk.parts.Part(frame, *columns) for frame in frames]
    return lambda requests: [parts[part].answer(request) for part, request in requests]


def test_models_of_parts_are_models() -> None:
    df = _frame()
    model = pk.parts.fit(pk.KMeans(4, sort_by="x"), _local(df[:50], df[50:], columns=("x", "y")), 2)
    whole = pk.KMeans(4, sort_by="x").fit(df, "x", "y")
    assert model is not None and model == whole and pickle.loads(pickle.dumps(model)) == whole
    assert model.predict(df).equals(whole.predict(df))
    assert (model.device, model.device_reason) == ("cpu", "rows are in 2 parts")


def test_features_may_be_expressions() -> None:
    df = _frame()
    feature = (pl.col("x") * 2).alias("x")
    parts = [pk.parts.Part(frame, feature) for frame in (df[:10], df[10:])]
    model = pk.parts.fit(pk.KMeans(3), lambda asked: [parts[part].answer(request) for part, request in asked], 2)
    assert model == pk.KMeans(3).fit(df, feature)
    with pytest.raises(pk.InvalidColumnError, match="fitted to expressions"):
        model.predict(df)  # type: ignore[union-attr]


def test_starting_centroids_and_arrays() -> None:
    df = pl.DataFrame({"e": [[float(i), float(i * i % 13)] for i in range(60)]}, schema={"e": pl.Array(pl.Float64, 2)})
    init = [[1.0, 2.0], [30.0, 5.0], [55.0, 9.0]]
    model = pk.parts.fit(pk.KMeans(3, init=init), _local(df[:20], df[20:], columns=("e",)), 2)
    assert model == pk.KMeans(3, init=init).fit(df, "e")
    assert model is not None and model.feature_names == ["e"]


def test_progress_and_too_few_rows() -> None:
    df = pl.DataFrame({"x": [1.0, 1.0, 2.0]})
    seen: list[pk.Progress] = []
    pk.parts.fit(pk.KMeans(2), _local(df[:1], df[1:]), 2, progress=seen.append)
    assert [p.stage for p in seen][:2] == ["rows", "seeds"]
    with pytest.raises(pk.CancelledError):
        pk.parts.fit(pk.KMeans(2), _local(df), 1, progress=lambda _: True)
    df = _frame()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stopped = pk.parts.fit(
            pk.KMeans(9, tol=0.0, max_iter=3), _local(df[:99], df[99:]), 2, progress=lambda p: p.iteration == 3
        )
    with pytest.warns(pk.ConvergenceWarning):
        whole = pk.KMeans(9, tol=0.0, max_iter=3).fit(df, "x")
    assert stopped is not None and stopped.centroids.equals(whole.centroids) and not stopped.converged
    df = pl.DataFrame({"x": [1.0, 1.0, 2.0]})
    with pytest.raises(pk.TooFewRowsError):
        pk.parts.fit(pk.KMeans(3), _local(df[:1], df[1:]), 2)
    assert pk.parts.fit(pk.KMeans(3, too_few="null"), _local(df[:1], df[1:]), 2) is None
    fewer = pk.parts.fit(pk.KMeans(3, too_few="fewer"), _local(df[:1], df[1:]), 2)
    assert fewer == pk.KMeans(3, too_few="fewer").fit(df, "x")


def test_errors_say_what_is_wrong() -> None:
    df = pl.DataFrame({"x": [1.0, None, 3.0], "cluster": [1.0, 2.0, 3.0]})
    with pytest.raises(pk.InvalidDataError, match='column "x": expected finite values, got nulls: 1'):
        pk.parts.fit(pk.KMeans(1), _local(df[:1], df[1:]), 2)
    with pytest.raises(pk.InvalidColumnError, match="may not be named"):
        pk.parts.fit(pk.KMeans(1), _local(df, columns=("cluster",)), 1)
    with pytest.raises(pk.KMeansError, match="expected the columns of part 0"):
        pk.parts.fit(pk.KMeans(1), _local(df, df.cast(pl.Float32)), 2)
    with pytest.raises(pk.InvalidParameterError, match='row_order: expected "given" for rows in parts'):
        pk.parts.fit(pk.KMeans(1, row_order="values"), _local(df[:1]), 1)
    with pytest.raises(pk.InvalidParameterError, match="weight: expected the weights of the rows in each part"):
        pk.parts.fit(pk.KMeans(1, weight="x"), _local(df[:1]), 1)
    with pytest.raises(pk.KMeansError, match="expected at least one part"):
        pk.parts.fit(pk.KMeans(1), _local(df), 0)
    with pytest.raises(ZeroDivisionError):
        pk.parts.fit(pk.KMeans(1), lambda _: 1 // 0, 1)  # type: ignore[arg-type, return-value]
    with pytest.raises(pk.KMeansError, match="expected a message of version"):
        pk.parts.fit(pk.KMeans(1), lambda asked: [b"no answer" for _ in asked], 1)


def test_rows_without_an_order(tmp_path: Path) -> None:
    df = _frame().select(pl.col("x") + pl.col("y") / 1000, "y")
    estimator = pk.KMeans(7, seed=2, init="kmeans-parallel", row_order="values")
    shuffled = df.sample(fraction=1.0, shuffle=True, seed=4)
    model = pk.parts.fit(estimator, _local(shuffled[:700], shuffled[700:], columns=("x", "y")), 2)
    assert model is not None and model.centroids.equals(estimator.fit(df, "x", "y").centroids)
