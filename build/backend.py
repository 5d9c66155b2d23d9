"""What pip calls to build a wheel: maturin, once the files are written that the wheel brings of the packages it links.

These are `LICENSE-THIRD-PARTY` and the bill of materials. A source package has both already.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import maturin
from maturin import get_requires_for_build_editable, get_requires_for_build_sdist, get_requires_for_build_wheel

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]
ROOT = Path(__file__).parents[1]
FILES = {"notices.py": "LICENSE-THIRD-PARTY", "sbom.py": "polars-kmeans.cdx.json"}
# maturin warns about a backend of another name, which calls it all the same.
os.environ.setdefault("MATURIN_NO_MISSING_BUILD_BACKEND_WARNING", "1")


def _write() -> None:
    if (ROOT / "PKG-INFO").exists() and all((ROOT / file).exists() for file in FILES.values()):
        return
    for program, file in FILES.items():
        subprocess.run([sys.executable, str(ROOT / "build" / program), str(ROOT / file)], check=True, stdout=sys.stderr)


def build_wheel(*args: Any, **keywords: Any) -> str:
    """Build a wheel."""
    _write()
    return maturin.build_wheel(*args, **keywords)


def build_editable(*args: Any, **keywords: Any) -> str:
    """Build a wheel that refers to this folder."""
    _write()
    return maturin.build_editable(*args, **keywords)


def build_sdist(*args: Any, **keywords: Any) -> str:
    """Build a source package."""
    _write()
    return maturin.build_sdist(*args, **keywords)


def prepare_metadata_for_build_wheel(*args: Any, **keywords: Any) -> str:
    """Write the metadata of a wheel, which name the files of licences."""
    _write()
    return maturin.prepare_metadata_for_build_wheel(*args, **keywords)


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel
