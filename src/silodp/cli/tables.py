"""Tables in a terminal: one style, and columns that are left out where the terminal is too narrow."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAVY
from rich.console import Console, RenderableType
from rich.table import Column, Table

LONGEST_NAME = 20  # letters of a foldable name that stay on one line where there is little room


def numbers(*headings: RenderableType) -> list[Column]:
    """Columns aligned to the right."""
    return [Column(heading, justify="right") for heading in headings]


def uncut(*headings: RenderableType) -> list[Column]:
    """Columns aligned to the right that are neither wrapped nor cut, for every ε."""
    return [Column(heading, justify="right", no_wrap=True) for heading in headings]


def make_table(title: str, *columns: Column | str, caption: str | None = None) -> Table:
    """A table without rows; a column that is only a heading is text, aligned to the left."""
    return Table(
        *columns, title=title, caption=caption, title_justify="left", caption_justify="left",
        box=SIMPLE_HEAVY,
    )  # fmt: skip


def plain_table(*columns: Column | str) -> Table:
    """A table without title and lines."""
    return Table(*columns, box=None, pad_edge=False)


def print_table(console: Console, table: Table, optional: Sequence[str] = ()) -> None:
    """Prints a table so that it fits the terminal.

    Args:
        optional: headings of the columns that are left out, one after the other, while the table is too wide.
            What is then still too wide is wrapped, except for columns with `no_wrap`.
    """
    left_out: list[str] = []
    for heading in optional:
        if sum(_least_width(column) for column in table.columns) <= console.width:
            break
        table.columns = [column for column in table.columns if column.header != heading]
        left_out.append(heading.replace("\n", " "))
    console.print(table)
    if left_out:
        console.print(f"no room for: {', '.join(left_out)}")


def _least_width(column: Column) -> int:
    """The width with padding at which no word of a column is broken, unless the column may fold."""
    cells = [str(cell) for cell in (column.header, *column.cells)]
    parts = [part for cell in cells for part in (cell.splitlines() if column.no_wrap else cell.split())]
    longest = max(map(len, parts), default=0)
    return 3 + (min(longest, LONGEST_NAME) if column.overflow == "fold" else longest)
