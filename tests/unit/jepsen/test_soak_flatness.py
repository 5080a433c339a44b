"""What grows over hours is found, and what is level or began anew is not."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from jepsen.soak.flatness import Sample, check_flatness

WARM_UP_S = 100.0
SECONDS = 1200
MIB = 1024 * 1024


def level(at_s: int) -> list[Sample]:
    """An elder with a store, one whose life began at 500 s, and a name server."""
    young = 30 if at_s < 500 else 31
    return [
        Sample(at_s, "namesrv0", 10, 40 * MIB, 0, 15, 1),
        Sample(at_s, "n0", 20, 90 * MIB, 200 * MIB, 30, 4),
        Sample(at_s, "n1", young, (60 + at_s // 10) * MIB, 190 * MIB, 30, 4),
    ]


def of(change: Callable[[Sample], Sample]) -> list[Sample]:
    return [change(one) for at_s in range(0, SECONDS, 5) for one in level(at_s)]


def test_what_is_level_is_valid_and_shown() -> None:
    result = check_flatness(of(lambda one: one), warm_up_s=WARM_UP_S)
    assert result.valid is True, result
    assert result.counts["n0 handles"] == "30 -> 30"
    assert result.counts["largest store"] == f"{200 * MIB} -> {200 * MIB}"


def memory(one: Sample) -> Sample:
    is_elder = one.name == "n0"
    grown = one.rss_bytes + round(one.at_s * 0.1 * MIB) * is_elder
    return msgspec.structs.replace(one, rss_bytes=grown)


def handles(one: Sample) -> Sample:
    is_server = one.name == "namesrv0"
    return msgspec.structs.replace(one, handles=one.handles + is_server * round(one.at_s / 20))


def threads(one: Sample) -> Sample:
    return msgspec.structs.replace(one, threads=one.threads + round(one.at_s / 50))


def disk(one: Sample) -> Sample:
    has_store = one.disk_bytes > 0
    return msgspec.structs.replace(
        one, disk_bytes=one.disk_bytes + has_store * round(one.at_s * 0.1) * MIB
    )


@pytest.mark.parametrize(
    ("leak", "words"),
    [
        (memory, {"rss_bytes of n0"}),
        (handles, {"handles of namesrv0"}),
        (threads, {"threads of n0", "threads of namesrv0"}),
        (disk, {"bytes of the largest store"}),
    ],
)
def test_each_leak_is_found(leak: Callable[[Sample], Sample], words: set[str]) -> None:
    result = check_flatness(of(leak), warm_up_s=WARM_UP_S)
    assert result.valid is False
    assert {one.text.partition(":")[0] for one in result.anomalies} == words


def test_too_short_a_run_proves_nothing() -> None:
    short = [one for one in of(lambda one: one) if one.at_s < WARM_UP_S + 400]
    result = check_flatness(short, warm_up_s=WARM_UP_S)
    assert (result.valid, "too short" in result.why_unknown) == (None, True)
    assert check_flatness([], warm_up_s=WARM_UP_S).valid is None


def test_when_nobody_lived_through_both_windows_nothing_is_proved() -> None:
    restless = of(lambda one: msgspec.structs.replace(one, pid=round(one.at_s // 100)))
    result = check_flatness(restless, warm_up_s=WARM_UP_S)
    assert result.why_unknown == "no process lived through both windows"
