"""Pictures of the gallery: each example gets a path on its command line, and may write a PNG there."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from sphinx_gallery.scrapers import figure_rst

FOLDER = Path(tempfile.mkdtemp(prefix="pictures-"))


def path_of(source: str) -> Path:
    """Return where an example writes its picture."""
    return FOLDER / f"{Path(source).stem}.png"


def arguments(gallery_conf: dict[str, Any], script_vars: dict[str, Any]) -> list[str]:
    """Return the command line of an example."""
    return [str(path_of(script_vars["src_file"]))]


def scraper(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Show the picture below the block that wrote it."""
    picture = path_of(block_vars["src_file"])
    if not picture.exists():
        return ""
    image = next(block_vars["image_path_iterator"])
    shutil.move(picture, image)
    return str(figure_rst([image], gallery_conf["src_dir"]))
