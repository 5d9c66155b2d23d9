"""Places on a map: points of the unit sphere, and the way back to degrees and kilometres."""

import math
from hashlib import sha256
from typing import Any

import polars as pl
import pytest
from polars.exceptions import ComputeError

import polars_kmeans as pk

PLACES = pl.DataFrame(
    {
        "place": ["null island", "North Pole", "South Pole", "Quito", "Suva", "Berlin", None],
        "lat": [0.0, 90.0, -90.0, -0.22, -18.14, 52.52, None],
        "lon": [0.0, 12.5, -180.0, 281.48, 178.44, 13.4, 7.0],
    }
)
POINTS = PLACES.select(pk.sphere("lat", "lon")).to_series()


def test_points_are_on_the_unit_sphere() -> None:
    assert POINTS.name == "sphere"
    assert POINTS.dtype == pl.Array(pl.Float64, 3)
    assert POINTS[:3].to_list() == [[1, 0, 0], [0, 0, 1], [0, 0, -1]]
    assert POINTS.null_count() == 1
    assert POINTS[6] is None
    for point, lat, lon in zip(POINTS, PLACES["lat"], PLACES["lon"], strict=True):
        if point is not None:
            a, b = math.radians(lat), math.radians(lon)
            expected = [math.cos(a) * math.cos(b), math.cos(a) * math.sin(b), math.sin(a)]
            assert list(point) == pytest.approx(expected, abs=1e-15)


def test_degrees_come_back() -> None:
    there = PLACES.select(pk.sphere_degrees(pk.sphere("lat", "lon"))).to_series()
    assert there.dtype == pl.Struct({"lat": pl.Float64, "lon": pl.Float64})
    assert there.null_count() == 1
    frame = there.struct.unnest().head(6)
    assert frame["lat"].to_list() == pytest.approx(PLACES["lat"].head(6).to_list(), abs=1e-13)
    # A pole has every longitude. Longitudes end at 180 degrees.
    assert frame["lon"].to_list() == pytest.approx([0.0, 0.0, 0.0, -78.52, 178.44, 13.4], abs=1e-13)


def test_directions_count_and_points_without_one_are_null() -> None:
    rows = [[0.0, 0.0, 0.0], [3e300, 3e300, 0.0], [1e-310, 0.0, 0.0], [None, 1.0, 1.0], [math.nan, 1.0, 1.0], None]
    rows += [[math.inf, 0.0, 1.0]]
    for dtype in (pl.Array(pl.Float64, 3), pl.List(pl.Float64)):
        points = pl.DataFrame({"p": pl.Series(rows, dtype=dtype)})
        found = points.select(pk.sphere_degrees("p")).to_series()
        assert found.is_null().to_list() == [True, False, False, True, True, True, True]
        assert found[1] == pytest.approx({"lat": 0.0, "lon": 45.0})
        assert found[2] == {"lat": 0.0, "lon": 0.0}


def test_kilometres_are_those_of_great_circles() -> None:
    chords = pl.DataFrame({"c": [0.0, 2.0, math.sqrt(2), 2.0000001, None, math.nan, 1e-9]})
    km = chords.select(pk.sphere_km("c")).to_series()
    assert (km.name, km.dtype) == ("km", pl.Float64)
    half = math.pi * 6371.0088
    assert km.to_list() == pytest.approx([0.0, half, half / 2, half, None, None, 6.3710088e-6])
    assert chords.select(pk.sphere_km("c", radius=1)).to_series()[1] == math.pi


def test_the_distances_of_a_model_become_kilometres() -> None:
    places = PLACES.drop_nulls("lat")
    point = pk.sphere("lat", "lon")
    model = pk.KMeans(2, metric="cosine", seed=3).fit(places, point)
    frame = places.select(
        pk.sphere_km(model.predict(point, output="struct").struct.field("distance")).alias("nearest"),
        pk.sphere_km(model.transform(point)),
        pk.sphere_degrees(point).struct.unnest(),
    )
    assert frame["km"].dtype == pl.Array(pl.Float64, 2)
    assert frame["km"].arr.min().to_list() == frame["nearest"].to_list()
    centroids = model.centroids.select(pk.sphere_degrees("sphere")).unnest("degrees")
    for row, distances in zip(frame.iter_rows(named=True), frame["km"], strict=True):
        for (lat, lon), km in zip(centroids.iter_rows(), distances, strict=True):
            a, b, turn = math.radians(row["lat"]), math.radians(lat), math.radians(row["lon"] - lon)
            haversine = math.sin((b - a) / 2) ** 2 + math.cos(a) * math.cos(b) * math.sin(turn / 2) ** 2
            assert km == pytest.approx(2 * 6371.0088 * math.asin(math.sqrt(haversine)), abs=1e-6)


@pytest.mark.parametrize("dtype", [pl.Int16, pl.Int64, pl.Float32, pl.Decimal(9, 2)])
def test_degrees_of_every_numeric_type(dtype: Any) -> None:
    degrees = pl.DataFrame({"lat": [45, -90], "lon": [10, 180]})
    expected = degrees.select(pk.sphere("lat", "lon")).to_series()
    assert degrees.cast(dtype).select(pk.sphere("lat", "lon")).to_series().equals(expected)


