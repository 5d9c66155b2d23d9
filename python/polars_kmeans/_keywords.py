"""Errors for unknown and missing keywords. They say what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar, cast

from polars_kmeans.errors import InvalidParameterError

# Keywords of scikit-learn, Spark and others, and what takes their place.
_HINTS = {
    "n_clusters": "use k",
    "random_state": "use seed",
    "sample_weight": "use weight for a column; beside an array, fit takes sample_weight",
    "weights": "use weight",
    "weightCol": "use weight",
    "centroids": "use init",
    "initMode": "use init",
    "initSteps": "use rounds",
    "maxIter": "use max_iter",
    "n_iter": "use max_iter",
    "distance": "use metric",
    "distanceMeasure": "use metric",
    "n_jobs": "set POLARS_MAX_THREADS before the import",
    "algorithm": "leave it out: there is one algorithm",
    "copy_x": "leave it out: no call changes the values that it is given",
    "verbose": "see model.history after the fit",
}
_Function = TypeVar("_Function", bound=Callable[..., Any])


def named(function: _Function) -> _Function:
    """Refuse keywords that a function does not have, and say what to use."""
    known = signature(function).parameters
    owner = function.__qualname__.removesuffix(".__init__")
    k_by_name = known["k"].kind is Parameter.KEYWORD_ONLY

    @wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        for name in keywords:
            if name not in known:
                hint = _HINTS.get(name)
                msg = f"{owner}: expected keywords that it has, got {name}"
                raise InvalidParameterError(msg + (f": {hint}" if hint else _similar(name, list(known))))
        if k_by_name and "k" not in keywords:
            msg = f"{owner}: expected the number of clusters as a keyword, as in k=3, got none"
            raise InvalidParameterError(msg)
        return function(*args, **keywords)

    return cast("_Function", checked)


def _similar(name: str, known: list[str]) -> str:
    # Only an error needs this module.
    from difflib import get_close_matches

    found = get_close_matches(name, known, 1)
    return f": did you mean {found[0]}?" if found else ""
