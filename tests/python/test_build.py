"""What a wheel brings beside the package: the licences and a bill of materials of what it links."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT
from test_docs import program

tomllib = pytest.importorskip("tomllib")
pytestmark = [
    pytest.mark.skipif(not (ROOT / "CONTRIBUTING.md").exists(), reason="not a clone"),
    pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo says what is linked"),
]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text()) if (ROOT / "pyproject.toml").exists() else {}


def written(name: str, folder: Path) -> str:
    command = [sys.executable, str(ROOT / "build" / name), str(folder / "file")]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return (folder / "file").read_text()


def test_pip_writes_both_files_before_each_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PYPROJECT["build-system"]["build-backend"] == "backend"
    assert PYPROJECT["build-system"]["backend-path"] == ["build"]
    pytest.importorskip("maturin")
    backend = program("build/backend.py")
    hooks = ["build_wheel", "build_editable", "build_sdist", "prepare_metadata_for_build_wheel"]
    for hook in hooks:
        written_files: list[str] = []
        monkeypatch.setattr(backend.subprocess, "run", lambda call, into=written_files, **_: into.append(call[-1]))
        monkeypatch.setattr(backend.maturin, hook, lambda *args, into=written_files: f"{len(into)} {args}")
        # Both were written when maturin is called.
        assert getattr(backend, hook)("out") == "2 ('out',)"
        assert [Path(file).name for file in written_files] == ["LICENSE-THIRD-PARTY", "polars-kmeans.cdx.json"]
    # A source package has them.
    monkeypatch.setattr(backend, "ROOT", tmp_path)
    for file in ("PKG-INFO", *backend.FILES.values()):
        (tmp_path / file).touch()
    written_files = []
    monkeypatch.setattr(backend.subprocess, "run", lambda call, **_: written_files.append(call[-1]))
    backend.build_wheel("out")
    assert written_files == []


def test_a_wheel_has_our_bill_of_materials_and_no_other() -> None:
    settings = PYPROJECT["tool"]["maturin"]
    assert settings["sbom"] == {"rust": False, "include": ["polars-kmeans.cdx.json"]}
    assert PYPROJECT["project"]["license-files"] == ["LICENSE-*"]
    sources = {item["path"] for item in settings["include"] if item["format"] == "sdist"}
    assert sources == {"build/*.py", "deny.toml", "polars-kmeans.cdx.json"}


def test_the_bill_of_materials_names_what_is_linked(tmp_path: Path) -> None:
    text = written("sbom.py", tmp_path)
    bill: dict[str, Any] = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    references = [component["bom-ref"] for component in bill["components"]]
    root = bill["metadata"]["component"]["bom-ref"]
    assert len(set(references)) == len(references) > 200
    assert any(reference.startswith("pkg:cargo/polars@") for reference in references)
    for component in bill["components"]:
        assert component["licenses"][0]["expression"]
        assert "/" not in component["licenses"][0]["expression"]
        assert len(component["hashes"][0]["content"]) == 64
    assert {part["ref"] for part in bill["dependencies"]} == {root, *references}
    assert {other for part in bill["dependencies"] for other in part["dependsOn"]} == set(references)
    # No path of this machine, and the same bytes again.
    assert program("build/published.py").paths(text) == []
    assert str(ROOT) not in text and str(Path.home()) not in text
    assert written("sbom.py", tmp_path) == text
    # The licences are of the same packages.
    licences = written("notices.py", tmp_path)
    assert f"links {len(references)} Rust packages" in licences


@pytest.mark.parametrize("path", ['"path+file:///home/me/x#0.1.0"', '"/root/x"', '"C:\\\\Users\\\\me"'])
def test_paths_in_a_bill_of_materials_are_found(path: str) -> None:
    assert program("build/published.py").paths('{"bom-ref": ' + path + "}")