def test_places_in_every_kind_of_query() -> None:
    expressions = [pk.sphere("lat", "lon"), pk.sphere_degrees(pk.sphere("lat", "lon"))]
    expected = PLACES.select(expressions)
    long = pl.concat([PLACES] * 40_000)
    assert long.lazy().select(expressions).collect(engine="streaming").equals(pl.concat([expected] * 40_000))
    assert PLACES.head(0).select(expressions).equals(expected.head(0))
    assert PLACES.select(expressions).equals(expected)
    ones = PLACES.select(pk.sphere(pl.lit(52.52), pl.lit(13.4)))
    assert ones.item().to_list() == POINTS[5].to_list()
    mixed = PLACES.select(pk.sphere(pl.lit(52.52), "lon")).to_series()
    assert mixed.len() == 7
    assert mixed[5].to_list() == POINTS[5].to_list()
    per_group = PLACES.group_by("place", maintain_order=True).agg(pk.sphere("lat", "lon"))
    assert per_group["sphere"].list.first().equals(POINTS)


def test_points_have_these_bits_everywhere() -> None:
    places = pl.select(lat=pl.int_range(0, 18_001) / 100 - 90, lon=pl.int_range(0, 18_001) / 50 - 180)
    points = places.select(pk.sphere("lat", "lon"))
    back = points.select(pk.sphere_degrees("sphere"), pk.sphere_km(pl.col("sphere").arr.get(0).abs()))
    columns = [points["sphere"].explode(), *back["degrees"].struct.unnest(), back["km"]]
    hashes = [sha256(column.to_numpy().tobytes()).hexdigest()[:16] for column in columns]
    assert hashes == ["0e2c8b3b71a1a2ac", "f648bb1ca7da0fe0", "bfaa2797235f38c8", "6326a2978477c3e1"]


@pytest.mark.parametrize(
    ("lat", "lon", "column", "got"),
    [(90.5, 0, "lat", "90.5"), (151.2, -33.9, "lat", "151.2"), (0, 360.5, "lon", "360.5"), (0, -181, "lon", "-181")],
)
def test_degrees_out_of_range_are_refused(lat: float, lon: float, column: str, got: str) -> None:
    frame = pl.DataFrame({"lat": [1.0, lat], "lon": [1.0, lon]})
    said = rf'^column "{column}": expected a l\w+ude from .*, got {got}'
    with pytest.raises(pk.InvalidDataError, match=said), pk.typed_errors():
        frame.select(pk.sphere("lat", "lon"))
    with pytest.raises(ComputeError, match="InvalidDataError: column"):
        frame.lazy().select(pk.sphere("lat", "lon")).collect()
    with pytest.raises(pk.InvalidDataError, match="got inf"), pk.typed_errors():
        pl.DataFrame({"lat": [math.inf], "lon": [1.0]}).select(pk.sphere("lat", "lon"))
    # Not a number is not known, as a null.
    assert pl.DataFrame({"lat": [math.nan], "lon": [1.0]}).select(pk.sphere("lat", "lon")).item() is None


@pytest.mark.parametrize("distance", [-1e-9, 2.1, math.inf])
def test_distances_out_of_range_are_refused(distance: float) -> None:
    said = r'^column "c": expected a distance of points on the unit sphere, from 0 to 2 '
    with pytest.raises(pk.InvalidDataError, match=said), pk.typed_errors():
        pl.DataFrame({"c": [1.0, distance]}).select(pk.sphere_km("c"))


def test_what_is_no_column_of_numbers_is_refused() -> None:
    bad: list[Any] = [1.5, None, ["lat"], PLACES["lat"]]
    for value in bad:
        for call, rest in ((pk.sphere, ("lon",)), (pk.sphere_degrees, ()), (pk.sphere_km, ())):
            with pytest.raises(pk.InvalidColumnError, match="expected a column name or an expression, got "):
                call(value, *rest)
    with pytest.raises(pk.InvalidColumnError, match=r"^lat: expected one column, got an expression of several"):
        pk.sphere(pl.col("lat", "lon"), "lon")
    for radius in (0, -1, math.inf, math.nan, True, "6371"):
        with pytest.raises(pk.InvalidParameterError, match=r"^radius: expected a positive finite number"):
            pk.sphere_km("c", radius=radius)  # type: ignore[arg-type]
    texts = pl.LazyFrame({"a": ["x"], "p": [[1.0, 2.0]]})
    for expr in (pk.sphere("a", "a"), pk.sphere_degrees("a"), pk.sphere_km("a"), pk.sphere_km("p")):
        with pytest.raises(pk.InvalidColumnError, match="expected numbers"), pk.typed_errors():
            # The schema says so.
            texts.select(expr).collect_schema()
    with pytest.raises(pk.InvalidColumnError, match=r"expected 3 features, got 2"), pk.typed_errors():
        texts.select(pk.sphere_degrees("p")).collect()
