"""Runs on real processes, on whatever machine."""

from __future__ import annotations

import pytest

from tests.integration.jepsen.breaking import be_patient


@pytest.fixture(autouse=True)
def _patient_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)
