"""Sizes that a sink's rows have on the wire and in the log (broker/store/sinks.py keeps them)."""

from __future__ import annotations

from typing import Final

KEY_BYTES: Final = 8
SINK_ID_BYTES_MAX: Final = 128
