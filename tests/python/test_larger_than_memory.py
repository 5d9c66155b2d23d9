"""Fits of a query whose rows go to a file: same bits as in memory, and nothing is left of the file."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from helpers import counted, run

import polars_kmeans as pk

N = 30_000
pytestmark = pytest.mark.filterwarnings("ignore::polars_kmeans.ConvergenceWarning")


def rows() -> pl.DataFrame:
    draws = np.random.default_rng(3)
    blob = draws.integers(0, 6, N)
    frame = pl.DataFrame(
        {
            "a": (10 * blob + draws.normal(size=N)).astype(np.float32),
            "b": (7 * (blob % 4) + draws.normal(size=N)).astype(np.float32),
            "double": 3.0 * (blob % 3) + draws.normal(size=N),
            "integer": draws.integers(-1_000, 1_000, N),
            "byte": draws.integers(0, 100, N).astype(np.uint8),
            "flag": draws.integers(0, 2, N).astype(bool),
            "weight": draws.integers(0, 5, N),
        }
    )
    holes = pl.when(pl.int_range(pl.len()) % 97 != 5)
    return frame.with_columns(
        gaps=holes.then("a"),
        half=pl.col("b").cast(pl.Float16),
        decimal=pl.col("integer").cast(pl.Decimal(12, 3)) / 8,
        array=pl.concat_arr("a", "b"),
        list=pl.concat_list("a", "double"),
        list_gaps=pl.when(pl.int_range(pl.len()) >= N // 2).then(pl.concat_list("a", "double")),
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    rows().write_parquet(path, row_group_size=1_000)
    return path


def mapped(folder: Path) -> int:
    """The bytes of files in this folder that are mapped and have no name."""
    size = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("(deleted)") and str(folder) in line:
            first, last = (int(address, 16) for address in line.split()[0].split("-"))
            size += last - first
    return size


def files_of(folder: Path) -> int:
    """How many files of this folder the process has open, those without a name included."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(str(folder) in link for link in links)


CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "float32": (["a", "b"], {}),
    "float64": (["a", "double"], {}),
    "integers": (["integer", "byte"], {}),
    "small integers and booleans": (["byte", "flag"], {}),
    "decimals": (["decimal"], {}),
    "float16": (["half"], {}),
    "float16 and float64": (["half", "double"], {}),
    "weights": (["a", "b"], {"weight": "weight"}),
    "computed": ([pl.col("a") - pl.col("a").mean(), (pl.col("b") * 2).alias("b2")], {"weight": pl.col("weight") / 2}),
    "cosine": (["a", "double"], {"metric": "cosine"}),
    "standard": (["a", "integer"], {"scale": "standard"}),
    "robust": (["a", "integer"], {"scale": "robust", "weight": "weight"}),
    "skipped": (["gaps", "double"], {"null_policy": "skip", "weight": "weight"}),
    "arrays": (["array"], {}),
    "lists": (["list"], {"weight": "weight"}),
    "lists after nulls": (["list_gaps"], {"null_policy": "skip", "weight": "weight"}),
    "k-means||": (["a", "b"], {"init": "kmeans-parallel"}),
    "afk-mc2": (["a", "b"], {"init": "afk-mc2", "history": "full"}),
    "a sample": (["a", "b"], {"init_sample": 500, "n_init": 2}),
    "sorted clusters": (["a", "b"], {"sort_by": "size"}),
}


@pytest.mark.parametrize("case", CASES)
def test_same_bits_as_in_memory(case: str, file: Path, tmp_path: Path) -> None:
    columns, options = CASES[case]
    estimator = pk.KMeans(5, seed=2, max_iter=6, device="cpu", **options)
    seen: list[int] = []
    expected = estimator.fit(pl.read_parquet(file), columns)
    spilled = estimator.fit(
        pl.scan_parquet(file),
        columns,
        memory_limit=20_000,
        spill_directory=tmp_path,
        progress=lambda _: seen.append(mapped(tmp_path)),
    )
    assert spilled == expected
    assert spilled.history.drop("seconds").equals(expected.history.drop("seconds"))
    if sys.platform == "linux":
        assert min(seen) >= 2 * N, "the rows were in a file while the fit ran"
    assert mapped(tmp_path) == 0 and os.listdir(tmp_path) == []


