"""Ctrl-C in a query: the program gets what its handler of SIGINT raises, once, and nothing else."""

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
ENGINES = ["in-memory", "streaming"]

# `query(what)` says that it begins when its rows are there. It would take minutes, or some seconds for predictions.
PRELUDE = """
import signal, sys, time, traceback
import numpy as np, polars as pl, polars_kmeans as pk
engine = sys.argv[1]
x = np.random.default_rng(1).random((400_000, 8), dtype=np.float32)
df = pl.DataFrame(x, schema=[f"c{i}" for i in range(8)])
names, start = df.columns, x[:4000]
def began(rows):
    print("began", flush=True)
    return rows
def query(what, max_iter=100_000):
    if what == "one fit":
        rows, expr = df, pk.kmeans(names, k=4000, init=start, tol=0.0, max_iter=max_iter, device="cpu")
    elif what == "many groups":
        rows = pl.select(g=pl.int_range(0, 3_000_000) // 3, x=pl.int_range(0, 3_000_000) % 3)
        expr = pk.kmeans("x", k=2, device="cpu").over("g")
    else:
        rows, expr = pl.concat([df] * 40), pk.KMeansModel.from_centroids(start, names).predict(device="cpu")
    return rows.lazy().map_batches(began).select(expr).collect(engine=engine)
def small():
    return pl.DataFrame({"x": [0.0, 1.0, 9.0]}).lazy().select(pk.kmeans("x", k=2)).collect(engine=engine).height
"""


def interrupted(code: str, *arguments: str, after: float = 0.7) -> tuple[str, str, int]:
    """Run code, and press Ctrl-C a moment after each time that it says "began". Return what it prints, and its end."""
    command = [sys.executable, "-W", "ignore", "-c", PRELUDE + code, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        lines, again = [], []
        for line in process.stdout:
            lines.append(line)
            for timer in again:
                timer.cancel()
            if line == "began\n":
                time.sleep(after)
                process.send_signal(signal.SIGINT)
                # A signal between two calls of a busy machine may be missed. Then a user presses Ctrl-C once more.
                again = [threading.Timer(seconds, process.send_signal, [signal.SIGINT]) for seconds in (15, 30)]
                for timer in again:
                    timer.start()
        process.wait()
        for timer in again:
            timer.cancel()
        return "".join(lines), process.stderr.read(), process.wait()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("what", ["one fit", "many groups", "predictions"])
def test_a_script_ends_with_a_keyboard_interrupt(what: str, engine: str) -> None:
    output, error, code = interrupted(f"query({what!r})\nprint('not stopped')", engine)
    assert "not stopped" not in output and code == -signal.SIGINT, (output, error, code)
    assert "lost sys.stderr" not in error and error.startswith("Traceback"), error
    # From 3.12 on, Python adds a note that names the query's own error.
    last = error.rstrip().partition("\nNormalization failed: ")[0].rstrip()
    assert last.endswith("KeyboardInterrupt") and error.count("KeyboardInterrupt") == 1, error


# The call of the query casts integers before its fit begins.
FIRST = """
rows = pl.DataFrame({f"i{i}": pl.int_range(i, 2_000_000 + i, eager=True) % (97 + i) for i in range(8)})
small()
start = time.perf_counter()
try:
    fit = pk.kmeans(pl.all(), k=1000, init="random", tol=0.0, max_iter=100_000, device="cpu")
    rows.lazy().map_batches(began).select(fit).collect(engine=engine)
except KeyboardInterrupt:
    print(time.perf_counter() - start)
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_signal_before_the_fit_of_a_call_stops_it(engine: str) -> None:
    output, error, _ = interrupted(FIRST, engine, after=0.05)
    # A second signal would come after 15 seconds.
    assert float(output.splitlines()[-1]) < 12, (output, error)


HANDLERS = """
def stopped(what):
    try:
        query(what)
    except BaseException as raised:
        error = raised
    time.sleep(0.2)  # a second exception would come here
    print(type(error).__name__, str(error).count("CancelledError"), error.__context__, small())

for what in ("one fit", "many groups", "predictions"):
    stopped(what)
# A handler that is set after the first query.
class Stop(Exception):
    pass
def stop(*_):
    raise Stop
signal.signal(signal.SIGINT, stop)
stopped("one fit")
# One that takes a note: the query stops, since it cannot wait for the handler.
notes = []
signal.signal(signal.SIGINT, lambda *_: notes.append(1))
stopped("one fit")
print(notes)
# The program ignores the signal.
signal.signal(signal.SIGINT, signal.SIG_IGN)
print(query("one fit", max_iter=5).height)
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_the_handler_of_the_program_decides(engine: str) -> None:
    output, error, code = interrupted(HANDLERS, engine)
    assert code == 0, (output, error)
    found = [line for line in output.splitlines() if line != "began"]
    expected = ["KeyboardInterrupt 0 None 3"] * 3 + ["Stop 0 None 3", "ComputeError 1 None 3", "[1]", "400000"]
    assert found == expected, output
    assert error == ""


# As notebooks run cells: each has Python's own handler, and errors are shown by Python code.
NOTEBOOK = """
for cell in ("small()", "query('one fit')", "query('many groups')", "print(small())"):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        exec(cell)
    except BaseException:
        traceback.print_exc()
    finally:
        signal.signal(signal.SIGINT, before)
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_cells_of_a_notebook(engine: str) -> None:
    output, error, code = interrupted(NOTEBOOK, engine)
    assert (output, code) == ("began\nbegan\n3\n", 0), (output, error)
    assert error.count("Traceback") == 2 and len(re.findall(r"^KeyboardInterrupt$", error, flags=re.MULTILINE)) == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_the_prompt_of_python(engine: str) -> None:
    """Ctrl-C is a key of a terminal here."""
    pty = pytest.importorskip("pty")
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-q", "-i", "-W", "ignore", "-c", PRELUDE, engine])
    shown, place = b"", 0

    def wait_for(text: bytes) -> None:
        nonlocal shown, place
        end = time.monotonic() + 60
        while text not in shown[place:]:
            assert time.monotonic() < end, shown
            if select.select([terminal], [], [], 1)[0]:
                shown += os.read(terminal, 4096)
        place = shown.index(text, place) + len(text)

    try:
        wait_for(b">>> ")
        os.write(terminal, b"query('one fit')\n")
        wait_for(b"began\r\n")
        time.sleep(0.7)
        os.write(terminal, b"\x03")
        wait_for(b"\r\nKeyboardInterrupt\r\n")
        wait_for(b">>> ")
        os.write(terminal, b"print('rows', small())\n")
        wait_for(b"rows 3\r\n")
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)
    assert b"lost sys.stderr" not in shown and shown.count(b"KeyboardInterrupt") == 1, shown


# The query ends, and Ctrl-C comes at once, while no query runs. The expression was made before.
JUST_AFTER = """
import os
frame, model = pl.DataFrame({"x": [0.0, 1.0, 9.0]}).lazy(), pk.KMeansModel.from_centroids([[0.0], [5.0]], ["x"])
for expr in (pk.kmeans("x", k=2), model.predict(), pk.kmeans("x", k=2).over(pl.lit(1))):
    frame.select(expr).collect(engine=engine)
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
    except KeyboardInterrupt:
        print(frame.select(expr).collect(engine=engine).height)
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_query_right_after_ctrl_c_is_not_stopped(engine: str) -> None:
    output, error, code = interrupted(JUST_AFTER, engine)
    assert (output, code) == ("3\n3\n3\n", 0), error
