"""Options of the whole suite."""

from __future__ import annotations

import os


def pytest_report_header() -> str:
    """Show the seed that varied tests draw from, so that a failure can be replayed."""
    return f"SEED={os.environ.get('SEED', 'unset: each test names its own')}"
