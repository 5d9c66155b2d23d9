"""Lessons give the same segments in each run, in whatever order the rows of their tables come."""

import hashlib
import runpy
import sys
from itertools import count
from typing import Any

import numpy as np
import polars as pl
import pytest
from helpers import ROOT, run_page

import polars_kmeans as pk


@pytest.mark.parametrize("lesson", ["11_segments", "12_again_next_month"])
def test_ten_runs_of_a_lesson_give_one_hash(lesson: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write, seeds = pl.DataFrame.write_csv, count()

    def shuffled(frame: pl.DataFrame, *args: Any, **keywords: Any) -> Any:
        return write(frame.sample(fraction=1.0, shuffle=True, seed=next(seeds)), *args, **keywords)

    # Rows in order give the same bits by chance: Polars then has the rows of most customers in one piece.
    monkeypatch.setattr(pl.DataFrame, "write_csv", shuffled)
    monkeypatch.setattr(sys, "argv", [lesson])
    assert len({hash_of(runpy.run_path(str(ROOT / "examples" / f"{lesson}.py"))) for _ in range(10)}) == 1


def test_sums_of_cents_do_not_depend_on_the_order_of_the_rows() -> None:
    names = run_page(ROOT / "docs" / "guide" / "row-order.md")
    random = np.random.default_rng(0)
    orders = pl.DataFrame({"shop": random.integers(0, 20, 5_000), "euros": random.lognormal(3, 1, 5_000).round(2)})
    shuffled = [orders.sample(fraction=1.0, shuffle=True, seed=seed).lazy().group_by("shop") for seed in range(10)]
    exact = [query.agg(euros=names["cents"].sum() / pl.len() / 100).sort("shop").collect() for query in shuffled]
    floats = [query.agg(pl.col("euros").mean()).sort("shop").collect() for query in shuffled]
    assert all(frame.equals(exact[0]) for frame in exact)
    # Otherwise this test could not fail.
    assert not all(frame.equals(floats[0]) for frame in floats)


def hash_of(names: dict[str, Any]) -> str:
    """Hash the models of a lesson, and the labels that they give to its rows."""
    found = hashlib.sha256()
    models = [model for model in names.values() if isinstance(model, pk.KMeansModel)]
    rows = [frame for name, frame in names.items() if name in ("logs", "may", "june")]
    assert models and rows
    for model in models:
        found.update(model.to_bytes())
        found.update(repr([model.predict(frame).to_list() for frame in rows]).encode())
    return found.hexdigest()
