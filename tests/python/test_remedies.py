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
