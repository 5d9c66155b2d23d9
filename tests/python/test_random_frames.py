"""Random frames and parameters through the public API: each is refused as documented, or the answer is right.

random_cases.py draws a case, and random_rules.py computes its required outcome. This module calls the library and
compares.

By default, it takes 300 frames that are always the same. RANDOM_FRAMES=10000 takes that many other frames, and
--hypothesis-seed chooses which.
"""

import math
import os
import re
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from polars.exceptions import ComputeError
from random_cases import Case, cases
from random_rules import squared, verdict, weight_hat

import polars_kmeans as pk

EXAMPLES = int(os.environ.get("RANDOM_FRAMES", "300"))

BAD_OPTIONS: list[dict[str, Any]] = [
    *({"k": k} for k in (0, -1, 2.5, True, "2", None, 2**32, 2**64, math.nan)),
    *({"seed": seed} for seed in (-1, 2**64, 1.0, None, "0", True)),
    *({"max_iter": it} for it in (0, -1, 2**32, 1.5, True, "1")),
    *({"tol": tol} for tol in (-1.0, math.nan, math.inf, "x", None, True)),
    *({"tol_labels": tol} for tol in (-0.5, math.nan, math.inf, "x", None)),
    *({"n_init": n} for n in (0, -1, "many", 2**32, 1.5, None)),
    *({"init": init} for init in ("best", "parallel", [], ["a"], [[1.0], [1.0, 2.0]], [["a"]], 3, None)),
    {"init": np.zeros((3, 1, 1))},
    *({"oversampling": factor} for factor in (0.0, -1.0, math.inf, "x", None)),
    *({"rounds": rounds} for rounds in (0, 256, 1.5, None)),
    *({"chain_length": length} for length in (0, 2**32, 1.5, None)),
    *({"init_sample": rows} for rows in (0, -1, 2**32, 1.5)),
    *({"null_policy": policy} for policy in ("drop", None, 1)),
    *({"row_order": order} for order in ("sorted", None, 1)),
    *({"too_few": what} for what in ("maybe", None)),
    *({"weight": w} for w in (1.0, [1.0], pl.col("x", "y"))),
]


IN_QUERY = re.compile(r"the plugin failed with message: (\w+): (.*?)(\n\n|$)", re.DOTALL)


def attempt(query: Any) -> tuple[str | None, Any]:
    """Return the family and the message of a refusal, or None and the answer."""
    try:
        return None, query()
    except pk.KMeansError as error:
        return type(error).__name__, str(error)
    except ComputeError as error:
        found = IN_QUERY.match(str(error))
        assert found is not None, f"not one of our errors: {error}"
        return found[1], found[2]


def same(a: float | None, b: float | None) -> bool:
    return a == b and (a is None or math.copysign(1.0, a) == math.copysign(1.0, b))


def check_rows(rows: list[Any], skip: set[int], centroids: list[list[float]], labels: list[Any], what: str) -> None:
    for i, (row, got) in enumerate(zip(rows, labels, strict=True)):
        if i in skip or row is None or not all(v is not None and math.isfinite(v) for v in row):
            assert got is None or set(got.values()) == {None}, f"{what}, row {i}: {got} where there is no answer"
            continue
        s = [squared(row, c) for c in centroids]
        label = s.index(min(s))
        second = math.sqrt(sorted(s)[1]) if len(s) > 1 else None
        want = {"cluster": label, "distance": math.sqrt(s[label]), "second_distance": second}
        assert got == want, f"{what}, row {i}: {got} instead of {want}"


