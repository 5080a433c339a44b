"""Pages from what was seen: figures where they belong, hostile names as text, and never a blank page or a traceback."""

from __future__ import annotations

import logging
import re
from html.parser import HTMLParser

import httpx
import pytest

from broker.admin.web.access import Access
from broker.admin.web.sampler import GroupTables, Sampler
from tests.unit.admin.runtime_tables import ADDRESSES, GROUP, answer_of
from tests.unit.admin.web.consoles import (
    NOW_MS,
    TOKEN,
    client_of,
    console_of,
    look_of,
    sampler_of,
    tables_of,
    whole_look,
)

EVIL = "<script>alert('x')</script>\"'><img src=x onerror=alert(1)>{{ 7*7 }}\u202e\x00"
READING = ("/", "/topics", "/topics?system=1&q=%3Cscript%3E", "/topic", "/groups", "/group")


class Parsed(HTMLParser):
    """What a browser would see.

    Attributes:
        tags: names of all elements, in order.
        attributes: names of all attributes.
        said: all text.
        fields: names and values of inputs.
        links: where links lead.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.said = ""
        self.fields: dict[str, str] = {}
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        values = dict(attrs)
        if tag == "a":
            self.links.append(values.get("href") or "")
        if tag == "input":
            self.fields[values.get("name") or ""] = values.get("value") or ""

    def handle_data(self, data: str) -> None:
        self.said += data


async def page(sampler: Sampler, path: str, status: int = 200, **query: str) -> Parsed:
    async with client_of(console_of(sampler)) as client:
        answer = await client.get(path, params=query or None)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return Parsed(answer.text)


async def test_the_cluster_shows_who_leads() -> None:
    shown = await page(sampler_of(whole_look()), "/")
    assert "1 of 1 groups have a leader, and nothing is to be looked into." in shown.said
    assert "n0 leads in term 7 for 1 min, 40 entries committed" in shown.said
    assert "n0 led in term 7" in shown.said
    assert shown.tags.count("rect") == 2, "its bar, and its colour"
    assert "No election was seen." in shown.said


async def test_a_group_without_a_leader_is_shown_with_what_is_known() -> None:
    look = look_of({ADDRESSES["n1"]: answer_of("n1", raftLeader="")})
    shown = await page(sampler_of(look, {GROUP: GroupTables(problem="nobody leads")}), "/")
    assert "0 of 1 groups have a leader." in shown.said
    assert "no leader" in shown.said
    assert "n0 (away): was not asked" in shown.said
    assert "knows no leader" in shown.said


async def test_a_dead_name_server_is_said_on_every_page() -> None:
    look = look_of(
        {}, remark="no name server answers: shown are the members that were known before"
    )
    for path in ("/", "/topics", "/groups"):
        shown = await page(sampler_of(look), path)
        assert "No name server answers: shown are the members" in shown.said
    assert len(READING) == 6


async def test_where_nobody_could_be_asked_nothing_is_said_to_be_absent() -> None:
    look = look_of({}, remark="no name server answers: refused with code 16")
    for path in ("/group", "/topic"):
        shown = await page(sampler_of(look, {}), path, 404, name="Absent")
        assert "nobody knows whether there is this" in shown.said
        assert "Not known: no broker group could be asked." in shown.said
        for claim in ("committed", "Nobody consumes", "that could be asked has", "Kind"):
            assert claim not in shown.said
    assert (
        "Members: \N{EN DASH}" in (await page(sampler_of(look, {}), "/group", 404, name="G")).said
    )


async def test_before_the_first_look_there_is_a_page() -> None:
    shown = await page(sampler_of(None), "/")
    assert "looked at for the first time" in shown.said


async def test_a_look_that_is_old_says_so() -> None:
    shown = await page(sampler_of(whole_look(at_ms=NOW_MS - 120_000)), "/")
    assert "The last look at the cluster was 2 min ago." in shown.said


async def test_topics_show_their_figures() -> None:
    shown = await page(sampler_of(whole_look(), {GROUP: tables_of()}), "/topics")
    row = re.sub(r"\s+", " ", shown.said)
    assert "Orders application 1 2 read and write 27" in row


async def test_one_topic_shows_queues_and_groups() -> None:
    sampler = sampler_of(whole_look(), {GROUP: tables_of()})
    row = re.sub(r"\s+", " ", (await page(sampler, "/topic", name="Orders")).said)
    assert "broker-a 0 10 30 20 2025-06-15 15:06:39 newest" in row
    assert "billing 5 42 s" in row


async def test_groups_show_lag_in_messages_and_time() -> None:
    sampler = sampler_of(whole_look(), {GROUP: tables_of()})
    row = re.sub(r"\s+", " ", (await page(sampler, "/groups")).said)
    assert "billing 1 5 42 s" in row


async def test_one_group_is_shown_though_nobody_says_who_is_connected() -> None:
    sampler = sampler_of(look_of({}), {GROUP: tables_of()})
    row = re.sub(r"\s+", " ", (await page(sampler, "/group", name="billing")).said)
    assert "no group has a leader that could be asked" in row
    assert "Orders 5 42 s" in row
    assert "Members: \N{EN DASH}" in row
    assert "Members that are connected Not known" in row
    assert "Nobody consumes just now." not in row


async def test_what_could_not_be_asked_anew_says_since_when() -> None:
    tables = tables_of()
    tables.problem = "127.0.0.1:10911: no answer within 2 s"
    shown = await page(sampler_of(whole_look(), {GROUP: tables}), "/topics")
    assert "no answer within 2 s; shown is what was known at 15:06:40 UTC" in shown.said


@pytest.mark.parametrize("path", ["/topic", "/group"])
async def test_a_name_that_nobody_knows_is_said(path: str) -> None:
    sampler = sampler_of(whole_look(), {GROUP: tables_of()})
    shown = await page(sampler, path, 404, name="Absent")
    assert "No broker group that could be asked has this" in shown.said


@pytest.mark.parametrize("path", ["/topics", "/topic", "/groups", "/group", "/"])
async def test_hostile_names_are_text(path: str) -> None:
    plain = sampler_of(whole_look(), {GROUP: tables_of()})
    tables = tables_of(EVIL, EVIL)
    hostile = sampler_of(
        whole_look(raftGroup=EVIL, raftVersion=EVIL, raftTrouble=EVIL + "\ud800"),
        {GROUP: tables, EVIL: tables},
    )
    wanted = (await page(plain, path, name="Orders" if path == "/topic" else "billing")).attributes
    shown = await page(hostile, path, name=EVIL)
    assert shown.tags.count("script") == 1, "the console's own"
    assert "img" not in shown.tags
    assert not {name for name in shown.attributes if name.startswith("on") or name == "style"}
    assert wanted
    assert (
        "<script>alert('x')</script>\"'><img src=x onerror=alert(1)>{{ 7*7 }}\\u202e\\x00"
        in shown.said
    )


async def test_a_query_that_comes_back_is_text() -> None:
    shown = await page(sampler_of(whole_look(), {GROUP: tables_of()}), "/topics", q=EVIL)
    assert shown.tags.count("script") == 1
    assert shown.fields["q"].startswith("<script>")


async def test_pages_work_without_a_script_and_without_styles_in_them() -> None:
    async with client_of(console_of(sampler_of(whole_look(), {GROUP: tables_of()}))) as client:
        for path in ("/", "/topics", "/groups"):
            text = (await client.get(path)).text
            assert re.findall(r"<script[^>]*>[^<]", text) == []
            assert re.findall(r"<style|style=", text) == []
            assert '<html lang="en">' in text
            assert '<th scope="col"' in text
        script = await client.get("/static/console.js")
        sheet = await client.get("/static/console.css")
    assert (script.status_code, sheet.status_code) == (200, 200)


async def test_an_absent_page_is_a_page(caplog: pytest.LogCaptureFixture) -> None:
    for path in ("/absent", "/topic", "/group", "/static/../app.py", "/static/absent"):
        shown = await page(sampler_of(whole_look()), path, 404)
        assert "There is no such page." in shown.said
    assert not caplog.records


async def test_a_defect_is_a_page_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("a secret of the program")

    monkeypatch.setattr("broker.admin.web.topic_views.topics_view", fail)
    with caplog.at_level(logging.ERROR):
        shown = await page(sampler_of(whole_look()), "/topics", 500)
    assert "This page failed." in shown.said
    assert "secret" not in shown.said
    assert "a secret of the program" in caplog.text


class TestSigningIn:
    """The token, and what it opens."""

    @staticmethod
    def client(access: Access) -> httpx.AsyncClient:
        return client_of(console_of(sampler_of(whole_look()), access))

    async def test_who_has_the_token_gets_a_session(self, caplog: pytest.LogCaptureFixture) -> None:
        async with self.client(Access(TOKEN, may_change=True, is_open=False)) as client:
            closed = await client.get("/topics")
            assert (closed.status_code, closed.headers["location"]) == (303, "/sign-in")
            form = await client.get("/sign-in")
            assert "n0" not in form.text
            answer = await client.post("/sign-in", data={"token": TOKEN})
            cookie = answer.headers["set-cookie"]
            assert answer.status_code == 303
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie
            assert TOKEN not in cookie
            assert "Changes allowed" in (await client.get("/topics")).text
        assert TOKEN not in caplog.text

    async def test_a_wrong_token_gets_none(self, autojump_clock: object) -> None:
        async with self.client(Access(TOKEN, is_open=False)) as client:
            answer = await client.post("/sign-in", data={"token": TOKEN + "x"})
            assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
            assert "That is not the token." in answer.text
            assert (await client.get("/")).status_code == 303

    async def test_a_session_is_left_by_its_own_form_only(self) -> None:
        async with self.client(Access(TOKEN, is_open=False)) as client:
            await client.post("/sign-in", data={"token": TOKEN})
            proof = Parsed((await client.get("/")).text).fields["proof"]
            refused = await client.post("/sign-out", data={"proof": proof + "x"})
            assert refused.status_code == 403
            assert (await client.get("/")).status_code == 200
            await client.post("/sign-out", data={"proof": proof})
            assert (await client.get("/")).status_code == 303

    async def test_without_a_token_there_is_nothing_to_sign_in_with(self) -> None:
        async with self.client(Access()) as client:
            assert (await client.get("/sign-in")).status_code == 404
            assert (await client.post("/sign-in", data={"token": ""})).status_code == 404
            assert "Read only" in (await client.get("/")).text
