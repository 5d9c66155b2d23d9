"""Fits on one GPU beside the peers: same data, same starting centroids, same number of iterations, one run.

`python benches/gpu.py [--cases ...] [--kind ...] [--systems ...] [--reports ...] [--out FILE]`. Needs torch with CUDA;
flash-kmeans, flashlib and cuvs take part where they are installed and named. Peers find their data on the GPU, so only
their iterations are timed. Our data come from a Polars frame in host memory. So an iteration's time is that of the
device's own clock (`model.history`), and the time of the whole fit, with upload and preparation, stands beside it.

`wrong` is the share of 65,536 rows whose label is not a float64 argmin for the centroids that the system itself used:
ours must be 0. `mse` is the mean squared distance of those rows, in float64, to the nearest of the system's centroids.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from gpu_data import generate, to_frame
from gpu_reports import REPORTS

SAMPLE = 65_536


@dataclass(frozen=True)
class Case:
    """A shape, its iterations, and how many milliseconds one of ours may take."""

    n: int
    d: int
    k: int
    iterations: int
    bar: float

    def floor(self, ceilings: dict[str, float]) -> tuple[float, str]:
        """Milliseconds that no program can go below that reads every row and looks at every centroid, and why.

        Bytes: each value read once. Arithmetic: `d + 1` fused multiply-adds a row and centroid in float32 where rows
        are short, `d` on the tensor cores where they are long. Programs that skip work can be faster than the latter.
        """
        read = self.n * self.d * 4 / ceilings["copy_TBs"] / 1e9
        short = self.d <= 16
        unit, width = ("fp32", self.d + 1) if short else ("fp16", self.d)
        compute = 2 * self.n * self.k * width / ceilings[f"{unit}_TFLOPs"] / 1e9
        return max((read, "bytes"), (compute, unit))


CASES = {
    "lutz-k4": Case(134_217_728, 4, 4, 10, 0.75),  # Lutz et al. 2018, section 6.1: 2 GiB
    "lutz-k64": Case(134_217_728, 4, 64, 10, 2.5),
    "lutz-d256": Case(2_097_152, 256, 64, 20, 0.85),
    "li-2-100": Case(4_000_000, 2, 100, 50, 0.10),  # Li et al. 2010, table 1
    "li-kdd": Case(494_080, 34, 32, 100, 0.06),  # table 5
    "zechner": Case(500_000, 200, 128, 50, 0.20),  # Zechner & Granitzer 2009
    "blog-5": Case(10_000_000, 2, 5, 100, 0.05),  # Luigi 2025
    "blog-1000": Case(10_000_000, 2, 1000, 20, 1.3),
    "kmcuda": Case(300_000, 408, 5000, 15, 2.6),
    "flash": Case(16_777_216, 128, 4096, 3, 34),
    "kmcuda-big": Case(4_000_000, 480, 40_000, 2, 300),
    "fl-128-20k": Case(10_000_000, 128, 20_000, 3, 100),  # the shapes of FlashLib
    "fl-256-20k": Case(10_000_000, 256, 20_000, 3, 175),
    "fl-256-4k": Case(524_288, 256, 4096, 10, 1.95),
    "fl-64-64": Case(1_000_000, 64, 64, 30, 0.10),
    "fl-4-16": Case(8_388_608, 4, 16, 30, 0.07),
    "small": Case(5_000, 20, 16, 100, 0.03),
    "fl-128-1k": Case(1_000_000, 128, 1000, 10, 0.8),
    "fl-32-1k": Case(2_000_000, 32, 1000, 10, 1.3),
    "fl-64-256": Case(2_000_000, 64, 256, 10, 0.6),
    "fl-64-32": Case(5_000_000, 64, 32, 20, 0.7),
    "fl-20-200": Case(3_000_000, 20, 200, 20, 0.7),
    "fl-768-1k": Case(1_000_000, 768, 1000, 10, 2.3),
}
KINDS = ["blobs", "clusters-100", "clusters-300", "clusters-1000", "nested", "uniform", "lognormal", "ties"]


# ---- data ------------------------------------------------------------------------------------------------------------


def sample_of(n: int) -> Any:
    """Rows to check, drawn evenly."""
    import torch

    return torch.randint(0, n, (SAMPLE,), device="cuda", generator=torch.Generator("cuda").manual_seed(7))


def check(rows: Any, centroids: Any, labels: Any | None) -> tuple[float | None, float]:
    """Share of labels that are not a float64 argmin, and the mean squared distance to the nearest centroid."""
    import torch

    rows, centroids = rows.double(), centroids.double()
    nearest, own = [], []
    step = max(1, min(4096, 2**28 // len(centroids)))
    for i in range(0, len(rows), step):
        squares = torch.cdist(rows[i : i + step], centroids, compute_mode="donot_use_mm_for_euclid_dist") ** 2
        nearest.append(squares.min(1).values)
        if labels is not None:
            own.append(squares.gather(1, labels[i : i + step].long()[:, None])[:, 0])
    best = torch.cat(nearest)
    # Within the rounding of these distances, a label is as good as the nearest.
    wrong = None if labels is None else float((torch.cat(own) > best * (1 + 1e-12)).double().mean())
    return wrong, float(best.mean())


# ---- systems ---------------------------------------------------------------------------------------------------------
#
# Each takes the data, the start and the number of iterations, and gives seconds an iteration, iterations done, the
# centroids that the labels belong to, the labels of the sample, and what else there is to say.

Result = tuple[float, int, Any, Any, dict[str, float]]


def seconds_of(work: Callable[[], Any], rounds: int = 3) -> tuple[float, Any]:
    """Median seconds of some work on the GPU, and what it gave last."""
    import torch

    times, result = [], None
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        result = work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times), result


def ours(x: Any, start: Any, iterations: int, device: Any = "cuda", default: bool = False) -> Result:
    import numpy as np
    import torch

    import polars_kmeans as pk

    df = to_frame(x)
    # What torch caches, it has no need of now.
    torch.cuda.empty_cache()
    options: dict[str, Any] = {"k": len(start), "device": device, "seed": 0}
    if not default:
        options |= {"init": start.cpu().numpy(), "tol": 0.0, "max_iter": iterations}
    pk.KMeans(**options | {"max_iter": 1}).fit(df, df.columns)  # context, kernels, pinned memory
    rounds = 3 if df.estimated_size() < 2**32 else 2
    fits = []
    for _ in range(rounds):
        begin = time.perf_counter()
        model = pk.KMeans(**options).fit(df, df.columns)
        fits.append((time.perf_counter() - begin, model))
    assert model.device.startswith("cuda"), model.device_reason
    loops = [model.history["seconds"].sum() for _, model in fits]
    labels = df.select(pk.kmeans(*df.columns, **options)).to_series()
    rows = sample_of(len(x)).cpu().numpy()
    own = labels.gather(rows)
    # The model labels rows on the CPU, and the fit's labels are those of its final centroids.
    predicted = df[rows].select(model.predict()).to_series()
    assert (own == predicted).all(), "the fit's labels are not the model's"
    centroids = torch.from_numpy(np.array(model.centroids.select(df.columns).to_numpy(), np.float32)).cuda()
    facts = {
        "fit_ms": 1e3 * statistics.median(wall for wall, _ in fits),
        "beside_ms": 1e3 * statistics.median(wall - loop for (wall, _), loop in zip(fits, loops, strict=True)),
        "median_ms": 1e3 * statistics.median(model.history["seconds"]),
        "last_ms": 1e3 * model.history["seconds"][-1],
    }
    label_tensor = torch.from_numpy(own.to_numpy().astype("int64")).cuda()
    return statistics.median(loops) / model.n_iter, model.n_iter, centroids, label_tensor, facts


def flash(x: Any, start: Any, iterations: int) -> Result:
    from flash_kmeans import batch_kmeans_Euclid
    from flash_kmeans.assign_euclid_triton import euclid_assign_triton

    def fit(n: int = iterations) -> Any:
        return batch_kmeans_Euclid(x[None], len(start), max_iters=n, tol=-1.0, init_centroids=start[None].clone())

    fit(1)
    seconds, (_, centroids, done) = seconds_of(fit)
    # Its labels belong to the centroids before the last update: rows are labelled once more.
    labels = euclid_assign_triton(x[None], centroids.contiguous(), (x * x).sum(1)[None])[0]
    return seconds / done, done, centroids[0], labels[sample_of(len(x))], {}


def flashlib(x: Any, start: Any, iterations: int, dtype: str = "float32") -> Result:
    import torch
    from flashlib.primitives.kmeans.impl import flash_kmeans

    data, first = x.to(getattr(torch, dtype)), start.to(getattr(torch, dtype))

    def fit(n: int = iterations, begin: Any = first) -> Any:
        return flash_kmeans(data, len(start), max_iters=n, tol=0.0, init_centroids=begin[None].clone())

    fit(1)
    seconds, (_, centroids, done) = seconds_of(fit)
    centroids = centroids.reshape(start.shape)
    labels = fit(1, centroids.to(data.dtype))[0].reshape(-1)
    return seconds / done, done, centroids.float(), labels[sample_of(len(x))], {}


def torch_program(x: Any, start: Any, iterations: int) -> Result:
    """The program that one would write: products in float32, argmin, sums by index."""
    import torch

    labels = torch.empty(len(x), device="cuda", dtype=torch.int64)
    step = max(1, 2**28 // len(start))

    def fit(n: int = iterations) -> Any:
        centroids = before = start.clone()
        for _ in range(n):
            before, sums = centroids, torch.zeros_like(centroids)
            sizes = torch.zeros(len(centroids), device="cuda")
            squares = (centroids**2).sum(1)
            for rows, out in zip(x.split(step), labels.split(step), strict=True):
                torch.argmin(torch.addmm(squares, rows, centroids.T, alpha=-2), 1, out=out)
                sums.index_add_(0, out, rows)
                sizes += torch.bincount(out, minlength=len(centroids))
            centroids = torch.where(sizes[:, None] > 0, sums / sizes.clamp(min=1)[:, None], centroids)
        return before

    fit(1)
    seconds, centroids = seconds_of(fit, rounds=1)
    return seconds / iterations, iterations, centroids, labels[sample_of(len(x))], {}


def cuvs(x: Any, start: Any, iterations: int) -> Result:
    import cupy
    import torch
    from cuvs.cluster import kmeans

    data = cupy.from_dlpack(x)

    def fit(n: int = iterations) -> Any:
        parameters = kmeans.KMeansParams(n_clusters=len(start), init_method="Array", max_iter=n, tol=1e-30, n_init=1)
        return parameters, kmeans.fit(parameters, data, centroids=cupy.from_dlpack(start.clone()))

    fit(1)
    seconds, (parameters, (centroids, _, done)) = seconds_of(fit)
    labels = torch.from_dlpack(cupy.asarray(kmeans.predict(parameters, data, centroids)[0]))
    return seconds / done, done, torch.from_dlpack(cupy.asarray(centroids)), labels[sample_of(len(x))], {}


SYSTEMS: dict[str, Callable[[Any, Any, int], Result]] = {
    "ours": ours,
    "two-gpus": lambda x, start, n: ours(x, start, n, ["cuda:0", "cuda:1"]),
    "flash": flash,
    "flashlib": flashlib,
    "flashlib-bf16": lambda x, start, n: flashlib(x, start, n, "bfloat16"),
    "flashlib-fp16": lambda x, start, n: flashlib(x, start, n, "float16"),
    "torch": torch_program,
    "cuvs": cuvs,
}


def measure(name: str, kind: str, systems: list[str], default: bool) -> list[dict[str, Any]]:
    import torch

    case, found = CASES[name], []
    x, start = generate(case.n, case.d, case.k, kind)
    for system in systems:
        shape = f"{case.n:,} x {case.d} x {case.k:,}"
        row: dict[str, Any] = {"case": name, "shape": shape, "kind": kind, "system": system}
        try:
            fit = SYSTEMS[system] if not default else partial(ours, default=True)
            seconds, done, centroids, labels, facts = fit(x, start, case.iterations)
            wrong, mse = check(x[sample_of(case.n)], centroids, labels)
            row |= {"ms": 1e3 * seconds, "iterations": done, "wrong": wrong, "mse": mse, **facts}
            assert system != "ours" or wrong == 0, f"{wrong} of our labels are wrong"
        except Exception as error:  # a system that is missing or refuses leaves the others their turn
            row["error"] = f"{type(error).__name__}: {error}"[:200]
            if not isinstance(error, ImportError):
                traceback.print_exc(limit=3)
        print(json.dumps(row), flush=True)
        found.append(row)
        torch.cuda.empty_cache()
    return found


# ---- ceilings --------------------------------------------------------------------------------------------------------


def measure_ceilings() -> dict[str, float]:
    """Copy on the device, products of 8192^3, and copies from the host."""
    import torch

    def floats(n: int, device: str = "cuda") -> Any:
        return torch.ones(n, device=device)

    def each(work: Callable[[], Any], rounds: int = 10) -> float:
        for _ in range(3):
            work()
        return seconds_of(lambda: [work() for _ in range(rounds)])[0] / rounds

    def copy() -> float:
        source, target = floats(2**30), floats(2**30)
        return 2 * source.nbytes / each(lambda: target.copy_(source))

    found = {"copy_TBs": copy() / 1e12}
    torch.backends.cuda.matmul.allow_tf32 = False
    for name, dtype in (("fp32", torch.float32), ("fp16", torch.float16)):
        a, b = (torch.randn(8192, 8192, device="cuda").to(dtype) for _ in range(2))
        found[f"{name}_TFLOPs"] = 2 * 8192**3 / each(lambda a=a, b=b: a @ b) / 1e12
    host, device = floats(2**26, "cpu"), floats(2**26)
    pinned = host.pin_memory()
    found["pinned_GBs"] = host.nbytes / each(lambda: device.copy_(pinned, non_blocking=True)) / 1e9
    found["pageable_GBs"] = host.nbytes / each(lambda: device.copy_(host), 3) / 1e9
    torch.cuda.empty_cache()
    return found


# ---- the table -------------------------------------------------------------------------------------------------------


def share(wrong: float | None) -> str:
    return "-" if wrong is None else "0" if wrong == 0 else f"{100 * wrong:.2g}%"


def table(rows: list[dict[str, Any]], ceilings: dict[str, float]) -> None:
    """One line a case: floor, bar, ours, the best peer, and how often ours fits into it."""
    print(
        f"\n{'case':<11}{'kind':<15}{'shape':<21}{'floor':>8} {'':<6}{'bar':>7}{'ours':>9}{'it':>4}  {'':<7}"
        f"{'wrong':>6}{'fit, ms':>10}{'mse':>13}  {'best peer':<15}{'ms':>9}{'wrong':>8}{'mse':>13}{'ratio':>7}"
    )
    for name, kind in dict.fromkeys((row["case"], row["kind"]) for row in rows):
        case = CASES[name]
        found = {row["system"]: row for row in rows if (row["case"], row["kind"]) == (name, kind) and "ms" in row}
        peers = [row for system, row in found.items() if system != "ours"]
        floor, why = case.floor(ceilings)
        line = f"{name:<11}{kind:<15}{f'{case.n} x {case.d} x {case.k}':<21}{floor:>8.3f} {why:<6}{case.bar:>7g}"
        mine = found.get("ours")
        if mine:
            verdict = "met" if mine["ms"] <= case.bar else f"x {mine['ms'] / case.bar:.2f}"
            line += f"{mine['ms']:>9.3f}{mine['iterations']:>4}  {verdict:<7}{share(mine['wrong']):>6}"
            line += f"{mine['fit_ms']:>10.1f}{mine['mse']:>13.6g}"
        else:
            line += f"{'-':>9}{'':>42}"
        if peers:
            best = min(peers, key=lambda row: row["ms"])
            line += f"  {best['system']:<15}{best['ms']:>9.3f}{share(best['wrong']):>8}{best['mse']:>13.6g}"
            line += f"{best['ms'] / mine['ms']:>7.1f}" if mine else ""
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES, metavar="CASE")
    parser.add_argument("--kind", nargs="*", default=["blobs"], choices=KINDS, help="kinds of data")
    parser.add_argument("--default", action="store_true", help="our fits alone, as they start and stop by default")
    parser.add_argument("--json", action="store_true", help="lines of JSON alone: no ceilings, no table")
    parser.add_argument("--systems", nargs="*", default=["ours", "flash", "torch"], choices=SYSTEMS, metavar="SYSTEM")
    parser.add_argument("--reports", nargs="*", default=list(REPORTS), choices=REPORTS, metavar="REPORT")
    parser.add_argument("--rows", type=int, help="rows of the reports' data, if not their own")
    parser.add_argument("--out", type=Path, help="a JSON file of everything, written after each case")
    args = parser.parse_args()
    if "cuvs" in args.systems:
        # Before torch: both load the linker of kernels, and cuvs needs the newer.
        try:
            import_module("cuvs.cluster.kmeans")
        except ImportError as error:
            print(error, file=sys.stderr)
    import torch

    ceilings = {} if args.json else measure_ceilings()
    result: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "ceilings": ceilings, "reports": {}}
    result["rows"] = []
    print(result["gpu"], json.dumps(result["ceilings"]), flush=True)

    def save() -> None:
        if args.out:
            args.out.write_text(json.dumps(result, indent=1))

    for name in args.reports:
        print(f"\n{name}", flush=True)
        report, rows = REPORTS[name]
        try:
            result["reports"][name] = report(args.rows or rows)
        except Exception:  # the other reports have their turn
            traceback.print_exc(limit=3)
        torch.cuda.empty_cache()
        save()
    for name, kind in itertools.product(args.cases, args.kind):
        result["rows"] += measure(name, kind, ["ours"] if args.default else args.systems, args.default)
        torch.cuda.empty_cache()
        save()
    if not args.json:
        table(result["rows"], result["ceilings"])


if __name__ == "__main__":
    main()
