"""An error about a column that holds no numbers says what to do, and what it says works."""

import re
from datetime import date, datetime, time, timedelta
from typing import Any

import polars as pl
import pytest

import polars_kmeans as pk

COLUMNS: dict[str, tuple[list[Any], Any]] = {
    "date": ([date(2024, 1, 1), date(2024, 6, 1), date(1960, 1, 1)], pl.Date),
    "datetime": ([datetime(2024, 1, 1), datetime(2024, 6, 1), datetime(1960, 1, 1)], pl.Datetime("ms", "UTC")),
    "duration": ([timedelta(1), timedelta(2), timedelta(hours=9)], pl.Duration),
    "time": ([time(1), time(2), time(23, 59)], pl.Time),
    "null": ([None, None, None], pl.Null),
    "struct": ([{"a": 1.0, "b": 2.0}, {"a": 5.0, "b": 2.0}, {"a": 1.0, "b": 0.0}], None),
    "text": (["a", "b", "a"], pl.String),
    "categorical": (["a", "b", "a"], pl.Categorical),
    "enum": (["a", "b", "a"], pl.Enum(["a", "b"])),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_what_the_error_says_works(kind: str) -> None:
    values, dtype = COLUMNS[kind]
    # A name that needs quotes.
    name = 'it\'s "x"'
    frame = pl.DataFrame({name: pl.Series(values, dtype=dtype)})
    with pytest.raises(pk.InvalidColumnError) as raised:
        pk.KMeans(2).fit(frame, name)
    message = str(raised.value)
    if found := re.search(r": pass (pl\.col\(.*\)\.[\w.]+\(.*?\))", message):
        expr = eval(found[1], {"pl": pl})
        labels = frame.select(pk.kmeans(expr, k=2, null_policy="skip", too_few="null")).to_series()
        assert (labels.null_count() == 3) == (kind == "null")
    else:
        found = re.search(r": (frame\.to_dummies\(.*?\)) makes", message)
        assert found is not None, message
        numbers = eval(found[1], {"frame": frame})
        assert pk.KMeans(2).fit(numbers, pl.all()).n_clusters == 2


@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical])
def test_texts_of_digits_become_numbers(dtype: Any) -> None:
    frame = pl.DataFrame({"x": pl.Series(["1", "2.5", "9"], dtype=dtype)})
    with pytest.raises(pk.InvalidColumnError, match=r"and pl\.col\(.*\) makes numbers of texts") as raised:
        pk.KMeans(2).fit(frame, "x")
    found = re.search(r"and (pl\.col\(.*\)) makes", str(raised.value))
    assert found is not None
    numbers = frame.select(eval(found[1], {"pl": pl}))
    assert pk.KMeans(2).fit(numbers, "x").centroids["x"].sort().to_list() == [1.75, 9.0]


def test_values_out_of_range_say_plain_numbers_and_what_to_do() -> None:
    huge, tiny = pl.DataFrame({"x": [1.0, 1e200]}), pl.DataFrame({"x": [0.0, 1e-200]})
    with pytest.raises(
        pk.InvalidDataError, match=r"at most about 2\.9e135, got 1e200: divide the values by one number, or"
    ):
        pk.KMeans(2).fit(huge, "x")
    with pytest.raises(pk.InvalidDataError, match=r"0 or at least about 3\.4e-136, got 1e-200: multiply the values by"):
        pk.KMeans(2).fit(tiny, "x")
    assert pk.KMeans(2).fit(huge / 1e100, "x").n_clusters == pk.KMeans(2).fit(tiny * 1e100, "x").n_clusters == 2
    wide = pl.DataFrame({"x": [1e-10, 2e-10, 3e-10, 1e30]})
    with pytest.raises(pk.InvalidDataError, match=r'below 1.4e-20 of it: .* make it null and pass null_policy="skip"$'):
        pk.KMeans(2).fit(wide, "x")
    without = wide.select(pl.col("x").replace(1e30, None))
    assert pk.KMeans(2, null_policy="skip").fit(without, "x").centroids["size"].sum() == 3
    for weights, says, mended in (
        ([1.0, 1e30], "from about 5.4e-20 to 1.8e19, got 1e30: divide all weights by the largest$", [1.0, 1.0]),
        ([1.0, 1e-14], "below 1.1e-13 of the largest, 1e0, got 1 of 2: make such small weights 0", [1.0, 0.0]),
    ):
        frame = pl.DataFrame({"x": [1.0, 2.0], "w": weights, "mended": mended})
        with pytest.raises(pk.InvalidDataError, match=says):
            pk.KMeans(1, weight="w").fit(frame, "x")
        assert pk.KMeans(1, weight="mended").fit(frame, "x").n_clusters == 1
    # The bounds that are said are those that hold.
    for value in (2.9e135, 3.5e-136):
        assert pk.KMeans(1).fit(pl.DataFrame({"x": [value]}), "x").n_clusters == 1
    for value in (2.91e135, 3.4e-136):
        with pytest.raises(pk.InvalidDataError):
            pk.KMeans(1).fit(pl.DataFrame({"x": [value]}), "x")


def test_rows_beside_other_columns() -> None:
    frame = pl.DataFrame({"e": pl.Series([[1.0, 2.0], [3.0, 4.0]], dtype=pl.Array(pl.Float64, 2)), "x": [1.0, 2.0]})
    with pytest.raises(pk.InvalidColumnError, match="beside other columns: pass it alone"):
        pk.KMeans(1).fit(frame, "e", "x")
    assert pk.KMeans(1).fit(frame, "e").n_clusters == 1
    with pytest.raises(pk.InvalidColumnError, match=r"twice: rename one with \.alias"):
        pk.KMeans(1).fit(frame, "x", "x")


def test_a_table_that_lost_its_metadata(tmp_path: Any) -> None:
    path = tmp_path / "model.parquet"
    model = pk.KMeans(2).fit(pl.DataFrame({"x": [0.0, 1.0, 5.0]}), "x")
    model.save(path)
    pl.read_parquet(path).write_parquet(path)
    with pytest.raises(pk.InvalidModelError, match=r"KMeansModel\.from_centroids"):
        pk.KMeansModel.load(path)
    frame = pl.DataFrame({"x": [0.0, 1.0, 5.0]})
    assert pk.KMeansModel.from_centroids(pl.read_parquet(path)).predict(frame).equals(model.predict(frame))
