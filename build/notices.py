"""Writes the licences of the Rust packages that a wheel links, for `LICENSE-THIRD-PARTY` in the wheel.

    python build/notices.py FILE

It needs cargo and no other program, and no network where the packages were fetched before. It fails if a package has
a licence that `deny.toml` does not allow.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# What the wheel is built with: `[tool.maturin]` in pyproject.toml.
FEATURES = ["--no-default-features", "--features", "python,cuda"]
TEXTS = re.compile(r"(?i)(licen[cs]e|copying|copyright|notice|unlicense)[^/]*")


def linked() -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, list[str]]]:
    """Return our own package, the packages that any platform's wheel links, and which of them each depends on.

    Build scripts, macros and tests are not linked.
    """
    command = ["cargo", "metadata", "--format-version", "1", "--locked", *FEATURES]
    found = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    root = found["resolve"]["root"]
    needed: dict[str, list[str]] = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        needed[name] = [
            dependency["pkg"]
            for dependency in nodes[name]["deps"]
            if any(kind["kind"] is None for kind in dependency["dep_kinds"])
            and not any("proc-macro" in target["kind"] for target in packages[dependency["pkg"]]["targets"])
        ]
        waiting += needed[name]
    others = (packages[name] for name in needed if name != root)
    return packages[root], sorted(others, key=lambda package: (package["name"], package["version"])), needed


def allowed(expression: str, licences: set[str]) -> bool:
    """Whether a choice of licences that an expression such as `MIT OR (Zlib AND ISC)` offers is among these."""
    words = re.findall(r"\(|\)|[^\s()/]+(?: WITH \S+)?|/", expression)
    python = " ".join(
        {"AND": "and", "OR": "or", "/": "or", "(": "(", ")": ")"}.get(word, str(word in licences)) for word in words
    )
    return bool(eval(python))  # of the words above alone


def main() -> None:
    """Write the file."""
    file = Path(sys.argv[1])
    licences = set(re.findall(r'^  "(.+)",$', (ROOT / "deny.toml").read_text(), flags=re.MULTILINE))
    _, packages, _ = linked()
    # Most packages have the same texts: each is written once, below the packages that have it.
    texts: dict[str, tuple[str, list[str]]] = {}
    bare, refused = [], []
    for package in packages:
        name = f"{package['name']} {package['version']}"
        expression = package["license"] or ""
        if not allowed(expression or "none", licences):
            refused.append(f"{name} ({expression or 'no licence named'})")
        folder = Path(package["manifest_path"]).parent
        found = sorted(path for path in folder.iterdir() if path.is_file() and TEXTS.fullmatch(path.name))
        for path in found:
            text = "\n".join(line.rstrip() for line in path.read_text(errors="replace").strip().splitlines())
            texts.setdefault("".join(text.split()).lower(), (text, []))[1].append(f"{name} ({expression})")
        if not found:
            authors = ", ".join(package["authors"]) or "its authors"
            bare.append(f"{name} ({expression}), by {authors}: {package['repository'] or 'no address'}")
    if refused:
        sys.exit(f"deny.toml does not allow the licences of {', '.join(refused)}")
    parts = [f"The library in this package links {len(packages)} Rust packages. These are their licences."]
    parts += ["\n".join([*dict.fromkeys(names), "", text]) for text, names in texts.values()]
    if bare:
        parts.append("\n".join(["These name their licence and bring no text:", "", *bare]))
    file.write_text(f"\n\n{'-' * 80}\n\n".join(parts) + "\n")
    print(f"{file}: {len(packages)} packages, {len(texts)} texts, {len(bare)} without a text")


if __name__ == "__main__":
    main()
