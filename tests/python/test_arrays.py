"""Arrays of other libraries: NumPy's and any that export themselves, read where they are."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from helpers import ByDLPack, columns_of

import polars_kmeans as pk

RANDOM = np.random.default_rng(3)
N, D, K = 500, 4, 5
X = np.round(RANDOM.normal(size=(N, D)) * 8 + RANDOM.integers(0, 4, size=(N, 1)) * 40)
WEIGHTS = RANDOM.uniform(0.0, 3.0, size=N)


class Oldest(ByDLPack):
    """Exports an array as libraries of before version 1 do: without new keywords, and without a device."""

    def __dlpack__(self, *, stream: Any = None) -> Any:  # type: ignore[override]
        return self.array.__dlpack__()

    __dlpack_device__ = property()


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "row-major": np.ascontiguousarray,
    "column-major": np.asfortranarray,
    "some columns": lambda x: np.hstack([x[:, :1], x, x])[:, 1 : D + 1],
    "every second row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "every second column": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "transposed": lambda x: x.T.copy().T,
    "read-only": lambda x: np.require(x, requirements=["C"]).view(),
    "not aligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), dtype=np.uint8)[1:].view(x.dtype).reshape(x.shape),
    "a layer": lambda x: np.stack([x, x], axis=2)[:, :, 1],
}
PROTOCOLS: list[Callable[[Any], Any]] = [lambda x: x, ByDLPack, Oldest]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_layout_has_the_bits_of_columns(dtype: str, layout: str, protocol: Callable[[Any], Any]) -> None:
    typed = X.astype(dtype)
    x = LAYOUTS[layout](typed)
    if layout == "read-only":
        x.flags.writeable = protocol is Oldest
    if protocol is not PROTOCOLS[0]:
        try:
            x.__dlpack__()
        except BufferError:
            pytest.skip("NumPy does not export this array")
    df = columns_of(typed)
    model = pk.KMeans(K, seed=1).fit(protocol(x))
    assert model == pk.KMeans(K, seed=1).fit(df, df.columns)
    assert model.feature_names == df.columns
    labels = df.select(model.predict()).to_series()
    answer = model.predict(protocol(x))
    assert np.asarray(answer).dtype == np.int32
    assert np.asarray(answer).tolist() == labels.to_list()
    distances = np.stack(df.select(model.transform()).to_series().to_list())
    assert (np.asarray(model.transform(protocol(x))) == distances).all()
    assert model.score(protocol(x)) == model.score(df)


def test_an_array_is_not_copied() -> None:
    resource = pytest.importorskip("resource")
    x = np.zeros((400_000, 64))
    x[::2] = 1.0
    for given in (x, x.T.copy().T, np.concatenate([x, x], axis=1)[:, 64:]):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        model = pk.KMeans(2, init=x[:2], device="cpu").fit(given)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        assert sorted(model.centroids["size"]) == [200_000, 200_000]
        assert grown < x.nbytes // 2


@pytest.mark.parametrize("weights", [WEIGHTS, WEIGHTS.astype("float32").astype("float64"), np.repeat(WEIGHTS, 2)[::2]])
def test_weights_are_an_array_beside_an_array(weights: Any) -> None:
    df = columns_of(X).with_columns(w=pl.Series(weights))
    features = df.columns[:D]
    model = pk.KMeans(K, seed=2).fit(X, weight=weights)
    assert model == pk.KMeans(K, seed=2, weight="w").fit(df, features)
    assert model.score(X, weight=ByDLPack(weights)) == model.score(df, weight="w")


def test_a_model_of_columns_answers_arrays_and_the_other_way_round() -> None:
    df = columns_of(X)
    narrow = pk.KMeans(K).fit(df.cast(pl.Float32), df.columns)
    wide = pk.KMeans(K).fit(X)
    assert wide.predict(X.astype("float32")).tolist() == df.select(wide.predict()).to_series().to_list()
    assert narrow.predict(X).tolist() == df.select(narrow.predict()).to_series().to_list()


def test_answers_are_arrays_of_the_same_library() -> None:
    model = pk.KMeans(K).fit(X)
    labels = model.predict(X)
    assert isinstance(labels, np.ndarray)
    assert labels.flags.writeable
    near = model.predict(X, output="struct")
    assert near._fields == ("cluster", "distance", "second_distance")
    assert (near.cluster == labels).all()
    distances = np.sort(model.transform(X), axis=1)
    assert (near.distance == distances[:, 0]).all()
    assert (near.second_distance == distances[:, 1]).all()
    assert pk.KMeans(1).fit(X).predict(X, output="struct").second_distance is None
    other = model.predict(ByDLPack(X))
    assert other.__dlpack_device__() == (1, 0)
    assert len(other) == N
    assert other.shape == (N,)
    assert repr(other) == "Answers(500 of int32 on the CPU)"
    assert (np.from_dlpack(other) == labels).all()
    with pytest.raises(BufferError, match="without a copy"):
        other.__dlpack__(copy=True)


def test_rows_that_are_not_finite_have_no_answer() -> None:
    x = X.copy()
    x[7, 2] = np.nan
    x[400, 0] = np.inf
    with pytest.raises(
        pk.InvalidDataError, match='column "column_0": expected finite values, got nulls: 0, NaNs: 0, inf'
    ):
        pk.KMeans(K).fit(x)
    model = pk.KMeans(K, null_policy="skip").fit(x)
    assert model.predict(x)[[7, 400, 8]].tolist()[:2] == [-1, -1]
    near = model.predict(x, output="struct")
    assert np.isnan(near.distance[[7, 400]]).all()
    assert np.isnan(near.second_distance[[7, 400]]).all()
    assert np.isnan(model.transform(x)[7]).all()
    assert model.score(x) == model.score(np.delete(x, [7, 400], axis=0))


def test_one_dimension_is_one_feature() -> None:
    df = pl.DataFrame({"column_0": X[:, 1]})
    for x in (X[:, 1], X[:, 1].copy(), ByDLPack(X[:, 1])):
        assert pk.KMeans(3).fit(x) == pk.KMeans(3).fit(df, "column_0")


def test_no_rows() -> None:
    with pytest.raises(pk.InvalidDataError, match="expected at least one row"):
        pk.KMeans(2).fit(np.zeros((0, 3)))
    model = pk.KMeans(2).fit(X)
    assert model.predict(np.zeros((0, D))).shape == (0,)
    assert model.transform(np.zeros((0, D))).shape == (0, 2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros((3, 2), dtype="int64"), "data: expected values of float16, bfloat16, float32 or float64, got int64"),
        (np.zeros((3, 2), dtype="bool"), "got bool: convert it first"),
        (np.zeros((3, 2), dtype="complex128"), "got complex128: convert it first"),
        (np.zeros((3, 2), dtype=">f8"), "got >f8: convert it first"),
        (ByDLPack(np.zeros((3, 2), dtype="int32")), "got int32: convert it first"),
        (np.zeros((3, 2, 2)), r"data: expected one or two dimensions \(rows x features\), got 3"),
        (np.float64(3.0), r"data: expected one or two dimensions \(rows x features\), got 0"),
    ],
)
def test_what_cannot_be_read_is_refused(data: Any, message: str) -> None:
    with pytest.raises(pk.InvalidParameterError, match=message):
        pk.KMeans(2).fit(data)


def test_arrays_without_columns_are_refused() -> None:
    with pytest.raises(pk.KMeansError, match="features: expected at least one column, got none"):
        pk.KMeans(2).fit(np.zeros((3, 0)))


def test_what_does_not_belong_together_is_refused() -> None:
    df: Any = columns_of(X)
    estimator: Any = pk.KMeans(K)
    model: Any = estimator.fit(X)
    cases: list[tuple[str, Callable[[], Any]]] = [
        ("columns: expected none beside an array, got 1", lambda: estimator.fit(X, "column_0")),
        ("weight: expected none in KMeans for an array", lambda: pk.KMeans(K, weight="w").fit(X)),
        ("weight: expected none in the fit of a frame", lambda: estimator.fit(df, "column_0", weight=WEIGHTS)),
        ("weight: expected none in the fit of a frame, got str", lambda: estimator.fit(df, "column_0", weight="w")),
        ("weight: expected a column name or an expression, got ndarray", lambda: model.score(df, weight=WEIGHTS)),
        ("weight: expected an array", lambda: model.score(X, weight="w")),
        ("columns: expected none beside an array, got 1", lambda: model.predict(X, "column_0")),
        ("weight: expected 500 values, got 499", lambda: estimator.fit(X, weight=WEIGHTS[1:])),
        ("weight: expected one dimension", lambda: estimator.fit(X, weight=WEIGHTS[:, None])),
        ("data: expected a frame or an array, got list", lambda: estimator.fit([[1.0]])),
        ("device: expected", lambda: model.predict(X, device="gpu")),
    ]
    for message, call in cases:
        with pytest.raises(pk.InvalidParameterError, match=message):
            call()


def test_the_width_must_be_that_of_the_model() -> None:
    model = pk.KMeans(K).fit(X)
    for use in (model.predict, model.transform, model.score):
        with pytest.raises(pk.InvalidColumnError, match="features: expected 4 features, got 3"):
            use(X[:, :3])


class Counted:
    """Exports an array, and counts how often its memory was given back."""

    def __init__(self, array: Any) -> None:
        self.array, self.given_back, self.exported = array, 0, 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **kwargs: Any) -> Any:
        self.exported += 1

        class Tensor(ctypes.Structure):
            _fields_ = (
                ("data", ctypes.c_void_p),
                ("device", ctypes.c_int32 * 2),
                ("ndim", ctypes.c_int32),
                ("dtype", ctypes.c_uint8 * 4),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64),
            )

        deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

        class Managed(ctypes.Structure):
            _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", deleter))

        def give_back(_address: int) -> None:
            self.given_back += 1

        managed = Managed()
        managed.tensor.data = self.array.ctypes.data - 16
        managed.tensor.byte_offset = 16
        managed.tensor.device[0] = 1
        managed.tensor.ndim = 2
        managed.tensor.dtype[:] = [2, 64, 1, 0]
        managed.tensor.shape = (ctypes.c_int64 * 2)(*self.array.shape)
        managed.deleter = deleter(give_back)
        self.kept = managed
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(managed), b"dltensor", None)


def test_memory_is_given_back_once_after_the_call() -> None:
    counted = Counted(X.copy())
    model = pk.KMeans(K).fit(counted)
    assert (counted.exported, counted.given_back) == (1, 1)
    assert model == pk.KMeans(K).fit(X)
    model.predict(counted)
    model.transform(counted)
    model.score(counted, weight=WEIGHTS)
    assert (counted.exported, counted.given_back) == (4, 4)
    # Also after an error.
    counted.array[0, 0] = np.nan
    with pytest.raises(pk.InvalidDataError):
        pk.KMeans(K).fit(counted)
    assert (counted.exported, counted.given_back) == (5, 5)


def test_answers_live_as_long_as_anybody_has_them() -> None:
    model = pk.KMeans(K).fit(X)
    expected = model.predict(X).tolist()
    for _ in range(50):
        taken = np.from_dlpack(model.predict(ByDLPack(X)))
        model.predict(ByDLPack(X)).__dlpack__()
        assert taken.tolist() == expected


class Refuses:
    """Stands for a tensor that requires a gradient."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **kwargs: Any) -> Any:
        msg = "Can't export tensors that require gradient, use tensor.detach()"
        raise BufferError(msg)


def test_a_library_that_refuses_says_why() -> None:
    with pytest.raises(pk.InvalidParameterError, match=r"got BufferError: .* use tensor\.detach\(\)"):
        pk.KMeans(2).fit(Refuses())


def test_other_devices_are_refused() -> None:
    class Capsule(Counted):
        def __dlpack__(self, **kwargs: Any) -> Any:
            capsule = super().__dlpack__(**kwargs)
            self.kept.tensor.device[0] = 8
            return capsule

    counted = Capsule(X)
    with pytest.raises(pk.InvalidParameterError, match="an array on the CPU or on an NVIDIA GPU, got device type 8"):
        pk.KMeans(2).fit(counted)
    assert counted.given_back == 1
