"""Files that are written once: whole, durable, and the first writer's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import CannotTellError
from pipeline.written_once import written_once


def test_it_is_settled_once_and_read_ever_after(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b.json"
    assert written_once(file, "it", lambda: {"x": [1]}) == {"x": [1]}
    assert written_once(file, "it", lambda: pytest.fail("asked again")) == {"x": [1]}
    assert [each.name for each in file.parent.iterdir()] == ["b.json"]


def test_who_comes_second_gets_what_the_first_one_wrote(tmp_path: Path) -> None:
    file = tmp_path / "b.json"

    def settle_slowly() -> int:
        assert written_once(file, "it", lambda: 1) == 1, "another one is faster"
        return 2

    assert written_once(file, "it", settle_slowly) == 1


def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{")
    with pytest.raises(CannotTellError, match=r"it in .*/file cannot be read"):
        written_once(tmp_path / "file", "it", lambda: 1)
    with pytest.raises(CannotTellError, match=r"it cannot be kept in .*/file/m"):
        written_once(tmp_path / "file" / "m", "it", lambda: 1)
