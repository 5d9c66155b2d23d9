"""The estimator of scikit-learn on tensors of a GPU.

It needs torch and a GPU. If POLARS_KMEANS_DEMAND_GPU is set in the environment, the tests fail where there is no GPU.
"""

import pickle
from typing import Any

import numpy as np
import pytest
from helpers import needs_gpu

import polars_kmeans as pk

torch = pytest.importorskip("torch")
from sklearn.exceptions import ConvergenceWarning  # noqa: E402

from polars_kmeans.sklearn import KMeans  # noqa: E402

pytestmark = needs_gpu

X = np.random.default_rng(0).normal(size=(5000, 6)) + np.random.default_rng(1).integers(0, 5, size=(5000, 1)) * 9.0
WEIGHTS = np.random.default_rng(2).uniform(size=5000)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_tensor_has_the_results_of_an_array(dtype: str, metric: Any) -> None:
    x = X.astype(dtype)
    tensor, weights = torch.from_numpy(x).cuda(), torch.from_numpy(WEIGHTS).cuda()
    host = KMeans(7, random_state=3, metric=metric, device="cpu").fit(x, sample_weight=WEIGHTS)
    kmeans = KMeans(7, random_state=3, metric=metric).fit(tensor, sample_weight=weights)
    assert isinstance(kmeans.labels_, torch.Tensor)
    assert (kmeans.labels_.device, kmeans.labels_.dtype) == (tensor.device, torch.int32)
    assert np.array_equal(kmeans.labels_.cpu().numpy(), host.labels_)
    assert kmeans.cluster_centers_.dtype == x.dtype
    assert np.array_equal(kmeans.cluster_centers_, host.cluster_centers_)
    assert (kmeans.inertia_, kmeans.n_iter_, kmeans.n_features_in_) == (host.inertia_, host.n_iter_, 6)
    assert kmeans.predict(tensor).equal(kmeans.labels_)
    distances = kmeans.transform(tensor)
    assert (distances.device, distances.dtype) == (tensor.device, torch.float64)
    assert np.array_equal(distances.cpu().numpy().astype(dtype), host.transform(x))
    assert kmeans.score(tensor, sample_weight=weights) == host.score(x, sample_weight=WEIGHTS)
    assert np.array_equal(kmeans.predict(x), host.labels_)
    assert pickle.loads(pickle.dumps(kmeans)).predict(tensor).equal(kmeans.labels_)


def test_given_centers_and_too_few_distinct_rows() -> None:
    tensor = torch.from_numpy(X).cuda()
    given = KMeans(4, init=X[:4]).fit(tensor)
    assert np.array_equal(given.labels_.cpu().numpy(), KMeans(4, init=X[:4], device="cpu").fit(X).labels_)
    with pytest.warns(ConvergenceWarning, match=r"\(3\) found smaller than n_clusters \(5\)"):
        kmeans = KMeans(5, random_state=0).fit(tensor[:3].repeat(4, 1))
    assert sorted(kmeans.labels_.tolist()) == [0] * 4 + [1] * 4 + [2] * 4
    assert kmeans.transform(tensor).shape == (5000, 5)


def test_bad_tensors_are_refused() -> None:
    tensor = torch.from_numpy(X).cuda()
    kmeans = KMeans(4, random_state=0).fit(tensor)
    bad = tensor.clone()
    bad[7, 2] = float("nan")
    with pytest.raises(pk.InvalidDataError, match="NaNs: 1"):
        KMeans(4).fit(bad)
    for method in (kmeans.predict, kmeans.transform, kmeans.score):
        with pytest.raises(pk.InvalidDataError, match="got 1 rows with others"):
            method(bad)
    with pytest.raises(ValueError, match="X has 5 features, but KMeans is expecting 6"):
        kmeans.predict(tensor[:, :5])
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array instead"):
        kmeans.fit(tensor[0])
    with pytest.raises(ValueError, match="n_samples=2 should be >= n_clusters=4"):
        kmeans.fit(tensor[:2])


def test_a_tensor_on_the_host_is_an_array() -> None:
    kmeans = KMeans(4, random_state=0, device="cpu").fit(torch.from_numpy(X))
    assert isinstance(kmeans.labels_, np.ndarray)
    assert np.array_equal(kmeans.labels_, KMeans(4, random_state=0, device="cpu").fit(X).labels_)
