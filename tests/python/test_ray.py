"""Fits on the workers of Ray, which may be killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import polars_kmeans as pk

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")

ROWS = 12_000


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, logging_level="error", log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    rows = pl.int_range(ROWS, eager=True)
    x = (rows * 7919 % 1009).cast(pl.Float32) + (rows % 5) * 500 + rows / 1e5
    return pl.DataFrame(
        {"name": rows.cast(pl.String), "x": x.cast(pl.Float32), "y": (rows * 104729 % 997).cast(pl.Float32)}
    )


@pytest.fixture(scope="module")
def folder(frame: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for number, first in enumerate(range(0, ROWS, 5_000)):
        frame[first : first + 5_000].write_parquet(folder / f"{number}.parquet", row_group_size=600)
    return folder


@pytest.fixture(scope="module")
def whole(frame: pl.DataFrame) -> pk.KMeansModel:
    return pk.KMeans(9, seed=3).fit(frame, "x", "y")


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_give_the_bits_of_one_process(
    frame: pl.DataFrame, folder: Path, whole: pk.KMeansModel, workers: int
) -> None:
    estimator = pk.ray.KMeans(9, seed=3)
    assert estimator.fit(folder, "x", "y", num_workers=workers) == whole
    assert estimator.fit(frame, "x", "y", num_workers=workers) == whole


def test_frames_and_references(frame: pl.DataFrame, whole: pk.KMeansModel) -> None:
    pieces = [frame[:11], frame[11:9_000].lazy(), ray.put(frame[9_000:].to_arrow())]
    assert pk.ray.KMeans(9, seed=3).fit(pieces, "x", "y", num_workers=2) == whole


def _killing(monkeypatch: pytest.MonkeyPatch, at: int, seconds: float) -> list[int]:
    """Kill a worker while it answers a message, or so many seconds later."""
    killed: list[int] = []
    ask, messages = pk.ray._ask, [0]

    def asking(workers: list[Any], tables: list[Any], requests: list[tuple[int, bytes]]) -> list[bytes]:
        messages[0] += 1
        if messages[0] == at:
            process = ray.get(workers[-1].process.remote())
            killed.append(process)
            threading.Timer(seconds, os.kill, (process, signal.SIGKILL)).start()
            if seconds == 0:
                time.sleep(0.1)
        return ask(workers, tables, requests)

    monkeypatch.setattr(pk.ray, "_ask", asking)
    return killed


@pytest.mark.parametrize("message", [9, 28], ids=["in seeding", "in the loop"])
@pytest.mark.parametrize("of_files", [True, False])
def test_a_killed_worker_changes_no_bit(
    frame: pl.DataFrame,
    folder: Path,
    whole: pk.KMeansModel,
    monkeypatch: pytest.MonkeyPatch,
    message: int,
    of_files: bool,
) -> None:
    killed = _killing(monkeypatch, message, 0)
    stages: list[str] = []
    model = pk.ray.KMeans(9, seed=3).fit(
        folder if of_files else frame, "x", "y", num_workers=2, progress=lambda p: stages.append(p.stage)
    )
    assert len(killed) == 1 and "iteration" in stages
    assert model == whole


def test_a_worker_that_is_killed_while_it_works_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pl.int_range(400_000, eager=True)
    frame = pl.DataFrame({f"x{f}": (rows * (7919 + 2 * f) % 10_007).cast(pl.Float64) for f in range(12)})
    parameters: dict[str, Any] = {"seed": 1, "init": "random", "n_init": 1, "max_iter": 4}
    # An iteration takes about a second.
    killed = _killing(monkeypatch, 7, 0.2)
    with pytest.warns(pk.ConvergenceWarning):
        model = pk.ray.KMeans(200, **parameters).fit(frame, pl.all(), num_workers=2)
    assert len(killed) == 1
    with pytest.warns(pk.ConvergenceWarning):
        assert model == pk.KMeans(200, **parameters).fit(frame, pl.all())


def test_labels_are_written_as_parquet(
    frame: pl.DataFrame, folder: Path, whole: pk.KMeansModel, tmp_path: Path
) -> None:
    paths = pk.ray.predict(whole, folder, folder=tmp_path / "labels", num_workers=3)
    assert [path.name for path in paths] == [f"part-0000{number}.parquet" for number in range(3)]
    assert sorted((tmp_path / "labels").iterdir()) == paths
    assert pl.read_parquet(paths).equals(whole.label(frame))
    assert min(pl.read_parquet(path).height for path in paths) > ROWS // 4
    with pytest.raises(pk.InvalidParameterError, match="folder: expected one without files"):
        pk.ray.predict(whole, folder, folder=tmp_path / "labels", num_workers=1)
    again = pk.ray.predict(whole, frame, "x", "y", folder=tmp_path / "again", name="tier", num_workers=1)
    assert pl.read_parquet(again).equals(whole.label(frame, name="tier"))


def test_a_dataset_has_no_order(frame: pl.DataFrame) -> None:
    data = pytest.importorskip("ray.data")
    dataset = data.from_arrow([frame[:3_000].to_arrow(), frame[3_000:].to_arrow()])
    with pytest.raises(pk.InvalidParameterError, match='row_order: expected "values" for a Ray Dataset'):
        pk.ray.KMeans(5).fit(dataset, "x", "y", num_workers=2)
    parameters: dict[str, Any] = {"seed": 4, "init": "kmeans-parallel", "row_order": "values"}
    model = pk.ray.KMeans(5, **parameters).fit(dataset, "x", "y", num_workers=2)
    assert model is not None and model.centroids.equals(pk.KMeans(5, **parameters).fit(frame, "x", "y").centroids)


def test_errors_say_what_is_wrong(frame: pl.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(pk.InvalidParameterError, match="columns: expected expressions of single rows"):
        pk.ray.KMeans(2).fit(frame, pl.col("x").rank(), "y", num_workers=1)
    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        pk.ray.KMeans(2).fit(frame, "z", num_workers=1)
    with pytest.raises(pk.InvalidParameterError, match="expected Parquet files, got none"):
        pk.ray.KMeans(2).fit(tmp_path, "x", num_workers=1)
    with pytest.raises(pk.InvalidParameterError, match="data: expected paths of Parquet files"):
        pk.ray.KMeans(2).fit(3, "x", num_workers=1)
    with pytest.raises(pk.InvalidParameterError, match="num_workers: expected a positive integer"):
        pk.ray.KMeans(2).fit(frame, "x", num_workers=0)
    with pytest.raises(pk.InvalidDataError):
        pk.ray.KMeans(2).fit(pl.DataFrame({"x": [1.0, None]}), "x", num_workers=2)
    assert repr(pk.ray.KMeans(2, seed=1)) == "ray.KMeans(k=2, seed=1)"


DRIVER = """
import sys
import polars as pl, ray
import polars_kmeans as pk
ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
rows = pl.int_range(200_000, eager=True)
df = pl.DataFrame({"x": (rows * 7919 % 100_003).cast(pl.Float64)})
def see(progress):
    if progress.stage == "iteration":
        print("it runs", flush=True)
