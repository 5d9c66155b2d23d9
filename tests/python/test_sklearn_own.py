"""scikit-learn's own tests of KMeans and bisecting k-means, with our classes in the place of theirs.

The file of the installed scikit-learn is loaded while its classes are ours. As values of
parameters, sparse matrices and their constructors are left out: we take no sparse input.
"""

import importlib.util
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import sklearn.cluster
from scipy import sparse
from sklearn.utils.fixes import CSR_CONTAINERS

from polars_kmeans.sklearn import BisectingKMeans, KMeans, MiniBatchKMeans

HELPER = "a helper of scikit-learn's implementation"
FUNCTION = "a function of scikit-learn that does not use the class it is tested with"
PRIVATE = "attributes or texts of scikit-learn's implementation"
SPARSE = "sparse input alone"

EXCLUDED = {
    "test_relocate_empty_clusters": HELPER,
    "test_euclidean_distance": HELPER,
    "test_inertia": HELPER,
    "test_is_same_clustering": HELPER,
    "test_sample_weight_init": HELPER,
    "test_sample_weight_zero": HELPER,
    "test_k_means_function": FUNCTION,
    "test_kmeans_plusplus_wrong_params": FUNCTION,
    "test_kmeans_plusplus_output": FUNCTION,
    "test_kmeans_plusplus_norms": FUNCTION,
    "test_kmeans_plusplus_dataorder": FUNCTION,
    "test_minibatch_update_consistency": HELPER,
    "test_minibatch_reassign": HELPER,
    "test_minibatch_kmeans_init_size": PRIVATE,
    "test_minibatch_declared_convergence": PRIVATE,
    "test_bisecting_kmeans_custom_init_validation": "functions as init",
    "test_sparse": SPARSE,
    "test_dense_sparse": SPARSE,
    "test_predict_dense_sparse": SPARSE,
}


@pytest.fixture(params=[0, 42, 99])
def global_random_seed(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[np.float32, np.float64])
def global_dtype(request: pytest.FixtureRequest) -> Any:
    return request.param


def taken(value: Any) -> bool:
    """Whether a value of a parameter is one that our class takes."""
    parts = value if isinstance(value, tuple) else (value,)
    return not any(sparse.issparse(part) or any(part is other for other in CSR_CONTAINERS) for part in parts)


def without_others(mark: Any) -> Any:
    """Leave out the values of a parameter that our class does not take."""
    if mark.name != "parametrize":
        return mark
    names, values = mark.args
    values = list(values)
    kept = [taken(value) for value in values]
    arguments = dict(mark.kwargs)
    if arguments.get("ids"):
        arguments["ids"] = [name for name, keep in zip(arguments["ids"], kept, strict=True) if keep]
    values = [value for value, keep in zip(values, kept, strict=True) if keep]
    return pytest.mark.parametrize(names, values, **arguments).mark


def own_tests(file: str) -> dict[str, Any]:
    """Load scikit-learn's tests around our classes."""
    path = Path(sklearn.cluster.__file__).parent / "tests" / f"{file}.py"
    spec = importlib.util.spec_from_file_location(f"sklearn_{file}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.multiple(
        sklearn.cluster, KMeans=KMeans, MiniBatchKMeans=MiniBatchKMeans, BisectingKMeans=BisectingKMeans
    ):
        spec.loader.exec_module(module)
    assert KMeans in vars(module).values() or BisectingKMeans in vars(module).values()
    tests = {name: test for name, test in vars(module).items() if name.startswith("test_") and name not in EXCLUDED}
    for test in tests.values():
        test.pytestmark = [without_others(mark) for mark in getattr(test, "pytestmark", [])]
    return tests


own = [own_tests("test_k_means"), own_tests("test_bisect_k_means")]
assert own[0].keys().isdisjoint(own[1])
globals().update(own[0] | own[1])
