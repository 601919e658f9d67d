"""Tables are read back as they were written, by other programs too."""

import csv
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from silodp.tables import markdown_table, write_csv

CELLS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8) | st.sampled_from(
    ["a,b", '"', "two\nlines", " "]
)


@given(st.lists(st.tuples(CELLS, CELLS), max_size=5))
def test_csv_comes_back(rows: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        write_csv(path, [{"name": name, "ε": value} for name, value in rows])
        with path.open(newline="", encoding="utf-8") as file:
            read = list(csv.reader(file))
    assert read == ([["name", "ε"], *map(list, rows)] if rows else [[]])


def test_markdown() -> None:
    assert markdown_table(["z", "Dice"], [["0.3", "0.7"]]) == "| z | Dice |\n| --- | --- |\n| 0.3 | 0.7 |"
