"""The rows of `gpu.py` and of its reports."""

from __future__ import annotations

from typing import Any


def generate(n: int, d: int, k: int) -> tuple[Any, Any]:
    """Ten normal blobs of deviation 10 (Lutz et al. 2018, section 6.1) on the GPU, and k rows of them to start from."""
    import torch

    random = torch.Generator("cuda").manual_seed(n % 1_000_003 + d)
    centres = 200 * torch.rand(10, d, device="cuda", generator=random) - 100
    x = torch.empty(n, d, device="cuda")
    for rows in x.split(max(1, 2**28 // d)):
        rows.normal_(0, 10, generator=random)
        rows += centres[torch.randint(0, 10, (len(rows),), device="cuda", generator=random)]
    start = x[torch.randperm(min(n, 2**24), device="cuda", generator=random)[:k]].clone()
    return x, start


def to_frame(x: Any) -> Any:
    """Return the rows as a Polars frame in host memory, a chunk a column."""
    import polars as pl

    return pl.DataFrame([pl.Series(f"f{f}", x[:, f].contiguous().cpu().numpy()) for f in range(x.shape[1])])