def check_answer(case: Case, model: pk.KMeansModel, labels: pl.Series) -> None:
    frame, options, k = case.frame, case.options, case.options["k"]
    kept = case.kept()
    skip = set(range(len(case.rows))) - set(kept)
    w = [1.0] * len(case.rows) if case.weights is None else case.weights
    positive = [i for i in kept if w[i] > 0.0]
    table = model.centroids
    assert table.columns == ["cluster", "size", "inertia", *case.features]
    assert table["cluster"].to_list() == list(range(k))
    nested = isinstance(frame[case.features[0]].dtype, (pl.List, pl.Array))
    dtype = pl.Float64 if case.wide else pl.Float32
    assert set(table.schema[name] for name in case.features) == {pl.Array(dtype, case.d) if nested else dtype}
    c = table[case.features[0]].to_list() if nested else [list(row) for row in table.select(case.features).iter_rows()]

    for f in range(case.d):
        x = [case.rows[i][f] for i in positive]
        assert all(min(x) <= row[f] <= max(x) for row in c), f"a centroid beyond feature {f}"

    structs = frame.select(model.predict(output="struct")).to_series()
    assert structs.dtype == pl.Struct({"cluster": pl.UInt32, "distance": pl.Float64, "second_distance": pl.Float64})
    check_rows(case.rows, set(), c, structs.to_list(), "predict")
    predicted = frame.select(model.predict()).to_series()
    assert predicted.name == "cluster" and predicted.dtype == pl.UInt32
    assert predicted.to_list() == structs.struct.field("cluster").to_list()
    assert predicted.equals(frame.lazy().select(model.predict()).collect(engine="streaming").to_series())
    if case.output == "struct":
        check_rows(case.rows, skip, c, labels.to_list(), "kmeans")
        labels = labels.struct.field("cluster")
    assert labels.to_list() == [None if i in skip else v for i, v in enumerate(predicted)], "predict gives other labels"

    got = labels.to_list()
    assert table["size"].to_list() == [sum(got[i] == j for i in positive) for j in range(k)]
    distances = frame.select(model.transform()).to_series()
    assert distances.name == "distances" and distances.dtype == pl.Array(pl.Float64, k)
    assert distances.equals(frame.lazy().select(model.transform()).collect(engine="streaming").to_series())
    for i, row in enumerate(distances.to_list()):
        want = [math.sqrt(squared(case.rows[i], centroid)) for centroid in c] if case.is_finite(i) else None
        assert row == want, f"transform, row {i}"

    # Inertia and score are fixed-point sums, so they may differ by one quantum per row.
    largest = max(w[i] for i in kept)
    hats = {i: weight_hat(w[i], largest) for i in positive}
    parts = [(got[i], hats[i] * squared(case.rows[i], c[got[i]])) for i in positive]
    points = [*(case.rows[i] for i in positive), *c, *(case.given or [])]
    columns = [*zip(*points, strict=True)]
    box = squared([max(v) for v in columns], [min(v) for v in columns])
    slack = len(positive) * max(16.0 * 2.0**-90 * box * max(hats.values()), 5e-324 * max(hats.values(), default=1.0))
    for j, inertia in enumerate(table["inertia"]):
        exact = math.fsum(part for label, part in parts if label == j)
        assert abs(inertia - exact) <= slack + 2.0**-50 * exact, f"cluster {j}: {inertia}, by distances {exact}"
    exact = math.fsum(part for _, part in parts)
    assert abs(model.inertia - exact) <= slack + 2.0**-50 * exact
    score = model.score(frame, weight=options["weight"])
    assert abs(score + exact) <= slack + 2.0**-50 * exact, f"score {score}, by distances {-exact}"
    assert same(score, model.score(frame.lazy(), weight=options["weight"]))

    history = model.history
    changed = history["changed"].to_list()
    assert history["iteration"].to_list() == list(range(1, model.n_iter + 1)) and model.n_iter <= options["max_iter"]
    assert changed[0] == len(positive)
    assert all(v > options["tol_labels"] * len(positive) for v in changed[:-1]), "an iteration after the stop"

    query = case.query
    assert query is not None
    if not nested:
        names = query.columns
        rows = [list(row) for row in query.iter_rows()]
    else:
        names = ["q"]
        rows = [list(row) for row in query.cast(pl.Float64).iter_rows()]
        query = pl.DataFrame({"q": pl.Series(rows, dtype=pl.List(pl.Float64))})
    check_rows(rows, set(), c, query.select(model.predict(*names, output="struct")).to_series().to_list(), "other rows")
    check = query.select(model.predict(*names)).to_series().to_list()
    structs = query.select(model.predict(*names, output="struct").struct.field("cluster")).to_series()
    assert check == structs.to_list()


def facts(model: pk.KMeansModel | None) -> Any:
    if model is None:
        return None
    history = model.history.drop("settled", "rescored", "skipped", "groups", "passes", "seconds")
    return model.centroids.rows(), model.inertia, model.n_iter, history.rows()


def check_groups(case: Case, expr: pl.Expr) -> None:
    """One fit per group gives the same as if each group were a frame of its own."""
    frame = case.frame.with_columns(pl.Series("group", [i % case.groups for i in range(case.frame.height)]))
    parts = [frame.filter(group=group) for group in range(min(case.groups, frame.height))]
    alone = [attempt(lambda part=part: part.select(expr).to_series()) for part in parts]
    family, labels = attempt(lambda: frame.select(expr.over("group")).to_series())
    centroids = pk.centroids(*case.features, **case.options)
    listed = attempt(lambda: frame.group_by("group", maintain_order=True).agg(centroids)["centroids"].to_list())
    families = {name for name, _ in alone} - {None}
    assert (family in families) if families else (family is None), f"over: {family} ({labels}), alone: {families}"
    assert (listed[0] in families) if families else (listed[0] is None), f"agg: {listed}, alone: {families}"
    if family is None:
        places = [i for group in range(case.groups) for i in range(group, frame.height, case.groups)]
        assert labels.gather(places).to_list() == [label for _, part in alone for label in part.to_list()]
        assert listed[1] == [part.select(centroids).to_series().to_list()[0] for part in parts]


