"""What a fit runs with: versions, processor, threads, memory and GPUs."""

import os

import polars as pl
import pytest
from helpers import run

import polars_kmeans as pk


def test_versions_say_what_a_fit_runs_with() -> None:
    facts = pk.versions()
    assert facts["polars_kmeans"] == pk.__version__
    assert facts["polars"] == pl.__version__
    assert facts["polars_in_library"].count(".") == 2
    assert facts["packages"]["numpy"]
    # The reason of a fit ends with the instructions that it used.
    reason = pk.KMeans(1, device="cpu").fit(pl.DataFrame({"x": [1.0]}), "x").method_reason
    assert (reason or "").endswith(f"instructions: {facts['instructions'][0]}")
    assert facts["processor"] == pk.devices()["name"][0]
    assert facts["gpus"] == pk.devices().slice(1).to_dicts()
    assert 0 < facts["memory_free"] <= facts["memory_total"]
    assert facts["memory_limit"] is None or 0 < facts["memory_limit"] <= 2**63
    assert 1 <= facts["threads"]
    assert 1 <= facts["processors"] <= (os.cpu_count() or 1)


def test_limits_are_seen() -> None:
    code = "import polars_kmeans as pk; print(pk.versions()['threads'], pk.versions()['POLARS_MAX_THREADS'])"
    assert run(code, POLARS_MAX_THREADS="3").split() == ["3", "3"]
    pytest.importorskip("resource")
    code = "import resource as r; r.setrlimit(r.RLIMIT_AS, (2**36, r.RLIM_INFINITY)); import polars_kmeans as pk; "
    assert 0 < int(run(code + "print(pk.versions()['memory_limit'])")) <= 2**36


def test_show_versions_prints_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    pk.show_versions()
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    facts = pk.versions()
    assert lines["polars-kmeans"] == pk.__version__
    assert lines["instructions"] == ", ".join(facts["instructions"])
    assert lines["threads"].startswith(f"{facts['threads']} on {facts['processors']} processors")
    assert lines["numpy"] == facts["packages"]["numpy"]
    for gpu in facts["gpus"]:
        assert gpu["reason"] in lines["gpus"] or any(gpu["reason"] in line for line in lines.values())