pk.ray.KMeans(50, tol=0.0, max_iter=100_000, init="random", n_init=50).fit(df, "x", num_workers=2, progress=see)
"""


def _stat(process: int) -> tuple[str, int]:
    """Return the state of a process, and its parent."""
    state, parent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:2]
    return state, int(parent)


def _descendants(process: int) -> set[int]:
    """Return the processes that come from a process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = _stat(int(entry.name))[1]
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {process}


def _runs(process: int) -> bool:
    """Whether a process is there, other than two small ones of Ray, which need a minute to notice the end."""
    try:
        command = Path(f"/proc/{process}/cmdline").read_text()
        return _stat(process)[0] != "Z" and not command.startswith(("ray::DashboardAgent", "ray::RuntimeEnvAgent"))
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system has no /proc")
def test_a_killed_driver_leaves_nothing_running() -> None:
    command = [sys.executable, "-c", DRIVER]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert driver.stdout is not None
    try:
        assert driver.stdout.readline() == "it runs\n"
        started = _descendants(driver.pid)
        assert sum(map(_runs, started)) > 3
    finally:
        driver.kill()
        driver.wait()
    end = time.monotonic() + 60
    while any(map(_runs, started)):
        assert time.monotonic() < end, "processes are left"
        time.sleep(0.5)
