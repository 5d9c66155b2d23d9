"""The Python code of the README and of the guide runs unchanged."""

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest


@pytest.mark.parametrize(("document", "count"), [("README.md", 1), ("docs/guide.md", 9)])
def test_python_blocks_run(document: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / document).read_text(), flags=re.DOTALL)
    assert len(blocks) == count
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert names["model"].centroids.shape == (2, 5)
    if document == "docs/guide.md":
        assert names["embeddings"].centroids["e"].dtype == pl.Array(pl.Float32, 2)
