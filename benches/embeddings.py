"""Writes real embeddings for the `gpu` benchmark: 32,000 token vectors of 256 features, as float16 without a header.

    python benches/embeddings.py embeddings.f16
    cargo bench --no-default-features --features bench,papers --bench kmeans -- \\
        gpu 4000000x256x4096x3 --rows embeddings.f16

The vectors come with the package wordllama: `pip install --no-deps wordllama`. Its file is read directly, because
importing the package needs more packages.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path


def read_table() -> bytes:
    spec = find_spec("wordllama")
    if spec is None or spec.origin is None:
        sys.exit("the wordllama package is not installed")
    content = (Path(spec.origin).parent / "weights" / "l2_supercat_256.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    (table,) = (value for name, value in json.loads(content[8:start]).items() if name != "__metadata__")
    assert table["dtype"] == "F16" and table["shape"] == [32_000, 256]
    first, end = table["data_offsets"]
    return content[start + first : start + end]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    Path(sys.argv[1]).write_bytes(read_table())
