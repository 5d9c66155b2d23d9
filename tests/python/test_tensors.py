"""Tensors and frames on a GPU: read where they are, with the bits of the same columns.

They need torch and a GPU. If POLARS_KMEANS_DEMAND_GPU is set in the environment, they fail where there is no GPU.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import polars as pl
import pytest
from helpers import columns_of, needs_gpu

import polars_kmeans as pk
from polars_kmeans import _internal

torch = pytest.importorskip("torch")

pytestmark = needs_gpu

N, D, K = 20_000, 6, 9


def values(n: int = N, d: int = D) -> Any:
    random = np.random.default_rng(5)
    return np.round(random.normal(size=(n, d)) * 8 + random.integers(0, 4, size=(n, 1)) * 40)


def frame(x: Any) -> pl.DataFrame:
    return columns_of(np.asarray(x, dtype=np.float64 if x.dtype == np.float64 else np.float32))


def test_labels_within_bounds_on_sizes_stay_on_the_gpu() -> None:
    tensor = torch.from_numpy(values()).to("cuda", torch.float32)
    df = frame(tensor.cpu().numpy())
    labels = pk.KMeans(K, seed=1, balanced=True, max_iter=3).fit_predict(tensor)
    assert (labels.device, labels.dtype) == (tensor.device, torch.int32)
    expected = pk.KMeans(K, seed=1, balanced=True, max_iter=3, device="cpu").fit_predict(df, df.columns)
    assert labels.tolist() == expected.to_list()
    sizes = torch.bincount(labels)
    assert int(sizes.max() - sizes.min()) <= 1


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "row-major": lambda x: x.contiguous(),
    "a transposed view": lambda x: x.T.contiguous().T,
    "every second row": lambda x: x.repeat_interleave(2, dim=0)[::2],
    "some columns": lambda x: torch.cat([x[:, :1], x, x], dim=1)[:, 1 : x.shape[1] + 1],
    "some rows": lambda x: torch.cat([x[:3], x, x[:5]])[3:-5],
    "rows of a transposed view": lambda x: torch.cat([x[:3], x, x[:5]]).T.contiguous().T[3:-5],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_layout_has_the_bits_of_columns(dtype: str, layout: str) -> None:
    tensor = torch.from_numpy(values()).to("cuda", getattr(torch, dtype))
    x = LAYOUTS[layout](tensor)
    df = frame(tensor.to(torch.float64 if dtype == "float64" else torch.float32).cpu().numpy())
    model = pk.KMeans(K, seed=1).fit(x)
    assert model.device == "cuda:0"
    assert (model.device_reason or "").startswith("the rows are on cuda:0")
    assert model == pk.KMeans(K, seed=1, device="cpu").fit(df, df.columns)
    labels = model.predict(x)
    assert isinstance(labels, torch.Tensor)
    assert (labels.device, labels.dtype) == (x.device, torch.int32)
    assert labels.tolist() == df.select(model.predict(device="cpu")).to_series().to_list()
    distances = model.transform(x)
    assert distances.device == x.device
    expected = np.stack(df.select(model.transform(device="cpu")).to_series().to_list())
    assert (distances.cpu().numpy() == expected).all()
    squared = model.transform(x, squared=True)
    assert squared.device == x.device and squared.argmin(dim=1).equal(labels.long())
    assert squared.sqrt().equal(distances)
    near = model.predict(x, output="struct")
    assert (near.cluster == labels).all()
    assert near.distance.equal(distances.min(dim=1).values)
    assert model.score(x) == model.score(df)


@pytest.mark.parametrize(
    "options", [{"metric": "cosine"}, {"scale": "standard"}, {"scale": "robust"}, {"scale": {"column_1": 3.0}}]
)
def test_rows_arrive_as_columns_do(options: dict[str, Any]) -> None:
    x = values()
    x[x.sum(axis=1) == 0] = 1.0
    tensor, df = torch.from_numpy(x).cuda(), frame(x)
    before = tensor.clone()
    for given in (tensor, tensor.T.contiguous().T):
        model = pk.KMeans(K, seed=1, **options).fit(given)
        assert model == pk.KMeans(K, seed=1, device="cpu", **options).fit(df, df.columns)
        assert model.predict(given).tolist() == df.select(model.predict(device="cpu")).to_series().to_list()
        assert given.equal(before)


def test_weights_are_a_tensor_or_an_array() -> None:
    x = values()
    w = np.random.default_rng(6).uniform(0.0, 3.0, size=N)
    df = frame(x).with_columns(w=pl.Series(w))
    expected = pk.KMeans(K, seed=1, weight="w", device="cpu").fit(df, df.columns[:D])
    tensor, weights = torch.from_numpy(x).cuda(), torch.from_numpy(w).cuda()
    for rows, beside in ((tensor, weights), (tensor, w), (x, weights), (tensor.T.contiguous().T, weights)):
        assert pk.KMeans(K, seed=1).fit(rows, weight=beside) == expected
    assert expected.score(tensor, weight=weights) == expected.score(df, weight="w")


def test_what_is_current_on_a_thread_stays() -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    df = frame(values())

    def fitted() -> list[int | None]:
        context, seen = ctypes.c_void_p(), []
        for work in (lambda: None, lambda: pk.KMeans(K, device="cuda").fit(df, df.columns).predict(df)):
            work()
            assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
            seen.append(context.value)
        return seen

    # None is current on a new thread.
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(fitted).result() == [None, None]
    torch.cuda.set_device(0)
    torch.ones(1, device="cuda")
    for device in [f"cuda:{ordinal}" for ordinal in range(torch.cuda.device_count())]:
        pk.KMeans(K, device=device).fit(df, df.columns)
        assert torch.cuda.current_device() == 0


def test_a_tensor_on_a_side_stream_is_awaited() -> None:
    df = frame(values())
    expected = pk.KMeans(K, seed=1, device="cpu").fit(df, df.columns)
    stream = torch.cuda.Stream()
    source = torch.from_numpy(values()).cuda()
    for _ in range(3):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            x = torch.full_like(source, 7.0)
            torch.cuda._sleep(200_000_000)
            x.copy_(source)
            model = pk.KMeans(K, seed=1).fit(x)
            assert model == expected
            assert model.predict(x).sum().item() == df.select(model.predict()).to_series().sum()


def test_bad_rows_are_counted_or_left_out() -> None:
    x = values().astype("float32")
    x[7, 2], x[12_000, 0] = np.nan, np.inf
    tensor, df = torch.from_numpy(x).cuda(), frame(x)
    errors = []
    fits: list[Callable[[], Any]] = [lambda: pk.KMeans(K).fit(tensor), lambda: pk.KMeans(K).fit(df, df.columns)]
    for fit in fits:
        with pytest.raises(pk.InvalidDataError) as raised:
            fit()
        errors.append(str(raised.value))
    assert errors[0] == errors[1]
    model = pk.KMeans(K, seed=1, null_policy="skip").fit(tensor)
    assert model == pk.KMeans(K, seed=1, null_policy="skip", device="cpu").fit(df, df.columns)
    labels = model.predict(tensor)
    assert torch.nonzero(labels < 0).flatten().tolist() == [7, 12_000]
    assert model.score(tensor) == model.score(df)


def test_what_cannot_be_read_is_refused() -> None:
    x = torch.from_numpy(values()).cuda()
    model = pk.KMeans(K).fit(x)
    cases: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (pk.InvalidParameterError, "got int64: convert it first", lambda: pk.KMeans(K).fit(x.long())),
        (pk.InvalidParameterError, "gradient", lambda: pk.KMeans(K).fit(x.clone().requires_grad_())),
        (pk.InvalidParameterError, "one or two dimensions", lambda: pk.KMeans(K).fit(x[None])),
        (pk.InvalidParameterError, '^device: expected "cuda:0" or "auto"', lambda: pk.KMeans(K, device="cpu").fit(x)),
        (
            pk.InvalidParameterError,
            '^device: expected "cuda:0" or "auto"',
            lambda: pk.KMeans(K, device="cuda:1").fit(x),
        ),
        (pk.InvalidParameterError, '^device: expected "cuda:0" or "auto"', lambda: model.predict(x, device="cpu")),
        (pk.InvalidDataError, "at least one row", lambda: pk.KMeans(K).fit(x[:0])),
        (pk.InvalidColumnError, "expected 6 features, got 5", lambda: model.predict(x[:, :5])),
        (pk.NoMemoryError, "device_memory_limit", lambda: pk.KMeans(K, device_memory_limit=1000).fit(x)),
    ]
    for kind, message, call in cases:
        with pytest.raises(kind, match=message):
            call()
    assert model.predict(x[:0]).shape == (0,)
    assert pk.KMeans(3).fit(x[:, 1]) == pk.KMeans(3).fit(x[:, 1:2])


def test_little_crosses_the_bus() -> None:
    x = torch.from_numpy(values(200_000, 16).astype("float32")).cuda()
    for given in (x, x.T.contiguous().T):
        before = _internal.bus_traffic()
        model = pk.KMeans(10, seed=1, max_iter=20).fit(given)
        labels = model.predict(given)
        crossed = [now - then for now, then in zip(_internal.bus_traffic(), before, strict=True)]
        assert labels.shape == (200_000,)
        # Extents of 4,096 rows come to the host: 40 bytes a column. Labels of one byte would be 200,000 bytes.
        assert max(crossed) < 50_000, crossed


def test_labels_are_freed_with_the_tensor() -> None:
    x = torch.from_numpy(values(100_000).astype("float32")).cuda()
    model = pk.KMeans(K, seed=1).fit(x)
    expected = model.predict(x)
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    for _ in range(300):
        assert model.predict(x).equal(expected)
    assert torch.cuda.mem_get_info()[0] >= free - (64 << 20)


def test_other_libraries() -> None:
    x = values()
    df = frame(x)
    expected = pk.KMeans(K, seed=1, device="cpu").fit(df, df.columns)
    labels = df.select(expected.predict()).to_series().to_list()
    cupy = pytest.importorskip("cupy")
    array = cupy.asarray(x)
    assert pk.KMeans(K, seed=1).fit(array) == expected
    answer = expected.predict(array)
    assert isinstance(answer, cupy.ndarray)
    assert answer.tolist() == labels


class Frame:
    """A data frame on a GPU, exported as cuDF exports its frames."""

    def __init__(self, columns: dict[str, tuple[Any, bytes, Any]], rows: int) -> None:
        self.columns, self.rows, self.released = columns, rows, 0

    def __arrow_c_device_array__(self, requested_schema: Any = None, **kwargs: Any) -> Any:
        released = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

        class Schema(ctypes.Structure):
            pass

        class Array(ctypes.Structure):
            pass

        Schema._fields_ = [
            ("format", ctypes.c_char_p),
            ("name", ctypes.c_char_p),
            ("metadata", ctypes.c_char_p),
            ("flags", ctypes.c_int64),
            ("n_children", ctypes.c_int64),
            ("children", ctypes.POINTER(ctypes.POINTER(Schema))),
            ("dictionary", ctypes.c_void_p),
            ("release", released),
            ("private_data", ctypes.c_void_p),
        ]
        Array._fields_ = [
            *((name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
            ("buffers", ctypes.POINTER(ctypes.c_void_p)),
            ("children", ctypes.POINTER(ctypes.POINTER(Array))),
            ("dictionary", ctypes.c_void_p),
            ("release", released),
            ("private_data", ctypes.c_void_p),
        ]

        class DeviceArray(ctypes.Structure):
            _fields_ = (
                ("array", Array),
                ("device_id", ctypes.c_int64),
                ("device_type", ctypes.c_int32),
                ("sync_event", ctypes.c_void_p),
                ("reserved", ctypes.c_int64 * 3),
            )

        release = released(lambda _: None)
        d = len(self.columns)
        schemas, arrays = (Schema * d)(), (Array * d)()
        for i, (name, (tensor, kind, bitmap)) in enumerate(self.columns.items()):
            schemas[i].format, schemas[i].name, schemas[i].flags, schemas[i].release = kind, name.encode(), 2, release
            buffers = (ctypes.c_void_p * 2)(None if bitmap is None else bitmap.data_ptr(), tensor.data_ptr())
            arrays[i].length, arrays[i].null_count, arrays[i].n_buffers = self.rows, -1, 2
            arrays[i].buffers = ctypes.cast(buffers, ctypes.POINTER(ctypes.c_void_p))
            arrays[i].release = release
            self.kept = [*getattr(self, "kept", []), buffers]
        schema, device = Schema(), DeviceArray()
        schema.format, schema.name, schema.n_children, schema.release = b"+s", b"", d, release
        schema.children = (ctypes.POINTER(Schema) * d)(*(ctypes.pointer(child) for child in schemas))
        device.array.length, device.array.n_buffers, device.array.n_children = self.rows, 1, d
        device.array.buffers = (ctypes.c_void_p * 1)(None)
        device.array.children = (ctypes.POINTER(Array) * d)(*(ctypes.pointer(child) for child in arrays))
        device.array.release = release
        device.device_id, device.device_type = 0, 2
        self.kept += [schemas, arrays, schema, device, release]
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return (
            new(ctypes.addressof(schema), b"arrow_schema", None),
            new(ctypes.addressof(device), b"arrow_device_array", None),
        )


def test_a_frame_on_a_gpu_with_nulls() -> None:
    n = 3_000
    random = np.random.default_rng(9)
    x, y, z = (
        random.normal(size=n),
        random.integers(-9, 9, size=n).astype("int16"),
        random.normal(size=n).astype("float32"),
    )
    valid = random.random(n) > 0.01
    bits = torch.from_numpy(np.packbits(valid, bitorder="little")).cuda()
    there = [torch.from_numpy(v).cuda() for v in (x, y, z)]
    given = Frame({"x": (there[0], b"g", None), "y": (there[1], b"s", bits), "z": (there[2], b"f", None)}, n)
    torch.cuda.synchronize()
    df = pl.DataFrame({"x": x, "y": pl.Series(y).zip_with(pl.Series(valid), pl.Series([None], dtype=pl.Int16)), "z": z})
    with pytest.raises(
        pk.InvalidDataError, match=f'column "y": expected finite values, got nulls: {(~valid).sum()}, NaNs: 0'
    ):
        pk.KMeans(4).fit(given)
    model = pk.KMeans(4, seed=1, null_policy="skip").fit(given)
    assert model == pk.KMeans(4, seed=1, null_policy="skip", device="cpu").fit(df, ["x", "y", "z"])
    labels = torch.from_dlpack(model.predict(given))
    assert labels.device.type == "cuda"
    assert labels.tolist() == df.select(model.predict(device="cpu").cast(pl.Int32).fill_null(-1)).to_series().to_list()
