"""Fits of rows that several processes or machines hold, with the bits of a fit in one process.

A :class:`Part` holds some of the rows and answers requests, which are bytes. :func:`fit` is the driver: it runs the
fit, and a function of yours carries its requests to the parts. :mod:`polars_kmeans.ray` does so with Ray.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from polars_kmeans import _frames, _internal, _numeric, _plugin
from polars_kmeans._progress import OnProgress, shown
from polars_kmeans._typing import Ask, IntoFeatures, IntoFrame
from polars_kmeans.errors import InvalidParameterError, typed_errors
from polars_kmeans.estimator import KMeans
from polars_kmeans.model import KMeansModel

__all__ = ["Part", "fit"]


class Part:
    """Some of the rows of a fit, and the answers to what a driver asks of them.

    Parameters
    ----------
    data
        The rows: a frame of Polars, or of any library with `__arrow_c_stream__`. The query of a LazyFrame runs once.
        There may be no rows, as long as there are the columns.
    *columns
        The features, as in :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`. All parts of a fit have the same features, of
        the same types.
    weight
        Non-negative row weights: a column or an expression. All parts have weights, or none has.

    Notes
    -----
    Expressions must give each row a value that does not depend on other rows. `pl.col("x") / pl.col("x").max()` would
    divide by the largest value of the part.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"x": [0.0, 0.1, 5.0, 5.1]})
    >>> parts = [pk.parts.Part(df[:1], "x"), pk.parts.Part(df[1:], "x")]
    >>> def ask(requests):  # here the parts are in this process
    ...     return [parts[part].answer(request) for part, request in requests]
    >>> pk.parts.fit(pk.KMeans(2), ask, len(parts)) == pk.KMeans(2).fit(df, "x")
    True

    """

    def __init__(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame,
        *columns: IntoFeatures,
        weight: str | pl.Expr | None = None,
        _instructions: str | None = None,
    ) -> None:
        features = _plugin.features(columns)
        _plugin.check_row_by_row([*features.exprs, weight])
        frame = _frames.polars_frame(data, *columns, weight)
        rows = _plugin.collect(frame.lazy().select(*features.exprs, *_plugin.weights(weight)))
        self._part = _internal.Part(rows, weight is not None, features.computed, _instructions)

    def answer(self, request: bytes) -> bytes:
        """Answer a request of :func:`fit`. What is wrong is an answer too. Several threads may call this.

        A part keeps its state from request to request. A part that was made again from the same rows answers that it
        has lost its state, and the driver repeats what it needs. So it does no harm to send a request again, to the
        same part or to a new one.
        """
        return self._part.answer(request)


def fit(estimator: KMeans[Any], ask: Ask, parts: int, *, progress: OnProgress = None) -> KMeansModel | None:
    """Fit the rows of parts, in the order of the parts. The result has the bits of a fit of all rows in one process.

    Parameters
    ----------
    estimator
        The parameters. Its `device` is that of each part. Weights belong to the parts.
    ask
        A function that takes a list of parts (their numbers, from 0) and requests, brings each request to
        :meth:`Part.answer` of its part, all at the same time, and returns the answers in the order of the list. An
        iteration of a fit is one call, a step of k-means++ is two. Exceptions end the fit.
    parts
        The number of parts.
    progress
        As in :meth:`KMeans.fit <polars_kmeans.KMeans.fit>`.

    Returns
    -------
    KMeansModel
        The fitted model. With `too_few="null"`, None if there are fewer distinct rows than clusters.

    Raises
    ------
    InvalidParameterError
        For parameters outside their domain. With `row_order="values"`, where all rows would have to be sorted.
    KMeansError
        For values or columns that cannot be clustered, and if parts do not fit together: see
        :mod:`polars_kmeans.errors`.

    """
    if estimator._weight is not None:
        msg = "weight: expected the weights of the rows in each part, got them in the estimator: Part(..., weight=...)"
        raise InvalidParameterError(msg)
    with shown(progress) as call, typed_errors():
        fitted = _internal.fit_parts(
            ask,
            _numeric.integer("parts", parts, "a number of parts", 0),
            {**estimator._options.keywords, "weighted": False},
            call,
        )
    if fitted is None:
        return None
    model = KMeansModel._of_fit(*fitted)
    estimator._warn([model])
    return model
