"""The Python code of the README and of the pages of the documentation runs unchanged."""

import pkgutil
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import polars_kmeans as pk

ROOT = Path(__file__).parents[2]
# Pages with code, and how many blocks each has. The blocks of a page run in order.
PAGES = {
    "README.md": 1,
    "docs/coming-from.md": 3,
    "docs/exact.md": 2,
    "docs/guide/arrays.md": 1,
    "docs/guide/cluster-numbers.md": 2,
    "docs/guide/devices.md": 1,
    "docs/guide/directions.md": 1,
    "docs/guide/embeddings-and-files.md": 1,
    "docs/guide/errors.md": 1,
    "docs/guide/groups.md": 1,
    "docs/guide/larger-than-memory.md": 1,
    "docs/guide/many-machines.md": 1,
    "docs/guide/progress.md": 1,
    "docs/guide/row-order.md": 1,
    "docs/guide/scaling.md": 1,
    "docs/guide/starting-centroids.md": 1,
    "docs/guide/two-ways.md": 1,
}


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def run(page: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in blocks(page):
        exec(block, names)
    return names


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page: str) -> None:
    if page == "docs/coming-from.md":
        pytest.importorskip("sklearn")
    assert len(blocks(page)) == PAGES[page]
    run(page)


def test_every_page_of_the_guide_with_code_is_run() -> None:
    pages = [page.relative_to(ROOT).as_posix() for page in (ROOT / "docs" / "guide").glob("*.md")]
    assert {page for page in pages if blocks(page)} == {page for page in PAGES if page.startswith("docs/guide/")}


def test_what_the_pages_say_of_their_results() -> None:
    assert run("README.md")["model"].centroids.shape == (2, 5)
    assert run("docs/guide/embeddings-and-files.md")["embeddings"].centroids["e"].dtype == pl.Array(pl.Float32, 2)
    assert run("docs/guide/devices.md")["model"].device == "cpu"
    larger = run("docs/guide/larger-than-memory.md")
    assert pl.read_parquet("labelled.parquet")["kmeans"].n_unique() == larger["model"].n_clusters == 2
    numbered = run("docs/guide/cluster-numbers.md")
    assert numbered["model"].centroids["price"].to_list() == pytest.approx([10, 48, 200])
    assert numbered["pk"].KMeans(8, too_few="fewer").fit(numbered["few"], "x").n_clusters == 4


def names_of_api_pages() -> dict[str, set[str]]:
    """The names that each module has on the API pages."""
    listed: dict[str, set[str]] = {}
    for line in (ROOT / "docs" / "api" / "index.rst").read_text().splitlines():
        if found := re.fullmatch(r"\.\. currentmodule:: (.+)", line):
            module = found[1]
        elif found := re.fullmatch(r"   (\w+)", line):
            listed.setdefault(module, set()).add(found[1])
    return listed


def test_the_api_pages_list_every_public_name() -> None:
    listed = names_of_api_pages()
    assert listed.pop("polars_kmeans") == (set(pk.__all__) | set(pk.errors.__all__)) - {"__version__"}
    for name, names in listed.items():
        assert names == set(pytest.importorskip(name).__all__)


def test_the_api_pages_list_every_public_module() -> None:
    public = {module.name for module in pkgutil.iter_modules(pk.__path__) if not module.name.startswith("_")}
    # The names of these are those of the package.
    public -= {"errors", "estimator", "expressions", "groups", "model"}
    assert {f"polars_kmeans.{module}" for module in public} == names_of_api_pages().keys() - {"polars_kmeans"}


@pytest.mark.skipif(not (ROOT / "CONTRIBUTING.md").exists(), reason="not a clone: other files are missing too")
def test_relative_links_lead_to_files() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")]
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if "://" not in link
    ]
    assert len(links) > 60
    assert [(page, link) for page, link in links if not (page.parent / link).exists()] == []
