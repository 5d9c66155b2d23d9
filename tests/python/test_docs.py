"""The Python code of the README and of the pages of the documentation runs unchanged."""

import importlib.metadata
import importlib.util
import pkgutil
import re
import sys
import warnings
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import polars as pl
import pytest
from helpers import ROOT, code_of, printed_by, run_page

import polars_kmeans as pk

IN_A_CLONE = pytest.mark.skipif(
    not (ROOT / "CONTRIBUTING.md").exists(), reason="not a clone: other files are missing too"
)
# Pages with code, and how many blocks each has. The blocks of a page run in order.
PAGES = {
    "README.md": 3,
    "docs/choosing-k.md": 4,
    "docs/clusters.md": 7,
    "docs/coming-from.md": 3,
    "docs/exact.md": 4,
    "docs/faq.md": 2,
    "docs/guide/arrays.md": 1,
    "docs/guide/cluster-numbers.md": 2,
    "docs/guide/devices.md": 1,
    "docs/guide/directions.md": 5,
    "docs/guide/errors.md": 1,
    "docs/guide/groups.md": 1,
    "docs/guide/larger-than-memory.md": 1,
    "docs/guide/lists.md": 4,
    "docs/guide/living-models.md": 6,
    "docs/guide/many-machines.md": 1,
    "docs/guide/next-month.md": 6,
    "docs/guide/places.md": 2,
    "docs/guide/progress.md": 2,
    "docs/guide/queries.md": 5,
    "docs/guide/row-order.md": 2,
    "docs/guide/scaling.md": 1,
    "docs/guide/sizes.md": 3,
    "docs/guide/trees.md": 5,
    "docs/guide/starting-centroids.md": 3,
    "docs/guide/two-ways.md": 1,
    "docs/guide/without-python.md": 4,
    "docs/models.md": 8,
    "docs/promises.md": 1,
    "docs/scikit-learn.md": 4,
    "docs/stability.md": 2,
}
NEEDS = {
    "docs/choosing-k.md": "altair",
    "docs/clusters.md": "altair",
    "docs/coming-from.md": "sklearn",
    "docs/guide/without-python.md": "duckdb",
    "docs/scikit-learn.md": "sklearn",
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page: str) -> None:
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    assert len(code_of(ROOT / page)) == PAGES[page]
    check_results(page, run_page(ROOT / page))


def sizes(model: pk.KMeansModel) -> list[int]:
    return sorted(model.centroids["size"])


def check_results(page: str, names: dict[str, Any]) -> None:
    """Check what a page says of its results."""
    match page:
        case "docs/guide/next-month.md":
            assert names["labelled"]["segment"].to_list() == [0, 1, 1, 1, 1, 2, 2, 1, 0]
            assert names["moved"].height == 3
            assert names["then"] < names["now"]
        case "docs/guide/without-python.md":
            assert names["found"].width == 4
        case "docs/choosing-k.md":
            assert names["best"] == 5
            assert abs(names["pairs"] - names["simplified"]) < 0.2
        case "docs/clusters.md":
            assert names["profile"]["share"].sum() == pytest.approx(3)
            assert names["typical"].height == 6
            assert names["sure"].height == 600
        case "docs/guide/directions.md":
            assert names["embeddings"].centroids["e"].dtype == pl.Array(pl.Float32, 2)
        case "docs/faq.md":
            buyers, models = names["buyers"], names["models"]
            assert sizes(models["standard"]) == sizes(models["robust"]) == [1, 599]
            # With a second column of groups, one scale finds them and the other does not.
            more = buyers.with_columns(other=pl.col("age"))
            found = [sizes(pk.KMeans(2, n_init=5, scale=scale).fit(more, pl.all())) for scale in ("standard", "robust")]
            assert found == [[298, 302], [1, 599]]
            for remedy in ("clipped", "logarithms", "without them"):
                assert min(sizes(models[remedy])) > 290
            # Those of the two groups of ages, also of the row that was left out.
            groups = pl.Series([0] * 300 + [1] * 300, dtype=pl.UInt32)
            assert (names["labels"][1:] == groups[1:]).mean() > 0.99
        case "docs/guide/row-order.md":
            assert names["shops"]["euros"].to_list() == names["rounded"]["euros"].to_list() == [5.0, 11.75]
        case "docs/guide/living-models.md":
            model, nothing = names["model"], names["visits"].clear()
            assert model.updated(nothing.select(model.sums())).centroids["x"].equals(model.centroids["x"])
        case "docs/guide/devices.md":
            assert names["model"].device == "cpu"
        case "docs/guide/larger-than-memory.md":
            assert pl.read_parquet("labelled.parquet")["cluster"].n_unique() == names["model"].n_clusters == 2
        case "docs/guide/cluster-numbers.md":
            assert names["model"].centroids["price"].to_list() == pytest.approx([10, 48, 200])
            assert names["pk"].KMeans(8, too_few="fewer").fit(names["few"], "x").n_clusters == 4
        case "docs/guide/lists.md":
            low, high, alone = names["tiers"]["tier"].to_list()
            assert low[0] == low[1] != low[2] == low[3] and high[0] != high[1] == high[2] and alone == [None]
            assert names["rows"].height == 8
            assert [places[0] == places[1] != places[2] for places in names["labelled"]["place"]] == [True, True]
        case "docs/stability.md":
            assert names["found"]["kept"].min() > 0.95
        case "docs/models.md":
            assert names["tiers"].predict(pl.DataFrame({"price": [7.0, 180.0]})).to_list() == [0, 2]
            assert len(names["models"]) == 2
        case "docs/scikit-learn.md":
            assert names["search"].best_params_ == {"kmeans__n_clusters": 3}


