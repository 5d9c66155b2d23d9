"""Files of models that were damaged: each gives the models that were saved or a typed error, and ends no process."""

import io
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

import polars_kmeans as pk
from polars_kmeans import KMeansModel, KMeansModels, KMeansTree

FLIPS, CUTS = 10_000, 2_000
DF = pl.DataFrame({"shop": list("aaabbc"), "n": [1, 1, 1, 2, 2, 3], "x": [0.0, 0.2, 5.0, 7.0, 1.0, 3.0]})
TYPED = DF.with_columns(
    e=pl.col("shop").cast(pl.Enum(["unused; 1", "c", "b", "a"])),
    c=pl.col("shop").cast(pl.Categorical),
    d=pl.lit(datetime(2026, 1, 1)).dt.replace_time_zone("Europe/Berlin") + pl.col("n") * pl.duration(days=1),
)


def models(*by: str) -> KMeansModels:
    return pk.KMeans(2, seed=1, too_few="null").fit(TYPED, "x", by=list(by))


def old_file(groups: KMeansModels) -> bytes:
    """Return the file as it was written before it had a checksum of all."""
    files = [None if model is None else model.to_bytes() for model in groups.values()]
    file, header = io.BytesIO(), json.dumps({"format": 1, "by": groups.by})
    table = groups._keys.with_columns(pl.Series("__model__", files, dtype=pl.Binary))
    table.write_parquet(file, statistics=False, metadata={"polars-kmeans-groups": header})
    return file.getvalue()


FILES: dict[str, tuple[Callable[[bytes], Any], Callable[[], tuple[Any, bytes]]]] = {
    "model": (KMeansModel.from_bytes, lambda: (m := pk.KMeans(2).fit(DF, "x", "n"), m.to_bytes())),
    "tree": (KMeansTree.from_bytes, lambda: (t := pk.BisectingKMeans(3).fit(DF, "x", "n"), t.to_bytes())),
    "groups": (KMeansModels.from_bytes, lambda: (m := models("shop", "e"), m.to_bytes())),
    "old groups": (KMeansModels.from_bytes, lambda: (m := models("shop", "e", "c", "d"), old_file(m))),
}


def damage(kind: str) -> Counter[str]:
    """Count what comes of damaged files."""
    read, make = FILES[kind]
    saved, file = make()
    counts: Counter[str] = Counter()
    generator = random.Random(kind)
    for case in range(FLIPS + CUTS):
        content = bytearray(file)
        if case < FLIPS:
            content[generator.randrange(len(file))] ^= generator.randrange(1, 256)
        else:
            del content[generator.randrange(len(file)) :]
        try:
            counts["same" if read(bytes(content)) == saved else "changed"] += 1
        except pk.InvalidModelError:
            counts["refused"] += 1
        except BaseException as error:
            counts[f"{type(error).__name__}: {error!s:.100}"] += 1
    return counts


