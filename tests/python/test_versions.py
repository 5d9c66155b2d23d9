"""What a fit runs with: versions, processor, threads, memory and GPUs."""

import os
from pathlib import Path

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


INSTRUCTIONS = """
from hashlib import sha256
import polars as pl, polars_kmeans as pk
row, f = pl.int_range(20_000), range(64)
df = pl.select(*(((row * row * (31 + i) + row * 7919) % 10007).cast(pl.Float32).alias(f"x{i}") for i in f))
model = pk.KMeans(k=128, seed=1, max_iter=4, device="cpu").fit(df, pl.all())
found = df.select(model.predict("x0", *(f"x{i}" for i in f[1:]), output="struct")).unnest(pl.all())
print(sha256(model.centroids_array().tobytes() + found.to_numpy().tobytes()).hexdigest())
print(pk.versions()["instructions"][0], "|", model.method_reason)
"""


def _has_avx2() -> bool:
    cpus = Path("/proc/cpuinfo")
    return cpus.exists() and " avx2 " in cpus.read_text()


def test_instructions_can_be_limited() -> None:
    limits = ("", "avx2", "portable")
    found = {limit: run(INSTRUCTIONS, POLARS_KMEANS_INSTRUCTIONS=limit).splitlines() for limit in limits}
    assert len({lines[0] for lines in found.values()}) == 1, found
    assert found["portable"][1].startswith("portable |")
    assert found["portable"][1].endswith("instructions: portable")
    if _has_avx2():
        assert found["avx2"][1].startswith("AVX2 |")
        assert "first by copies in words (AVX2)" in found["avx2"][1]


def test_a_limit_that_is_not_known_is_an_error() -> None:
    code = "try:\n    import polars_kmeans\nexcept ValueError as error:\n    print(error)"
    expected = 'POLARS_KMEANS_INSTRUCTIONS: expected "avx2" or "portable", got "sse9"'
    assert run(code, POLARS_KMEANS_INSTRUCTIONS="sse9").strip() == expected
