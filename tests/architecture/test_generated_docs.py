"""Pages that are made from the code are current. Rewrite them with `make docs`."""

from __future__ import annotations

import os

from tests.architecture.generated_docs import ERRORS, errors_page


def test_the_page_of_errors_is_current() -> None:
    if os.environ.get("REWRITE"):
        ERRORS.write_text(errors_page())
    assert ERRORS.read_text() == errors_page()
