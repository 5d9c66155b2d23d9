"""Models of groups: one fit for each value of some columns, together in one object and one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, overload

import polars as pl
import polars.selectors as cs
from polars.exceptions import PanicException, PolarsError

from polars_kmeans import _files, _frames, _internal, _plugin
from polars_kmeans._typing import Device, IntoFeatures, IntoFrame, Output
from polars_kmeans.errors import (
    InvalidColumnError,
    InvalidModelError,
    InvalidParameterError,
    KMeansError,
)
from polars_kmeans.model import KMeansModel

# Names of columns that are added to those of the caller.
_GROUP, _ROW = "__group__", "__row__"


class KMeansModels(Mapping[Any, "KMeansModel | None"]):
    """One model per group, by the value of the group's column. Made by `KMeans.fit` with `by`, and by :meth:`load`.

    It is a mapping. With several columns in `by`, keys are tuples. With `too_few="null"`, a group with fewer distinct
    rows than clusters has None as its model.

    Examples
    --------
    >>> import polars as pl
    >>> import polars_kmeans as pk
    >>> df = pl.DataFrame({"shop": ["a", "a", "a", "b", "b"], "x": [0.0, 0.2, 5.0, 7.0, 1.0]})
    >>> models = pk.KMeans(2, seed=1).fit(df, "x", by="shop")
    >>> models
    KMeansModels(by=['shop'], groups=2)
    >>> models["a"].k
    2
    >>> models.label(df).equals(df.with_columns(pk.kmeans("x", k=2, seed=1).over("shop")))
    True

    """

    def __init__(self, keys: pl.DataFrame, models: Sequence[KMeansModel | None]) -> None:
        self._keys = keys
        self._models = list(models)
        self._places = {key: place for place, key in enumerate(_scalars(keys))}

    def __getitem__(self, key: Any) -> KMeansModel | None:
        return self._models[self._places[key]]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._models)

    def __eq__(self, other: object) -> bool:
        """Whether keys, their order and their models are equal."""
        if not isinstance(other, KMeansModels):
            return NotImplemented
        return self._keys.equals(other._keys) and self._models == other._models

    def __hash__(self) -> int:
        return hash((*self.by, *self._models))

    def __repr__(self) -> str:
        return f"KMeansModels(by={self.by}, groups={len(self)})"

    def __reduce__(self) -> tuple[Callable[[bytes], KMeansModels], tuple[bytes]]:
        return KMeansModels.from_bytes, (self.to_bytes(),)

    @property
    def by(self) -> list[str]:
        """The names of the columns that make the groups."""
        return list(self._keys.columns)

    @property
    def centroids(self) -> pl.DataFrame:
        """The centroid frames of all groups, one below the other. The columns of `by` come first.

        If `by` has the name of one of their own columns, such as `cluster`, this is an :class:`InvalidColumnError`.
        """
        for name in _frames.OWN_COLUMNS:
            if name in self.by:
                msg = f"by: expected other names for a frame of centroids, got {name!r}, which is a column of it"
                raise InvalidColumnError(f"{msg}: rename the column of the rows before the fit")
        models = [(place, model) for place, model in enumerate(self._models) if model is not None]
        if not models:
            return self._keys.clear()
        keys = self._keys[[place for place, model in models for _ in range(model.k)]]
        return pl.concat([keys, pl.concat([model.centroids for _, model in models])], how="horizontal")

    def predict(self, *columns: IntoFeatures, output: Output = "label", device: Device = "auto") -> pl.Expr:
        """Label rows by the model of their group: an expression that is elementwise, so it can stream.

        Python splits each morsel (a chunk of rows) into its groups. This takes up to a millisecond per group. With
        thousands of groups, the in-memory engine is faster, because there the whole frame is one morsel.

        Parameters
        ----------
        *columns, output, device
            As in :meth:`KMeansModel.predict <polars_kmeans.KMeansModel.predict>`.

        Returns
        -------
        Expr
            A column named `cluster`. Labels count from 0 in each group. Rows of groups without a model get null.

        Raises
        ------
        InvalidParameterError, InvalidColumnError
            At once, as in :meth:`KMeansModel.predict <polars_kmeans.KMeansModel.predict>`.

        """
        fitted = next((model for model in self._models if model is not None), None)
        if fitted is None:
            raise InvalidParameterError("models: expected at least one group with a model, got none")
        keys = pl.struct(_plugin.column(name).alias(str(place)) for place, name in enumerate(self.by))
        rows = pl.struct(fitted._features(columns))
        # Refuse wrong arguments at once.
        fitted.predict(*columns, output=output, device=device)

        def labels(series: pl.Series) -> pl.Series:
            return self._labels(series.struct.unnest(), output, device)

        both = pl.struct(keys.alias("keys"), rows.alias("rows"))
        return both.map_batches(labels, return_dtype=_DTYPES[output], is_elementwise=True).alias("cluster")

    def _labels(self, frame: pl.DataFrame, output: Output, device: Device) -> pl.Series:
        """Label rows, given as structs of their keys and of their features."""
        groups = _numbers(frame["keys"].struct.unnest(), self._keys)
        rows = frame.select("rows", groups).with_row_index(_ROW)
        queries = []
        for (group,), part in rows.partition_by(_GROUP, as_dict=True, maintain_order=True).items():
            features = part["rows"].struct.unnest()
            model = None if group is None else self._models[group]
            if model is None:
                labels = pl.lit(None, dtype=_DTYPES[output])
            else:
                names = [_plugin.column(name) for name in features.columns]
                labels = model.predict(*names, output=output, device=device)
            queries.append(features.lazy().select(labels.alias("cluster"), pl.lit(part[_ROW]).alias(_ROW)))
        # The groups run in parallel.
        empty = pl.DataFrame(schema={"cluster": _DTYPES[output], _ROW: rows.schema[_ROW]})
        return pl.concat([empty, *pl.collect_all(queries)]).sort(_ROW)["cluster"]

    @overload
    def label(
        self, data: pl.LazyFrame, /, *columns: IntoFeatures, name: str = ..., device: Device = ...
    ) -> pl.LazyFrame: ...

    @overload
    def label(
        self, data: pl.DataFrame | IntoFrame, /, *columns: IntoFeatures, name: str = ..., device: Device = ...
    ) -> pl.DataFrame: ...

    def label(
        self,
        data: pl.DataFrame | pl.LazyFrame | IntoFrame,
        /,
        *columns: IntoFeatures,
        name: str = "cluster",
        device: Device = "auto",
    ) -> pl.DataFrame | pl.LazyFrame:
        """Add the labels to a frame, as :meth:`KMeansModel.label <polars_kmeans.KMeansModel.label>` does."""
        return _frames.with_labels(data, self.predict(*columns, device=device), name)

    def save(self, path: str | PathLike[str] | BinaryIO) -> None:
        """Save all models as one file, with one checksum of keys, order and models.

        It is a Parquet file, too: other programs read keys and centroids from it, as in :attr:`centroids`. :meth:`load`
        does not read that table. An existing file is replaced only after the new file is complete.

        Parameters
        ----------
        path
            A path, where `~` is the home folder. Or a file that is open for writing bytes.

        Raises
        ------
        ModelFileError
            If the file cannot be written.

        """
        if not isinstance(path, (str, PathLike)):
            _files.write(path, self.to_bytes())
            return
        _internal.replace_file(_files.expanded(path), self.to_bytes())

    @staticmethod
    def load(path: str | PathLike[str] | BinaryIO) -> KMeansModels:
        """Read models that :meth:`save` wrote.

        Raises
        ------
        ModelFileError
            If the file cannot be read.
        InvalidModelError
            If it does not hold such models.

        """
        if not isinstance(path, (str, PathLike)):
            return KMeansModels.from_bytes(_files.read(path))
        source = Path(_files.expanded(path))
        try:
            content = source.read_bytes()
        except OSError as error:
            raise _files.file_error(source, error) from error
        return KMeansModels.from_bytes(content)

    def to_bytes(self) -> bytes:
        """Return the bytes of the file that :meth:`save` writes."""
        try:
            table = self.centroids
        except (InvalidColumnError, PolarsError):
            # Names that both have, or lists of other lengths in each group.
            table = self._keys
        # What other programs do not know is text for them.
        table = table.cast({cs.by_dtype(pl.Categorical, pl.Enum, pl.Int128, pl.UInt128, pl.Null): pl.String})
        models = [None if model is None else model._encoded for model in self._models]
        return _internal.groups_to_file(self._keys, models, table)

    @staticmethod
    def from_bytes(content: bytes) -> KMeansModels:
        """Read models from the bytes of their file.

        Raises
        ------
        InvalidModelError
            If they do not hold such models.

        """
        try:
            keys, models = _internal.groups_from_file(content)
            groups = KMeansModels(keys, [None if model is None else KMeansModel(model) for model in models])
            if len(groups._places) == len(groups) == keys.unique().height:
                return groups
            got = f"{len(groups)} keys of which some are equal"
        except (PanicException, PolarsError, OverflowError, ValueError) as error:
            if isinstance(error, KMeansError):
                raise
            got = f"others ({error!s:.200})"
        raise InvalidModelError(f"models: expected keys that differ and that Python can hold, got {got}")


_DTYPES: dict[str, pl.DataType] = {
    "label": pl.UInt32(),
    "struct": pl.Struct({"cluster": pl.UInt32, "distance": pl.Float64, "second_distance": pl.Float64}),
}


# Keys of these types are compared as texts.
_TEXTS = (pl.String, pl.Categorical, pl.Enum)


def _scalars(keys: pl.DataFrame) -> list[Any]:
    """Return the keys of a mapping: values of one column, or tuples of several."""
    return keys.to_series().to_list() if keys.width == 1 else keys.rows()


def _numbers(columns: pl.DataFrame, keys: pl.DataFrame) -> pl.Series:
    """Return the place of each row's values among the keys, or null. Columns are matched by position, not by name."""
    # Polars takes some names for patterns.
    places = [str(place) for place in range(keys.width)]
    named, groups = columns.clone(), keys.clone()
    named.columns = groups.columns = places
    for place, name in zip(places, keys.columns, strict=True):
        given, known = named.schema[place], groups.schema[place]
        if given == known or (given.is_integer() and known.is_integer()) or (given.is_float() and known.is_float()):
            continue
        texts = isinstance(given, _TEXTS) and isinstance(known, _TEXTS)
        if not texts and pl.Null not in (given, known):
            msg = f'column "{name}": expected keys of type {known}, as in the fit, got {given}'
            casts: list[pl.DataType] = [pl.String()] if isinstance(given, _TEXTS[1:]) else []
            casts += [pl.String() if isinstance(known, _TEXTS[1:]) else known]
            cast = "".join(f".cast(pl.{dtype})" for dtype in dict.fromkeys(casts))
            raise InvalidColumnError(f'{msg}: pl.col("{name}"){cast}')
        common = pl.String() if texts else known if given == pl.Null else given
        named, groups = (frame.with_columns(pl.col(place).cast(common)) for frame in (named, groups))
    groups = groups.with_row_index(_GROUP)
    return named.join(groups, on=places, how="left", nulls_equal=True, maintain_order="left")[_GROUP]


