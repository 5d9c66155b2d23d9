"""Fetches what builds and runs programs for 64-bit ARM on Linux, on a machine of another kind: `make test-aarch64`.

rustup's compilers come without a standard library for other machines, and that library has to be of the same build
as the compiler. Debian's unstable has both. Its packages are unpacked into a folder of their own, and nothing is
installed. The compiler runs with its own libraries. Zig links, against glibc 2.17. QEMU runs what was built, with
Debian's libraries for ARM.
"""

from __future__ import annotations

import lzma
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

TARGET = "aarch64-unknown-linux-gnu"
GLIBC = "aarch64-linux-gnu.2.17"
Packages = dict[str, dict[str, str]]


def mirror() -> str:
    """Return the mirror that this machine's apt uses."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return os.environ.get("DEBIAN_MIRROR") or next(uri for uri in found if uri.rstrip("/").endswith("/debian"))


def packages(source: str, machine: str) -> Packages:
    """Return the packages of Debian's unstable for a machine, by name."""
    with urllib.request.urlopen(f"{source}dists/unstable/main/binary-{machine}/Packages.xz") as answer:
        text = lzma.decompress(answer.read()).decode()
    fields = (dict(re.findall(r"^([\w-]+): (.*)$", part, flags=re.MULTILINE)) for part in text.split("\n\n") if part)
    return {found["Package"]: found for found in fields}


def needed(known: Packages, names: list[str], without: set[str]) -> list[str]:
    """Return these packages, and all that they depend on."""
    found: list[str] = []
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in known and name not in without and name not in found:
            found.append(name)
            depends = known[name].get("Depends", "").split(",") + known[name].get("Pre-Depends", "").split(",")
            waiting += [part.split()[0].partition(":")[0] for part in depends if part.strip()]
    return found


def unpack(source: str, known: Packages, names: list[str], folder: Path) -> None:
    """Unpack packages into a folder, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        done = folder / ".{Package}-{Version}-{Architecture}".format(**known[name]).replace(":", "-")
        if not done.exists():
            file = folder / "package.deb"
            urllib.request.urlretrieve(source + known[name]["Filename"], file)
            subprocess.run(["dpkg-deb", "-x", file, folder], check=True)
            file.unlink()
            done.touch()


def script(path: Path, text: str) -> None:
    """Write a program of the shell."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def main(folder: Path) -> None:
    """Fetch all, and write the programs `rustc`, `cc`, `ar`, `run` and `python` into the folder."""
    source = mirror()
    own, arm = packages(source, "amd64"), packages(source, "arm64")
    host, guest = folder / "host", folder / "guest"
    compilers = {"gcc", "binutils", "libc6-dev"}
    unpack(source, own, needed(own, ["rustc", "libstd-rust-dev", "qemu-user"], compilers), host)
    unpack(source, arm, ["libstd-rust-dev"], host)
    libraries = ["libc6", "libgcc-s1", "libstdc++6", "python3", "ca-certificates"]
    unpack(source, arm, needed(arm, libraries, {"media-types", "tzdata", "dpkg", "perl-base"}), guest)
    if not (guest / "lib").exists():
        (guest / "lib").symlink_to("usr/lib")
    usr = host / "usr"
    loader = f"{usr}/lib64/ld-linux-x86-64.so.2 --library-path {usr}/lib/x86_64-linux-gnu"
    zig = f"{sys.executable} -m ziglang"
    script(folder / "rustc", f'exec {loader} --argv0 {usr}/bin/rustc {usr}/bin/rustc --sysroot {usr} "$@"')
    # The compiler in Zig has its own name of the machine.
    script(
        folder / "cc",
        f"""for argument do
    shift
    case $argument in --target=*) ;; *) set -- "$@" "$argument" ;; esac
done
exec {zig} cc -target {GLIBC} "$@\"""",
    )
    script(folder / "ar", f'exec {zig} ar "$@"')
    script(folder / "run", f'exec {loader} {usr}/bin/qemu-aarch64 -L {guest} "$@"')
    script(folder / "python", f'exec {folder}/run {guest}/usr/bin/python3 "$@"')


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
