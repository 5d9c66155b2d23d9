"""The keywords of the functions that fit: the options of the table, and errors that say what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, cleandoc, signature
from re import sub
from textwrap import fill
from typing import Any, TypeVar, cast

from polars_kmeans._options import DEFAULTS, ON_A_SPHERE, OPTIONS, annotation
from polars_kmeans.errors import InvalidParameterError

_TO_FIT = "pass it to KMeans(k).fit"
# Keywords of scikit-learn, Spark, R, faiss, cuML, BigQuery and others, and what takes their place.
_HINTS = {
    "n_clusters": "use k",
    "num_clusters": "use k",
    "centers": "use k, or init for starting centroids",
    "centroids": "use init",
    "initMode": "use init",
    "kmeans_init_method": "use init",
    "initSteps": "use rounds",
    "oversampling_factor": "use oversampling",
    "nstart": "use n_init",
    "nredo": "use n_init",
    "maxIter": "use max_iter",
    "iter_max": "use max_iter",
    "n_iter": "use max_iter",
    "niter": "use max_iter",
    "epsilon": "use tol",
    "tolerance": "use tol",
    "random_state": "use seed",
    "sample_weight": "use weight for a column; beside an array, fit takes weight",
    "weights": "use weight",
    "weightCol": "use weight",
    "distance": "use metric",
    "distanceMeasure": "use metric",
    "distance_type": "use metric",
    "spherical": 'use metric="cosine"',
    "haversine": f'use metric="cosine" {ON_A_SPHERE}',
    "standardize_features": 'use scale="standard"',
    "gpu": 'use device="cuda"',
    "n_jobs": "use threads",
    "algorithm": "leave it out: there is one algorithm",
    "copy_x": "leave it out: no call changes the values that it is given",
    "trace": "pass progress=True to KMeans(k).fit, or see model.history after it",
    "verbose": "pass progress=True to KMeans(k).fit, or see model.history after it",
    "output": "pass it to model.predict, or to the expression kmeans",
    "by": f"{_TO_FIT}. Expressions have .over(...)",
    **dict.fromkeys(
        ("columns", "features", "data"), 'pass frame and columns to KMeans(k).fit, as in fit(frame, "x", "y")'
    ),
    **dict.fromkeys(("memory_limit", "progress", "spill_directory"), _TO_FIT),
}
# The classes that the methods of `KMeansModel` are written in. Errors do not name them.
_PARTS_OF_A_MODEL = ("Facts", "Answers", "Summaries")
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
        k_by_name = "k" in own.parameters and own.parameters["k"].kind is Parameter.KEYWORD_ONLY

        @wraps(function)
        def checked(*args: Any, **keywords: Any) -> Any:
            _refuse_unknown(owner, keywords, known)
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


def checked(method: _Function) -> _Function:
    """Let a method refuse keywords that it does not have, with an error that says what to write instead."""
    owner, _, name = method.__qualname__.rpartition(".")
    if owner in _PARTS_OF_A_MODEL:
        method.__qualname__ = f"KMeansModel.{name}"
    known = list(signature(method).parameters)

    @wraps(method)
    def call(*args: Any, **keywords: Any) -> Any:
        if not keywords.keys() <= set(known):
            _refuse_unknown(method.__qualname__, keywords, known)
        return method(*args, **keywords)

    return cast("_Function", call)


def _refuse_unknown(owner: str, keywords: dict[str, Any], known: list[str]) -> None:
    for name in keywords:
        if name in known:
            continue
        hint = _HINTS.get(name)
        if "." in owner and name in ("k", "weight", *OPTIONS) and name != "output":
            fits = owner.startswith("KMeans.fit")
            hint = f"pass it to KMeans, as in KMeans(k, {name}=...).fit(...)" if fits else "it is an option of the fit"
        msg = f"{owner}: expected keywords that it has, got {name}"
        raise InvalidParameterError(msg + (f": {hint}" if hint else _similar(name, known)))


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
