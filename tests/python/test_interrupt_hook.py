"""Why the package looks for signals where Polars makes a `ComputeError`: ten situations without that, each worse.

Ctrl-C stops a query, and the program's handler of SIGINT must run before the error of the query reaches the program.
Only Python code on the main thread can run it, and between the query and the program there is no other Python code
than the constructor of the error. `test_interrupts.py` shows the same situations with it.
"""

import pytest
import test_interrupts as interrupts

pytestmark = interrupts.pytestmark
WITHOUT = "\ndel pl.exceptions.ComputeError.__init__\n"

SCRIPT = "query({what!r})"
CAUGHT = """
try:
    query({what!r})
except BaseException as error:
    time.sleep(0.2)
    print("caught", type(error).__name__)
"""
NOTEBOOK = """
try:
    query({what!r})
except BaseException:
    traceback.print_exc()
print("the next cell")
"""
SITUATIONS = [(SCRIPT, what) for what in ("one fit", "many groups")]
SITUATIONS += [(CAUGHT, what) for what in ("one fit", "many groups")] + [(NOTEBOOK, "one fit")]


@pytest.mark.parametrize("engine", interrupts.ENGINES)
@pytest.mark.parametrize(("code", "what"), SITUATIONS, ids=["script", "script", "caught", "caught", "notebook"])
def test_without_it_the_program_gets_the_wrong_error_or_two(code: str, what: str, engine: str) -> None:
    output, error, status = interrupts.interrupted(WITHOUT + code.format(what=what), engine, after=0.5)
    if code == SCRIPT:
        # Python prints the error of the query, and the handler ends the print.
        assert status == 1 and "lost sys.stderr" in error and "KeyboardInterrupt\n" not in error
    else:
        # The clause that shows the error is left by the exception of the handler.
        assert "caught" not in output and "the next cell" not in output and status != 0
        assert error.rstrip().endswith("KeyboardInterrupt")
