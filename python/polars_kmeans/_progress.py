"""Progress of a fit: what a caller sees of it while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from polars_kmeans._typing import Call
from polars_kmeans.errors import InvalidParameterError

Stage = Literal["rows", "seeds", "iteration"]


class _Stage(NamedTuple):
    """The fields of a stage."""

    stage: Stage
    """What is done. `"rows"`: the rows were checked and are where the fit runs. `"seeds"`: a restart has its starting
    centroids. `"iteration"`: an iteration."""
    restart: int
    """The restart, from 0."""
    iteration: int
    """The last iteration of this restart that is done, from 1. 0 before the first."""
    changed: int
    """Rows of positive weight whose label changed in this iteration."""
    shift: float
    """The sum of the squared distances that the centroids moved in this iteration."""
    inertia: float | None
    """The inertia before the centroids moved. Only with `history="full"`."""
    seconds: float
    """Seconds since the fit began."""


class Progress(_Stage):
    """A stage of a fit that is done.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"x": [0.0, 0.1, 5.0, 5.1, 9.0, 9.2]})
    >>> model = pk.KMeans(k=3, seed=1).fit(df, "x", progress=lambda p: print(p.stage, p.iteration, p.changed))
    rows 0 0
    seeds 0 0
    iteration 1 6
    iteration 2 0

    """

    _found = None

    @classmethod
    def _of_call(cls, *stage: Any) -> Progress:
        """Make a stage of what the engine says."""
        progress = cls(*stage[:-1])
        progress._found = stage[-1]
        return progress

    def centroids(self) -> list[list[float]] | None:
        """Return the centroids after this stage: `k` rows of numbers, in the units of the columns, which `init` takes.

        None before the first seeds. A GPU does several iterations in one batch: of these, only the last has them.

        Examples
        --------
        >>> import polars as pl
        >>> import polars_kmeans as pk
        >>> df = pl.DataFrame({"x": [0.0, 1.0, 5.0, 7.0]})
        >>> seen = []
        >>> model = pk.KMeans(2, init=[0.0, 5.0]).fit(df, "x", progress=seen.append)
        >>> [(p.stage, p.centroids()) for p in seen][:3]
        [('rows', None), ('seeds', [[0.0], [5.0]]), ('iteration', [[0.5], [6.0]])]

        """
        return None if self._found is None else self._found.rows()


# Whether to show progress, or a function, which may return True to stop the fit.
OnProgress = bool | Callable[[Progress], object] | None


@contextmanager
def shown(progress: OnProgress) -> Iterator[Call | None]:
    """Give the engine the function that it calls with each stage, if there is one."""
    if progress is None or progress is False:
        yield None
    elif progress is True:
        with _bar() as call:
            yield call
    elif callable(progress):
        # Only True stops the fit. Anything else, such as what a list's `append` returns, does not.
        yield lambda *stage: progress(Progress._of_call(*stage)) is True
    else:
        raise InvalidParameterError(f"progress: expected True, False, None or a function, got {progress!r}")


@contextmanager
def _bar() -> Iterator[Call]:
    """Show a bar of tqdm: the iterations so far, and how many rows changed in the last one."""
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm, or pass a function") from error
    with tqdm(desc="k-means", unit=" iterations") as bar:

        def call(*stage: object) -> bool:
            done = Progress._of_call(*stage)
            if done.stage == "iteration":
                bar.set_postfix(restart=done.restart, changed=done.changed, refresh=False)
                bar.update()
            else:
                bar.set_postfix_str(f"restart {done.restart}: {done.stage}")
            return False

        yield call
