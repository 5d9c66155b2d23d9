"""Adds the functions to a connection of DuckDB.

DuckDB has no aggregates in Python, and its Python functions belong to the whole database. So a Python function has a
name of its own, and temporary macros of the connection call it. The macros collect the rows of a group in a list, have
optional arguments, and refuse a wrong number of arguments when a query is planned. Python functions have no declared
types: they get all types as they are, and the package converts them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa

from polars_kmeans import _export
from polars_kmeans.errors import InvalidColumnError, InvalidParameterError
from polars_kmeans.sql._fits import Fits
from polars_kmeans.sql._models import Predictor

_CENTROIDS = "STRUCT(cluster UINTEGER, size UBIGINT, inertia DOUBLE, centroid DOUBLE[])[]"
_MACRO = "CREATE OR REPLACE TEMPORARY MACRO "
# A variable of the connection. It has the options of the last registration.
_KEPT = "__polars_kmeans_options"

# Rows and features travel in one list, so that each label goes to its row. Names inside are long, because a column or
# a table of the same name would hide them.
_TABLE = """
    WITH __polars_kmeans AS (
        SELECT list({{'given': __polars_kmeans_row, 'features': {features}, 'weight': {weight}}}) AS __polars_kmeans_all
        FROM (SELECT COLUMNS({names}([name FOR name IN (*)])) FROM query_table(table_name)) AS __polars_kmeans_row
    )
    SELECT
        unnest([item.given FOR item IN __polars_kmeans_all], max_depth := 2),
        unnest({fit}(
            [item.features FOR item IN __polars_kmeans_all], k, [item.weight FOR item IN __polars_kmeans_all]
        )) AS cluster
    FROM __polars_kmeans
"""


def kept_options(connection: Any) -> dict[str, Any]:
    """Return the options of the last registration."""
    (kept,) = connection.execute(f"SELECT getvariable('{_KEPT}')").fetchone()
    options: dict[str, Any] = json.loads(kept or "{}")
    return options


def add(connection: Any, fits: Fits, models: dict[str, Predictor]) -> None:
    """Add or replace the functions."""
    query = "SELECT function_name FROM duckdb_functions() WHERE internal AND list_contains(?, function_name)"
    if taken := connection.execute(query, [list(models)]).fetchall():
        raise InvalidParameterError(f"models: expected names of new functions, got {taken[0][0]!r}, which DuckDB has")
    for predictor in models.values():
        _export.check_case(predictor.features)

    def labels(rows: Any, k: Any, weights: Any) -> pa.Array:
        return fits.labels_of_groups(*_arguments(rows, k, weights)).to_arrow()

    def centroids(rows: Any, k: Any, weights: Any) -> pa.Array:
        return fits.centroids_of_groups(*_arguments(rows, k, weights)).to_arrow()

    fit = _create(connection, "kmeans_fit", labels, "UINTEGER[]")
    aggregate = _create(connection, "kmeans_centroids", centroids, _CENTROIDS)
    names = _create(connection, "kmeans_names", _names, "VARCHAR[]")
    everything = _TABLE.format(features="[*COLUMNS(*)]", weight="NULL", fit=fit, names=names)
    chosen = _TABLE.format(features="features", weight="weight", fit=fit, names=names)
    for macro in (
        f"kmeans_fit(rows, k, weight := NULL) AS {fit}(rows, k, weight)",
        f"kmeans_centroids(features, k, weight := NULL) AS {aggregate}(list(features), k, list(weight))",
        f"kmeans(table_name, k) AS TABLE ({everything}), (table_name, features, k, weight := NULL) AS TABLE ({chosen})",
    ):
        connection.execute(_MACRO + macro)
    connection.execute(f"SET VARIABLE {_KEPT} = ?", [fits.to_json()])
    for name, predictor in models.items():
        features = ", ".join('"{}"'.format(feature.replace('"', '""')) for feature in predictor.features)
        function = _create(connection, name, predictor, "UINTEGER")
        connection.execute(f'{_MACRO} "{name}"({features}) AS {function}({features})')


def _create(connection: Any, name: str, function: Callable[..., pa.Array], returns: str) -> str:
    """Create a Python function. Return its name, which no other connection of the database uses."""
    number = 0
    while True:
        own = f"__polars_kmeans_{name}_{number}"
        # Only the connection that created a function can remove it.
        with suppress(duckdb.InvalidInputException):
            connection.remove_function(own)
        with suppress(duckdb.CatalogException):
            # DuckDB reads the signature: any number of columns, of any types.
            connection.create_function(
                own, lambda *columns: function(*columns), None, returns, type="arrow", null_handling="special"
            )
            return own
        number += 1


def _names(names: pa.Array) -> pa.Array:
    """Refuse a table that has a column of the labels' name. DuckDB calls this when it plans a query."""
    for name in names.to_pylist()[0]:
        if name.casefold() == "cluster":
            msg = f'table: expected no column "{name}", since the labels have this name, got one'
            hint = f"WITH others AS (SELECT * EXCLUDE (\"{name}\") FROM points) FROM kmeans('others', ...)"
            raise InvalidColumnError(f"{msg}: leave it out, as in {hint}")
    return names


def _arguments(rows: Any, k: Any, weights: Any) -> tuple[pl.Series, pl.Series, pl.Series | None]:
    """Return the rows of groups, `k`, and the weights if there are any."""
    given = pl.Series(weights)
    # DuckDB's type of a NULL that stands in the query itself, and of a list of them.
    return pl.Series(rows), pl.Series(k), None if given.dtype in (pl.Null, pl.List(pl.Null)) else given
