"""How notebooks show a model."""

from __future__ import annotations

import html
from collections.abc import Mapping

import polars as pl

from polars_kmeans._frames import OWN_COLUMNS

_ROWS = 20
_FEATURES = 12


def model(facts: Mapping[str, object], centroids: pl.DataFrame) -> str:
    """Return the facts of a fit and its centroids as HTML. If there are many centroids, only the first are shown."""
    shown = centroids.head(_ROWS)[:, : len(OWN_COLUMNS) + _FEATURES]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in shown.columns)
    rows = ("".join(f"<td>{html.escape(_value(value))}</td>" for value in row) for row in shown.iter_rows())
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    left_out = [
        f"{count} more {what}"
        for count, what in (
            (centroids.height - shown.height, "clusters"),
            (centroids.width - shown.width, "features"),
        )
        if count > 0
    ]
    return (
        "<div><b>KMeansModel</b><br>"
        + " · ".join(f"{name}: {html.escape(str(value))}" for name, value in facts.items())
        + '<table border="1" class="dataframe" style="text-align: right">'
        + f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        + (f"<small>and {' and '.join(left_out)}</small>" if left_out else "")
        + "</div>"
    )


def _value(value: object) -> str:
    """Return a number as text, or the first numbers of a list."""
    if isinstance(value, (list, tuple)):
        return ", ".join(_value(number) for number in value[:6]) + (", …" if len(value) > 6 else "")
    return f"{value:.6g}" if isinstance(value, float) else str(value)