@pytest.mark.filterwarnings("ignore::polars_kmeans.ConvergenceWarning")  # it stops early
@settings(
    max_examples=EXAMPLES,
    derandomize="RANDOM_FRAMES" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)
@pytest.mark.filterwarnings("ignore::polars_kmeans.OptionWarning")
@given(cases())
def test_random_frames(case: Case) -> None:
    frame, options, expected = case.frame, case.options, verdict(case)
    early, expr = attempt(lambda: pk.kmeans(*case.features, **options, output=case.output))
    if early is not None:
        # Refused before the query runs. The other entry points must refuse it too, at once or in their query.
        assert early in expected.families, f"{early} ({expr}) instead of {expected}"
        fit = attempt(lambda: pk.KMeans(**options).fit(frame, case.features))
        for name, what in (attempt(lambda: pk.centroids(*case.features, **options)), fit):
            assert name in expected.families, f"{name} ({what}) instead of {expected}"
        return
    family, labels = attempt(lambda: frame.select(expr).to_series())
    refused, model = attempt(lambda: pk.KMeans(**options).fit(frame, case.features))
    engine = "streaming" if case.stream else "in-memory"
    again = attempt(lambda: frame.lazy().select(expr).collect(engine=engine).to_series())
    listed = attempt(lambda: frame.select(pk.centroids(*case.features, **options)).to_series())
    if case.groups and not case.refused and frame.height:
        check_groups(case, expr)
    # If there are several errors, each entry point may find another one first.
    for who, (name, what) in {"kmeans": (family, labels), "fit": (refused, model), "centroids": listed}.items():
        assert name is None or name in expected.families, f"{who}: {name} ({what}) instead of {expected}"
        if frame.is_empty() and who != "kmeans":
            continue
        assert (name is None) == (family is None), f"kmeans: {family} ({labels}), {who}: {name} ({what})"
    if frame.is_empty() and family is None:
        # A frame without rows gives no labels, even where a fit of no rows is refused.
        assert refused is not None or model is None
        assert again[1].equals(labels) and len(labels) == 0 and listed[1].to_list() == [None]
        return
    if family is not None:
        assert again == (family, labels), "lazy or streaming gave something else"
        return
    assert again[0] is None and labels.equals(again[1]), "lazy or streaming gave something else"
    assert labels.name == "cluster" and len(labels) == frame.height
    if model is None:
        assert expected.nulls, f"nulls instead of {expected}"
        assert labels.null_count() == frame.height or set(labels.struct.unnest().null_count().row(0)) == {frame.height}
        assert listed[1].to_list() == [None]
        return
    assert expected.answer, f"an answer instead of {expected}"
    check_answer(case, model, labels)
    assert listed[1].name == "centroids"
    assert [tuple(row.values()) for row in listed[1].to_list()[0]] == model.centroids.rows()
    assert facts(pk.KMeans(**options).fit(frame.lazy(), case.features)) == facts(model)
    assert facts(pk.KMeans(**options).fit(frame.rechunk(), case.features)) == facts(model), "chunks matter"

    # Rows that are left out do not change the model. Neither do rows of weight zero, nor weights that are all one.
    kept = case.kept()
    if len(kept) < frame.height:
        clean = frame[kept]
        assert facts(pk.KMeans(**{**options, "null_policy": "raise"}).fit(clean, case.features)) == facts(model)
    if case.weights is not None and set(case.weights) == {1.0}:
        assert facts(pk.KMeans(**{**options, "weight": None}).fit(frame, case.features)) == facts(model)
    # k-means|| draws by the numbers of the rows, and rows of weight zero have numbers too.
    parallel = isinstance(options["init"], str) and options["init"] == "kmeans-parallel"
    numbers_count = parallel and options["row_order"] != "values"
    if case.weights is not None and any(case.weights[i] == 0.0 for i in kept) and not numbers_count:
        clean = frame[[i for i in kept if case.weights[i] > 0.0]]
        assert facts(pk.KMeans(**options).fit(clean, case.features)) == facts(model), "a weight of zero left a trace"


def test_bad_options_are_refused_at_once() -> None:
    for bad in BAD_OPTIONS:
        for call in (lambda **o: pk.kmeans("x", **o), lambda **o: pk.centroids("x", **o)):
            family, message = attempt(lambda call=call, bad=bad: call(**{"k": 2, **bad}))
            assert family == "InvalidParameterError", f"{bad}: {family}: {message}"


if __name__ == "__main__":
    test_random_frames()
