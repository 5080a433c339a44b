"""Tables of a page: the reader's order, pages of bounded length, and addresses that ask for the same."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.admin.web import grid
from broker.admin.web.grid import Column, Grid, Sorting, sorting_of

UNSORTED = Sorting()
COLUMNS = (Column("name", "Name"), Column("count", "Count", is_number=True))


def grid_of(rows: list[tuple[str, int | None]], sorting: Sorting = UNSORTED) -> Grid:
    cells = [[grid.text_cell(name), grid.number_cell(count)] for name, count in rows]
    return Grid("t", "T", COLUMNS, cells, sorting, {"q": "a&b"})


@given(st.lists(st.tuples(st.text("ab", min_size=1), st.none() | st.integers(0, 9)), max_size=250))
def test_every_row_is_on_one_page_and_in_order(rows: list[tuple[str, int | None]]) -> None:
    pages = grid_of(rows).pages
    shown = [
        cells
        for page in range(1, pages + 1)
        for cells in grid_of(rows, Sorting("count", is_falling=True, page=page)).shown
    ]
    assert sorted((cells[0].text, cells[1].text) for cells in shown) == sorted(
        (name, grid.number_cell(count).text) for name, count in rows
    )
    counts = [cells[1].order or 0.0 for cells in shown]
    assert counts == sorted(counts, reverse=True)
    assert all(
        len(grid_of(rows, Sorting(page=page)).shown) <= grid.ROWS_MAX
        for page in range(1, pages + 1)
    )


@given(st.sampled_from(["name", "count"]), st.booleans(), st.integers(1, 999_998))
def test_an_address_asks_for_what_it_was_made_of(column: str, is_falling: bool, page: int) -> None:
    wanted = Sorting(column, is_falling, page)
    link = grid_of([("a", 1)], wanted).link_to(page)
    query = dict(parse_qsl(link.removeprefix("?")))
    assert sorting_of(query, "t") == wanted
    assert query["q"] == "a&b"


def test_a_heading_turns_the_order_round() -> None:
    first = grid_of([("a", 1), ("b", 2)])
    assert first.link_of(COLUMNS[1]).endswith("t-sort=-count")
    assert first.link_of(COLUMNS[0]).endswith("t-sort=name")
    falling = grid_of([("a", 1)], Sorting("count", is_falling=True))
    assert falling.link_of(COLUMNS[1]).endswith("t-sort=count")
    assert (falling.direction(COLUMNS[1]), falling.direction(COLUMNS[0])) == ("descending", "")


@pytest.mark.parametrize("page", ["", "-1", "0", "x", "9" * 30, "²"])
def test_a_page_that_makes_no_sense_is_the_first(page: str) -> None:
    assert sorting_of({"t-page": page}, "t").page == 1


def test_a_page_beyond_the_last_is_the_last() -> None:
    assert grid_of([("a", 1)], Sorting(page=7)).page == 1


def test_a_column_that_is_not_there_changes_nothing() -> None:
    rows: list[tuple[str, int | None]] = [("b", 1), ("a", 2)]
    shown = grid_of(rows, Sorting("evil")).shown
    assert [cells[0].text for cells in shown] == ["b", "a"]


def test_a_page_has_so_many_rows_and_no_more() -> None:
    rows: list[tuple[str, int | None]] = [("a", number) for number in range(2 * grid.ROWS_MAX + 5)]
    shown = [len(grid_of(rows, Sorting(page=page)).shown) for page in (1, 2, 3, 4)]
    assert shown == [grid.ROWS_MAX, grid.ROWS_MAX, 5, 5]
