"""Counts the words of each page, and fails if there are more than the project allows itself: `make words`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Limits of some pages, and of all of docs and CONTRIBUTING together. What commands wrote counts too. All had 40,000
# before there were pages for companies and of stability, and code for extreme rows and for sums of floats. Bounds on
# sizes have 900, trees of clusters 900, and the record and the wheels of older machines 600.
LIMITS = {"README.md": 1_200, "docs/decisions.md": 4_700}
ALL = 45_400


def main() -> None:
    """Print the words of each page and of all."""
    folders = [(ROOT / "docs").glob(pattern) for pattern in ("*.md", "guide/*.md", "lab/*.md")]
    pages = [ROOT / "CONTRIBUTING.md", *sorted(page for folder in folders for page in folder)]
    words = {page.relative_to(ROOT).as_posix(): len(page.read_text().split()) for page in [ROOT / "README.md", *pages]}
    for name, count in words.items():
        print(f"{count:>7,} {name}")
    total = sum(words.values()) - words["README.md"]
    print(f"{total:>7,} in docs and CONTRIBUTING.md, of {ALL:,}")
    wrong = [f"{name} has more than {most:,} words" for name, most in LIMITS.items() if words[name] > most]
    wrong += [f"docs and CONTRIBUTING.md have more than {ALL:,} words"] if total > ALL else []
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
