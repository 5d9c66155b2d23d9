"""Paths, and files that are open."""

from __future__ import annotations

from os import PathLike, path
from typing import Any

from polars_kmeans.errors import InvalidParameterError, ModelFileError


def expanded(where: str | PathLike[str]) -> str | PathLike[str]:
    """Return a path with `~` replaced by the home folder."""
    return path.expanduser(where)


def file_error(where: object, error: OSError) -> ModelFileError:
    """Return an error that names the path and the system's reason."""
    reason = "no such file or folder" if isinstance(error, FileNotFoundError) else error.strerror
    return ModelFileError(f'file "{where}": {reason}')


def write(file: Any, content: bytes) -> None:
    """Write bytes to an open file."""
    if not hasattr(file, "write"):
        msg = f"path: expected a path or a file that is open for writing, got {type(file).__name__}"
        raise InvalidParameterError(msg)
    if hasattr(file, "encoding"):
        raise InvalidParameterError('path: expected a file of bytes, got one of text: open it with mode "wb"')
    file.write(content)


def read(file: Any, owner: str = "KMeansModel") -> bytes:
    """Read the bytes of an open file."""
    if not hasattr(file, "read"):
        msg = f"path: expected a path or a file that is open for reading, got {type(file).__name__}"
        if isinstance(file, (bytes, bytearray, memoryview)):
            msg += f": {owner}.from_bytes takes bytes"
        raise InvalidParameterError(msg)
    if hasattr(file, "encoding"):
        raise InvalidParameterError('path: expected a file of bytes, got one of text: open it with mode "rb"')
    return bytes(file.read())
