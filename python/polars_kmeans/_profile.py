"""What the clusters of a model look like in a frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import polars as pl

from polars_kmeans import _plugin, _rows
from polars_kmeans.errors import InvalidColumnError, InvalidParameterError

if TYPE_CHECKING:
    from polars_kmeans._typing import IntoFeatures
    from polars_kmeans.model import KMeansModel

_LABEL = "__cluster__"
_WEIGHT = "__weight__"


def profile(
    model: KMeansModel,
    data: pl.DataFrame | pl.LazyFrame,
    columns: tuple[IntoFeatures, ...],
    by: IntoFeatures | None,
    weight: str | pl.Expr | None,
    quantiles: Sequence[float],
) -> pl.DataFrame:
    """Describe the clusters. See :meth:`KMeansModel.profile`."""
    shares = _quantiles(quantiles)
    described = model._features(columns) if by is None else _plugin.features((by,)).exprs
    weights = [] if weight is None else [_plugin.weight_expr(weight)]
    label = model.predict(*columns).alias(_LABEL)
    rows = _rows.collect(_rows.lazy(data).select(label, *described, *weights))
    schema = dict(rows.schema)
    del schema[_LABEL]
    if weights:
        _check_weight(schema.pop(_WEIGHT), rows[_WEIGHT])
    values = _rows.coordinates(schema, _rows.widths(model, schema))
    x = _rows.numbered(len(values))
    w = pl.col("weight")
    finite = [pl.when(value.is_finite()).then(value).alias(n) for n, value in zip(x, values.values(), strict=True)]
    mass = _plugin.column(_WEIGHT).cast(pl.Float64) if weights else pl.lit(1.0)
    query = (
        rows.lazy()
        .select(pl.col(_LABEL).alias("cluster"), mass.alias("weight"), *finite)
        .filter(pl.col("cluster").is_not_null(), w.is_finite(), w > 0)
    )
    numbers = _numbers(query, x, bool(weights), shares)
    return _shown(model.n_clusters, numbers, dict(zip(values, x, strict=True)), list(shares))


def _quantiles(quantiles: Sequence[float]) -> dict[str, float]:
    """Return quantiles by the names that Polars gives them in `describe`."""
    expected = "quantiles: expected numbers from 0 to 1"
    try:
        shares = [float(share) for share in quantiles]
    except (TypeError, ValueError):
        msg = f"{expected}, got {quantiles!r:.80}"
        raise InvalidParameterError(msg) from None
    if not all(0 <= share <= 1 for share in shares) or len(set(shares)) < len(shares):
        msg = f"{expected}, each once, got {quantiles!r:.80}"
        raise InvalidParameterError(msg)
    return {f"{share * 100:g}%": share for share in shares}


def _check_weight(dtype: pl.DataType, weights: pl.Series) -> None:
    """Refuse weights that no fit takes."""
    if not (dtype.is_numeric() or dtype == pl.Boolean):
        msg = f"weight: expected numbers, got {dtype}"
        raise InvalidColumnError(msg)
    if dtype.is_numeric() and (weights < 0).any():
        msg = f"weights: expected non-negative values, got {weights.min()!r}"
        raise InvalidParameterError(msg)


def _numbers(query: pl.LazyFrame, x: list[str], weighted: bool, shares: dict[str, float]) -> pl.DataFrame:
    """Return one row a cluster, and one for all rows (of cluster null): masses, means, spreads and quantiles of `x`."""
    w = pl.col("weight")
    most = _rows.largest(query, {"weight": w, **{n: w * pl.col(n) for n in x}, **{f"|{n}": pl.col(n) for n in x}})
    heaviest = most["weight"]
    first = [
        pl.len().cast(pl.UInt64).alias("size"),
        _rows.total(w, heaviest).alias("mass"),
        *(_rows.total(w.filter(pl.col(n).is_not_null()), heaviest).alias(f"mass_{n}") for n in x),
        *(_rows.total(w * pl.col(n), most[n]).alias(f"sum_{n}") for n in x),
        *(_quantile(n, share, weighted).alias(f"{name}_{n}") for n in x for name, share in shares.items()),
    ]
    mean = [
        pl.when(pl.col(f"mass_{n}") > 0).then(pl.col(f"sum_{n}") / pl.col(f"mass_{n}")).alias(f"mean_{n}") for n in x
    ]
    far = {n: heaviest * (2 * most[f"|{n}"]) ** 2 for n in x}
    second = [_rows.total(w * (pl.col(n) - pl.col(f"mean_{n}")) ** 2, far[n]).alias(f"square_{n}") for n in x]
    std = [
        pl.when(pl.col(f"mass_{n}") > 0).then((pl.col(f"square_{n}") / pl.col(f"mass_{n}")).sqrt()).alias(f"std_{n}")
        for n in x
    ]
    parts = []
    # All rows are a cluster of their own, so that they are added up in the same way.
    for grouped in (query, query.with_columns(cluster=pl.lit(None, dtype=pl.UInt32))):
        means = _rows.collect(grouped.group_by("cluster").agg(first).with_columns(mean))
        middle = means.lazy().select("cluster", pl.col(f"mean_{n}" for n in x))
        joined = grouped.join(middle, on="cluster", nulls_equal=True)
        squares = _rows.collect(joined.group_by("cluster").agg(second))
        parts.append(means.join(squares, on="cluster", nulls_equal=True).with_columns(std))
    return pl.concat(parts)


def _quantile(name: str, share: float, weighted: bool) -> pl.Expr:
    """Return the smallest value that has at least this share of the mass at or below it."""
    value = pl.col(name)
    if not weighted:
        return value.quantile(share, interpolation="equiprobable")
    known, order = value.filter(value.is_not_null()), pl.col("weight").filter(value.is_not_null())
    reached = order.sort_by(known).cum_sum()
    return known.sort().filter(reached >= share * reached.last()).first()


def _shown(k: int, numbers: pl.DataFrame, x: dict[str, str], shares: list[str]) -> pl.DataFrame:
    """Bring the numbers into the shape of a profile: one row a cluster and feature."""
    overall = numbers.filter(pl.col("cluster").is_null())
    clusters = pl.DataFrame({"cluster": range(k)}, schema={"cluster": pl.UInt32}).join(
        numbers, on="cluster", how="left", maintain_order="left"
    )
    everything = overall["mass"].item() if overall.height else None
    parts = []
    for at, (feature, n) in enumerate(x.items()):
        mean, std = (overall[f"{kind}_{n}"].item() if overall.height else None for kind in ("mean", "std"))
        parts.append(
            clusters.select(
                "cluster",
                pl.col("size").fill_null(0),
                (pl.col("mass").fill_null(0.0) / pl.lit(everything, dtype=pl.Float64)).alias("share"),
                pl.lit(feature, dtype=pl.String).alias("feature"),
                pl.col(f"mean_{n}").alias("mean"),
                pl.col(f"std_{n}").alias("std"),
                *(pl.col(f"{share}_{n}").alias(share) for share in shares),
                pl.lit(mean, dtype=pl.Float64).alias("overall_mean"),
                pl.lit(std, dtype=pl.Float64).alias("overall_std"),
                pl.lit(at).alias("order"),
            )
        )
    difference = (pl.col("mean") - pl.col("overall_mean")) / pl.col("overall_std")
    return (
        pl.concat(parts)
        .with_columns(difference=pl.when(pl.col("overall_std") > 0).then(difference))
        .with_columns(rank=pl.col("difference").abs().rank("ordinal", descending=True).over("cluster"))
        .with_columns(pl.col("rank").cast(pl.UInt32))
        .sort("cluster", "order")
        .drop("order")
    )
