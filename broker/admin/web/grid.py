"""Tables of a page: cells, columns, an order that the reader chooses, and pages of bounded length. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlencode

from broker.admin.web import words

ROWS_MAX: Final = 100
"""Rows of one page."""

PAGE_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Cell:
    """One value of a table.

    Attributes:
        text: as it is shown.
        order: by which it is sorted; None: by its text.
        link: where it leads; empty: nowhere.
        mark: `good`, `warn` or `bad`, for its colour; its text says the same.
    """

    text: str
    order: float | None = None
    link: str = ""
    mark: str = ""

    @property
    def key(self) -> tuple[float, str]:
        """The key by which rows are sorted; what is not known comes after all numbers."""
        if self.order is not None:
            return (self.order, "")
        return (float("inf"), self.text.casefold())


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its key in addresses, its heading, and whether it holds numbers."""

    key: str
    heading: str
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Sorting:
    """The order and page of a table that an address asks for."""

    column: str = ""
    is_falling: bool = False
    page: int = 1


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of a page.

    Attributes:
        name: of the table, in addresses.
        rows: all that there are; `shown` has those of the page.
        base: the address of the page with all that is asked for, but for the order of this table.
        nothing: what is said when there is no row.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    sorting: Sorting = Sorting()
    base: Mapping[str, str] = field(default_factory=dict)
    nothing: str = "none"

    @property
    def pages(self) -> int:
        """The number of pages, at least one."""
        return max(1, -(-len(self.rows) // ROWS_MAX))

    @property
    def page(self) -> int:
        """The page that is shown: the last one, where there are fewer than asked for."""
        return min(self.sorting.page, self.pages)

    @property
    def shown(self) -> Sequence[Sequence[Cell]]:
        """The rows of the page, in order."""
        rows = list(self.rows)
        keys = [column.key for column in self.columns]
        if self.sorting.column in keys:
            place = keys.index(self.sorting.column)
            rows.sort(key=lambda row: row[place].key, reverse=self.sorting.is_falling)
        begin = (self.page - 1) * ROWS_MAX
        return rows[begin : begin + ROWS_MAX]

    def direction(self, column: Column) -> str:
        """Return `ascending` or `descending` for the column by which it is sorted, else nothing."""
        if column.key != self.sorting.column:
            return ""
        return "descending" if self.sorting.is_falling else "ascending"

    def link_of(self, column: Column) -> str:
        """Return the address that sorts by a column: numbers fall at first, and a second time turns it round."""
        is_falling = column.is_number
        if column.key == self.sorting.column:
            is_falling = not self.sorting.is_falling
        return self._link(replace(self.sorting, column=column.key, is_falling=is_falling, page=1))

    def link_to(self, page: int) -> str:
        """Return the address of another page."""
        return self._link(replace(self.sorting, page=page))

    def _link(self, sorting: Sorting) -> str:
        sign = "-" if sorting.is_falling else ""
        query = {**self.base, f"{self.name}-sort": f"{sign}{sorting.column}"}
        if not sorting.column:
            del query[f"{self.name}-sort"]
        if sorting.page > 1:
            query[f"{self.name}-page"] = str(sorting.page)
        return f"?{urlencode(query, errors='replace')}"


def sorting_of(query: Mapping[str, str], name: str, default: str = "") -> Sorting:
    """Return the order that an address asks for; what makes no sense is left out."""
    text = query.get(f"{name}-sort", default)
    page = query.get(f"{name}-page", "1")
    is_page = page.isascii() and page.isdigit() and len(page) < len(str(PAGE_MAX))
    return Sorting(
        text.removeprefix("-"), text.startswith("-"), max(1, int(page)) if is_page else 1
    )


class NameFilter:
    """The choice of rows by their names that an address asks for.

    Attributes:
        base: what stands of it in the address, for `Grid.base`.
    """

    def __init__(self, query: Mapping[str, str]) -> None:
        self.base = {key: query[key] for key in ("q", "system") if query.get(key)}
        self._part = query.get("q", "").casefold()
        self._with_system = query.get("system") == "1"

    def lets(self, name: str, *, is_system: bool) -> bool:
        """Return whether a row is shown: its name has the part, and the system's own are asked for."""
        return self._part in name.casefold() and (self._with_system or not is_system)


def text_cell(text: str, link: str = "", mark: str = "") -> Cell:
    """Return a cell with text."""
    return Cell(text or words.NOT_KNOWN, link=link, mark=mark)


def number_cell(value: float | None, link: str = "", mark: str = "") -> Cell:
    """Return a cell with a whole number."""
    return Cell(words.number(value), -1.0 if value is None else value, link, mark)


def rate_cell(value: float | None) -> Cell:
    """Return a cell with a rate."""
    return Cell(words.rate(value), -1.0 if value is None else value)


def size_cell(value: int | None) -> Cell:
    """Return a cell with a number of bytes."""
    return Cell(words.size(value), -1.0 if value is None else value)


def duration_cell(value_ms: int | None, mark: str = "") -> Cell:
    """Return a cell with a duration."""
    return Cell(words.duration(value_ms), -1.0 if value_ms is None else value_ms, mark=mark)


def time_cell(at_ms: int | None) -> Cell:
    """Return a cell with a time."""
    return Cell(words.time_of(at_ms), -1.0 if at_ms is None else at_ms)
