"""The rows of a fit on a Ray cluster: pieces that each worker can load again."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from polars_kmeans._frames import collected, is_foreign
from polars_kmeans.errors import InvalidParameterError


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a Parquet file (its path), or of an Arrow table (its place in a list)."""

    source: str | int
    first: int
    rows: int


@dataclass(frozen=True)
class Share:
    """The rows of a worker, in order, and the Arrow tables that they are in, as references to Ray's object store."""

    pieces: list[Piece]
    tables: list[Any]


def frame_of(pieces: list[Piece], tables: list[Any]) -> pl.LazyFrame:
    """Return the rows of a worker, in this process."""
    import ray

    frames: list[pl.LazyFrame] = []
    for piece in pieces:
        if isinstance(piece.source, str):
            frames.append(pl.scan_parquet(piece.source, glob=False).slice(piece.first, piece.rows))
        else:
            # A view of the store.
            frame = pl.from_arrow(ray.get(tables[piece.source]).slice(piece.first, piece.rows))
            assert isinstance(frame, pl.DataFrame)
            frames.append(frame.lazy())
    return pl.concat(frames)


def has_no_order(data: object) -> bool:
    """Whether data are a Ray Dataset: which rows come first is not defined."""
    return type(data).__module__.startswith("ray.data") and hasattr(data, "to_arrow_refs")


def shares(data: Any, workers: int) -> list[Share]:
    """Share rows out among workers: consecutive rows each, about the same number.

    The order is that of row groups of sorted paths, or that of frames.
    """
    pieces, tables = _pieces(data)
    if not pieces:
        raise InvalidParameterError(f"data: expected blocks of rows, got none in a {type(data).__name__}")
    total = sum(piece.rows for piece in pieces)
    # Row groups are read as a whole. They stay so, if there are enough of them.
    whole = not tables and len(pieces) >= 4 * workers
    own: list[list[Piece]] = [[] for _ in range(workers)]
    start = 0
    for piece in pieces:
        if whole:
            worker = min((2 * start + piece.rows) * workers // max(2 * total, 1), workers - 1)
            _append(own[worker], piece)
        else:
            for worker in range(workers):
                first = max(worker * total // workers, start)
                last = min((worker + 1) * total // workers, start + piece.rows)
                if first < last:
                    _append(own[worker], Piece(piece.source, piece.first + first - start, last - first))
        start += piece.rows
    # A worker without rows still has their columns.
    return [_share(some or [replace(pieces[0], rows=0)], tables) for some in own]


def _append(pieces: list[Piece], piece: Piece) -> None:
    """Append rows. Consecutive rows of a source become one piece."""
    last = pieces[-1] if pieces else None
    if last is not None and last.source == piece.source and last.first + last.rows == piece.first:
        pieces[-1] = replace(last, rows=last.rows + piece.rows)
    else:
        pieces.append(piece)


def _share(pieces: list[Piece], tables: list[Any]) -> Share:
    """Keep the tables that pieces are in."""
    used = sorted({piece.source for piece in pieces if isinstance(piece.source, int)})
    places = {place: number for number, place in enumerate(used)}
    own = [replace(piece, source=places.get(piece.source, piece.source)) for piece in pieces]  # type: ignore[arg-type]
    return Share(own, [tables[place] for place in used])


def _pieces(data: Any) -> tuple[list[Piece], list[Any]]:
    """Return the rows of files or frames in their order, and the tables that frames became."""
    if has_no_order(data):
        return _of_tables(data.to_arrow_refs())
    if isinstance(data, (str, os.PathLike)):
        return _of_files([data]), []
    if _is_frame(data) or _is_reference(data):
        return _of_tables([data])
    if isinstance(data, Sequence) and len(data) > 0:
        if all(isinstance(item, (str, os.PathLike)) for item in data):
            return _of_files(data), []
        if all(_is_frame(item) or _is_reference(item) for item in data):
            return _of_tables(data)
    msg = "data: expected paths of Parquet files, frames, references to Arrow tables, or a Ray Dataset"
    raise InvalidParameterError(f"{msg}, got {type(data).__name__}")


def _is_frame(data: object) -> bool:
    return isinstance(data, (pl.DataFrame, pl.LazyFrame)) or is_foreign(data)


def _is_reference(data: object) -> bool:
    return type(data).__name__ == "ObjectRef"


def _of_tables(data: Sequence[Any]) -> tuple[list[Piece], list[Any]]:
    """Return pieces of frames. They are put into the object store as Arrow tables: workers then have views of them."""
    import ray

    tables = [item if _is_reference(item) else ray.put(collected(item).to_arrow()) for item in data]
    count: Any = ray.remote(num_cpus=0)(lambda table: table.num_rows)
    rows = ray.get([count.remote(table) for table in tables])
    return [Piece(place, 0, number) for place, number in enumerate(rows)], tables


def place(path: Any) -> str:
    """Return a path that means the same in every process: workers have folders of their own."""
    text = str(os.fspath(path))
    return text if "://" in text else os.path.abspath(text)


def _of_files(paths: Sequence[Any]) -> list[Piece]:
    """Return the row groups of files, in the order of the sorted paths."""
    from pyarrow import parquet

    found: list[str] = []
    for path in map(place, paths):
        if os.path.isdir(path):
            inside = glob.glob(os.path.join(glob.escape(path), "**", "*.parquet"), recursive=True)
            found += filter(os.path.isfile, inside)
        elif glob.has_magic(path) and not os.path.exists(path) and "://" not in path:
            found += glob.glob(path, recursive=True)
        else:
            found.append(path)
    if not found:
        msg = f"data: expected Parquet files, got none in {[os.fspath(path) for path in paths][:5]}"
        raise InvalidParameterError(msg)
    pieces = []
    for path in sorted(found):
        metadata, first = parquet.read_metadata(path), 0
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            pieces.append(Piece(path, first, rows))
            first += rows
        if metadata.num_row_groups == 0:
            pieces.append(Piece(path, 0, 0))
    return pieces
