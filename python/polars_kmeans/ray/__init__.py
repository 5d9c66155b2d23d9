"""K-means on the workers of a Ray cluster, with the bits of a fit in one process.

It needs Ray: ``pip install ray pyarrow``. Each worker is an actor that holds some of the rows. A worker that
is lost is made again by Ray, loads its rows again, and the fit goes on without a changed bit.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl

from polars_kmeans import _numeric, _plugin, parts
from polars_kmeans._progress import OnProgress
from polars_kmeans._typing import IntoFeatures
from polars_kmeans.errors import InvalidParameterError, KMeansError
from polars_kmeans.estimator import KMeans as _KMeans
from polars_kmeans.model import KMeansModel
from polars_kmeans.ray._sources import Piece, Share, frame_of, has_no_order, shares

__all__ = ["KMeans", "predict"]

# Requests of more bytes that go to several workers are put into the object store once.
_SHARED = 1 << 16
# How often a worker is made again. One whose rows do not fit into its memory is lost each time.
_TRIES = 20


class KMeans:
    """A k-means estimator whose rows are in the workers of a Ray cluster.

    Parameters
    ----------
    k
        The number of clusters.
    **parameters
        Those of :class:`polars_kmeans.KMeans`. `init="kmeans-parallel"` needs the fewest messages: ten or so for each
        restart, where `"k-means++"` needs two for each cluster. `weight` is a column or an expression.

    """

    def __init__(self, k: int, **parameters: Any) -> None:
        self._estimator: _KMeans[Any] = _KMeans(k, **parameters)

    def __repr__(self) -> str:
        return f"ray.{self._estimator!r}"

    def fit(
        self,
        data: Any,
        *columns: IntoFeatures,
        num_workers: int | None = None,
        cpus_per_worker: int = 1,
        gpus_per_worker: float = 0,
        progress: OnProgress = None,
    ) -> KMeansModel | None:
        """Fit rows on the workers. The result has the bits of a fit of the same rows in one process.

        Parameters
        ----------
        data
            The rows, in this order:

            - paths of Parquet files that all workers can read (files, folders, patterns): row group by row group of the
              sorted paths. This is the way for rows that no single machine can hold.
            - a frame of Polars or of any library with `__arrow_c_stream__`, or a list of frames, or of references to
              Arrow tables in Ray's object store.
            - a Ray Dataset. It has no order, so it needs `row_order="values"`.
        *columns
            The features, as in :meth:`polars_kmeans.KMeans.fit`.
        num_workers
            The number of workers. By default as many as there is room for, without one CPU: Ray needs some for itself.
        cpus_per_worker
            The CPUs of a worker, and its threads.
        gpus_per_worker
            The GPUs of a worker: 0 or 1.
        progress
            As in :meth:`polars_kmeans.KMeans.fit`.

        Returns
        -------
        KMeansModel
            The fitted model. With `too_few="null"`, None if there are fewer distinct rows than clusters.

        Raises
        ------
        InvalidParameterError
            For data or parameters that do not fit together.
        KMeansError
            As :meth:`polars_kmeans.KMeans.fit`.

        """
        ray = _ray()
        parameters = self._estimator.parameters
        if has_no_order(data) and parameters["row_order"] != "values":
            msg = 'row_order: expected "values" for a Ray Dataset, which has no order, got "given"'
            raise InvalidParameterError(msg)
        weight = parameters.pop("weight")
        cpus_per_worker = _numeric.integer("cpus_per_worker", cpus_per_worker)
        gpus_per_worker = _numeric.number("gpus_per_worker", gpus_per_worker)
        if gpus_per_worker:
            parameters["device"] = "cuda"
        features = tuple(_plugin.flat(columns))
        _plugin.check_row_by_row([*features, weight])
        own = _shares(data, num_workers, cpus_per_worker, gpus_per_worker)
        actor = _worker(cpus_per_worker, gpus_per_worker)
        workers = [actor.remote(share.pieces, features, weight) for share in own]
        tables = [share.tables for share in own]
        try:
            return parts.fit(_KMeans(**parameters), partial(_ask, workers, tables), len(workers), progress=progress)
        finally:
            for one in workers:
                ray.kill(one)


def predict(
    model: KMeansModel,
    data: Any,
    *columns: IntoFeatures,
    folder: str | os.PathLike[str],
    name: str = "cluster",
    num_workers: int | None = None,
    cpus_per_worker: int = 1,
) -> list[Path]:
    """Label rows on the workers, and write them as Parquet files: all columns of the data, and last the labels.

    Parameters
    ----------
    model
        A fitted model.
    data
        The rows, as in :meth:`KMeans.fit`.
    *columns
        The features, as in :meth:`KMeansModel.predict <polars_kmeans.KMeansModel.predict>`.
    folder
        Where the files go: a folder that all workers can write to. It may exist, without files of labels.
    name
        The name of the labels.
    num_workers, cpus_per_worker
        As in :meth:`KMeans.fit`. There is one file for each worker.

    Returns
    -------
    list[Path]
        The files: `part-00000.parquet` and so on. Their rows are those of the data, in the same order.

    """
    ray = _ray()
    features = tuple(_plugin.flat(columns))
    cpus_per_worker = _numeric.integer("cpus_per_worker", cpus_per_worker)
    _plugin.check_row_by_row(features)
    own = _shares(data, num_workers, cpus_per_worker, 0)
    target = _new_folder(folder)
    label = ray.remote(**_resources(cpus_per_worker), max_retries=_TRIES)(_write_labels)
    paths = [target / f"part-{number:05}.parquet" for number in range(len(own))]
    encoded = ray.put(model.to_bytes())
    done = [
        label.remote(encoded, share.pieces, share.tables, features, name, os.fspath(path))
        for share, path in zip(own, paths, strict=True)
    ]
    try:
        ray.get(done)
    except BaseException:
        for one in done:
            ray.cancel(one, force=True)
        raise
    return paths


def _new_folder(folder: str | os.PathLike[str]) -> Path:
    """Return a folder for labels, which has none yet: they could be the given rows, or mix with new ones."""
    if "://" in os.fspath(folder):
        raise InvalidParameterError(f"folder: expected one that is mounted on all workers, got {os.fspath(folder)!r}")
    target = Path(os.path.abspath(folder))
    target.mkdir(parents=True, exist_ok=True)
    if any(target.glob("part-*.parquet")):
        msg = f"folder: expected one without files of the name part-*.parquet, got {str(target)!r}: choose a new one"
        raise InvalidParameterError(msg)
    return target


def _write_labels(
    encoded: bytes, pieces: list[Piece], tables: list[Any], features: tuple[Any, ...], name: str, path: str
) -> None:
    """Label the rows of a share. A file is complete, or has another name."""
    labelled = KMeansModel.from_bytes(encoded).label(frame_of(pieces, tables), *features, name=name)
    unfinished = f"{path}.{uuid4().hex}.unfinished"
    try:
        labelled.sink_parquet(unfinished)
        os.replace(unfinished, path)
    finally:
        Path(unfinished).unlink(missing_ok=True)


class _Worker:
    """The rows of one worker. Ray calls this again if the worker was lost."""

    def __init__(self, pieces: list[Piece], features: tuple[Any, ...], weight: str | pl.Expr | None) -> None:
        self._rows = pieces, features, weight
        self._part: parts.Part | None = None

    def answer(self, request: bytes, tables: list[Any]) -> bytes:
        # Rows come with the first request: an actor that cannot start could not say what is wrong with them.
        if self._part is None:
            pieces, features, weight = self._rows
            self._part = parts.Part(frame_of(pieces, tables), *features, weight=weight)
        return self._part.answer(request)

    def process(self) -> int:
        return os.getpid()


def _ask(workers: list[Any], tables: list[list[Any]], requests: list[tuple[int, bytes]]) -> list[bytes]:
    """Send requests to workers, all at the same time. Each has the tables with it that a worker may have to load."""
    ray = _ray()
    put: dict[int, Any] = {}
    answers = []
    for worker, request in requests:
        if len(request) > _SHARED and len(requests) > 1:
            argument = put[id(request)] = put.get(id(request)) or ray.put(request)
        else:
            argument = request
        answers.append(workers[worker].answer.remote(argument, tables[worker]))
    try:
        found: list[bytes] = ray.get(answers)
    except ray.exceptions.RayTaskError as error:
        # What is wrong with the rows, as in this process.
        cause = getattr(error, "cause", None)
        raise (cause if isinstance(cause, Exception) else error) from None
    except ray.exceptions.RayActorError as error:
        msg = f"parts: a worker was lost {_TRIES} times. Do its rows fit into its memory? {error}"
        raise KMeansError(msg) from None
    return found


def _shares(data: Any, num_workers: int | None, cpus_per_worker: int, gpus_per_worker: float) -> list[Share]:
    """Return the rows of each worker."""
    ray = _ray()
    if not ray.is_initialized():
        ray.init()
    if num_workers is None:
        num_workers = _workers_of(ray.nodes(), cpus_per_worker, gpus_per_worker)
    return shares(data, _numeric.integer("num_workers", num_workers))


def _workers_of(nodes: list[dict[str, Any]], cpus: int, gpus: float) -> int:
    """Return how many workers the nodes have room for, if one CPU is left for Ray's own tasks."""
    count, left = 0, 1
    for resources in (node["Resources"] for node in nodes if node["Alive"]):
        free = int(resources.get("CPU", 0))
        own, free = min(left, free), free - min(left, free)
        left -= own
        count += min(free // cpus, int(resources.get("GPU", 0) / gpus)) if gpus else free // cpus
    return max(1, count)


def _resources(cpus: int) -> dict[str, Any]:
    threads = {"POLARS_MAX_THREADS": str(cpus), "RAYON_NUM_THREADS": str(cpus)}
    return {"num_cpus": cpus, "runtime_env": {"env_vars": threads}}


def _worker(cpus: int, gpus: float) -> Any:
    """Return the class of the actors: Ray makes them again and sends requests again."""
    resources = {**_resources(cpus), "num_gpus": gpus}
    return _ray().remote(**resources, max_restarts=_TRIES, max_task_retries=_TRIES)(_Worker)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        msg = "polars_kmeans.ray needs Ray: pip install ray pyarrow"
        raise ImportError(msg, name=error.name) from error
    return ray