def _check_keys(keys: pl.Series) -> None:
    """Refuse keys that Python cannot hold, or cannot tell apart: it has no nanoseconds."""
    try:
        if len(set(keys.to_list())) == keys.n_unique() or keys.dtype.is_float():
            return
        got = "some that are equal to the microsecond"
    except (PanicException, PolarsError, OverflowError, ValueError) as error:
        got = f"others ({error!s:.80})"
    msg = f'by: column "{keys.name}": expected keys that Python can hold and tell apart, got {got}'
    raise InvalidColumnError(f'{msg}: pl.col("{keys.name}").cast(pl.String) makes texts of them')


def fit_groups(
    data: object, by: str | Sequence[str], fit: Callable[[pl.DataFrame], KMeansModel | None]
) -> KMeansModels:
    """Fit each group. The groups are in the order of their first rows. The query of a LazyFrame runs once."""
    names = [by] if isinstance(by, str) or not isinstance(by, Sequence) else list(by)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InvalidParameterError(f"by: expected one or several different names of columns, got {by!r:.80}")
    frame = _frames.collected(data)
    if _GROUP in frame.columns:
        msg = f"column {_GROUP!r}: expected another name, since models of groups use this one: rename it"
        raise InvalidColumnError(msg)
    columns = frame.select(_plugin.column(name) for name in names)
    for name, dtype in columns.schema.items():
        if dtype.is_nested() or dtype == pl.Object:
            text = f'pl.col("{name}").cast(pl.List(pl.String)).list.join(",")'
            hint = f'frame.unnest("{name}") has its fields' if isinstance(dtype, pl.Struct) else f"make texts: {text}"
            hint = "make texts or numbers of it" if dtype == pl.Object else hint
            raise InvalidColumnError(f'by: column "{name}": expected single values as keys, got {dtype!s:.80}: {hint}')
    keys = columns.unique(maintain_order=True)
    for name in names:
        _check_keys(keys.to_series(keys.get_column_index(name)))
    groups = frame.with_columns(_numbers(columns, keys)).partition_by(_GROUP, maintain_order=True, include_key=False)
    models = []
    for group in groups:
        try:
            models.append(fit(group))
        except KMeansError as error:
            values = ", ".join(f"{name} = {group[name][0]!r}" for name in names)
            msg = f"group {values}: {error}"
            raise type(error)(msg) from error
    return KMeansModels(keys, models)
