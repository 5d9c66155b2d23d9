"""The README's Python runs as it stands."""

import re
from pathlib import Path

import polars as pl
import pytest


def test_readme_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    assert len(blocks) == 4
    names = {"df": pl.DataFrame({"x": [float(i % 13) for i in range(50)], "y": [float(i % 7) for i in range(50)]})}
    for block in blocks:
        exec(block, names)
    assert names["model"].centroids.shape == (2, 5)
    assert names["embeddings"].centroids["e"].dtype == pl.Array(pl.Float32, 2)
