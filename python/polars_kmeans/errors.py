"""The exceptions of this package.

Every message says what was expected and what was got. Outside of a query (estimator, model, files, parameters), these
exceptions are raised as they are. Inside a query, Polars raises its own ``ComputeError``, whose text has the name of
one of these exceptions: ``the plugin failed with message: TooFewRowsError: ...``. SQL engines raise their own errors,
too. :func:`typed_errors` turns such errors into these exceptions. All exceptions here are subclasses of
``ComputeError``, so one ``except`` clause catches both.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterator
from contextlib import contextmanager

from polars.exceptions import ColumnNotFoundError, ComputeError

__all__ = [
    "CancelledError",
    "ConvergenceWarning",
    "DeviceError",
    "EmptyClusterWarning",
    "ForkedProcessError",
    "InvalidColumnError",
    "InvalidDataError",
    "InvalidModelError",
    "InvalidParameterError",
    "KMeansError",
    "ModelFileError",
    "NoClearKWarning",
    "NoMemoryError",
    "OptionWarning",
    "SpillError",
    "TooFewRowsError",
    "TooFewRowsWarning",
    "WeightWarning",
    "typed_errors",
]


class KMeansError(ComputeError):
    """Base class of every error of polars-kmeans."""


class InvalidParameterError(KMeansError, ValueError, TypeError):
    """A parameter outside its domain, or one that does not fit the data's shape."""


class InvalidColumnError(KMeansError, TypeError):
    """A column with a bad name, or with a dtype that cannot be clustered.

    A missing column gives Polars' own ``ColumnNotFoundError``.
    """


class InvalidDataError(KMeansError, ValueError):
    """Values that cannot be clustered: nulls, NaNs, infinities, values or weights out of range, or no rows."""


class TooFewRowsError(KMeansError, ValueError):
    """There are fewer distinct rows of positive weight than clusters: see `too_few`."""


class InvalidModelError(KMeansError, ValueError):
    """The data are not a model: they are truncated, come from elsewhere, or are of a newer version."""


class ModelFileError(KMeansError, OSError):
    """A model file that cannot be read or written."""


class NoMemoryError(KMeansError, MemoryError):
    """There is not enough memory for a result."""


class SpillError(KMeansError, OSError):
    """The columns of a query go to a file, and it cannot be written, for instance because the disk is full."""


class DeviceError(KMeansError, RuntimeError):
    """A GPU was asked for and cannot be used, or it failed: see :func:`polars_kmeans.devices`."""


class CancelledError(KMeansError, RuntimeError):
    """The user stopped a call before it had a result.

    By Ctrl-C in a query or in another thread than the main one, or by a function that sees progress, before the first
    iteration.
    """


class ForkedProcessError(KMeansError, RuntimeError):
    """The process was forked after its parent had run queries. In it, Polars would wait for threads that do not exist.

    Start processes with multiprocessing's "spawn" or "forkserver".
    """


class ConvergenceWarning(UserWarning):
    """A fit of an estimator used all its iterations, and its centroids still moved: see `max_iter`."""


class EmptyClusterWarning(UserWarning):
    """Starting centroids that were given to an estimator lost all of their rows, and far rows took their places.

    These clusters are others than at the start: see :attr:`KMeansModel.relocated
    <polars_kmeans.KMeansModel.relocated>`.
    """


class TooFewRowsWarning(UserWarning):
    """One of several numbers of clusters is larger than the number of distinct rows: see ``choose_k``."""


class NoClearKWarning(UserWarning):
    """No number of clusters leaves the borders between the clusters empty: see ``choose_k``."""


class OptionWarning(UserWarning):
    """An option was given that has no effect beside the others, as `n_init` beside starting centroids."""


class WeightWarning(UserWarning):
    """A model of a fit with weights counts rows without weights. Each model warns once. `weight=` counts as the fit."""


_IN_QUERY = re.compile(r"^the plugin failed with message: (?:\w+: )??(\w+Error): (.*?)(?:\n\n.*)?$", re.DOTALL)
# DuckDB and DataFusion show the name and the message of an exception. DataFusion also shows its repr. DuckDB adds the
# line of the query, and DuckDB 1 a traceback.
_IN_SQL = re.compile(r"(?:executing the UDF|Execution error): (\w+): (.*?)(?:\n\n(?:At:\n|LINE \d+: ).*)?$", re.DOTALL)
_REPR = re.compile(r"PyErr \{ type: <class '[\w.]+'>, value: (\w+)\((.*?)\), traceback: ", re.DOTALL)
# What Polars says of a name that has the form of a pattern, if no column has this name.
_PATTERN = re.compile(r'^"(\*|\^.*\$)" not found')


def _typed(text: str) -> KMeansError | None:
    """Return the exception of this package that the text of another error names, or None."""
    shown = _REPR.search(text)
    found = shown or _IN_QUERY.match(text) or _IN_SQL.search(text)
    kind = globals().get(found[1]) if found else None
    if found is None or not (isinstance(kind, type) and issubclass(kind, KMeansError)):
        return None
    return kind(literal_eval(found[2]) if shown else found[2])


@contextmanager
def typed_errors() -> Iterator[None]:
    """Turn the errors of queries into the exceptions of this module: of Polars, and of the SQL engines.

    Other errors stay as they are, for instance those about unknown columns.

    If a name that Polars takes for a pattern is not that of a column, the error says how to pass a pattern.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"x": [1.0, None]})
    >>> try:
    ...     with pk.typed_errors():
    ...         df.select(pk.kmeans("x", k=1))
    ... except pk.InvalidDataError as error:
    ...     print(str(error)[:58])
    column "x": expected finite values, got nulls: 1, NaNs: 0,

    """
    try:
        yield
    except KMeansError:
        raise
    except ColumnNotFoundError as error:
        found = _PATTERN.match(str(error))
        if found is None:
            raise
        takes = "pl.all() takes all columns" if found[1] == "*" else f'pl.col("{found[1]}") takes a pattern'
        raise ColumnNotFoundError(f"{found[0]}: a name stands for the column of exactly this name, {takes}") from None
    except Exception as error:
        typed = _typed(str(error))
        if typed is None:
            raise
        raise typed from None
