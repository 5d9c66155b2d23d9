"""The Python code of the pages on choosing k and on clusters runs unchanged."""

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("altair")


@pytest.mark.parametrize(("page", "count"), [("choosing-k.md", 4), ("clusters.md", 6)])
def test_python_blocks_run(page: str, count: int) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == count
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    if page == "clusters.md":
        assert names["profile"]["share"].sum() == pytest.approx(3)
        assert names["typical"].height == 6
        assert names["sure"].height == 600
    else:
        assert names["best"] == 5
        assert abs(names["pairs"] - names["simplified"]) < 0.2
