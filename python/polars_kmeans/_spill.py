"""The rows of a query that memory may not hold: taken batch by batch, and put into a file once they are too many."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import polars as pl

from polars_kmeans import _internal, _numeric
from polars_kmeans.errors import InvalidParameterError, typed_errors


@dataclass(frozen=True)
class Spill:
    """How much memory the columns of a query may take, and the folder of the file for larger ones."""

    memory_limit: int | None = None
    directory: str | None = None

    @classmethod
    def checked(cls, memory_limit: Any, directory: Any) -> Spill:
        """Refuse values that are not a number of bytes and a folder."""
        if memory_limit is not None:
            expected = "a number of bytes, from 0 to 2^64 - 1"
            memory_limit = _numeric.integer("memory_limit", memory_limit, expected, 0, 2**64 - 1)
        if directory is not None:
            try:
                directory = os.fsdecode(directory)
            except TypeError:
                msg = f"spill_directory: expected the path of a folder, got {directory!r:.80}"
                raise InvalidParameterError(msg) from None
        return cls(memory_limit, directory)

    @property
    def given(self) -> list[str]:
        """The names of the arguments that were passed."""
        values = {"memory_limit": self.memory_limit, "spill_directory": self.directory}
        return [name for name, value in values.items() if value is not None]

    def refuse(self, where: str) -> None:
        """Refuse arguments that have no meaning here."""
        for name in self.given:
            raise InvalidParameterError(f"{name}: expected none {where}, whose rows are in memory")


def gather(query: pl.LazyFrame, columns: _internal.Columns, spill: Spill, *, weighted: bool) -> None:
    """Run a query of features and, last, weights, and hold its columns for a fit."""
    gathered = _internal.Gathered(weighted, spill.memory_limit, spill.directory)
    try:
        with typed_errors():
            gathered.push(query.collect_schema().to_frame())
            for batch in query.collect_batches(maintain_order=True, lazy=True):
                gathered.push(batch)
        gathered.hold(columns)
    finally:
        gathered.close()
