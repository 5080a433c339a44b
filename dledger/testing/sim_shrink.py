"""Make a failing run smaller: switch off what it does not need, and end it where it fails.

Every knob is tried at its simplest value, one after another, and stays there if the run still ends
with the same verdict. The streams of chance of network, clients, faults and disks are separate, so
taking one thing away disturbs the others little. The result is settings, printed as a command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from dledger.errors import UsageError
from dledger.testing.sim_fault_kinds import ALL_KINDS
from dledger.testing.sim_settings import SimSettings
from dledger.testing.simulation import SimResult, SimVerdict

SIMPLEST: tuple[tuple[str, int], ...] = (
    ("wire", False),
    ("prefers_first", False),
    ("drift_permille_max", 0),
    ("spike_permille", 0),
    ("loss_permille", 0),
    ("duplicate_permille", 0),
    ("replay_permille", 0),
    ("crash_fault_permille", 1000),
    ("transfer_permille", 0),
    ("read_permille", 0),
    ("client_count", 0),
    ("client_count", 1),
    ("batch_max", 1),
    ("body_bytes_max", 16),
    ("node_count", 1),
    ("node_count", 3),
    ("sync_ms_max", 0),
    ("delay_max_ms", 1),
    ("segment_size_bytes", 65536),
    ("cache_bytes_max", 65536),
    ("entries_count_max", 64),
    ("entries_bytes_max", 65536),
    ("inflight_max", 8),
)
"""Knobs in the order in which they are tried: what makes a trace longest comes first."""


def override(settings: SimSettings, assignments: Sequence[str]) -> SimSettings:
    """Change knobs: `loss_permille=0`, `wire=True`, `faults=crash-one:3,heal:1` (the others off).

    Raises:
        UsageError: there is no such knob or kind of fault, or the value is no number.
    """
    changes: dict[str, Any] = {}
    kinds = {field.name: field.type for field in fields(settings)}
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        if name == "faults":
            changes["fault_weights"] = _weights(settings, value)
        elif kinds.get(name) == "bool" and value in {"True", "False"}:
            changes[name] = value == "True"
        elif kinds.get(name) == "int" and value.isdigit():
            changes[name] = int(value)
        else:
            raise UsageError(f"--set {assignment}: no such knob, or no value for it")
    return replace(settings, **changes)


def _weights(settings: SimSettings, text: str) -> dict[str, int]:
    weights = dict.fromkeys(settings.fault_weights, 0)
    for item in filter(None, text.split(",")):
        kind, _, weight = item.partition(":")
        if kind not in ALL_KINDS or not weight.isdigit():
            raise UsageError(f"--set faults: {item!r} is not of the form kind:weight")
        weights[kind] = int(weight)
    return weights


def assignments(drawn: SimSettings, wanted: SimSettings) -> list[str]:
    """Return what `override` needs to make `wanted` of the settings that the seed gives."""
    changed = [
        f"{field.name}={getattr(wanted, field.name)}"
        for field in fields(drawn)
        if field.name != "fault_weights"
        and getattr(wanted, field.name) != getattr(drawn, field.name)
    ]
    if wanted.fault_weights != drawn.fault_weights:
        used = (f"{kind}:{weight}" for kind, weight in wanted.fault_weights.items() if weight)
        changed.append(f"faults={','.join(used)}")
    return changed


def shrink(settings: SimSettings, run: Callable[[SimSettings], SimResult]) -> SimSettings:
    """Return the settings of a smaller run that ends with the same verdict.

    Args:
        settings: of a run that fails.
        run: runs settings.
    """
    verdict = run(settings).verdict
    assert verdict is not SimVerdict.FINE, f"seed {settings.seed} does not fail"

    def keeps(candidate: SimSettings) -> bool:
        return run(candidate).verdict is verdict

    settings = _shorten(settings, run, verdict)
    for kind in settings.fault_weights:
        candidate = replace(settings, fault_weights={**settings.fault_weights, kind: 0})
        if settings.fault_weights[kind] and keeps(candidate):
            settings = candidate
    for name, value in SIMPLEST:
        change: dict[str, Any] = {name: value}
        candidate = replace(settings, **change)
        is_sound = candidate.delay_min_ms <= candidate.delay_max_ms
        if is_sound and candidate != settings and keeps(candidate):
            settings = candidate
    return _shorten(settings, run, verdict)


def _shorten(
    settings: SimSettings, run: Callable[[SimSettings], SimResult], verdict: SimVerdict
) -> SimSettings:
    """End the chaos where the failure shows; sometimes the calm shows it even sooner."""
    ended_ms = run(settings).virtual_ms
    for chaos_ms in (ended_ms // 4, ended_ms // 2, ended_ms):
        candidate = replace(settings, chaos_ms=chaos_ms)
        if chaos_ms < settings.chaos_ms and run(candidate).verdict is verdict:
            return candidate
    return settings
