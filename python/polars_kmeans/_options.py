"""Pass the values of options to the library. The library has the rules and the table of all options."""

from __future__ import annotations

import math
import re
import sys
from array import array
from ast import literal_eval
from collections.abc import Mapping
from itertools import chain
from typing import Any, SupportsIndex, TypeAlias

import polars as pl

from polars_kmeans import _internal, _numeric, _warned
from polars_kmeans._frames import OWN_COLUMNS, is_foreign, is_number, polars_frame, stored
from polars_kmeans.errors import InvalidColumnError, InvalidParameterError, OptionWarning

OPTIONS = {option.name: option for option in _internal.options()}
# What other libraries call the values of options, and what takes their place.
ON_A_SPHERE = "and the feature pk.sphere(lat, lon)"
_PARALLEL, _PLUS_PLUS, _COSINE = 'use "kmeans-parallel"', 'use "k-means++"', 'use "cosine"'
_VALUES = {
    "init": {
        **dict.fromkeys(("k-means||", "kmeans||", "scalable-k-means++", "scalable-kmeans++"), _PARALLEL),
        **dict.fromkeys(("kmeans++", "k-means", "plus_plus", "plusplus"), _PLUS_PLUS),
        "forgy": 'use "random"',
    },
    "metric": {
        **dict.fromkeys(("l2", "sqeuclidean"), 'use "euclidean"'),
        **dict.fromkeys(("angular", "spherical", "cos"), _COSINE),
        **dict.fromkeys(
            ("l1", "manhattan", "cityblock"), "k-means minimises squared distances, and has no other metric"
        ),
        "haversine": f'use "cosine" {ON_A_SPHERE}',
    },
    "scale": {"zscore": 'use "standard"', "standardize": 'use "standard"'},
    "device": {"gpu": 'use "cuda"'},
}
# The options that choose starting centroids.
_SEEDING = ("n_init", "oversampling", "rounds", "chain_length", "init_sample")
DEFAULTS = {name: literal_eval(option.default) for name, option in OPTIONS.items()}


def annotation(option: _internal.OptionInfo) -> str:
    """Return the type of an option. Type checkers do not take NumPy's integers for int."""
    return re.sub(r"\bint\b", "SupportsIndex", option.annotation)


def text(value: Any) -> str:
    """Return a plain string. Enum members and NumPy's strings have classes of their own, which cannot be passed on."""
    return str.__str__(value) if isinstance(value, str) else str(value)


def device_text(device: Any) -> str:
    """Return a device as the library reads it: one text also for several GPUs."""
    return ",".join(map(text, device)) if isinstance(device, (list, tuple)) else text(device)


def check_name(name: str) -> None:
    """Refuse a name that cannot be passed on."""
    if "\0" in name:
        shown = name.replace("\0", "\\0")
        raise InvalidColumnError(f'column "{shown}": expected a name without NUL characters: rename it')


def _integer(name: str, value: Any, expected: str) -> str:
    """Return the digits of an integer. It may be larger than the library's integers."""
    integer = _numeric.integer(name, value, expected, -math.inf, math.inf)
    if integer.bit_length() > 127:
        raise InvalidParameterError(f"{name}: expected {expected}, got one of {integer.bit_length()} bits")
    return str(integer)


# What the numbers by name of an option are.
_BY_NAME = {"scale": "a positive finite factor", "extents": "a finite magnitude of at least 0"}
_Passed: TypeAlias = str | float | dict[str, float] | list[float] | None


def _by_name(name: str, value: Mapping[Any, Any]) -> dict[str, float]:
    """Return numbers by name."""
    numbers = {}
    for column, number in value.items():
        if not isinstance(column, str):
            raise InvalidParameterError(f"{name}: expected names of columns, got {column!r:.80}")
        check_name(column)
        numbers[text(column)] = _numeric.number(f"{name}[{column!r}]", number, _BY_NAME[name])
    return numbers


def _passed(name: str, value: Any) -> _Passed:
    """Return a value as the library takes it: a word, the digits of an integer, or numbers. It refuses other words."""
    option = OPTIONS[name]
    if name in _BY_NAME and isinstance(value, Mapping):
        return _by_name(name, value)
    if name == "extents" and hasattr(value, "__iter__") and not isinstance(value, str):
        return [_numeric.number(f"{name}[{at}]", number, _BY_NAME[name]) for at, number in enumerate(value)]
    if name == "device":
        return device_text(value)
    if option.none and value is None:
        return None
    if name == "sort_by":
        if not isinstance(value, str):
            raise InvalidParameterError(f"{name}: expected {option.expected}, got {value!r:.80}")
        check_name(value)
    if name in ("min_size", "max_size") and isinstance(value, float) and not value.is_integer():
        # The fit says how many rows that would be.
        return value
    if not (isinstance(value, str) and value in option.words):
        if option.integers:
            return _integer(name, value, option.expected)
        if option.floats:
            return _numeric.number(name, value, option.expected)
    return text(value)


