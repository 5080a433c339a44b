"""What the proxy's tests run on."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Return asyncio: grpcio serves on nothing else."""
    return "asyncio"
