"""The names of a model's clusters. They are one text in its metadata, so files keep their format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import polars as pl

from polars_kmeans.errors import InvalidModelError, InvalidParameterError

# The metadata have the names under this key. Users see it nowhere.
KEY = "polars_kmeans.cluster_names"
_Labels = TypeVar("_Labels", pl.Expr, pl.Series)


def encoded(names: Sequence[str] | pl.Series | None, k: int) -> dict[str, str]:
    """Return the metadata of names: one text for each cluster. None without names."""
    several = isinstance(names, (Sequence, pl.Series)) or hasattr(names, "__array__")
    given: Any = list(cast("Any", names)) if several and not isinstance(names, str) else names
    if given is None or given == []:
        return {}
    if not _are_names(given, k):
        got = f"{len(given)}: {given!r:.80}" if isinstance(given, list) else f"{given!r:.80}"
        raise InvalidParameterError(
            f"names: expected a list of {k} different texts, in the order of clusters, got {got}"
        )
    return {KEY: json.dumps(given)}


def decoded(metadata: dict[str, str], k: int) -> list[str] | None:
    """Return the names that metadata hold, which may come from anyone."""
    if KEY not in metadata:
        return None
    try:
        names = json.loads(metadata[KEY])
    except (ValueError, RecursionError):
        names = None
    if not _are_names(names, k):
        msg = f"model: expected names of its clusters, {k} different texts, got {metadata[KEY]!r:.80}"
        raise InvalidModelError(f"{msg}: model.with_names(None) takes them away")
    return list(names)


def of(labels: _Labels, names: list[str]) -> _Labels:
    """Return the names of labels, as an Enum."""
    return labels.replace_strict(list(range(len(names))), names, return_dtype=pl.Enum(names))


def _are_names(names: object, k: int) -> bool:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return False
    # Half of a surrogate pair is no text: no column can hold it.
    return len(names) == len(set(names)) == k and not any("\ud800" <= sign <= "\udfff" for sign in "".join(names))
