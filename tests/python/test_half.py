"""Float16 columns give the bits of the same values in Float32, on every device."""

import numpy as np
import polars as pl
import pytest
from helpers import needs_gpu

import polars_kmeans as pk

N = 4_000


DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]


def narrow() -> pl.DataFrame:
    """Blobs, subnormal numbers and the largest ones, in chunks of several lengths."""
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(N, 3)) + rng.integers(0, 5, size=(N, 1)) * 8).astype(np.float16)
    x[:, 2] = (rng.integers(-500, 500, size=N) * 2.0**-24).astype(np.float16)
    x[7, 0] = np.float16(65504)
    df = pl.DataFrame({name: pl.Series(x[:, f]) for f, name in enumerate("xyz")})
    assert df.schema == pl.Schema(dict.fromkeys("xyz", pl.Float16))
    return pl.concat([df[:100], df[100:101], df[101:]], rechunk=False)


def brief(frame: pl.DataFrame, columns: list[str], **options: object) -> tuple[object, ...]:
    model = pk.KMeans(k=9, seed=5, history="full", **options).fit(frame, columns)
    labels = frame.select(model.predict())["cluster"]
    distances = frame.select(model.transform()).to_series()
    history = model.history.drop("settled", "rescored", "skipped", "groups", "passes", "seconds")
    return (
        model.inertia,
        model.centroids.rows(),
        labels.to_list(),
        distances.to_list(),
        history.rows(),
        model.score(frame),
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"metric": "cosine"}, {"scale": "standard"}, {"init": "random"}])
def test_columns(device: str, options: dict[str, object]) -> None:
    df = narrow().filter(pl.any_horizontal(pl.all() != 0))
    expected = brief(df.cast(pl.Float32), ["x", "y", "z"], device="cpu", **options)
    assert brief(df, ["x", "y", "z"], device=device, **options) == expected
    mixed = df.with_columns(pl.col("y").cast(pl.Float32))
    assert brief(mixed, ["x", "y", "z"], device=device, **options) == expected


@pytest.mark.parametrize("device", DEVICES)
def test_arrays(device: str) -> None:
    df = narrow().select(v=pl.concat_arr("x", "y", "z"))
    assert df.schema == {"v": pl.Array(pl.Float16, 3)}
    expected = brief(df.cast(pl.Array(pl.Float32, 3)), ["v"], device="cpu")
    assert brief(df, ["v"], device=device) == expected


def test_expressions_and_groups() -> None:
    df = narrow().with_row_index("i").with_columns(g=pl.col("i") % 3)
    wide = df.with_columns(pl.col("x", "y", "z").cast(pl.Float32))
    labels = pk.kmeans("x", "y", "z", k=4, too_few="null").over("g")
    assert df.select(labels).equals(wide.select(labels))
    centroids = pk.centroids("x", "y", k=3)
    of = [frame.group_by("g", maintain_order=True).agg(centroids) for frame in (df, wide)]
    assert of[0].equals(of[1])


@pytest.mark.parametrize("device", DEVICES)
def test_bad_values(device: str) -> None:
    df = narrow()
    for bad in (None, float("nan"), float("inf")):
        dirty = df.vstack(pl.DataFrame({name: [bad] for name in "xyz"}, schema=df.schema))
        with pytest.raises(Exception) as narrow_error:
            pk.KMeans(k=3, device=device).fit(dirty, ["x", "y", "z"])
        with pytest.raises(type(narrow_error.value)) as wide_error:
            pk.KMeans(k=3, device=device).fit(dirty.cast(pl.Float32), ["x", "y", "z"])
        assert str(narrow_error.value) == str(wide_error.value)
        model = pk.KMeans(k=3, device=device, null_policy="skip").fit(dirty, ["x", "y", "z"])
        assert dirty.select(model.predict())["cluster"][-1] is None
