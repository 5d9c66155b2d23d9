"""What is written from the table of options is current, and functions show and take all of them."""

import ast
import inspect
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import polars as pl
import pytest

import polars_kmeans as pk
from polars_kmeans import _generated, _internal, _keywords, _options

sys.path.append(str(Path(__file__).parents[2] / "python"))

import write_options

OPTIONS = _internal.options()


@dataclass(frozen=True)
class Foo:
    """An option that the table does not have."""

    name: str = "foo"
    annotation: str = "float"
    default: str = "1.0"
    doc: list[str] = field(default_factory=lambda: ["What a foo is.", "More about it."])


@pytest.mark.parametrize("file", write_options.FILES, ids=lambda file: file.name)
def test_what_is_written_from_the_table_is_current(file: Path) -> None:
    source = file.read_text()
    assert write_options.rewritten(file, source, OPTIONS) == source, "run `make options`"


def test_a_new_option_in_the_table_is_written_everywhere() -> None:
    types, guide = (write_options.rewritten(file, file.read_text(), [*OPTIONS, Foo()]) for file in write_options.FILES)
    ast.parse(types)
    first, *_ = types.split("\n\n\nclass Options(")
    assert first.endswith('\n    foo: float\n    """What a foo is. More about it. Default: `1.0`."""')
    assert "\n| `foo` | `1.0` | What a foo is. |\n\n" in guide


def test_functions_take_the_options_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_options.OPTIONS, "foo", Foo())
    monkeypatch.setitem(_options.DEFAULTS, "foo", 1.0)

    class Options(_generated.Options, total=False):
        foo: float

    def fit(k: int, *, too_few: str = "raise", **options: Any) -> dict[str, Any]:
        """Fit.

        Parameters
        ----------
        k
            Clusters.
        **options
            Others.

        Returns
        -------
        dict

        """
        return options

    checked = _keywords.takes(Options)(fit)
    names = [option.name for option in OPTIONS if option.name not in ("history", "keep_sums", "extents", "output")]
    assert list(inspect.signature(checked).parameters) == ["k", *names, "foo"]
    assert inspect.signature(checked).parameters["foo"].annotation == checked.__annotations__["foo"] == "float"
    assert "\nfoo\n    What a foo is. More about it.\n\nReturns\n" in (checked.__doc__ or "")
    assert list(checked(2)) == [name for name in [*names, "foo"] if name != "too_few"]
    assert (checked(2)["foo"], checked(2, foo=2.0)["foo"]) == (1.0, 2.0)
    with pytest.raises(pk.InvalidParameterError, match=r"got fo: did you mean foo\?$"):
        checked(2, fo=2.0)


def test_every_option_is_a_keyword_with_the_default_of_the_table() -> None:
    for function, without in (
        (pk.kmeans, set()),
        (pk.centroids, {"history", "keep_sums", "extents", "output"}),
        (pk.KMeans, {"output"}),
    ):
        parameters = inspect.signature(function).parameters
        for option in OPTIONS:
            assert (option.name in parameters) == (option.name not in without)
            if option.name not in without:
                assert parameters[option.name].default == ast.literal_eval(option.default)


def test_defaults_are_what_the_engine_takes_without_values() -> None:
    frame = pl.DataFrame({"x": [0.0, 1.0, 5.0, 7.0]})
    plain = pk.KMeans(2).fit(frame, "x")
    for option in OPTIONS:
        if option.name != "output":
            same = pk.KMeans(2, **{option.name: ast.literal_eval(option.default)}).fit(frame, "x")
            assert same == plain and same.parameters == plain.parameters
    assert _options.FitOptions(k=2, seed=0, tol=0).keywords["values"] == {"k": "2", "tol": 0.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 2**64}, "k: expected an integer from 1 to 2^32 - 1, got 18446744073709551616"),
        ({"k": 2**32}, "k: expected an integer from 1 to 2^32 - 1, got 4294967296"),
        ({"k": -(2**70)}, f"k: expected an integer from 1 to 2^32 - 1, got {-(2**70)}"),
        ({"max_iter": 10**5000}, "max_iter: expected an integer, got one of 16610 bits"),
        ({"n_init": "5"}, "n_init: expected \"auto\" or an integer, got '5'"),
        ({"n_init": -1}, 'n_init: expected "auto" or an integer from 1 to 2^32 - 1, got -1'),
        ({"tol": None}, "tol: expected a number, got None"),
        ({"seed": 2**64}, "seed: expected an integer from 0 to 2^64 - 1, got 18446744073709551616"),
        ({"device_memory_limit": "1"}, "device_memory_limit: expected an integer, got '1'"),
    ],
)
def test_values_of_any_size_and_type_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    for call in (lambda **given: pk.kmeans("x", **given), pk.KMeans):
        with pytest.raises(pk.InvalidParameterError, match=f"^{re.escape(message)}$"):
            call(**{"k": 2, **options})


def test_an_unknown_option_is_refused_by_the_library() -> None:
    keywords = {**_options.FitOptions(k=2).keywords, "weighted": False}
    keywords["values"] = {**keywords["values"], "tolerance": 1.0}
    with pytest.raises(pk.InvalidParameterError, match=r'^option: expected k or one of init, .*, got "tolerance"$'):
        _internal.check_options(keywords)


def test_seedings_are_those_of_the_engine() -> None:
    words = [word for word in get_args(pk._typing.InitMethod)]
    expected = ", ".join(f'"{word}"' for word in words) + " or starting centroids"
    with pytest.raises(pk.errors.InvalidParameterError, match=re.escape(f"init: expected {expected}")):
        pk.KMeans(k=2, init="nope")
