"""The byte place up to which a member has applied what is committed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dledger.runtime.log_reader import LogReader


@pytest.mark.parametrize(
    ("applied", "committed", "place"),
    [
        (5, 9, 600),  # the fold is behind
        (9, 9, 1000),
        (12, 9, 1000),  # a state that was fetched is ahead of the log
        (0, 9, 300),  # a fold that has yet to begin, of a log whose start is gone
    ],
)
def test_it_is_what_is_both_applied_and_committed(applied: int, committed: int, place: int) -> None:
    layout = SimpleNamespace(first_index=3, position_of=lambda index: 100 * index)
    node = SimpleNamespace(commit_index=committed)
    engine = SimpleNamespace(node=node, log=SimpleNamespace(layout=layout))
    driver = SimpleNamespace(applied_index=applied, engine=engine)
    standing = SimpleNamespace(driver=driver, running=driver)
    reader = LogReader(standing, None)  # type: ignore[arg-type]  # the part of them that is used here
    assert reader.applied_position == place
