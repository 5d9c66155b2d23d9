"""A file of the package imports its own layer and those below, never one above, and no files import each other."""

import ast
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "python" / "polars_kmeans"
# A machine with a bundle has the package installed, and no source.
PACKAGE = SOURCE if SOURCE.exists() else Path(str(find_spec("polars_kmeans").origin)).parent
# From the bottom up. A folder is one name here. Its files may import each other, without circles.
LAYERS = [
    ["errors", "_typing"],
    ["_internal"],
    [
        "_devices",
        "_files",
        "_frames",
        "_generated",
        "_names",
        "_numeric",
        "_progress",
        "_spill",
        "_versions",
        "_warned",
    ],
    ["_options", "_keywords"],
    ["_plugin", "_arrays", "_rows"],
    ["_centroids", "_export", "_html", "_living", "_nearest", "_plan", "_profile", "_sphere"],
    ["_facts", "_answers", "_summaries", "model"],
    ["_moved", "expressions", "estimator", "groups", "tree", "tree_estimators"],
    ["_measures", "_pictured", "_choose_k", "_stability", "parts"],
    ["plot", "ray", "sklearn", "sql"],
    ["__init__"],
]
PLACES = {name: place for place, layer in enumerate(LAYERS) for name in layer}
# The compiled library is a stub here.
FILES = {
    ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): file
    for file in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]
}


def imports(file: Path) -> set[str]:
    """Return the files of the package that a file imports, also inside functions and for type checkers only."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: expected the full name of a module, got a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            inside = name.removeprefix("polars_kmeans.")
            if name.startswith("polars_kmeans."):
                found.add(inside if inside in FILES else inside.rpartition(".")[0] or "__init__")
    return found


GRAPH = {name: imports(file) for name, file in FILES.items()}


def test_every_file_has_a_layer() -> None:
    assert {name.partition(".")[0] for name in FILES} == set(PLACES)


@pytest.mark.parametrize("name", FILES)
def test_no_file_imports_a_layer_above(name: str) -> None:
    own = PLACES[name.partition(".")[0]]
    above = [other for other in GRAPH[name] if PLACES[other.partition(".")[0]] > own]
    assert not above, f"{name} (layer {own}) imports {', '.join(above)}, which is above it in LAYERS"


def test_no_files_import_each_other() -> None:
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        pytest.fail(f"files import each other in a circle: {', which imports '.join(reversed(error.args[1]))}")
