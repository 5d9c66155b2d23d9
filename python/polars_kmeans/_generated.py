"""The options of a fit, for editors and type checkers. `make options` writes this file."""

from __future__ import annotations

from typing import Literal, SupportsIndex, TypedDict

from polars_kmeans._typing import Device, Extents, Init, Scale, SortBy


class TreeOptions(TypedDict, total=False):
    """What every fit takes, but for `too_few`: its values depend on the function."""

    init: Init
    """The starting centroids. `"k-means++"` (greedy; Arthur & Vassilvitskii 2007), `"kmeans-parallel"` (Bahmani et al.
    2012), `"afk-mc2"` (Bachem et al. 2016) and `"random"` choose them. For one feature, `"optimal"` (Wang & Song 2011)
    finds the clusters of least inertia. Or pass the centroids themselves: a frame or a model (columns matched by name),
    an array, or `k` rows of numbers. A fit that starts from a model needs the same `metric`, and scales rows by the
    model's factors unless it is told another `scale`. If a given centroid loses all of its rows, a row far from its
    centroid takes its place, and the estimator warns. Default: `"k-means++"`."""

    n_init: SupportsIndex | Literal["auto"]
    """The number of restarts. The result with the least inertia is kept. `"auto"`: 10 for random starts, else 1. Given
    centroids are one start: other numbers then warn. Default: `"auto"`."""

    seed: SupportsIndex
    """The seed of every draw, from 0 to 2^64 - 1. Default: `0`."""

    oversampling: float
    """For `init="kmeans-parallel"`: how many candidates a round draws on average, in multiples of `k`. Default:
    `2.0`."""

    rounds: SupportsIndex
    """For `init="kmeans-parallel"`: the number of rounds, from 1 to 255. Default: `5`."""

    chain_length: SupportsIndex
    """For `init="afk-mc2"`: the rows of a chain. Longer chains draw more like k-means++, and take longer. Default:
    `200`."""

    init_sample: SupportsIndex | None
    """How many rows the starting centroids are chosen from. They are drawn without replacement, each row equally
    likely. None: all rows. Given centroids need no sample. Default: `None`."""

    max_iter: SupportsIndex
    """The most iterations of one restart. Default: `300`."""

    tol: float
    """Stop when the squared shift of the centroids is at most `tol` times the mean variance of the features, each row
    of positive weight counted once. This is scikit-learn's rule. Outliers raise the variance: with values a million
    times farther out than the rest, a fit stops after one iteration. Remove such values, or use `tol=0`, which stops
    when no centroid moves. Default: `0.0001`."""

    tol_labels: float
    """Stop when at most this share of the rows changed cluster. Default: `0.0`."""

    metric: Literal["euclidean", "cosine"]
    """`"euclidean"`, or `"cosine"`: rows and centroids are normalised to length 1, so only their directions count. A
    row of zeros has none and counts as null. Distances are then those between points on the unit sphere: `2 - 2
    cos(angle)`, squared. Default: `"euclidean"`."""

    scale: Scale
    """What the values of each column are multiplied by, so that columns of different units count alike. `"standard"`: 1
    over the standard deviation. `"robust"`: 1 over the distance between the quartiles, which outliers hardly change. Or
    a dict of factors by column; other columns keep their values. The model keeps the factors, so it takes raw columns
    and shows centroids in their units. Starting centroids are in these units too. Distances and inertia are those of
    scaled values. Default: `None`."""

    null_policy: Literal["raise", "skip"]
    """`"raise"` or `"skip"`. With `"skip"`, rows with nulls, NaNs or infinities are left out and get null labels (or
    null structs). Default: `"raise"`."""

    row_order: Literal["given", "values"]
    """`"given"` or `"values"`. With `"values"`, the order of the rows does not matter: the same rows in another order
    give the same centroids, inertia and history, and each row gets the same label. For tables whose rows come in
    another order each time, as from SQL engines and shuffles. Seeding then draws among rows that are sorted by their
    values, feature by feature, after they are scaled and normalised. The fit sorts the rows once and works on a copy of
    them. Default: `"given"`."""

    sort_by: SortBy
    """`"size"`: clusters ascend by their rows of positive weight, so cluster 0 has the fewest. The name of a feature:
    they ascend by this feature of their centroids. Clusters with equal values keep their order. A model: each cluster
    takes the number of its match there. None: the order of the seeding. The numbers are given at the end of the fit,
    and change nothing else. They are given by the sizes before: where a row is equally near to two centroids, the
    smaller number gets it, so sizes may be out of order by such rows. An entry of an Array column `e` is named `e[0]`,
    `e[1]`, ... A feature named size cannot be used here. The match with a model has the least sum of squared distances
    between the centroids, in the model's scaled units. Clusters without a match come last. Default: `None`."""

    device: Device
    """The device to run on. The result has the same bits on every device. `"auto"`: a GPU, or all, if possible and
    predicted to be faster, else the CPU. `"cpu"`, `"cuda"` (the GPU with the most free memory) or `"cuda:1"`: this
    device, or an error. `"cuda:all"` or a list as `["cuda:0", "cuda:1"]`: the rows are shared between these GPUs. See
    `polars_kmeans.devices`. Rows that do not fit on the GPU stream through it in chunks. Default: `"auto"`."""

    device_memory_limit: SupportsIndex | None
    """How many bytes of the GPU's memory the fit may use. None: nine tenths of the free memory. Without effect on the
    CPU. Default: `None`."""

    threads: SupportsIndex
    """The number of threads that work on a large fit on the CPU. 0: all of the pool. In Python the pool has as many
    threads as that of Polars, and more threads than these are not started. Default: `0`."""


