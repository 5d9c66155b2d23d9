"""The code of docs/sql.md runs unchanged: its statements on the engines that they are for, and its Python code."""

import re
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
from helpers import ROOT, code_of, run_page

PATH = ROOT / "docs" / "sql.md"
PAGE = PATH.read_text()


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def statements(*titles: str) -> list[str]:
    return [found for title in titles for found in re.findall(r"```sql\n(.*?)```", sections()[title], flags=re.DOTALL)]


STATEMENTS = {"connection": statements("Both engines", "DuckDB"), "context": statements("Both engines", "DataFusion")}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The names of the page, after all of its Python code has run."""
    assert len(code_of(PATH)) == 9
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        names = run_page(PATH)
    yield names
    names["connection"].close()


def test_the_page_has_these_statements() -> None:
    assert {name: len(found) for name, found in STATEMENTS.items()} == {"connection": 13, "context": 9}
    assert len(re.findall("```sql", PAGE)) == 17


@pytest.mark.parametrize(
    ("name", "statement"), [(name, statement) for name, found in STATEMENTS.items() for statement in found]
)
def test_statements_of_the_page_run(page: dict[str, Any], name: str, statement: str) -> None:
    result = page[name].sql(statement)
    rows = pl.DataFrame(result.to_arrow_table() if name == "connection" else result)
    assert not rows.is_empty()
    if rows.columns[-1] == "cluster" and "FROM points ORDER" in statement and "PARTITION" not in statement:
        assert rows["cluster"].null_count() == 1
    if statement.startswith("SELECT id, zone"):
        assert rows["zone"].equals(page["points"].select(zone=page["model"].predict())["zone"])
    if statement == "SELECT id, kmeans([x, y], 3) OVER () AS cluster FROM points ORDER BY id\n":
        assert rows.equals(page["direct"])


def test_polars_sql_of_the_page(page: dict[str, Any]) -> None:
    with pl.SQLContext(points=page["labelled"]) as context:
        found = context.execute('SELECT zone, "cluster" FROM points ORDER BY id').collect()
    assert found["zone"].equals(page["points"].select(zone=page["model"].predict())["zone"])
    assert found["cluster"].to_list()[-1] is None and found["cluster"].n_unique() == 3
