"""The rows of `gpu.py` and of its reports."""

from __future__ import annotations

from typing import Any


def around(centres: Any, deviation: float, n: int, random: Any) -> Any:
    """Normal rows around some centres."""
    import torch

    d = centres.shape[1]
    x = torch.empty(n, d, device="cuda")
    for rows in x.split(max(1, 2**28 // d)):
        rows.normal_(0, deviation, generator=random)
        rows += centres[torch.randint(0, len(centres), (len(rows),), device="cuda", generator=random)]
    return x


def generate(n: int, d: int, k: int, kind: str = "blobs") -> tuple[Any, Any]:
    """Rows of a kind on the GPU, and k of them to start from. Blobs are those of Lutz et al. 2018, section 6.1."""
    import torch

    random = torch.Generator("cuda").manual_seed(n % 1_000_003 + d)

    def numbers(*size: int) -> Any:
        return torch.rand(*size, device="cuda", generator=random)

    match kind:
        case "uniform":
            x = numbers(n, d)
        case "lognormal":  # columns have scales of 1 to 1,000
            x = torch.empty(n, d, device="cuda").log_normal_(0, 1, generator=random)
            x *= 10 ** (3 * numbers(d))
        case "ties":
            x = torch.randint(0, 4, (n, d), device="cuda", generator=random).float()
        case "nested":  # ten clusters of thirty clusters each
            centres = (200 * numbers(10, d) - 100).repeat_interleave(30, 0)
            x = around(centres + torch.empty_like(centres).normal_(0, 20, generator=random), 3, n, random)
        case _:
            count = 10 if kind == "blobs" else int(kind.removeprefix("clusters-"))
            x = around(200 * numbers(count, d) - 100, 10, n, random)
    start = x[torch.randperm(min(n, 2**24), device="cuda", generator=random)[:k]].clone()
    return x, start


def to_frame(x: Any) -> Any:
    """Return the rows as a Polars frame in host memory, a chunk a column."""
    import polars as pl

    return pl.DataFrame([pl.Series(f"f{f}", x[:, f].contiguous().cpu().numpy()) for f in range(x.shape[1])])
