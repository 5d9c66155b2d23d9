"""Looks at what would be published: file lists, sizes, metadata. `make publish-check` calls it after it built all.

    python build/published.py FOLDER

The folder holds a crate, a source package and a wheel. What is wrong is said at the end, and ends in an error. What an
owner still has to fill in is said too, and is none.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUST = r"(src|kernels|tests|benches|examples|build)/.*\.(rs|cu|cuh|csv|txt)|build\.rs|Cargo\.(toml|lock)"
RUST += r"|README\.md|CHANGELOG\.md|LICENSE-.*"
# What a wheel is built with, and the bill of materials that it brings.
BUILT = r"build/.*\.py|deny\.toml|polars-kmeans\.cdx\.json"
# What each may hold, and its bytes at most. crates.io takes 10 MB, and PyPI 100.
KINDS = {
    ".crate": (rf"{RUST}|Cargo\.toml\.orig|\.cargo_vcs_info\.json", 5_000_000),
    ".tar.gz": (rf"{RUST}|PKG-INFO|pyproject\.toml|python/polars_kmeans/.*\.(py|pyi|typed)|{BUILT}", 5_000_000),
    ".whl": (r"polars_kmeans/.*\.(py|pyi|typed|so|pyd)|polars_kmeans-[^/]*\.dist-info/.*", 100_000_000),
}
NEEDED = {
    ".crate": ["Cargo.lock", "src/lib.rs", "LICENSE-MIT", "LICENSE-APACHE", "README.md"],
    ".tar.gz": [
        "Cargo.lock",
        "pyproject.toml",
        "kernels/step/deltas.cu",
        "python/polars_kmeans/py.typed",
        "LICENSE-THIRD-PARTY",
        "polars-kmeans.cdx.json",
        "build/backend.py",
    ],
    ".whl": ["polars_kmeans/py.typed", "polars_kmeans/_internal.pyi"],
}


def contents(file: Path) -> dict[str, int]:
    """Names in an archive and their bytes, without the folder that all files of a source package are in."""
    if file.suffix == ".whl":
        return {entry.filename: entry.file_size for entry in zipfile.ZipFile(file).infolist()}
    with tarfile.open(file) as archive:
        return {entry.name.partition("/")[2]: entry.size for entry in archive if entry.isfile()}


def look(file: Path, kind: str) -> list[str]:
    """Return what is wrong with an archive."""
    names, (pattern, most) = contents(file), KINDS[kind]
    size = file.stat().st_size
    print(f"{file.name}: {size / 1e6:.1f} MB, {len(names)} files, the largest of them:")
    for name in sorted(names, key=lambda name: -names[name])[:3]:
        print(f"    {names[name]:>12,} {name}")
    wrong = [f"{file.name} holds {name}" for name in names if not re.fullmatch(pattern, name)]
    wrong += [f"{file.name} lacks {name}" for name in NEEDED[kind] if name not in names]
    if size > most:
        wrong.append(f"{file.name} has {size} bytes: expected at most {most}")
    if kind == ".whl":
        licences = [name.rpartition("/")[2] for name in names if "/licenses/" in name]
        if sorted(licences) != ["LICENSE-APACHE", "LICENSE-MIT", "LICENSE-THIRD-PARTY"]:
            wrong.append(f"{file.name}: expected our two licences and those of what it links, got {licences}")
        bills = [name for name in names if "/sboms/" in name]
        if [name.rpartition("/")[2] for name in bills] != ["polars-kmeans.cdx.json"]:
            wrong.append(f"{file.name}: expected one bill of materials, got {bills}")
        texts = [zipfile.ZipFile(file).read(name).decode() for name in bills]
        wrong += [f"{file.name}: its bill of materials has paths" for text in texts if paths(text)]
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        fields = message_from_string(zipfile.ZipFile(file).read(metadata).decode())
        for field in ("Summary", "License-Expression", "Requires-Python", "Keywords", "Classifier"):
            if not fields[field]:
                wrong.append(f"{file.name}: its metadata lack {field}")
        print("   ", *(fields[field] for field in ("Name", "Version", "License-Expression", "Requires-Python")))
    return wrong


def paths(text: str) -> list[str]:
    """Return what looks like a path of a machine in a bill of materials."""
    return re.findall(r"file:[^\"]*|\"/[^\"]*|[A-Z]:\\\\[^\"]*", text)


def versions(root: Path) -> list[str]:
    """Return the files that speak of another version than `Cargo.toml`."""
    [version] = re.findall(r'(?m)^version = "(.+)"$', (root / "Cargo.toml").read_text())
    wanted = {"CITATION.cff": f"\nversion: {version}\n", "CHANGELOG.md": f"\n## {version}"}
    return [
        f"{file}: expected version {version}" for file, text in wanted.items() if text not in (root / file).read_text()
    ]


def main() -> None:
    """Look at all, and say what is wrong."""
    folder, wrong = Path(sys.argv[1]), []
    for kind in KINDS:
        files = sorted(folder.glob(f"*{kind}"))
        wrong += [] if files else [f"{folder} has no *{kind}"]
        for file in files:
            wrong += look(file, kind)
    manifest, python = (ROOT / "Cargo.toml").read_text(), (ROOT / "pyproject.toml").read_text()
    citation, changes = (ROOT / "CITATION.cff").read_text(), (ROOT / "CHANGELOG.md").read_text()
    wrong += versions(ROOT)
    owner = {
        "the address of the repository in Cargo.toml": "\nrepository = " in manifest,
        "addresses in pyproject.toml": "[project.urls]" in python,
        "the address in CITATION.cff": "repository-code:" in citation,
        "the day of the version in CHANGELOG.md": "unreleased" not in changes,
        "full addresses of the README's pictures and links": "](docs/" not in (ROOT / "README.md").read_text(),
    }
    missing = [what for what, there in owner.items() if not there]
    if missing:
        print(f"An owner still has to write: {'; '.join(missing)}.")
    if wrong:
        sys.exit("\n".join(["Wrong:", *wrong]))


if __name__ == "__main__":
    main()
