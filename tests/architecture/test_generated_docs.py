"""Pages that are made from the code are current. Rewrite them with `make docs`."""

from __future__ import annotations

import os

from tests.architecture.generated_docs import ERRORS, FAULTS, errors_page, faults_page


def test_the_page_of_errors_is_current() -> None:
    if os.environ.get("REWRITE"):
        ERRORS.write_text(errors_page())
    assert ERRORS.read_text() == errors_page()


def test_the_page_of_faults_is_current() -> None:
    if os.environ.get("REWRITE"):
        FAULTS.write_text(faults_page())
    assert FAULTS.read_text() == faults_page()
