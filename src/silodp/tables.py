"""Tables as csv for programs and as Markdown for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from silodp.files import write_atomically


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """The first row's keys are the columns."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]) if rows else [])
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, file.getvalue().encode())


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
