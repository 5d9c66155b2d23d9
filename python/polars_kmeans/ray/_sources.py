"""The rows of a fit on a Ray cluster: pieces that each worker can load again."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from polars_kmeans._frames import is_foreign, polars_frame
from polars_kmeans.errors import InvalidParameterError


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a Parquet file, or of an Arrow table in Ray's object store."""

    source: Any
    first: int
    rows: int
    # Where pieces of this source are best cut: a row group is read as a whole.
    whole: bool

    def frame(self) -> pl.LazyFrame:
        """Return the rows, wherever this process is."""
        if isinstance(self.source, str):
            return pl.scan_parquet(self.source).slice(self.first, self.rows)
        import ray

        table = ray.get(self.source)
        frame = pl.from_arrow(table.slice(self.first, self.rows))
        assert isinstance(frame, pl.DataFrame)
        return frame.lazy()


def has_no_order(data: object) -> bool:
    """Whether data are a Ray Dataset: which rows come first is not defined."""
    return type(data).__module__.startswith("ray.data") and hasattr(data, "to_arrow_refs")


def pieces(data: Any) -> list[Piece]:
    """Return the rows of files or frames in their order: row groups of sorted paths, or whole frames."""
    if has_no_order(data):
        return _of_tables(data.to_arrow_refs())
    if isinstance(data, (str, os.PathLike)):
        return _of_files([data])
    if _is_frame(data):
        return _of_tables([_put(data)])
    if isinstance(data, Sequence) and len(data) > 0:
        if all(isinstance(item, (str, os.PathLike)) for item in data):
            return _of_files(data)
        if all(_is_frame(item) or _is_reference(item) for item in data):
            return _of_tables([item if _is_reference(item) else _put(item) for item in data])
    msg = "data: expected paths of Parquet files, frames, references to Arrow tables, or a Ray Dataset"
    raise InvalidParameterError(f"{msg}, got {type(data).__name__}")


def shared_out(all_pieces: list[Piece], workers: int) -> list[list[Piece]]:
    """Share pieces out among workers: consecutive rows each, about the same number."""
    total = sum(piece.rows for piece in all_pieces)
    # Row groups stay whole if there are enough of them.
    whole = sum(piece.whole for piece in all_pieces) >= 4 * workers
    shares: list[list[Piece]] = [[] for _ in range(workers)]
    start = 0
    for piece in all_pieces:
        if piece.whole and whole:
            shares[min((2 * start + piece.rows) * workers // max(2 * total, 1), workers - 1)].append(piece)
        else:
            for worker in range(workers):
                first = max(worker * total // workers, start)
                last = min((worker + 1) * total // workers, start + piece.rows)
                if first < last:
                    cut = replace(piece, first=piece.first + first - start, rows=last - first)
                    shares[worker].append(cut)
        start += piece.rows
    # A worker without rows still has their columns.
    empty = replace(all_pieces[0], rows=0)
    return [share or [empty] for share in shares]


def frame_of(share: list[Piece]) -> pl.LazyFrame:
    """Return the rows of a worker, in order."""
    return pl.concat([piece.frame() for piece in share])


def _is_frame(data: object) -> bool:
    return isinstance(data, (pl.DataFrame, pl.LazyFrame)) or is_foreign(data)


def _is_reference(data: object) -> bool:
    return type(data).__name__ == "ObjectRef"


def _put(data: Any) -> Any:
    """Put a frame into the object store, as an Arrow table: workers then have views of it."""
    import ray

    frame = polars_frame(data)
    return ray.put((frame.collect() if isinstance(frame, pl.LazyFrame) else frame).to_arrow())


def _of_tables(references: Sequence[Any]) -> list[Piece]:
    import ray

    count = ray.remote(num_cpus=0)(lambda table: table.num_rows)
    rows = ray.get([count.remote(reference) for reference in references])
    return [Piece(reference, 0, number, False) for reference, number in zip(references, rows, strict=True)]


def _of_files(paths: Sequence[Any]) -> list[Piece]:
    """Return the row groups of files, in the order of the sorted paths."""
    from pyarrow import parquet

    found: list[str] = []
    for path in map(os.fspath, paths):
        if os.path.isdir(path):
            found += glob.glob(os.path.join(glob.escape(path), "**", "*.parquet"), recursive=True)
        elif glob.has_magic(path) and "://" not in path:
            found += glob.glob(path, recursive=True)
        else:
            found.append(path)
    if not found:
        msg = f"data: expected Parquet files, got none in {[os.fspath(path) for path in paths][:5]}"
        raise InvalidParameterError(msg)
    all_pieces = []
    for path in sorted(set(found)):
        metadata, first = parquet.read_metadata(path), 0
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            all_pieces.append(Piece(path, first, rows, True))
            first += rows
        if metadata.num_row_groups == 0:
            all_pieces.append(Piece(path, 0, 0, True))
    return all_pieces
