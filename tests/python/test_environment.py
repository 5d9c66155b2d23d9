"""The host program may round in any way, and may flush subnormals: the bits are the same."""

import platform
import sys
from pathlib import Path

import pytest
from helpers import run

MODES = {
    "nearest": 0x1F80,
    "down": 0x3F80,
    "up": 0x5F80,
    "to zero": 0x7F80,
    "flushed": 0x9FC0,
    "up and flushed": 0xDFC0,
}

CHILD = r"""
import ctypes, hashlib, mmap, sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import polars as pl
import polars_kmeans as pk

mode = int(sys.argv[1], 0)
# ldmxcsr [rdi]; ret
code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b"\x0f\xae\x17\xc3")
load = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint32))(ctypes.addressof(ctypes.c_char.from_buffer(code)))
libm = ctypes.CDLL(None)

rng = np.random.default_rng(0)
n = 3_000
tiny = (rng.integers(1, 2**20, n).astype(np.uint32)).view(np.float32)
values = rng.uniform(-1, 1, (n, 3))
df = pl.DataFrame(values, schema=["x", "y", "z"]).with_columns(
    i=pl.Series(rng.integers(2**54, 2**62, n)),
    t=pl.Series(tiny),
    d=pl.Series([Decimal(int(v)).scaleb(-19) for v in rng.integers(2**54, 2**62, n)], dtype=pl.Decimal(38, 19)),
    h=pl.Series(rng.uniform(0, 1, n)).cast(pl.Float16),
)
lists = df.select(e=pl.concat_list("d", "d"))
wide = df.select(pl.col("t").cast(pl.Float64))
longs = (np.arange(12, dtype=np.longdouble).reshape(4, 3) + np.longdouble(1) / 3) / 7
tol = np.float32(1.1e-9)
starts = {
    "float32": tiny[:4].reshape(4, 1),
    "int64": df["i"].head(4).to_numpy().reshape(4, 1),
    "list": [[np.float32(v)] for v in tiny[:4]],
    "decimals": [[Decimal("0.1") ** k] for k in range(1, 5)],
    "fractions": [[Fraction(k, 3)] for k in range(1, 5)],
    "objects": np.array([[Decimal("0.3") ** k] for k in range(1, 5)]),
    "frame": df.head(4).select("t"),
    "decimal frame": df.head(4).select(t="d"),
}


def work(folder):
    def model(fitted):
        fitted.save(folder + "/model.parquet")
        yield "file", open(folder + "/model.parquet", "rb").read()
        loaded = pk.KMeansModel.load(folder + "/model.parquet")
        history = loaded.history.drop("settled", "rescored", "skipped", "groups", "passes", "seconds")
        yield "loaded", repr([loaded.parameters, loaded.inertia.hex(), history.rows()]).encode()
        yield "centroids", loaded.centroids.drop("cluster").hash_rows().to_list().__repr__().encode()

    fits = {
        "floats": (["x", "y", "z"], {"weight": "d", "tol": tol}),
        "integers": (["i"], {"weight": "h"}),
        "decimals": (["d"], {}),
        "halves": (["h"], {}),
        "subnormals": (["t"], {}),
        "long doubles": (["x", "y", "z"], {"init": longs}),
        **{f"from {name}": (["t"], {"init": init, "max_iter": 1}) for name, init in starts.items()},
    }
    for name, (columns, options) in fits.items():
        fitted = pk.KMeans(4, seed=2, history="full", **options).fit(df, columns)
        for what, result in model(fitted):
            yield f"{name}: {what}", result
        rows = df.select(fitted.predict(output="struct"), fitted.transform()).unnest("cluster").explode("distances")
        yield f"{name}: rows", rows.write_ipc(None, compression="uncompressed").getvalue()
        score = fitted.score(df, weight="d")
        yield f"{name}: score", score.hex().encode()
    fitted = pk.KMeans(4).fit(lists, "e")
    yield from model(fitted)
    fitted = pk.KMeans(4).fit(df, "t")
    rows = wide.select(fitted.predict(output="struct")).unnest("cluster")
    yield "widened", rows.write_ipc(None, compression="uncompressed").getvalue()


folder = sys.argv[2]
results = work(folder)
while True:
    # Only what is ours runs in the mode: what is compared is written down in the ordinary one.
    load(ctypes.c_uint32(mode))
    rounding = (mode >> 13 & 3) * 0x400
    assert libm.fesetround(rounding) == 0
    found = next(results, None)
    libm.fesetround(0)
    load(ctypes.c_uint32(0x1F80))
    if found is None:
        break
    print(found[0], hashlib.sha256(found[1]).hexdigest()[:16])
"""


def results(mode: int, folder: Path) -> list[str]:
    return run(CHILD, hex(mode), folder, POLARS_MAX_THREADS="2").splitlines()


@pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux", reason="sets a register of x86-64 on Linux"
)
def test_results_do_not_depend_on_the_mode(tmp_path: Path) -> None:
    expected = results(MODES["nearest"], tmp_path)
    assert len(expected) > 50
    for name, mode in MODES.items():
        assert results(mode, tmp_path) == expected, name
