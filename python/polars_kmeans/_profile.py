"""What the clusters of a model look like in a frame."""

from __future__ import annotations

import math
from collections.abc import Sequence

import polars as pl

from polars_kmeans import _numeric, _plugin, _rows
from polars_kmeans.errors import InvalidDataError, InvalidParameterError

_LABEL = "__cluster__"


def profile(
    data: pl.LazyFrame,
    label: pl.Expr,
    described: list[pl.Expr],
    centroids: pl.DataFrame,
    weight: str | pl.Expr | None,
    quantiles: Sequence[float],
    *,
    features: bool,
) -> pl.DataFrame:
    """Describe the clusters by some columns, which may be the features: see :meth:`KMeansModel.profile`."""
    shares = _quantiles(quantiles)
    weights = _plugin.weights(weight)
    rows = _rows.collect(data.select(label.alias(_LABEL), *described, *weights))
    schema = dict(rows.schema)
    del schema[_LABEL]
    mass = _rows.masses(rows, weighted=bool(weights))
    if weights:
        del schema[_plugin.WEIGHT]
    widths = _rows.widths(centroids, schema) if features else {}
    values = _rows.coordinates(schema, {**widths, **_rows.lengths(rows, schema)})
    x = _rows.numbered(len(values))
    w = pl.col("weight")
    finite = [pl.when(value.is_finite()).then(value).alias(n) for n, value in zip(x, values.values(), strict=True)]
    query = (
        rows.lazy()
        .select(pl.col(_LABEL).alias("cluster"), mass.alias("weight"), *finite)
        .filter(pl.col("cluster").is_not_null(), _rows.counts(w))
    )
    _check_range(query, dict(zip(values, x, strict=True)))
    numbers = _numbers(query, x, bool(weights), shares)
    return _shown(centroids.height, numbers, dict(zip(values, x, strict=True)), list(shares))


def _quantiles(quantiles: Sequence[float]) -> dict[str, float]:
    """Return quantiles by the names that Polars gives them in `describe`."""
    expected = "quantiles: expected numbers from 0 to 1"
    try:
        shares = [_numeric.number("quantiles", share) for share in quantiles]
    except (TypeError, ValueError):
        raise InvalidParameterError(f"{expected}, got {quantiles!r:.80}") from None
    if not all(0 <= share <= 1 for share in shares) or len(set(shares)) < len(shares):
        raise InvalidParameterError(f"{expected}, each once, got {quantiles!r:.80}")
    return {f"{share * 100:g}%": share for share in shares}


def _check_range(query: pl.LazyFrame, x: dict[str, str]) -> None:
    """Refuse values whose squares float64 cannot hold."""
    largest = _rows.collect(query.select(pl.col("weight", *x.values()).abs().max())).row(0, named=True)
    limits = [("weight", "weight", 64, "1.8e19"), *((f'column "{name}"', n, 450, "2.9e135") for name, n in x.items())]
    for what, name, most, text in limits:
        value = largest[name] or 0.0
        if value > 2.0**most:
            msg = f"{what}: expected a largest magnitude of at most about {text}, got {value!r}"
            raise InvalidDataError(f"{msg}: divide the values by one number")


def _numbers(query: pl.LazyFrame, x: list[str], weighted: bool, shares: dict[str, float]) -> pl.DataFrame:
    """Return one row per cluster that has rows: its size, and masses, means, spreads and quantiles of `x`."""
    w = pl.col("weight")
    sums = _rows.totals(
        query,
        "cluster",
        {
            "mass": w,
            **{f"mass_{n}": pl.when(pl.col(n).is_not_null()).then(w) for n in x},
            **{f"sum_{n}": w * pl.col(n) for n in x},
        },
    )
    means = sums.with_columns(
        pl.when(pl.col(f"mass_{n}") > 0).then(pl.col(f"sum_{n}") / pl.col(f"mass_{n}")).alias(f"mean_{n}") for n in x
    )
    joined = query.join(means.lazy().select("cluster", pl.col(f"mean_{n}" for n in x)), on="cluster")
    squares = _rows.totals(joined, "cluster", {f"square_{n}": w * (pl.col(n) - pl.col(f"mean_{n}")) ** 2 for n in x})
    rest = query.group_by("cluster").agg(
        pl.len().cast(pl.UInt64).alias("size"),
        *(_quantile(n, share, weighted).alias(f"{name}_{n}") for n in x for name, share in shares.items()),
    )
    return means.join(squares, on="cluster").join(_rows.collect(rest), on="cluster")


def _quantile(name: str, share: float, weighted: bool) -> pl.Expr:
    """Return the smallest value that has at least this share of the mass at or below it."""
    value = pl.col(name)
    if not weighted:
        return value.quantile(share, interpolation="equiprobable")
    known, order = value.filter(value.is_not_null()), pl.col("weight").filter(value.is_not_null())
    reached = order.sort_by(known).cum_sum()
    return known.sort().filter(reached >= share * reached.last()).first()


def _shown(k: int, numbers: pl.DataFrame, x: dict[str, str], shares: list[str]) -> pl.DataFrame:
    """Bring the numbers into the shape of a profile: one row per cluster and feature."""
    clusters = pl.DataFrame({"cluster": range(k)}, schema={"cluster": pl.UInt32}).join(
        numbers, on="cluster", how="left", maintain_order="left"
    )
    everything = math.fsum(numbers["mass"])
    share = [(mass or 0.0) / everything if everything else None for mass in clusters["mass"]]
    parts = []
    for at, (feature, n) in enumerate(x.items()):
        masses, means, squares = (clusters[f"{kind}_{n}"].to_list() for kind in ("mass", "mean", "square"))
        mean, std = _overall(masses, means, squares)
        own = [
            None if m is None else math.sqrt(square / mass)
            for mass, m, square in zip(masses, means, squares, strict=True)
        ]
        differences = [None if m is None or mean is None or not std else (m - mean) / std for m in means]
        parts.append(
            clusters.select(
                "cluster",
                pl.col("size").fill_null(0),
                pl.Series("share", share, dtype=pl.Float64),
                pl.lit(feature, dtype=pl.String).alias("feature"),
                pl.col(f"mean_{n}").alias("mean"),
                pl.Series("std", own, dtype=pl.Float64),
                *(pl.col(f"{name}_{n}").alias(name) for name in shares),
                pl.lit(mean, dtype=pl.Float64).alias("overall_mean"),
                pl.lit(std, dtype=pl.Float64).alias("overall_std"),
                pl.Series("difference", differences, dtype=pl.Float64),
                pl.lit(at).alias("order"),
            )
        )
    rank = pl.col("difference").abs().rank("ordinal", descending=True).over("cluster").cast(pl.UInt32)
    return pl.concat(parts).with_columns(rank=rank).sort("cluster", "order").drop("order")


def _overall(
    masses: list[float | None], means: list[float | None], squares: list[float | None]
) -> tuple[float | None, float | None]:
    """Return the mean and the standard deviation of all rows, from those of the clusters."""
    known = [
        (mass, mean, square)
        for mass, mean, square in zip(masses, means, squares, strict=True)
        if mass is not None and mean is not None and square is not None
    ]
    everything = math.fsum(mass for mass, _, _ in known)
    if not everything:
        return None, None
    middle = math.fsum(mass * mean for mass, mean, _ in known) / everything
    spread = math.fsum(square + mass * (mean - middle) ** 2 for mass, mean, square in known)
    return middle, math.sqrt(spread / everything)
