"""Write the options of a fit into the Python package and the guide, from the table in `src/params/table.rs`.

`make options` runs this after a change of the table. It writes keywords, their documentation and where they are passed
on. The rest of these files is written by hand: `k`, `weight`, and the functions around them.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from polars_kmeans import _internal
from polars_kmeans._internal import OptionInfo

PACKAGE = Path(_internal.__file__).parent
GUIDE = Path(__file__).parents[1] / "docs" / "guide" / "parameters.md"
FILES = [PACKAGE / "expressions.py", PACKAGE / "estimator.py", GUIDE]
# What a function has no use for: `centroids` returns no history, and a model has no output.
WITHOUT = {"centroids": {"history", "output"}, "__init__": {"output"}}

# First line, last line (from 1, both included), and what takes their place.
Edit = tuple[int, int, list[str]]


def keywords(function: ast.FunctionDef, options: Sequence[OptionInfo], source: str) -> Edit:
    """Write the keywords after `weight`. An overload has no defaults, and keeps its own type of `too_few`."""
    overload = any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in function.decorator_list)
    arguments = function.args.kwonlyargs
    first = [argument.arg for argument in arguments].index("weight") + 1
    own = {
        argument.arg: (argument, default)
        for argument, default in zip(arguments, function.args.kw_defaults, strict=True)
    }
    lines = []
    for option in options:
        # Type checkers do not take NumPy's integers for int.
        annotation, default = re.sub(r"\bint\b", "SupportsIndex", option.annotation), f" = {option.default}"
        if overload:
            default = " = ..."
            if option.name == "too_few":
                argument, value = own["too_few"]
                annotation = ast.get_source_segment(source, argument.annotation) or ""
                default = " = ..." if value else ""
        lines.append(f"{' ' * arguments[first].col_offset}{option.name}: {annotation}{default},")
    return arguments[first].lineno, arguments[-1].lineno, lines


def passed_on(call: ast.Call, options: Sequence[OptionInfo]) -> Edit:
    """Write the keywords after `k` of the call that takes the options."""
    second = call.keywords[1]
    lines = [f"{' ' * second.col_offset}{option.name}={option.name}," for option in options]
    return second.lineno, call.keywords[-1].lineno, lines


def documentation(function: ast.FunctionDef, options: Sequence[OptionInfo], lines: list[str]) -> Edit:
    """Write the entries between that of `weight` and the section `Returns`."""
    first = lines.index("    weight", function.lineno) + 2
    last = lines.index("    Returns", first) - 1
    entries = []
    for option in options:
        entries += [f"    {option.name}"]
        entries += textwrap.wrap(
            " ".join(option.doc), 120, initial_indent=" " * 8, subsequent_indent=" " * 8, break_on_hyphens=False
        )
    return first + 1, last, entries


def python_edits(source: str, options: Sequence[OptionInfo]) -> Iterator[Edit]:
    """Find the places of options in a module."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        if "weight" not in [argument.arg for argument in function.args.kwonlyargs]:
            continue
        mine = [option for option in options if option.name not in WITHOUT.get(function.name, set())]
        yield keywords(function, mine, source)
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "FitOptions":
                yield passed_on(node, mine)
        if "\n    weight\n" in (ast.get_docstring(function, clean=False) or ""):
            yield documentation(function, mine, source.splitlines())


def guide_edits(source: str, options: Sequence[OptionInfo]) -> Iterator[Edit]:
    """Find the rows of the guide's table after that of `weight`."""
    lines = source.splitlines()
    first = next(number for number, line in enumerate(lines, 1) if line.startswith("| `weight` |")) + 1
    rows = [f"| `{option.name}` | `{option.default}` | {option.doc[0]} |" for option in options]
    yield first, lines.index("", first - 1), rows


def rewritten(file: Path, source: str, options: Sequence[OptionInfo]) -> str:
    """Return a file with these options."""
    lines = source.splitlines()
    edits = (guide_edits if file == GUIDE else python_edits)(source, options)
    for first, last, new in sorted(edits, key=lambda edit: edit[0], reverse=True):
        lines[first - 1 : last] = new
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for file in FILES:
        file.write_text(rewritten(file, file.read_text(), _internal.options()))
