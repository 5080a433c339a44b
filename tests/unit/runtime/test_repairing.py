"""A member whose log was damaged while it was stopped comes back whole, from the others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio

from dledger import EntryDamagedError, Index
from dledger.codec.index_unit import INDEX_UNIT_BYTES
from dledger.raft.entry import ENTRY_HEADER_BYTES
from dledger.runtime import scrubbing
from dledger.storage.hard_state import HARD_STATE_NAME
from tests.unit.runtime.conftest import Group, Member, wait_until
from tests.unit.runtime.refusals import RefusedReads

pytestmark = pytest.mark.slow

OpenGroup = Callable[..., AbstractAsyncContextManager[Group]]
S = 60.0
SEGMENT_BYTES = 4096


async def filled(group: Group, count: int = 40) -> list[bytes]:
    bodies = [b"%03d" % number + bytes(300) for number in range(count)]
    leader = await group.leader()
    for body in bodies:
        await leader.server.appender.append(body, timeout_s=S)
    return bodies


def data_files(member: Member) -> list[Path]:
    return sorted(Path(member.config.store_path, "data").iterdir())


def flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 4
    path.write_bytes(data)


def version_of(hard_state: Path) -> int:
    return int.from_bytes(hard_state.read_bytes()[4:6], "big")


async def all_have(group: Group, bodies: list[bytes]) -> None:
    """Wait until they are everywhere, on the disk as well: a member may have applied what its own does not have yet."""
    await wait_until(
        lambda: all(
            member.machine.bodies[: len(bodies)] == bodies and is_all_durable(member)
            for member in group.members.values()
        )
    )


def is_all_durable(member: Member) -> bool:
    own = member.server.status.statistics()
    return own.durable_index == own.last_index


def content(member: Member) -> bytes:
    """Every byte of the log, wherever its segments end."""
    parts = [path.read_bytes() for path in data_files(member)]
    return b"".join(parts[:-1]) + parts[-1].rstrip(b"\0")


async def test_a_flipped_bit_in_a_committed_entry_is_repaired(
    open_group: OpenGroup, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_group(size=3) as group:
        await group.start_all()
        bodies = await filled(group)
        await all_have(group, bodies)
        member = group.members[next(iter(group.members))]
        await member.stop()
        flip(data_files(member)[-1], 3 * (300 + ENTRY_HEADER_BYTES))
        with caplog.at_level(logging.WARNING, "dledger"):
            again = await group.start(member.server.node_id)
        assert "log-damaged" in caplog.text
        assert "log-repaired" in caplog.text
        await all_have(group, bodies)
        await again.stop()
        for other in list(group.members.values()):
            await other.stop()
        contents = {content(each) for each in group.members.values()}
        assert len({each[: 40 * 300] for each in contents}) == 1


async def test_three_logs_damaged_in_different_places_heal_each_other(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=3) as group:
        await group.start_all()
        bodies = await filled(group)
        await all_have(group, bodies)
        members = list(group.members.values())
        for member in members:
            await member.stop()
        for place, member in enumerate(members):
            for entry in range(place, len(bodies), 3):
                flip(data_files(member)[-1], 48 + entry * 351 + 200)
        async with trio.open_nursery() as nursery:
            # Each of them waits for the others.
            for member in members:
                nursery.start_soon(group.start, member.server.node_id)
        await all_have(group, bodies)
        leader = await group.leader()
        await leader.server.appender.append(b"more", timeout_s=S)


async def test_a_finished_segment_whose_index_is_damaged_too_comes_back_with_the_second_start(
    open_group: OpenGroup,
) -> None:
    """A start believes the edges of finished segments; where damage of both is found, the member stops."""
    async with open_group(size=3) as group:
        await group.start_all(segment_size_bytes=SEGMENT_BYTES)
        bodies = await filled(group)
        await all_have(group, bodies)
        member = group.members[next(iter(group.members))]
        await member.stop()
        data = data_files(member)[1]
        flip(data, 3 * (303 + ENTRY_HEADER_BYTES) + 200)
        flip(Path(member.config.store_path, "index", data.name), 5 * INDEX_UNIT_BYTES + 20)
        stopped = await group.start(member.server.node_id, segment_size_bytes=SEGMENT_BYTES)
        with trio.fail_after(S):
            await stopped.has_ended.wait()
        assert "both damaged" in str(stopped.failure)
        await group.start(member.server.node_id, segment_size_bytes=SEGMENT_BYTES)
        await all_have(group, bodies)
        other = next(each for each in group.members.values() if each.server is not member.server)
        assert data.read_bytes() in content(other)


async def test_a_deleted_log_file_comes_back(open_group: OpenGroup) -> None:
    async with open_group(size=3) as group:
        await group.start_all()
        bodies = await filled(group)
        await all_have(group, bodies)
        member = group.members[next(iter(group.members))]
        await member.stop()
        data_files(member)[-1].unlink()
        await group.start(member.server.node_id)
        await all_have(group, bodies)


async def test_a_member_with_a_damaged_vote_waits_to_be_admitted(
    open_group: OpenGroup, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_group(size=3) as group:
        await group.start_all()
        bodies = await filled(group, 5)
        await all_have(group, bodies)
        member = group.members[next(iter(group.members))]
        await member.stop()
        path = Path(member.config.store_path, HARD_STATE_NAME)
        flip(path, 8)
        with caplog.at_level(logging.ERROR, "dledger"):
            again = await group.start(member.server.node_id)
        assert "vote-lost" in caplog.text
        await all_have(group, bodies)
        await wait_until(lambda: again.server.is_voter)
        await again.stop()
        assert version_of(path) == 1, "it is saved as a voter"


async def test_a_damaged_entry_that_is_read_while_the_member_runs_comes_back_from_another(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=3) as group:
        await group.start_all(cache_bytes_max=0)
        bodies = await filled(group)
        await all_have(group, bodies)
        leader = await group.leader()
        first = leader.server.reader.get(Index(2))
        flip(data_files(leader)[0], int(first.position) + 60)
        with pytest.raises(EntryDamagedError):
            leader.server.reader.get(Index(2))
        with trio.fail_after(S):
            await leader.server.reader.wait_mended()
        assert leader.server.reader.get(Index(2)) == first
        assert data_files(leader)[0].read_bytes()[first.position + 48 :].startswith(first.body)


async def test_what_the_scrubber_cannot_read_now_it_reads_later(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scrubbing, "ROUND_MIN_S", 0.0)
    monkeypatch.setattr(scrubbing, "RETRY_S", 0.001)
    async with open_group() as group:
        await group.start_all(cache_bytes_max=0, scrub_bytes_per_s=1 << 30)
        bodies = await filled(group)
        reads = RefusedReads(monkeypatch, 10)
        await wait_until(lambda: reads.counts["CheckPlan given"] > 0)
        await wait_until(lambda: "entries-not-read" in caplog.text)
        await all_have(group, bodies)
    assert reads.counts["CheckPlan refused"] == 10
    assert "entry-damaged" not in caplog.text


async def test_the_scrubber_finds_what_nobody_reads(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing, "ROUND_MIN_S", 0.0)
    async with open_group(size=3) as group:
        await group.start_all(cache_bytes_max=0, scrub_bytes_per_s=1 << 30)
        bodies = await filled(group)
        await all_have(group, bodies)
        member = next(iter(group.members.values()))
        path = data_files(member)[0]
        whole = path.read_bytes()
        flip(path, 2000)
        await wait_until(lambda: path.read_bytes() == whole)