def test_the_file_has_no_name(file: Path, tmp_path: Path) -> None:
    names: list[list[str]] = []
    query = pl.scan_parquet(file).select("a", "b").map_batches(lambda df: (names.append(os.listdir(tmp_path)), df)[1])
    estimator = pk.KMeans(3, seed=1)
    estimator.fit(
        query, pl.all(), memory_limit=0, spill_directory=tmp_path, progress=lambda _: names.append(os.listdir(tmp_path))
    )
    assert len(names) > 3 and not any(names)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("limits", [{}, {"memory_limit": 1 << 40}, {"memory_limit": 8 * N}])
def test_small_queries_stay_in_memory(limits: dict[str, int], file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    folder = file.parent
    monkeypatch.setenv("TMPDIR", str(folder))
    see = lambda _: seen.append(mapped(folder))  # noqa: E731
    estimator = pk.KMeans(3, seed=1)
    model = estimator.fit(pl.scan_parquet(file), "a", "b", progress=see, **limits)
    assert seen and not any(seen)
    # The file of larger ones is in the system's temporary folder.
    assert estimator.fit(pl.scan_parquet(file), "a", "b", progress=see, memory_limit=8 * N - 1) == model
    assert seen[-1] >= 8 * N or sys.platform != "linux"


def test_the_query_runs_once() -> None:
    lazy, runs = counted(rows())
    pk.KMeans(3, seed=1, n_init=2, max_iter=3).fit(lazy, "a", "b", memory_limit=0)
    assert sum(runs) in (1, N)


def test_labels_go_to_a_file_through_a_sink(file: Path, tmp_path: Path) -> None:
    lazy = pl.scan_parquet(file)
    model = pk.KMeans(4, seed=1, null_policy="skip").fit(lazy, ["gaps", "b"], memory_limit=0, spill_directory=tmp_path)
    lazy.with_columns(model.predict()).sink_parquet(tmp_path / "labels.parquet")
    frame = rows()
    expected = frame.select(pk.kmeans("gaps", "b", k=4, seed=1, null_policy="skip")).to_series()
    assert pl.read_parquet(tmp_path / "labels.parquet")["cluster"].equals(expected)
    assert expected.null_count() > 0


def test_models_of_spilled_rows_live_on(file: Path, tmp_path: Path) -> None:
    model = pk.KMeans(4, seed=1).fit(pl.scan_parquet(file), ["a", "b"], memory_limit=0, spill_directory=tmp_path)
    model.save(tmp_path / "model.parquet")
    assert pk.KMeansModel.load(tmp_path / "model.parquet") == model


def test_refusals_are_those_of_rows_in_memory(file: Path, tmp_path: Path) -> None:
    lazy, frame = pl.scan_parquet(file), rows()
    ragged = pl.DataFrame({"r": [[1.0, 2.0]] * 1_000 + [[1.0]]})
    for data, columns, options in (
        (frame, ["gaps", "b"], {}),
        (frame, [pl.col("a").alias("size")], {}),
        (frame, ["a", "a"], {}),
        (frame, [pl.col("a").cast(pl.String)], {}),
        (frame, [pl.col("a", "b").name.map(lambda _: "same")], {}),
        (frame, ["a"], {"weight": pl.lit("x")}),
        (frame, ["a"], {"weight": pl.col("b") - 1_000}),
        (frame.head(0), ["a", "b"], {}),
        (frame.head(0), ["list"], {}),
        (frame.head(N // 3), ["list_gaps"], {}),
        (frame.head(N // 3), ["list_gaps"], {"null_policy": "skip"}),
        (frame.with_columns(a=1.0), ["a"], {}),
        (ragged, ["r"], {}),
    ):
        errors = []
        for kind in (data, data.lazy()):
            with pytest.raises(pl.exceptions.PolarsError) as caught:
                limits = {} if kind is data else {"memory_limit": 0, "spill_directory": tmp_path}
                pk.KMeans(2, device="cpu", **options).fit(kind, columns, **limits)  # type: ignore[arg-type]
            errors.append((caught.type, str(caught.value).split("\n")[0]))
        assert errors[0] == errors[1]
        assert os.listdir(tmp_path) == []
    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        pk.KMeans(2).fit(lazy, "missing", memory_limit=0)


def test_a_column_may_have_the_name_of_the_weights(file: Path) -> None:
    lazy = pl.scan_parquet(file).rename({"b": "__weight__0"})
    frame = rows()
    model = pk.KMeans(3, seed=1, weight="weight").fit(lazy, ["a", "__weight__0"], memory_limit=0)
    assert model.inertia == pk.KMeans(3, seed=1, weight="weight").fit(frame, ["a", "b"]).inertia


def test_rows_in_a_file_are_not_sorted(file: Path) -> None:
    estimator = pk.KMeans(3, seed=1, row_order="values")
    with pytest.raises(pk.InvalidParameterError, match='row_order: expected "given" for rows that memory may not hold'):
        estimator.fit(pl.scan_parquet(file), "a", "b", memory_limit=0)
    assert estimator.fit(pl.scan_parquet(file), "a", "b") == estimator.fit(rows(), "a", "b")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_exception_does_not_keep_the_file(file: Path, tmp_path: Path) -> None:
    opened = []

    def fail(df: pl.DataFrame) -> pl.DataFrame:
        opened.append(files_of(tmp_path))
        if df["a"][0] == last:
            raise ValueError("the query failed")
        return df

    last = rows()["a"][N - 1_000]
    query = pl.scan_parquet(file).map_batches(fail, streamable=True)
    with pytest.raises(ValueError, match="the query failed") as caught:
        pk.KMeans(3).fit(query, "a", memory_limit=0, spill_directory=tmp_path)
    # The exception still has the frames of the call.
    assert caught.tb is not None and max(opened) == 1
    assert files_of(tmp_path) == 0


def test_arguments_are_checked(file: Path, tmp_path: Path) -> None:
    lazy, estimator = pl.scan_parquet(file), pk.KMeans(3)
    for limit in (-1, 2**64, 1.5, True, "4GB"):
        with pytest.raises(pk.InvalidParameterError, match="memory_limit: expected a number of bytes"):
            estimator.fit(lazy, "a", memory_limit=limit)  # type: ignore[arg-type]
    with pytest.raises(pk.InvalidParameterError, match="spill_directory: expected the path of a folder, got 3"):
        estimator.fit(lazy, "a", spill_directory=3)  # type: ignore[call-overload]
    with pytest.raises(pk.InvalidParameterError, match=r"spill_directory: expected a folder, got .*missing"):
        estimator.fit(lazy, "a", spill_directory=tmp_path / "missing")
    with pytest.raises(pk.InvalidParameterError, match="memory_limit: expected none beside an array"):
        estimator.fit(np.zeros((4, 2)), memory_limit=0)  # type: ignore[call-overload]
    with pytest.raises(pk.InvalidParameterError, match="memory_limit: expected none beside by"):
        estimator.fit(lazy, "a", by="flag", memory_limit=0)
    # Rows of a DataFrame are in memory.
    assert estimator.fit(rows(), "a", memory_limit=0, spill_directory=tmp_path) == estimator.fit(rows(), "a")


FULL = """
import resource, sys
import polars as pl, polars_kmeans as pk
query = pl.scan_parquet(sys.argv[1])
estimator = pk.KMeans(3, seed=1, max_iter=3)
expected = estimator.fit(query, "a", "double")
if sys.argv[3] == "limited":
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    estimator.fit(query, "a", "double", memory_limit=0, spill_directory=sys.argv[2])
except pk.SpillError as error:
    assert isinstance(error, OSError)
    print(error)
assert estimator.fit(query, "a", "double") == expected
print("went on")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files")
def test_a_file_that_may_not_grow_is_an_error(file: Path, tmp_path: Path) -> None:
    error, last = run(FULL, file, tmp_path, "limited").splitlines()
    expected = "expected room for the columns, which memory may not hold, got an error after 100,000 bytes"
    assert error.startswith(f'spill_directory "{tmp_path}": {expected}: could not write: File too large')
    assert error.endswith("(choose a folder with more room, or a larger memory_limit)")
    assert last == "went on" and os.listdir(tmp_path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a file system of a few pages")
def test_a_full_disk_is_an_error(file: Path, tmp_path: Path) -> None:
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", "size=200k", "tmpfs", tmp_path], check=False).returncode
    ):
        pytest.skip("this user may not mount")
    try:
        error, last = run(FULL, file, tmp_path, "full").splitlines()
        assert "No space left on device" in error and "after 204,800 bytes" in error
        assert last == "went on" and os.listdir(tmp_path) == []
        assert shutil.disk_usage(tmp_path).used == 0
    finally:
        subprocess.run(["umount", tmp_path], check=True)


KILLED = """
import sys, time
import polars as pl, polars_kmeans as pk

def see(progress):
    print("there", flush=True)
    time.sleep(600)

pk.KMeans(3).fit(pl.scan_parquet(sys.argv[1]), "a", memory_limit=0, spill_directory=sys.argv[2], progress=see)
"""
# A query of many batches, each of which takes a while.
INTERRUPTED = """
import os, sys, time
import polars as pl, polars_kmeans as pk

def slowly(df):
    os.write(1, b"there\\n")
    time.sleep(0.2)
    return df

query = pl.scan_parquet([sys.argv[1]] * 1_000).select("a").map_batches(slowly, streamable=True)
try:
    pk.KMeans(3).fit(query, "a", memory_limit=0, spill_directory=sys.argv[2])
except KeyboardInterrupt:
    # Polars finishes the batches that it has begun. Python code among them must not run when Python ends.
    time.sleep(2)
    print("stopped")
"""


def signalled(program: str, number: int, file: Path, folder: Path) -> tuple[str, int]:
    command = [sys.executable, "-c", program, str(file), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(1 if number == signal.SIGKILL else 5):
            assert process.stdout.readline() == "there\n"
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
        return output, process.returncode


@pytest.mark.skipif(sys.platform == "win32", reason="other signals")
def test_nothing_is_left_after_a_kill(file: Path, tmp_path: Path) -> None:
    assert signalled(KILLED, signal.SIGKILL, file, tmp_path)[1] == -signal.SIGKILL
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="other signals")
def test_ctrl_c_stops_the_query(file: Path, tmp_path: Path) -> None:
    output, code = signalled(INTERRUPTED, signal.SIGINT, file, tmp_path)
    assert output.endswith("stopped\n") and output.count("there") < 100 and code == 0
    assert os.listdir(tmp_path) == []


MEMORY = """
import sys, threading, time
import polars as pl, polars_kmeans as pk

def own():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) * 1024

query = pl.scan_parquet([sys.argv[1]] * 32)
pk.KMeans(3, max_iter=1).fit(query.head(1_000), pl.all())
before, most, done = own(), 0, False

def watch():
    global most
    while not done:
        most = max(most, own())
        time.sleep(0.01)

thread = threading.Thread(target=watch)
thread.start()
spill = {"memory_limit": int(sys.argv[3]), "spill_directory": sys.argv[2]}
model = pk.KMeans(3, max_iter=2, device="cpu").fit(query, pl.all(), **spill)
done = True
thread.join()
print(most - before, model.inertia)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_near_the_limit(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    frame = pl.DataFrame({f"x{f}": draws.random(100_000, dtype=np.float32) for f in range(32)})
    size = 32 * frame.estimated_size()
    frame.write_parquet(tmp_path / "rows.parquet", row_group_size=10_000)
    # Each thread that reads a file holds some of its rows.
    threads = {"POLARS_MAX_THREADS": "2"}
    spilled, inertia = run(MEMORY, tmp_path / "rows.parquet", tmp_path, 16 << 20, **threads).split()
    held, expected = run(MEMORY, tmp_path / "rows.parquet", tmp_path, 1 << 40, **threads).split()
    print(f"{size} bytes of rows: {held} of memory, {spilled} with a limit of {16 << 20}")
    assert inertia == expected
    assert int(held) > size
    assert int(spilled) < 0.5 * size