def test_the_start_page_of_the_site_shows_what_its_code_prints() -> None:
    page = (ROOT / "docs" / "index.rst").read_text()
    block = r"^( *)\.\. code-block:: {}\n\n((?:\1   .*\n|\n)+)"
    code, shown = (
        [dedent(text).strip() + "\n" for _, text in re.findall(block.format(language), page, flags=re.MULTILINE)]
        for language in ("python", "text")
    )
    names: dict[str, Any] = {}
    assert [printed_by(text, names) for text in code] == shown
    assert len(code) == 2


def test_every_page_of_the_guide_with_code_is_run() -> None:
    pages = [page.relative_to(ROOT).as_posix() for page in (ROOT / "docs" / "guide").glob("*.md")]
    assert {page for page in pages if code_of(ROOT / page)} == {
        page for page in PAGES if page.startswith("docs/guide/")
    }


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
    public -= {"errors", "estimator", "expressions", "groups", "model", "tree", "tree_estimators"}
    assert {f"polars_kmeans.{module}" for module in public} == names_of_api_pages().keys() - {"polars_kmeans"}


def program(path: str) -> ModuleType:
    """A program of this repository that is in no package."""
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    spec.loader.exec_module(found)
    return found


def test_tables_of_figures_are_those_of_the_record() -> None:
    """If it fails, a page was edited by hand, or the record changed: `python benches/record.py pages` writes them."""
    record = program("benches/record.py")
    record.pages(check=True)
    places = [re.findall(r"<!-- record: ([a-z0-9-]+) -->", page.read_text()) for page in record.PAGES]
    assert set().union(*places) <= set(record.TABLES)
    assert all(places)


@IN_A_CLONE
def test_pictures_say_what_they_show() -> None:
    speed, readme = (ROOT / "docs" / "speed.svg").read_text(), (ROOT / "README.md").read_text()
    assert "longer is faster" in speed and "500 x 2 x 4: 500 rows, 2 features, 4 clusters" in speed
    assert "rows x features x clusters" in speed
    # The picture that lesson 11 draws, with its names.
    assert "](docs/segments.png)" in readme and (ROOT / "docs" / "segments.png").exists()


@IN_A_CLONE
def test_pages_that_compare_name_the_versions_of_the_others() -> None:
    performance, compared = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("performance", "compared"))
    for peer in ("scikit-learn", "scikit-learn-intelex", "faiss", "SuperKMeans", "flash-kmeans", "FlashLib"):
        assert re.search(rf"\b{peer} \d+\.\d+\.\d+", performance), peer
    for peer in ("scikit-learn", "cuML", "faiss", "Spark"):
        assert re.search(rf"\b{peer} \d+", compared), peer
    assert "faiss 1.16" in compared and "e-means" in compared
    # New rows of the record have the version of each peer that is a package.
    record = program("benches/record.py")
    assert record.version_of("ours") is None
    assert record.version_of("sklearn") == importlib.metadata.version("scikit-learn")


SPEED = r"\d[\d.,]* ?(?:ms|us|µs|ns|[GT]B/s|TFLOP/s)\b|\d[\d.,]* times (?:as (?:fast|long)|faster|slower)"


def test_figures_of_speed_stand_in_the_record() -> None:
    """The laboratory notebook has figures too. Others grow old where no command writes them."""
    pages = {*ROOT.glob("README.md"), *(ROOT / "docs").glob("*.*"), *(ROOT / "docs" / "guide").glob("*.md")}
    pages |= {*Path(pk.__file__).parent.glob("**/*.py"), *(ROOT / "examples").glob("*.*")}
    found = []
    for page in sorted(page for page in pages if page.suffix in (".md", ".rst", ".py", ".rs")):
        text = re.sub(r"<!-- record: .*?<!-- end of the record -->", "", page.read_text(), flags=re.DOTALL)
        found += [(page.name, figure[0]) for figure in re.finditer(SPEED, text)]
    assert found == []


def test_the_hash_of_the_record_is_that_of_this_machine() -> None:
    hashes = program("benches/hashes.py")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pk.ConvergenceWarning)
        found = hashes.hash_of(hashes.whole)
    assert set(pl.read_csv(ROOT / "benches" / "record" / "hashes.csv")["hash"]) == {found}


@IN_A_CLONE
def test_pages_have_few_words() -> None:
    program("build/words.py").main()


@IN_A_CLONE
def test_what_is_published_has_one_version() -> None:
    assert program("build/published.py").versions(ROOT) == []


@IN_A_CLONE
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