@pytest.mark.parametrize("kind", FILES)
def test_flips_and_cuts(kind: str) -> None:
    """A process of its own, because what ends a process is no exception."""
    child = subprocess.run([sys.executable, __file__, kind], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr[-2000:]
    counts = json.loads(child.stdout)
    if kind == "old groups":
        # Nothing in such a file says what its keys were.
        assert counts.pop("changed", 0) < FLIPS / 50
    assert set(counts) == {"same", "refused"}, counts
    assert counts["refused"] > CUTS


def test_the_byte_that_ended_the_process() -> None:
    """A change of this byte of an older file made the reader ask for two exabytes."""
    content = bytearray(pk.KMeans(1).fit(DF, "x", by="shop").to_bytes())
    content[44] ^= 1
    with pytest.raises(pk.InvalidModelError, match="a model that fits its checksum, got an altered one"):
        KMeansModels.from_bytes(bytes(content))


@pytest.mark.parametrize("by", [("shop",), ("shop", "n"), ("e", "c", "d")])
def test_older_files_are_read(by: tuple[str, ...]) -> None:
    groups = models(*by)
    read = KMeansModels.from_bytes(old_file(groups))
    assert read == groups and read._keys.schema == groups._keys.schema
    assert read.to_bytes() == groups.to_bytes()


def test_older_files_are_checked() -> None:
    groups = models("shop")
    whole = pl.read_parquet(io.BytesIO(old_file(groups)))
    header = '{"format": 1, "by": ["shop"]}'
    for table, facts, message in (
        (pl.concat([whole, whole.head(1)]), header, "keys that differ"),
        (whole, '{"format": 2, "by": ["shop"]}', "a table of models of groups"),
        (whole, '{"format": 1, "by": ["n"]}', "a table of models of groups"),
        (whole, "[" * 100_000, "a table of models of groups"),
        (whole.select("__model__"), '{"format": 1, "by": []}', "keys"),
        (whole.with_columns(pl.lit(b"model").alias("__model__")), header, "a file that KMeansModel.save wrote"),
        (whole.with_columns(pl.lit(1).alias("__model__")), header, "a file that KMeansModel.save wrote"),
    ):
        file = io.BytesIO()
        table.write_parquet(file, metadata={"polars-kmeans-groups": facts})
        with pytest.raises(pk.InvalidModelError, match=message):
            KMeansModels.from_bytes(file.getvalue())


KEYS: dict[str, pl.Series] = {
    **{str(t): pl.Series([3, None, 1], dtype=t) for t in sorted(pl.datatypes.group.INTEGER_DTYPES, key=str)},
    "largest": pl.Series([2**128 - 1, 2**127, 0], dtype=pl.UInt128),
    **{str(t): pl.Series([-0.0, float("nan"), None], dtype=t) for t in (pl.Float16, pl.Float32, pl.Float64)},
    "Float32 values": pl.Series([0.1, float("inf"), -1e-45], dtype=pl.Float32),
    "Boolean": pl.Series([True, None, False]),
    "Null": pl.Series([None], dtype=pl.Null),
    "String": pl.Series(["", "a\0ü", None]),
    "Binary": pl.Series([b"", b"\xff\0", None]),
    "Date": pl.Series([date(2026, 2, 28), date(1, 1, 1), None]),
    "Time": pl.Series([time(0), time(23, 59, 59, 999_999), None]),
    "Datetime": pl.Series([datetime(1969, 1, 1), None], dtype=pl.Datetime("ms")),
    "zone": pl.Series([datetime(2026, 1, 1)]).dt.replace_time_zone("Asia/Tokyo").dt.cast_time_unit("ns"),
    "Duration": pl.Series([timedelta(1), None], dtype=pl.Duration("us")),
    "Decimal": pl.Series([Decimal("-1.25"), None, Decimal(10) ** 30], dtype=pl.Decimal(38, 4)),
    "Categorical": pl.Series(["b", None, "a"], dtype=pl.Categorical),
    "named": pl.Series(["b", "a"], dtype=pl.Categorical(pl.Categories("colours", "ours", pl.UInt8))),
    "Enum": pl.Series(["b", None, "a"], dtype=pl.Enum(["a", "", "b", "3;x"])),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_all_types(kind: str) -> None:
    keys = KEYS[kind]
    rows = pl.DataFrame({"k": keys}).join(pl.DataFrame({"x": [0.0, 2.0]}), how="cross")
    groups = pk.KMeans(2).fit(rows, "x", by="k")
    read = KMeansModels.from_bytes(groups.to_bytes())
    assert read == groups and read._keys.schema == groups._keys.schema and len(read) == len(keys)
    assert read.to_bytes() == groups.to_bytes()
    assert read.label(rows).equals(groups.label(rows))
    table = pl.read_parquet(io.BytesIO(groups.to_bytes()))
    assert table.columns == ["k", "cluster", "size", "inertia", "x"] and table.height == 2 * len(keys)


def test_a_table_for_other_programs_has_keys_at_least() -> None:
    lists = pl.DataFrame({"cluster": [1, 1, 2, 2], "x": [0.0, 2.0, 3.0, 5.0]})
    groups = pk.KMeans(2).fit(lists, "x", by="cluster")
    assert pl.read_parquet(io.BytesIO(groups.to_bytes())).to_dict(as_series=False) == {"cluster": [1, 2]}
    assert KMeansModels.from_bytes(groups.to_bytes()) == groups


if __name__ == "__main__":
    print(json.dumps(damage(sys.argv[1])))
