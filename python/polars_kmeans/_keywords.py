"""The keywords of the functions that fit: the options of the table, and errors that say what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, cleandoc, signature
from re import sub
from textwrap import fill
from typing import Any, TypeVar, cast

from polars_kmeans._options import DEFAULTS, OPTIONS, annotation
from polars_kmeans.errors import InvalidParameterError

# Keywords of scikit-learn, Spark and others, and what takes their place.
_HINTS = {
    "n_clusters": "use k",
    "random_state": "use seed",
    "sample_weight": "use weight for a column; beside an array, fit takes weight",
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


def takes(options: Any) -> Callable[[_Function], _Function]:
    """Let a function take the options that a `TypedDict` names, as `**options`. It gets the defaults of all others.

    Its signature and its documentation show each option. Keywords that it does not have are refused.
    """

    def decorated(function: _Function) -> _Function:
        defaults = {name: default for name, default in DEFAULTS.items() if name in options.__optional_keys__}
        own = signature(function)
        parameters = [known for known in own.parameters.values() if known.kind is not Parameter.VAR_KEYWORD]
        parameters += [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation(OPTIONS[name]))
            for name, default in defaults.items()
        ]
        # The options come last, in the order of the table.
        places = {name: place for place, name in enumerate(OPTIONS)}
        parameters.sort(key=lambda parameter: places.get(parameter.name, -1))
        known = [parameter.name for parameter in parameters if parameter.kind is not Parameter.VAR_POSITIONAL]
        owner = function.__qualname__.removesuffix(".__init__")
        k_by_name = own.parameters["k"].kind is Parameter.KEYWORD_ONLY

        @wraps(function)
        def checked(*args: Any, **keywords: Any) -> Any:
            for name in keywords:
                if name not in known:
                    hint = _HINTS.get(name)
                    msg = f"{owner}: expected keywords that it has, got {name}"
                    raise InvalidParameterError(msg + (f": {hint}" if hint else _similar(name, known)))
            if k_by_name and "k" not in keywords:
                msg = f"{owner}: expected the number of clusters as a keyword, as in k=3, got none"
                raise InvalidParameterError(msg)
            return function(*args, **{**defaults, **keywords})

        checked.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        types = {parameter.name: parameter.annotation for parameter in parameters if parameter.name != "self"}
        checked.__annotations__ = {**types, "return": own.return_annotation}
        if function.__doc__:
            entries = "".join(map(_entry, defaults))
            checked.__doc__ = sub(r"(?m)^\*\*options\n( .*\n)+", lambda _: entries, cleandoc(function.__doc__))
        return cast("_Function", checked)

    return decorated


def _entry(name: str) -> str:
    """Return the documentation of an option, as an entry of a docstring."""
    text = fill(
        " ".join(OPTIONS[name].doc), 116, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )
    return f"{name}\n{text}\n"


def _similar(name: str, known: list[str]) -> str:
    # Only an error needs this module.
    from difflib import get_close_matches

    found = get_close_matches(name, known, 1)
    return f": did you mean {found[0]}?" if found else ""
