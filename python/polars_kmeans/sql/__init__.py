"""k-means in the SQL of DuckDB and DataFusion: `polars_kmeans.sql.register` adds the functions to a connection.

Both engines call the library with Arrow data, one chunk, group or partition at a time. No Python code runs for single
rows.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from polars_kmeans.errors import InvalidParameterError
from polars_kmeans.sql._fits import Fits

try:
    from polars_kmeans.sql._models import predictors
except ModuleNotFoundError as error:
    missing = f"{error}: pip install duckdb, or datafusion, and numpy and pyarrow"
    raise ModuleNotFoundError(missing, name=error.name) from None

if TYPE_CHECKING:
    from types import ModuleType

    from datafusion import SessionContext
    from duckdb import DuckDBPyConnection

    from polars_kmeans.model import KMeansModel
    from polars_kmeans.tree import KMeansTree

__all__ = ["register"]


def register(
    connection: DuckDBPyConnection | SessionContext | ModuleType,
    models: Mapping[str, KMeansModel | KMeansTree] | None = None,
    **options: Any,
) -> None:
    """Add the functions of k-means, and one function for each model, to a connection of DuckDB or DataFusion.

    Each call adds functions. A function of the same name is replaced, and other models keep theirs. An option that a
    call does not name keeps the value of the call before. Nothing is written to the database. In DuckDB, functions and
    options are those of this connection, so another cursor needs its own registration.

    Parameters
    ----------
    connection
        A connection of DuckDB (or the module `duckdb`, for its default connection), or a `SessionContext` of
        DataFusion. It needs `pip install duckdb numpy pyarrow` or `pip install datafusion numpy pyarrow`.
    models
        Models by the names of their functions. The arguments of such a function are the features, in the model's order.
        It gives the clusters of rows, and NULL for rows with a NULL, a NaN or an infinity. Names have lower-case
        letters, digits and underscores.
    **options
        The options of all fits in SQL, with the names and meanings of :func:`polars_kmeans.kmeans`: `seed`, `scale`,
        `n_init`, `too_few` and so on. SQL itself says `k` and the weights. Rows with NULLs are left out unless
        `null_policy="raise"`. `row_order` is always `"values"`, because rows of a query have no order. To reset an
        option, name its default.

    Raises
    ------
    InvalidParameterError
        If the connection, a name or an option cannot be used.

    Notes
    -----
    DuckDB gets `kmeans` (a table macro), `kmeans_fit` and `kmeans_centroids`. DataFusion gets `kmeans` (a window
    function), `kmeans_centroids`, and the same two with weights: `kmeans_weighted`, `kmeans_centroids_weighted`.

    Examples
    --------
    >>> import duckdb
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> points = pl.DataFrame({"x": [0.0, 0.1, 5.0, 5.1], "y": [1.0, 1.1, 9.0, 9.1]})
    >>> model = pk.KMeans(2, seed=1).fit(points, "x", "y")
    >>> with duckdb.connect() as connection:
    ...     pk.sql.register(connection, models={"zone": model}, seed=1)
    ...     _ = connection.register("points", points.to_arrow())
    ...     connection.sql("SELECT x, zone(x, y) AS zone FROM points ORDER BY x").fetchall()
    [(0.0, 1), (0.1, 1), (5.0, 0), (5.1, 0)]

    """
    engine = _engine(connection)
    fits = Fits({**engine.kept_options(connection), **options})
    engine.add(connection, fits, predictors({} if models is None else models))


def _engine(connection: object) -> Any:
    """Return the module for the engine of a connection. The caller imported the engine to make the connection."""
    duckdb, datafusion = sys.modules.get("duckdb"), sys.modules.get("datafusion")
    if duckdb and (connection is duckdb or isinstance(connection, duckdb.DuckDBPyConnection)):
        from polars_kmeans.sql import _duckdb

        return _duckdb
    if datafusion and isinstance(connection, datafusion.SessionContext):
        from polars_kmeans.sql import _datafusion

        return _datafusion
    msg = f"connection: expected one of DuckDB or a SessionContext of DataFusion, got {type(connection).__name__}"
    raise InvalidParameterError(msg)
