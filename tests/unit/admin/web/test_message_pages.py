"""Pages of messages: forms, what they refuse, and what is shown of a hostile message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import msgspec
import pytest

from broker.admin import message_search
from broker.admin.message_search import (
    FOUND_MAX,
    FoundMessage,
    NoSuchQueueError,
    QueuePage,
    SearchError,
    SearchFormError,
)
from broker.admin.web import message_pages
from broker.admin.web.message_views import (
    TIME_MS_MAX,
    message_view,
    queue_view,
    time_in,
    whole_number,
)
from dledger_mq.client.errors import NoRouteError, RequestFailedError
from dledger_mq.client.inspector import Found, Inspector
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.trace_reader import ClientTrace, trace_of
from dledger_mq.message.hosts import pack_host
from dledger_mq.message.properties import encode_properties
from dledger_mq.message.record import decode_record, encode_record
from tests.unit.admin.web.consoles import NOW_MS, client_of, console_of, sampler_of, whole_look
from tests.unit.admin.web.test_pages import EVIL, Parsed

HOST = pack_host("127.0.0.1", 10911)


def message_of(
    body: bytes = b"{}",
    *,
    topic: str = "Orders",
    at_ms: int = NOW_MS,
    offset: int = 7,
    **properties: str,
) -> FoundMessage:
    record = encode_record(
        topic=topic.encode(),
        queue_id=1,
        queue_offset=offset,
        physical_offset=1234,
        sys_flag=0,
        born_timestamp_ms=at_ms,
        born_host=HOST,
        store_timestamp_ms=at_ms,
        store_host=HOST,
        body=body,
        properties=encode_properties(properties),
    )
    return FoundMessage("broker-a", decode_record(record))


class FakeSearch:
    """Finds the same, whatever is searched; notes what was.

    Attributes:
        found: the messages.
        asked: names of the searches, with what they were for.
        told: the trace of the message; None: there is no trace topic.
    """

    def __init__(self, *found: FoundMessage) -> None:
        self.found = list(found)
        self.told: ClientTrace | Exception | None = None
        self.asked: list[tuple[object, ...]] = []

    async def by_key(self, topic: str, key: str) -> list[FoundMessage]:
        self.asked.append(("key", topic, key))
        return self.found

    async def trace(self, message_id: str) -> ClientTrace | None:
        if isinstance(self.told, Exception):
            raise self.told
        assert self.told is None or self.told.message_id == message_id
        return self.told

    async def by_id(self, message_id: str) -> list[FoundMessage]:
        self.asked.append(("id", message_id))
        return self.found

    async def by_time(self, topic: str, begin_ms: int) -> list[FoundMessage]:
        self.asked.append(("time", topic, begin_ms))
        return self.found

    async def at(self, broker: str, physical_offset: int) -> FoundMessage | None:
        self.asked.append(("at", broker, physical_offset))
        return self.found[0] if self.found else None

    async def from_queue(self, queue: MessageQueue, offset: int | None) -> QueuePage:
        self.asked.append(("queue", queue, offset))
        return QueuePage(tuple(self.found), 0, 500)


async def page(
    monkeypatch: pytest.MonkeyPatch, search: FakeSearch | SearchError, path: str, status: int = 200
) -> Parsed:
    @asynccontextmanager
    async def open_search(_namesrv: str) -> AsyncIterator[FakeSearch]:
        if isinstance(search, SearchError):
            raise search
        yield search

    monkeypatch.setattr(message_pages, "open_search", open_search)
    async with client_of(console_of(sampler_of(whole_look()))) as client:
        answer = await client.get(path)
    assert answer.status_code == status, answer.text
    return Parsed(answer.text)


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("by=key&topic=Orders&key=%20k1%20", ("key", "Orders", "k1")),
        ("by=id&id=7F", ("id", "7F")),
        ("by=time&topic=Orders&time=2025-06-15T15:06:40", ("time", "Orders", NOW_MS)),
        ("by=time&topic=Orders&time=1750000000000", ("time", "Orders", NOW_MS)),
    ],
)
async def test_a_form_is_carried_out(
    monkeypatch: pytest.MonkeyPatch, query: str, asked: tuple[object, ...]
) -> None:
    search = FakeSearch(message_of(UNIQ_KEY="u1", KEYS="k1 k2", TAGS="new"))
    shown = await page(monkeypatch, search, f"/messages?{query}")
    assert search.asked == [asked]
    assert all(text in shown.said for text in ("2025-06-15 15:06:40", "u1", "k1 k2", "new"))


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("by=key&topic=Orders&key=", "no key is given"),
        ("by=key&topic=&key=k", "The specified topic is blank."),
        ("by=key&topic=%3Cscript%3E&key=k", "illegal characters"),
        ("by=time&topic=Orders&time=soon", "no time is given"),
    ],
)
async def test_a_form_that_is_not_filled_in_asks_nobody(
    monkeypatch: pytest.MonkeyPatch, query: str, problem: str
) -> None:
    search = FakeSearch()
    shown = await page(monkeypatch, search, f"/messages?{query}", 400)
    assert problem in shown.said
    assert search.asked == []


@pytest.mark.parametrize(
    "path",
    ["/messages?by=id&id=7F", "/queue?topic=T&broker=b&queue=0", "/message?broker=b&offset=1"],
)
async def test_a_search_that_fails_is_said(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    shown = await page(monkeypatch, SearchError("no name server answers"), path, 503)
    assert "no name server answers" in shown.said


REFUSED = (
    "org.apache.rocketmq.acl.common.AclException: No default permission for topic:T (asked as me)"
)


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("/messages?by=id&id=7F", "SUB of all topics"),
        ("/messages?by=key&topic=T&key=k", "needs for it: SUB of the topic"),
        ("/messages?by=time&topic=T&time=1", "SUB of the group TOOLS_CONSUMER"),
        ("/queue?topic=T&broker=b&queue=0", "SUB of the group TOOLS_CONSUMER"),
        ("/message?broker=b&offset=1", "SUB of all topics"),
    ],
)
@pytest.mark.parametrize("code", [16, 1])
async def test_a_right_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, path: str, right: str, code: int
) -> None:
    @asynccontextmanager
    async def refusing(_namesrv: str, **_: object) -> AsyncIterator[None]:
        raise RequestFailedError(code, REFUSED)
        yield

    monkeypatch.setattr(message_search, "Inspector", refusing)
    async with client_of(console_of(sampler_of(whole_look()))) as client:
        answer = await client.get(path)
    assert answer.status_code == 403
    said = Parsed(answer.text).said
    assert "No default permission for topic:T (asked as me)" in said
    assert right in said


async def test_a_queue_that_is_not_there_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/queue?topic=T&broker=b&queue=9"
    shown = await page(monkeypatch, NoSuchQueueError("b has no queue 9 of T"), path, 404)
    assert "b has no queue 9 of T" in shown.said


async def test_nothing_found_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        "No message was found."
        in (await page(monkeypatch, FakeSearch(), "/messages?by=id&id=7F")).said
    )
    shown = await page(monkeypatch, FakeSearch(), "/message?broker=b&offset=1", 404)
    assert "There is no message at this place" in shown.said


@pytest.mark.parametrize("form", ["json", "text", "hex"])
async def test_a_hostile_message_is_text(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    plain_evil = EVIL.replace("\x00", "").replace("\u202e", "")
    evil = message_of(
        f'["{plain_evil}"]'.replace("\"'", "'").encode(), KEYS=plain_evil, own=plain_evil
    )
    shown = await page(monkeypatch, FakeSearch(evil), f"/message?broker=b&offset=1&as={form}")
    assert shown.tags.count("script") == 1
    assert not {"img", "iframe", "object"} & set(shown.tags)
    assert plain_evil in shown.said
    assert not {name for name in shown.attributes if name.startswith("on")}


@pytest.mark.parametrize(
    "path",
    [
        "/message",
        "/message?broker=b&offset=-1",
        "/message?broker=b&offset=99999999999999999999",
        "/queue?topic=T&broker=b&queue=x",
        "/queue?topic=%00&broker=b&queue=1",
    ],
)
async def test_an_address_that_makes_no_sense_is_no_page(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    search = FakeSearch(message_of())
    await page(monkeypatch, search, path, 404)
    assert search.asked == []


async def test_a_queue_leads_to_older_and_newer_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    search = FakeSearch(message_of(offset=200))
    shown = await page(
        monkeypatch, search, "/queue?topic=Orders&broker=broker-a&queue=1&offset=200"
    )
    assert search.asked == [("queue", MessageQueue("Orders", "broker-a", 1), 200)]
    assert "Older messages" in shown.said
    assert "Newer messages" in shown.said


@pytest.mark.parametrize(
    ("offset", "before", "after"),
    [(None, 500 - 2 * FOUND_MAX, None), (10, 0, 10 + FOUND_MAX), (0, None, FOUND_MAX)],
)
def test_the_pages_of_a_queue(offset: int | None, before: int | None, after: int | None) -> None:
    view = queue_view(QueuePage((), 0, 500), {"topic": "T"}, offset)
    assert view.before.rpartition("offset=")[2] == ("" if before is None else str(before))
    assert view.after.rpartition("offset=")[2] == ("" if after is None else str(after))


def test_properties_are_bounded() -> None:
    many = encode_properties({f"p{number:04}": "v" for number in range(300)})
    message = message_of()
    view = message_view(
        replace(message, record=msgspec.structs.replace(message.record, properties=many))
    )
    assert (len(view.properties), view.properties_left_out) == (256, 44)


@pytest.mark.parametrize(
    "text", ["", "soon", "2026-13-01T00:00", "-1", "²", "9" * 40, "1969-01-01T00:00:00"]
)
def test_what_is_no_time_is_none(text: str) -> None:
    assert time_in(text) is None
    assert whole_number(text) is None


def test_times() -> None:
    assert time_in("2025-06-15T15:06:40") == time_in("2025-06-15T17:06:40+02:00") == NOW_MS
    assert time_in(str(TIME_MS_MAX)) is None or time_in(str(TIME_MS_MAX - 1))


async def test_an_id_is_found_wherever_its_node_is() -> None:
    mine = message_of()

    class FakeInspector:
        async def broker_names(self) -> tuple[str, ...]:
            return ("broker-a", "broker-b")

        async def view(self, broker: str, _offset: int, *, broker_id: int | None) -> Found:
            assert broker_id is None
            one = mine if broker == "broker-b" else message_of(b"other")
            return Found([one.record], None)

    search = message_search.MessageSearch(cast("Inspector", FakeInspector()))
    (found, other) = await search.by_id(mine.message_id.lower())
    assert {found.broker, other.broker} == {"broker-a", "broker-b"}
    assert await search.by_id(mine.message_id[:-1] + "0") == []
    with pytest.raises(SearchFormError, match="looked up as a key"):
        await search.by_id("zz")


def trace_message(*records: str) -> ClientTrace:
    body = "".join(f"{record}\x02" for record in records).replace("|", "\x01")
    return trace_of("U1", [message_of(body.encode(), topic="RMQ_SYS_TRACE_TOPIC").record])


async def test_a_message_shows_its_trace_if_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/message?broker=broker-a&offset=1234"
    search = FakeSearch(message_of(UNIQ_KEY="U1"))
    for nothing in (None, ClientTrace("U1")):
        search.told = nothing
        assert "Trace" not in (await page(monkeypatch, search, path)).said
    search.told = trace_message(
        "Pub|1750000000000|r|shop|Orders|U1|||h:1|2|7|0|OFF|true",
        f"SubBefore|1750000001000|r|{EVIL}|R|U1|3|",
        "SubAfter|R|U1|5|false||4",
    )
    shown = await page(monkeypatch, search, path)
    for text in ("Trace, by the clocks", "sent", "shop", "stored", "2 bytes to Orders at h:1"):
        assert text in shown.said
    for text in ("delivered", "to come again", "sent back 3 times before", "2025-06-15 15:06:41"):
        assert text in shown.said
    assert "?broker=broker-a&offset=1234&trace-sort=what" in shown.links
    ordered = await page(monkeypatch, search, f"{path}&trace-sort=-at")
    assert ordered.said.index("delivered") < ordered.said.index("2 bytes to Orders")


async def test_a_trace_that_cannot_be_read_does_not_hide_the_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = FakeSearch(message_of(UNIQ_KEY="U1"))
    search.told = NoRouteError("T", "nobody answers")
    shown = await page(monkeypatch, search, "/message?broker=broker-a&offset=1234")
    assert "The trace could not be read" in shown.said
    assert "nobody answers" in shown.said
    assert "U1" in shown.said
