"""Warnings to the program that calls this package."""

from __future__ import annotations

import sys
import warnings


def warn(message: str, category: type[Warning]) -> None:
    """Warn the first caller outside this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("polars_kmeans."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
