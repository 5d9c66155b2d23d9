"""A fit on the CPU needs only a fraction of the data's memory: it makes no row-major copy of the columns.

If there is not enough memory, the fit gives an error that says so, and the process goes on.

The memory of the CUDA driver and its context does not count. `benches/gpu.py --reports memory` measures fits on a GPU.
"""

import sys

import pytest
from helpers import run

PROGRAM = """
import numpy as np, polars as pl, polars_kmeans as pk
n, d = 4_194_304, 16
rng = np.random.default_rng(0)
df = pl.DataFrame([pl.Series(f"f{i}", rng.random(n, dtype=np.float32)) for i in range(d)])
pk.KMeans(k=8, max_iter=1, device='cpu').fit(df.head(1000), df.columns)

def kib(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field))

open("/proc/self/clear_refs", "w").write("5")
before = kib("VmRSS")
pk.KMeans(k=8, max_iter=3, device='cpu').fit(df, df.columns)
fit = kib("VmHWM") - before
open("/proc/self/clear_refs", "w").write("5")
before = kib("VmRSS")
df.select(pk.kmeans(*df.columns, k=8, max_iter=3, device='cpu'))
print(fit / (n * d * 4 / 1024), (kib("VmHWM") - before) / (n * d * 4 / 1024))
"""


def test_a_fit_raises_memory_by_at_most_35_percent() -> None:
    model, expression = (float(share) for share in run(PROGRAM).split())
    print(f"share of the data: {model:.3f} for a model, {expression:.3f} for the expression")
    assert max(model, expression) <= 0.35


# Limits of the address space, from one that is enough for little to one that is enough for everything. A fit that does
# not fit must give an error, and a small fit must work after it. If the process ends early, the last line is missing.
LIMITED = """
import resource, sys
import numpy as np, polars as pl, polars_kmeans as pk

n, d, k = SHAPE
rng = np.random.default_rng(0)
if d < 1_000:
    df = pl.DataFrame([pl.Series(f"f{i}", rng.random(n, dtype=np.float32)) for i in range(d)])
else:
    df = pl.DataFrame({"f": pl.Series(rng.random((n, d), dtype=np.float32))})
small = pl.DataFrame({"x": rng.random(1_000), "y": rng.random(1_000)})
given = df.head(k).to_numpy() if d < 1_000 else df["f"].head(k).to_numpy()
model = pk.KMeans(k, init=given, max_iter=1, device="cpu").fit(df, df.columns)
few = pk.KMeans(min(k, 4), max_iter=1, device="cpu")
jobs = {
    "given": lambda: pk.KMeans(k, init=given, max_iter=1, device="cpu").fit(df, df.columns).inertia,
    "k-means++": lambda: few.fit(df, df.columns).inertia,
    "labels": lambda: df.select(pk.kmeans(*df.columns, k=min(k, 4), max_iter=1, device="cpu")).to_series().sum(),
    "struct": lambda: df.select(pk.kmeans(*df.columns, k=2, max_iter=1, output="struct", device="cpu")).height,
    "predict": lambda: df.select(model.predict(device="cpu")).to_series().sum(),
    "transform": lambda: df.head(6_000_000 // k).select(model.transform(device="cpu")).height,
    "score": lambda: model.score(df),
    "centroids": lambda: model.centroids.height,
}

def used():
    return int(open("/proc/self/statm").read().split()[0]) * 4096

def small_fit():
    return pk.KMeans(2, device="cpu").fit(small, ["x", "y"]).inertia

expected = {name: job() for name, job in jobs.items()}
once = small_fit()
for name, job in jobs.items():
    outcomes = ""
    for step in range(12):
        limit = used() + (16 << 20) + (1 << 33 if step == 11 else step * (6 << 20))
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        try:
            answer = job()
            assert answer == expected[name], (name, answer, expected[name])
            outcomes += "."
            del answer
        except pk.NoMemoryError as error:
            assert str(error).startswith("memory: expected room for "), error
            outcomes += "m"
        except pl.exceptions.ComputeError as error:
            assert "NoMemoryError: memory: expected room for " in str(error), error
            outcomes += "q"
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert small_fit() == once
    print(name, outcomes, flush=True)
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space, as Linux counts it")
@pytest.mark.parametrize("shape", [(4_000_000, 2, 3), (20_000, 64, 10_000), (64, 100_000, 3)])
def test_without_memory_there_is_an_error_and_the_process_goes_on(shape: tuple[int, int, int]) -> None:
    program = LIMITED.replace("SHAPE", repr(shape))
    # Memory that the allocator keeps or has reserved would hide a limit.
    out = run(program, timeout=600, MALLOC_ARENA_MAX="1", MALLOC_MMAP_THRESHOLD_="131072")
    print(out)
    *lines, last = out.splitlines()
    assert last == "done"
    outcomes = dict(line.rsplit(" ", 1) for line in lines)
    assert all(outcome.endswith(".") for outcome in outcomes.values()), outcomes
    # How many jobs are refused depends on what threads and the allocator have reserved.
    assert sum("m" in outcome or "q" in outcome for outcome in outcomes.values()) >= 2, outcomes
