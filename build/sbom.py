"""Writes a bill of materials (CycloneDX 1.5) of the Rust packages that a wheel links: `make sbom`.

    python build/sbom.py FILE

It names packages, versions, licences, checksums and who depends on whom, as `Cargo.lock` and cargo say it. It has no
time and no path, so the same sources give the same file on every machine.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from notices import ROOT, linked


def reference(package: dict[str, Any]) -> str:
    """Return the package URL of a package."""
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package: dict[str, Any], checksums: dict[tuple[str, str], str]) -> dict[str, Any]:
    """Return what the bill says of a package."""
    found: dict[str, Any] = {"type": "library", "bom-ref": reference(package), "purl": reference(package)}
    found |= {"name": package["name"], "version": package["version"]}
    if package["license"]:
        # A slash is an old word for OR.
        found["licenses"] = [{"expression": re.sub(r"\s*/\s*", " OR ", package["license"])}]
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        found["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return found


def bill() -> dict[str, Any]:
    """Return the bill of materials."""
    root, packages, needed = linked()
    lock = (ROOT / "Cargo.lock").read_text()
    entry = re.compile(r'name = "(.+)"\nversion = "(.+)"\nsource = ".+"\nchecksum = "(.+)"')
    checksums = {(name, version): checksum for name, version, checksum in entry.findall(lock)}
    ours = component(root, checksums) | {"bom-ref": f"pkg:pypi/{root['name']}@{root['version']}"}
    names = {package["id"]: reference(package) for package in packages} | {root["id"]: ours["bom-ref"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": ours | {"purl": ours["bom-ref"]}},
        "components": [component(package, checksums) for package in packages],
        "dependencies": [
            {"ref": names[package["id"]], "dependsOn": sorted({names[other] for other in needed[package["id"]]})}
            for package in (root, *packages)
        ],
    }


def main() -> None:
    """Write the file."""
    file, found = Path(sys.argv[1]), bill()
    file.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{file}: {len(found['components'])} packages")


if __name__ == "__main__":
    main()
