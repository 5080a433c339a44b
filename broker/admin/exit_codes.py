"""The exit codes of `dledger-admin`, from which scripts conclude what was found."""

from __future__ import annotations

from typing import Final

EXIT_OK: Final = 0
EXIT_DIFFERENT: Final = 1
"""Something is not as it should be: replicas differ, a group has no leader."""

EXIT_UNCHANGED: Final = 1
"""Surely nothing was changed."""

EXIT_USAGE: Final = 2
EXIT_UNKNOWN: Final = 3
"""Not all, or nobody, could be asked."""
