"""The callbacks of scikit-learn 1.9 and newer. Older versions have none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

try:
    from sklearn.callback import CallbackSupportMixin
except ModuleNotFoundError:

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """An empty class, because this version has no callbacks."""


__all__ = ["CallbackSupportMixin", "fit_task"]


@contextmanager
def fit_task(estimator: Any, **arguments: Any) -> Iterator[None]:
    """Tell the callbacks of an estimator that its fit begins, and, if it succeeds, that it has ended."""
    if not hasattr(estimator, "_init_callback_context"):
        yield
        return
    context = estimator._init_callback_context()
    context.call_on_fit_task_begin(estimator=estimator, **arguments)
    yield
    # The attributes of the estimator are set, so that a callback's copy of it needs no others.
    context.call_on_fit_task_end(estimator=estimator, reconstruction_attributes={}, **arguments)
