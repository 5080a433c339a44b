"""The exit codes of dledger-bench."""

from __future__ import annotations

from typing import Final

EXIT_OK: Final = 0
EXIT_FOUND: Final = 1
"""Something was refused, acknowledged and not there, or did not come to its end: figures are not to be believed."""

EXIT_UNKNOWN: Final = 2
"""Wrong usage, or nothing was measured since the machine lacks something."""

EXIT_INTERRUPTED: Final = 130
