"""A fit on the CPU keeps to a fraction of the data's memory: no row-major copy of the columns.

What a driver and its context take is not the fit's; `benches/gpu.py --reports memory` looks at fits on a GPU.
"""

import subprocess
import sys

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
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    model, expression = (float(share) for share in run.stdout.split())
    print(f"share of the data: {model:.3f} for a model, {expression:.3f} for the expression")
    assert max(model, expression) <= 0.35
