"""Places on a map: latitudes and longitudes as points of the unit sphere, and the way back."""

from __future__ import annotations

import polars as pl

from polars_kmeans import _numeric, _plugin
from polars_kmeans.errors import InvalidColumnError


def _one(name: str, value: str | pl.Expr) -> pl.Expr:
    """Return a column as an expression."""
    if isinstance(value, str):
        return _plugin.column(value)
    if not isinstance(value, pl.Expr):
        raise InvalidColumnError(f"{name}: expected a column name or an expression, got {type(value).__name__}")
    if value.meta.has_multiple_outputs():
        raise InvalidColumnError(f"{name}: expected one column, got an expression of several")
    return value


def sphere(lat: str | pl.Expr, lon: str | pl.Expr) -> pl.Expr:
    """Turn latitudes and longitudes into points of the unit sphere, for `metric="cosine"`.

    Degrees are no lengths: a degree of longitude is 111 km at the equator and 0 km at a pole, and -180 and 180 degrees
    are one meridian. Points of the sphere have neither fault. With `metric="cosine"`, a fit measures the straight
    distance between them, and a centroid is a point of the sphere, too.

    The points have the same bits on every platform.

    Parameters
    ----------
    lat
        Latitudes in degrees, from -90 to 90: a column name or an expression.
    lon
        Longitudes in degrees, from -180 to 360.

    Returns
    -------
    Expr
        A column named `sphere`: `Array(Float64, 3)`. The first axis leaves the earth at latitude 0 and longitude 0, the
        second one at longitude 90, the third one at the North Pole. Null where a value is null or NaN.

    Raises
    ------
    polars.exceptions.ComputeError
        When the query runs: for columns without numbers, and for degrees out of range. See
        :mod:`polars_kmeans.errors`.

    Examples
    --------
    Fiji lies on both sides of the meridian of 180 degrees:

    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> towns = pl.DataFrame({
    ...     "town": ["Suva", "Lambasa", "Lakeba", "Berlin", "Dresden"],
    ...     "lat": [-18.14, -16.43, -18.22, 52.52, 51.05],
    ...     "lon": [178.44, 179.38, -178.78, 13.40, 13.74],
    ... })
    >>> model = pk.KMeans(2, metric="cosine").fit(towns, pk.sphere("lat", "lon"))
    >>> model.centroids.sort("size").select("size", pk.sphere_degrees("sphere").struct.unnest().round(2))
    shape: (2, 3)
    ┌──────┬───────┬────────┐
    │ size ┆ lat   ┆ lon    │
    │ ---  ┆ ---   ┆ ---    │
    │ u64  ┆ f64   ┆ f64    │
    ╞══════╪═══════╪════════╡
    │ 2    ┆ 51.79 ┆ 13.57  │
    │ 3    ┆ -17.6 ┆ 179.68 │
    └──────┴───────┴────────┘

    """
    exprs = [_one("lat", lat), _one("lon", lon)]
    return _plugin.row_by_row("sphere", exprs, {}).alias("sphere")


def sphere_degrees(points: str | pl.Expr) -> pl.Expr:
    """Turn points of the sphere back into degrees: the centroids of a fit of :func:`sphere`, or its column.

    Parameters
    ----------
    points
        `Array` values of three numbers each: a column name or an expression. Only their direction counts.

    Returns
    -------
    Expr
        A column named `degrees`: `Struct(lat, lon)` of Float64, from -90 to 90 and from -180 to 180. Null where a value
        is null, NaN or infinite, and for a point of zeros, which has no direction.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"lat": [0.0, 90.0], "lon": [270.0, 12.5]})
    >>> df.select(pk.sphere_degrees(pk.sphere("lat", "lon"))).unnest("degrees")
    shape: (2, 2)
    ┌──────┬───────┐
    │ lat  ┆ lon   │
    │ ---  ┆ ---   │
    │ f64  ┆ f64   │
    ╞══════╪═══════╡
    │ 0.0  ┆ -90.0 │
    │ 90.0 ┆ 0.0   │
    └──────┴───────┘

    """
    return _plugin.row_by_row("sphere_degrees", [_one("points", points)], {}).alias("degrees")


def sphere_km(distance: str | pl.Expr, *, radius: float = 6371.0088) -> pl.Expr:
    """Turn distances of points of the sphere into kilometres along the surface of the earth.

    Parameters
    ----------
    distance
        Distances from 0 to 2, as the models of `metric="cosine"` give them: `distance` and `second_distance` of
        `predict(output="struct")`, or the arrays of `transform`. A column name or an expression.
    radius
        The radius of the sphere in kilometres. The default is the mean radius of the earth (IUGG, of WGS 84). The earth
        is no sphere: distances are off by at most 0.6 %.

    Returns
    -------
    Expr
        A column named `km`: Float64, or arrays of it. Null where a value is null or NaN.

    Raises
    ------
    polars.exceptions.ComputeError
        When the query runs: for columns without numbers, and for distances out of range. See
        :mod:`polars_kmeans.errors`.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> towns = pl.DataFrame({"town": ["Berlin", "Dresden"], "lat": [52.52, 51.05], "lon": [13.40, 13.74]})
    >>> model = pk.KMeans(1, metric="cosine").fit(towns, pk.sphere("lat", "lon"))
    >>> nearest = model.predict(pk.sphere("lat", "lon"), output="struct")
    >>> towns.select("town", pk.sphere_km(nearest.struct.field("distance")).round(1))
    shape: (2, 2)
    ┌─────────┬──────┐
    │ town    ┆ km   │
    │ ---     ┆ ---  │
    │ str     ┆ f64  │
    ╞═════════╪══════╡
    │ Berlin  ┆ 82.6 │
    │ Dresden ┆ 82.6 │
    └─────────┴──────┘

    """
    expected = "a positive finite number of kilometres"
    kilometres = _numeric.number("radius", radius, expected)
    if not 0 < kilometres < float("inf"):
        raise _numeric.refused("radius", expected, radius)
    return _plugin.row_by_row("sphere_km", [_one("distance", distance)], {"radius": kilometres}).alias("km")
