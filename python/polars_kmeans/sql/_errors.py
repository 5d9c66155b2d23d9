"""Errors of queries, as the exceptions of the package."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterator
from contextlib import contextmanager

from polars_kmeans import errors

# The engines show the name and the message of an exception. DataFusion also shows its repr. DuckDB 1 adds a traceback.
_PLAIN = re.compile(r"(?:executing the UDF|Execution error): (\w+): (.*?)(?:\n\nAt:\n.*)?$", re.DOTALL)
_REPR = re.compile(r"PyErr \{ type: <class '[\w.]+'>, value: (\w+)\((.*?)\), traceback: ", re.DOTALL)


def _found(text: str) -> tuple[str, str] | None:
    """Find the name of an exception and its message in the text of an engine's error."""
    if found := _REPR.search(text):
        return found[1], str(literal_eval(found[2]))
    if found := _PLAIN.search(text):
        return found[1], found[2]
    return None


@contextmanager
def typed_errors() -> Iterator[None]:
    """Turn the errors that the engines raise for our functions into the exceptions of :mod:`polars_kmeans.errors`.

    The text of the engine's error has the same message. Errors of the engine itself stay as they are, for instance
    those about unknown functions and columns, or about arguments that no function takes.

    Examples
    --------
    >>> import duckdb
    >>> import polars_kmeans as pk
    >>> with duckdb.connect() as connection:
    ...     pk.sql.register(connection)
    ...     try:
    ...         with pk.sql.typed_errors():
    ...             connection.sql("SELECT kmeans_fit([[0.0], [1.0]], 3)").fetchall()
    ...     except pk.TooFewRowsError as error:
    ...         print(str(error).partition(",")[0])
    k: expected at most as many clusters as distinct rows of positive weight

    """
    try:
        yield
    except errors.KMeansError:
        raise
    except Exception as error:
        found = _found(str(error))
        kind = getattr(errors, found[0], None) if found else None
        if found is None or not (isinstance(kind, type) and issubclass(kind, errors.KMeansError)):
            raise
        raise kind(found[1]) from None
