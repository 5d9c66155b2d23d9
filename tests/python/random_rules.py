"""The required outcome of a drawn case, from its values and parameters alone. Also the reference distance.

Distances are float64, summed in the order of the features. Each step is rounded as a fused multiply-add is rounded.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from random_cases import Case


def mul_add(t: float, s: float) -> float:
    """Return t * t + s, rounded once."""
    p = t * t
    if s == 0.0:
        return p
    if 2.0**-480 < abs(t) < 2.0**500 and s < 2.0**1000:
        # The error of the rounded product is a float too (Dekker 1971), and fsum rounds a sum of floats once.
        high = t * 134217729.0
        high -= high - t
        low = t - high
        return math.fsum((s, p, ((high * high - p) + 2.0 * high * low) + low * low))
    if math.isinf(p) or math.isinf(s):
        return math.inf
    try:
        return float(Fraction(t) * Fraction(t) + Fraction(s))
    except OverflowError:
        return math.inf


def squared(x: list[float], c: list[float]) -> float:
    s = 0.0
    for a, b in zip(x, c, strict=True):
        s = mul_add(a - b, s)
    return s


def weight_hat(w: float, largest: float) -> float:
    """Round a weight to 53 bits below the power of two at or above the largest. A positive weight stays positive."""
    if w <= 0.0:
        return 0.0
    mantissa, exponent = math.frexp(largest)
    exponent -= mantissa == 0.5
    quantum = math.ldexp(1.0, exponent - 53)
    return max(round(Fraction(w) / Fraction(quantum)), 1) * quantum


@dataclass
class Verdict:
    """The required outcome: an error of one of these families, or nulls, or an answer."""

    families: set[str]
    nulls: bool
    answer: bool


def verdict(case: Case) -> Verdict:
    options = case.options
    k, too_few = options["k"], options["too_few"]
    families = set(case.refused)
    if families:
        # The library may find an error in the values first.
        families |= {"InvalidParameterError", "InvalidDataError", "TooFewRowsError"}
        return Verdict(families, too_few == "null", False)
    kept = case.kept()
    if len(kept) < len(case.rows) and options["null_policy"] == "raise":
        families.add("InvalidDataError")
    w = [1.0] * len(case.rows) if case.weights is None else case.weights
    if any(w[i] < 0.0 for i in kept):
        families.add("InvalidDataError")
    # A row that is left out because of its features may have any weight.
    largest_weight = max((w[i] for i in kept), default=0.0)
    positive = [i for i in kept if w[i] > 0.0]
    few: set[str] = set()
    maybe_few = False
    if not positive:
        few.add("InvalidDataError")
    elif not 2.0**-64 <= largest_weight <= 2.0**64:
        families.add("InvalidDataError")
    elif 1000 * sum(w[i] < largest_weight * 2.0**-43 for i in positive) > len(positive):
        families.add("InvalidDataError")
    x: list[list[float]] = case.rows
    if case.wide:
        for some in (kept, positive):
            magnitude = max((abs(v) for i in some for v in x[i]), default=0.0)
            if magnitude and not 2.0**-450 <= magnitude <= 2.0**450:
                families.add("InvalidDataError")
    if case.given is not None:
        with np.errstate(over="ignore"):
            given = [v if case.wide else float(np.float32(v)) for row in case.given for v in row]
        if len(case.given) != k or not all(math.isfinite(v) for v in given):
            families.add("InvalidParameterError")
        if any(len(row) != case.d for row in case.given):
            families |= {"InvalidColumnError", "InvalidParameterError"}
        magnitude = max(map(abs, given))
        if case.wide and magnitude > 2.0**450:
            families |= {"InvalidDataError", "InvalidParameterError"}
    if positive and 2.0**-64 <= largest_weight <= 2.0**64:
        hats = {i: weight_hat(w[i], largest_weight) for i in positive}
        for f in range(case.d):
            parts = [abs(hats[i] * x[i][f]) for i in positive]
            nonzero = [v for v in parts if v > 0.0]
            if 2 * sum(v * 2.0**66 < max(parts) for v in nonzero) > len(nonzero):
                families.add("InvalidDataError")
        distinct = {tuple(v + 0.0 for v in x[i]) for i in positive}
        if len(positive) < k or (len(distinct) < k and case.given is None and options["init"] != "random"):
            few.add("TooFewRowsError")
        elif len(distinct) < k:
            maybe_few = True
        elif any(0.0 < b - a < 2.0**-530 for v in zip(*distinct, strict=True) for a, b in pairwise(sorted(v))):
            maybe_few = True  # Squares of such differences vanish.
    elif len(positive) < k:
        few.add("TooFewRowsError")
    if families:
        return Verdict(families | few | {"TooFewRowsError"}, too_few == "null", False)
    if few:
        return Verdict(set() if too_few == "null" else few, too_few == "null", False)
    if maybe_few:
        return Verdict(set() if too_few == "null" else {"TooFewRowsError"}, too_few == "null", True)
    return Verdict(set(), False, True)