class Options(TreeOptions, total=False):
    """What every fit takes of one number of clusters."""

    min_size: SupportsIndex | None
    """The fewest rows of positive weight that a cluster may have. None: any number, or 1 with `max_size`. 0 means 1.
    Every assignment of the fit is then the one of least inertia within the bounds. `predict` knows no bounds: its
    labels are the nearest centroids. Such fits run on one device, in one process. Default: `None`."""

    max_size: SupportsIndex | None
    """The most rows of positive weight that a cluster may have. None: any number. See `min_size`. Default: `None`."""

    balanced: bool
    """Whether all clusters have as many rows, or one more where `n / k` is no integer. It takes the place of `min_size`
    and `max_size`. Default: `False`."""


class ModelOptions(Options, total=False):
    """What a fit takes that leaves a model."""

    keep_sums: bool
    """Whether the model keeps the exact sums of its clusters. Then `model.updated` adds rows to them, and removes rows.
    They take 16 bytes a cluster and feature, also in the file. Without effect on an expression. The sums are those of
    the last labels. With `tol=0`, the fit ends when no centroid moves, so an update without rows changes nothing.
    Default: `False`."""

    extents: Extents
    """The largest magnitudes that later rows may have, by feature or one for each, in the units of the columns. None:
    those of the rows of the fit. The sums of the model take values of up to 16 times this size. Sums of features with a
    magnitude here have 90 bits below it, so other last bits than without. The centroids of the fit stay within its
    rows. Default: `None`."""

    history: Literal["light", "full"]
    """`"light"` or `"full"`: the history of a model also has the inertia of every iteration. It changes nothing in the
    result of an expression. Default: `"light"`."""


class LabelOptions(ModelOptions, total=False):
    """What a fit takes that leaves labels."""

    too_few: Literal["raise", "null", "fewer"]
    """What to do if there are fewer distinct rows (of positive weight) than clusters: `"raise"`, `"null"` for null
    labels, or `"fewer"` for as many clusters as there are distinct rows. With `"fewer"`, these rows are then the
    centroids, in the order in which they first appear. With `metric="cosine"`, in the order in which they are drawn.
    Default: `"raise"`."""

    output: Literal["label", "struct"]
    """`"label"`, or `"struct"` with the distances to the two nearest centroids. Default: `"label"`."""
