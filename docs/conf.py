"""The documentation site: `make docs` builds it with Sphinx.

Markdown pages are written for a code host too, so they hold no directives. What only the site needs is here or in the
.rst pages: the order of the pages (`TREES`), and where a link to a file outside of this folder leads (`LINKS`).
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent / "python")]

from sphinx.application import Sphinx  # noqa: E402
from sphinx.pycode import ModuleAnalyzer  # noqa: E402

import polars_kmeans  # noqa: E402

project = "polars-kmeans"
author = "The polars-kmeans authors"
copyright = f"2026, {author}"
version = release = polars_kmeans.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
# A single backtick is code, in docstrings and in the comments of examples.
default_role = "code"

# The order of the pages. A new page in docs/ or docs/guide/ joins the guide. It needs no line here, unless it should
# stand elsewhere.
PLACED = {"index", "guide", "exact", "coming-from", "compared", "faq", "performance", "bad-input", "changelog"}
PLACED |= {"for-companies", "stable", "contributors", "contributing", "architecture", "promises"}
PLACED |= {"decisions", "security"}
GUIDE = [
    ("First steps", ["two-ways", "queries", "parameters", "columns", "errors"]),
    ("Good clusters", ["scaling", "/choosing-k", "/stability", "starting-centroids", "/clusters", "cluster-numbers"]),
    ("Keep a model", ["/models", "next-month", "living-models", "without-python", "row-order"]),
    ("Sizes, groups, vectors, places", ["sizes", "groups", "lists", "directions", "places"]),
    ("With other tools", ["arrays", "/scikit-learn", "/sql"]),
    ("Large and fast", ["larger-than-memory", "devices", "many-machines", "progress", "processes"]),
    ("Build and embed", ["building", "rust"]),
]
# Pages are in docs/guide/, or in docs/ where a slash leads.
GUIDE = [(caption, [page[1:] if page[0] == "/" else f"guide/{page}" for page in pages]) for caption, pages in GUIDE]
PLACED |= {page for _, pages in GUIDE for page in pages}
FOUND = {page.relative_to(DOCS).with_suffix("").as_posix() for page in [*DOCS.glob("*.md"), *DOCS.glob("guide/*.md")]}
NEW = sorted(FOUND - PLACED)
TREES = {
    "guide": [
        *GUIDE,
        *([("More tasks", NEW)] if NEW else []),
    ],
    "contributors": [
        ("", ["contributing", "architecture", "promises", "decisions", "lab/README", "security"]),
    ],
    "lab/README": [("", ["lab/*"])],
}
# Files outside of this folder that are pages of the site, under another name.
LINKS = {"../CONTRIBUTING.md": "contributing.md", "../SECURITY.md": "security.md"}

myst_heading_anchors = 4

autosummary_generate = True
# Two names that differ in case alone need two files, also where file names have no case.
autosummary_filename_map = {
    "polars_kmeans.kmeans": "polars_kmeans.kmeans-expression",
    "polars_kmeans.KMeans": "polars_kmeans.KMeans-estimator",
}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {name: name for name in ("Device", "Init", "IntoArray", "IntoFeatures", "Output", "Scale")}
python_maximum_signature_line_length = 88
# A reference to a public name of this package that is not there fails. Names of other packages are not looked up.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!polars_kmeans\.).*|.*\._[\w.]+")]
numpydoc_show_class_members = False

sphinx_gallery_conf = {
    "examples_dirs": str(DOCS.parent / "examples"),
    "gallery_dirs": "gallery",
    "within_subsection_order": "FileNameSortKey",
    "filename_pattern": r"/\d\d_",
    # The data of this example are optional.
    "ignore_pattern": r"$^" if find_spec("wordllama") else r"09_word_vectors\.py",
    "reset_argv": "pictures.arguments",
    "image_scrapers": ("pictures.scraper",),
    "reset_modules": (),
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 0,
    "write_computation_times": False,
}

html_theme = "pydata_sphinx_theme"
html_title = "polars-kmeans"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "logo": {"text": "polars-kmeans"},
    "navigation_with_keys": False,
    "header_links_before_dropdown": 7,
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
    "secondary_sidebar_items": ["page-toc"],
}
html_sidebars = {
    page: []
    for page in (
        *("index", "exact", "coming-from", "compared", "faq", "performance", "bad-input", "changelog", "stable"),
    )
}
html_show_sourcelink = False
html_copy_source = False


def read_source(app: Sphinx, name: str, content: list[str]) -> None:
    """Add the pages below a page, and turn links to files outside of this folder into links to their pages."""
    for link, page in LINKS.items():
        content[0] = content[0].replace(f"]({link})", f"](/{page})")
    for caption, pages in TREES.get(name, []):
        lines = [f":caption: {caption}"] if caption else []
        names = [f"/{page}" for page in pages]
        content[0] += "\n\n" + "\n".join(["```{toctree}", ":hidden:", ":glob:", *lines, "", *names, "```"]) + "\n"


def signature(
    app: Sphinx, kind: str, name: str, item: object, options: object, arguments: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Show no constructor of the classes that users do not construct, and the plain names of type aliases."""
    if name in ("polars_kmeans.KMeansModel", "polars_kmeans.KMeansModels"):
        return "", ""
    return re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", arguments or "") or None, returns


def skip_member(app: Sphinx, kind: str, name: str, *rest: object) -> bool | None:
    """Leave out what scikit-learn adds to each of its classes for metadata routing."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def setup(app: Sphinx) -> None:
    """Connect to Sphinx."""
    app.connect("source-read", read_source)
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", skip_member)
    # The overloads of the estimator are for type checkers. Readers want its signature with the defaults.
    estimator = ModuleAnalyzer.for_module("polars_kmeans.estimator")
    estimator.analyze()
    estimator.overloads.pop("KMeans.__init__", None)
    # The page of a model shows what its base classes have as its own, base classes first.
    names: list[str] = []
    for part in reversed(polars_kmeans.KMeansModel.__mro__[:-1]):
        source = ModuleAnalyzer.for_module(part.__module__)
        source.analyze()
        own = [name for name in source.tagorder if name.startswith(f"{part.__name__}.")]
        names += [name.replace(part.__name__, "KMeansModel", 1) for name in own]
        for name, overloads in list(source.overloads.items()):
            source.overloads[name.replace(part.__name__, "KMeansModel", 1)] = overloads
    source.tagorder.update({name: place for place, name in enumerate(names)})
