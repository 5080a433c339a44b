"""The helper that compares shows what differs, as a test does."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.interaction.checking")
