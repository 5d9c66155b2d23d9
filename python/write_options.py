"""Write the options of a fit for type checkers and into the guide, from the table in `src/base/params/table.rs`.

`make options` runs this after a change of the table. Functions that take the options need no change: they ask the
library for names, defaults and documentation when they are imported.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from polars_kmeans import _internal
from polars_kmeans._internal import OptionInfo
from polars_kmeans._options import annotation

TYPES = Path(_internal.__file__).parent / "_generated.py"
GUIDE = Path(__file__).parents[1] / "docs" / "guide" / "parameters.md"
FILES = [TYPES, GUIDE]

HEAD = '''"""The options of a fit, for editors and type checkers. `make options` writes this file."""

from __future__ import annotations

from typing import Literal, SupportsIndex, TypedDict

from polars_kmeans._typing import Device, Extents, Init, Scale, SortBy
'''
# Each class has the options of the class before, and some more. The first one has all others.
CLASSES = [
    ("TreeOptions(TypedDict", "What every fit takes, but for `too_few`: its values depend on the function.", []),
    ("Options(TreeOptions", "What every fit takes of one number of clusters.", ["min_size", "max_size", "balanced"]),
    ("ModelOptions(Options", "What a fit takes that leaves a model.", ["history", "keep_sums", "extents"]),
    ("LabelOptions(ModelOptions", "What a fit takes that leaves labels.", ["too_few", "output"]),
]


def types(options: Sequence[OptionInfo]) -> str:
    """Return the classes of options. Editors show the text below an option where it is passed."""
    special = [name for _, _, names in CLASSES for name in names]
    text = HEAD
    for head, doc, names in CLASSES:
        text += f'\n\nclass {head}, total=False):\n    """{doc}"""\n'
        for option in options:
            if option.name in names or (not names and option.name not in special):
                about = f'"""{" ".join(option.doc)} Default: `{option.default}`."""'
                lines = textwrap.wrap(
                    about, 120, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
                )
                text += "\n".join(["", f"    {option.name}: {annotation(option)}", *lines, ""])
    return text


def guide(source: str, options: Sequence[OptionInfo]) -> str:
    """Return the guide with other rows after that of `weight` in its table."""
    before, after = source.split("\n| `weight` |", 1)
    weight, rest = after.split("\n", 1)
    rows = [f"| `{option.name}` | `{option.default}` | {option.doc[0]} |" for option in options]
    return "\n".join([f"{before}\n| `weight` |{weight}", *rows, "", rest.split("\n\n", 1)[1]])


def rewritten(file: Path, source: str, options: Sequence[OptionInfo]) -> str:
    """Return a file with these options."""
    return guide(source, options) if file == GUIDE else types(options)


if __name__ == "__main__":
    for file in FILES:
        file.write_text(rewritten(file, file.read_text(), _internal.options()))