class FitOptions:
    """The options of a fit, in the form that the library's functions take. The library checks them."""

    def __init__(self, *, k: SupportsIndex, init: Any = "k-means++", **values: Any) -> None:
        self.given: dict[str, Any] = {"k": k, "init": init, **values}
        passed: dict[str, _Passed] = {"k": _integer("k", k, "an integer")}
        if isinstance(init, str):
            values["init"] = init
        else:
            if isinstance(init, Mapping) and hasattr(init, "centroids"):
                msg = f"init: expected the centroids of one fit, got a {type(init).__name__}"
                raise InvalidParameterError(f"{msg}: fit each group from its own, as in KMeans(k, init=models[key])")
            idle = [n for n in _SEEDING if n in values and _is_chosen(n, values[n]) and values[n] not in ("auto", 1)]
            if hasattr(init, "centroids") and hasattr(init, "parameters"):
                values = _continued(init, values)
        for name, value in values.items():
            # The library knows the defaults.
            if _is_chosen(name, value) and not (name == "sort_by" and hasattr(value, "_encoded")):
                passed[name] = _passed(name, value)
        like = getattr(values.get("sort_by"), "_encoded", None)
        self.keywords: dict[str, Any] = {
            "values": passed,
            "given": None,
            "given_names": None,
            "given_widths": [],
            "like": like,
        }
        try:
            _internal.check_options({**self.keywords, "weighted": False})
        except InvalidParameterError as error:
            raise InvalidParameterError(f"{error}{_hint(str(error).partition(':')[0], passed)}") from None
        if not isinstance(init, str):
            if idle:
                msg = f"{', '.join(idle)}: no effect, since init has the centroids of the only start: leave it out"
                _warned.warn(msg, OptionWarning)
            # Convert with the engine's own rounding, so that centroids have the same bits in every host program.
            with _internal.FloatEnvironment():
                self.keywords |= zip(("given", "given_names", "given_widths"), _given(init), strict=True)

    @property
    def bounds_sizes(self) -> bool:
        """Whether clusters have bounds on their sizes."""
        return not self.chosen.keys().isdisjoint(("min_size", "max_size", "balanced"))

    @property
    def chosen(self) -> dict[str, Any]:
        """The options that have another value than the default, as they were passed."""
        return {name: value for name, value in self.given.items() if _is_chosen(name, value)}


def _continued(model: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a fit that starts from a model: rows are scaled as there, unless `scale` says how."""
    metric, factors = model.parameters["metric"], model.factors
    got = values.get("metric", DEFAULTS["metric"])
    if got != metric:
        raise InvalidParameterError(f'metric: expected "{metric}", as in the model that is init, got {got!r}')
    return values if factors is None or values.get("scale") is not None else {**values, "scale": factors}


def _hint(name: str, passed: Mapping[str, Any]) -> str:
    """Return what to write instead of a word that an option does not have, as the end of an error."""
    from difflib import get_close_matches

    value = passed.get(name)
    if not isinstance(value, str) or name not in OPTIONS:
        return ""
    known = _VALUES.get(name, {}).get(value.lower())
    similar = get_close_matches(value.lower(), OPTIONS[name].words, 1)
    return f": {known}" if known else f': did you mean "{similar[0]}"?' if similar else ""


def _is_chosen(name: str, value: Any) -> bool:
    """Whether a value is not the default. `k` has none."""
    return name not in DEFAULTS or type(value) is not type(DEFAULTS[name]) or value != DEFAULTS[name]


def _given(init: Any) -> tuple[bytes, list[str] | None, list[int]]:
    """Encode starting centroids: a frame, a model, an array, or rows of numbers.

    Returns float64, row-major. Also the columns' names (None if matched by position) and widths.
    """
    if hasattr(init, "centroids"):
        init = init.centroids
    if is_foreign(init) and len(getattr(init, "shape", (0, 0))) == 2:
        init = polars_frame(init)
    if isinstance(init, pl.DataFrame):
        frame = stored(init).drop(OWN_COLUMNS, strict=False)
        if frame.is_empty():
            raise InvalidParameterError("init: expected starting centroids, got a frame without rows or columns")
        for name in frame.columns:
            check_name(name)
        # Leave out the other columns: Polars panics on NULs in the names of a struct's fields.
        numbers = pl.DataFrame([series for series in frame if is_number(series.dtype, nested=True)])
        return _internal.encode_centroids(numbers)
    expected = "init: expected a method, a frame, or k rows of numbers (one feature: k numbers)"
    if _is_masked(init):
        raise InvalidParameterError(f"{expected}, got an array with masked values")
    if hasattr(init, "__array__"):
        init = init.__array__()
        if init.ndim == 1:
            # One feature.
            init = init.reshape(-1, 1)
        if init.ndim != 2:
            raise InvalidParameterError(f"{expected}, got an array of {init.ndim} dimensions")
        if init.dtype.kind in "biuf" and init.size > 0:
            return init.astype("<f8").tobytes(), None, [1] * init.shape[1]
        init = init.tolist()
    try:
        if not any(map(_numeric.is_row, init)):
            # One feature.
            init = [[value] for value in init]
        rows = [[float("nan") if value is None else float(value) for value in row] for row in init]
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidParameterError(f"{expected}, got {init!r:.80} ({error})") from None
    widths = {len(row) for row in rows}
    if len(widths) != 1 or 0 in widths:
        raise InvalidParameterError(f"init: expected rows of one width, got {sorted(widths)}")
    values = array("d", chain.from_iterable(rows))
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes(), None, [1] * widths.pop()


def _is_masked(values: Any) -> bool:
    """Whether a NumPy array, or any array in a list, has masked values. Without this check, the mask would be lost."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    rows = values if isinstance(values, (list, tuple)) else ()
    return any(numpy.ma.is_masked(value) for value in (values, *rows))
