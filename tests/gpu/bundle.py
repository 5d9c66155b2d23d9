"""Packs what a bare Linux machine with a GPU needs to check and measure this project: no network or compiler there.

`make gpu-bundle` calls it. Two archives and a script, in dist/gpu-bundle:

    base.tar.xz     Polars, pytest, hypothesis; numpy for machines without it. Made once for each set of versions.
    project.tar.xz  our package, Rust test and bench programs, tests, benches, golden files
    gpu.sh          unpacks them, checks, measures

Wheels are unpacked here and not installed there: all that the machine must have is Python and the driver. xz packs
better than a wheel's deflate, and Polars' symbol table goes: its wheel of 54 MB takes 28.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = "3.12"
GLIBC = ["2_34", "2_28", "2_27", "2_24", "2_17"]
# As in this environment, so that what is tested here is what is tested there; with what each of them needs.
SITE = ["polars", "polars-runtime-32", "pytest", "iniconfig", "packaging", "pluggy", "pygments", "hypothesis"]
SITE += ["sortedcontainers"]
# Big: found on the machine by preference.
MORE = ["numpy"]
FILES = [
    *("tests/python", "tests/golden", "benches", "docs", "kernels", "README.md", "pyproject.toml"),
    "python/write_options.py",
]
LIMIT = 64_000_000
# A dictionary as large as Polars' library; the first filter makes x86's relative jumps absolute, so that they repeat.
FILTERS = [
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 160 << 20},
]


def run(*command: str | Path, **environment: str) -> str:
    """What a command prints; what it says of itself goes to our own standard error."""
    env = os.environ | environment
    return subprocess.run([*map(str, command)], cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


def pack(folder: Path, archive: Path) -> None:
    """The same bytes for the same files: names sorted, no owners or times."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return None if entry.name.endswith(("__pycache__", ".pyc", ".pyi")) else entry

    with lzma.open(archive, "wb", format=lzma.FORMAT_XZ, filters=FILTERS) as stream:
        with tarfile.open(fileobj=stream, mode="w|") as tar:
            for path in sorted(folder.iterdir()):
                tar.add(path, path.name, filter=plain)


def unzip(wheel: Path, site: Path) -> None:
    """A wheel's files where Python finds them, its libraries executable as pip would have them."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def download(packages: list[str], folder: Path) -> None:
    """Wheels for the machine, unpacked."""
    platforms = [word for glibc in GLIBC for word in ("--platform", f"manylinux_{glibc}_x86_64")]
    platforms += ["--platform", "manylinux2014_x86_64", "--python-version", PYTHON, "--implementation", "cp"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    with tempfile.TemporaryDirectory() as wheels:
        run(*pip, *platforms, "--dest", wheels, *packages)
        for wheel in Path(wheels).iterdir():
            unzip(wheel, folder)


def base(archive: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for name, packages in (("site", SITE), ("more", MORE)):
            download([f"{package}=={version(package)}" for package in packages], folder / name)
        for tests in [*folder.glob("more/numpy/**/tests")]:
            shutil.rmtree(tests)
        # What auditwheel has patched may not survive this; Polars' library is as its linker wrote it.
        for library in folder.glob("site/_polars_runtime*/*.so"):
            run("strip", "--strip-unneeded", library)
        pack(folder, archive)


def built(more: list[str], *command: str) -> dict[str, Path]:
    """Name and file of the programs that cargo built, and of the library that Python loads."""
    output = run("cargo", *command, *more, "--profile", "dev", "--message-format=json-render-diagnostics")
    artifacts = [m for m in map(json.loads, output.splitlines()) if m["reason"] == "compiler-artifact"]
    files = {m["target"]["name"]: Path(m["executable"]) for m in artifacts if m["executable"]}
    libraries = [Path(name) for m in artifacts if m["target"]["name"] == "polars_kmeans" for name in m["filenames"]]
    [files["library"]] = [library for library in libraries if library.suffix == ".so"]
    return files


def project(archive: Path, features: str, more: list[str], peers: list[str]) -> None:
    """Everything of ours. One build of the library serves all: that of `make test`, without the checks that slow it."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        site, bin_ = folder / "site", folder / "bin"
        files = built(more, "test", "--features", features, "--no-run", "--lib", "--test", "unit", "--test", "engine")
        files |= built(more, "bench", "--features", features, "--no-run", "--lib", "--bench", "kmeans")
        shutil.copytree(ROOT / "python/polars_kmeans", site / "polars_kmeans", ignore=shutil.ignore_patterns("*.so"))
        bin_.mkdir()
        copies = {"library": site / "polars_kmeans/_internal.abi3.so", "unit": bin_ / "test-unit"}
        copies |= {"engine": bin_ / "test-engine", "kmeans": bin_ / "bench"}
        for name, target in copies.items():
            run("strip", "--strip-unneeded", "-o", target, files[name])
        if peers:
            download(peers, site)
        for name in FILES:
            source, target = ROOT / name, folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                # Not what `make docs` wrote.
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("gallery", "generated"))
            else:
                shutil.copy(source, target)
        pack(folder, archive)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--features", required=True, help="of the build, as for cargo")
    parser.add_argument("--cargo", default="", help="more arguments of cargo")
    parser.add_argument(
        "--with", dest="peers", nargs="*", default=[], help="packages to measure beside ours, as pip names"
    )
    args = parser.parse_args()
    out = args.out.resolve()
    target = Path(os.environ["CARGO_TARGET_DIR"])
    out.mkdir(parents=True, exist_ok=True)

    pins = [f"{package}=={version(package)}" for package in SITE + MORE]
    key = hashlib.sha256(json.dumps([PYTHON, GLIBC, pins, FILTERS]).encode()).hexdigest()[:16]
    kept = target / "gpu-bundle" / f"base-{key}.tar.xz"
    start = time.monotonic()
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        base(kept.with_suffix(".unfinished"))
        kept.with_suffix(".unfinished").rename(kept)
    shutil.copy(kept, out / "base.tar.xz")
    middle = time.monotonic()
    project(out / "project.tar.xz", args.features, args.cargo.split(), args.peers)
    shutil.copy(Path(__file__).with_name("gpu.sh"), out)
    end = time.monotonic()

    sizes = {file.name: file.stat().st_size for file in sorted(out.iterdir())}
    seconds = {"base.tar.xz": middle - start, "project.tar.xz": end - middle}
    for name, size in sizes.items():
        print(f"{name:<16}{size / 1e6:>7.2f} MB{seconds.get(name, 0):>8.0f} s")
    if sum(sizes.values()) > LIMIT:
        sys.exit(f"the bundle takes {sum(sizes.values()) / 1e6:.1f} MB: expected at most {LIMIT / 1e6:.0f}")


if __name__ == "__main__":
    main()
