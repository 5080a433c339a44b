"""Changes: nothing without the token, its own form and a preview; and what is done is what was shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest
import trio

from broker.admin.cluster import ChangeOutcome
from broker.admin.group_places import QueuePosition
from broker.admin.offset_reset import PlannedMove
from broker.admin.resend_dlq import Choice, ResendOutcome
from broker.admin.web import change_pages, resets
from broker.admin.web.access import Access
from broker.admin.web.change_views import reset_grid
from broker.admin.web.resets import ResetPreview, ResetRefusedError
from dledger_mq.client.errors import NoRouteError, RequestFailedError
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.numbers import QueueOffset
from tests.unit.admin.runtime_tables import GROUP
from tests.unit.admin.web.consoles import (
    TOKEN,
    client_of,
    console_of,
    sampler_of,
    tables_of,
    whole_look,
)
from tests.unit.admin.web.test_pages import Parsed

QUEUE = MessageQueue("Orders", GROUP, 0)
AT = QueueOffset
PLACE = QueuePosition(QUEUE, 25, 10, 30)
PREVIEW = ResetPreview("billing", "Orders", (PlannedMove(PLACE, AT(10)),), ())
RESET = "/reset?name=billing&topic=Orders&to=first"
RESEND = "/resend?name=billing&limit=2&to=retry"


class Doings:
    """What would be asked of brokers.

    Attributes:
        preview: of a reset.
        failure: of carrying it out.
        problem: of one of its queues.
        letters: those that would be sent again, in order.
        done: what was done.
    """

    def __init__(self) -> None:
        self.preview: ResetPreview | Exception = PREVIEW
        self.failure: Exception | None = None
        self.problem = ""
        self.letters = ["k1", "k2", "k3"]
        self.done: list[object] = []

    async def preview_reset(self, _namesrv: str, *asked: object) -> ResetPreview:
        assert asked[:2] == ("billing", "Orders")
        if isinstance(self.preview, Exception):
            raise self.preview
        return self.preview

    async def reset_as_previewed(self, _namesrv: str, preview: ResetPreview) -> list[ChangeOutcome]:
        if self.failure is not None:
            raise self.failure
        self.done.append(preview)
        return [ChangeOutcome("broker-a, queue 0", self.problem)]

    async def resend(
        self,
        _namesrv: str,
        group: str,
        choice: Choice,
        *,
        to: str,
        limit: int,
        is_dry: bool = False,
    ) -> ResendOutcome:
        assert (group, choice, to) == ("billing", Choice(), "retry")
        chosen = self.letters[:limit]
        if not is_dry:
            self.done.append(chosen)
            self.letters = self.letters[limit:]
        return ResendOutcome(list(chosen), {"k9": "no topic"}, len(chosen) + 1)


@pytest.fixture
def doings(monkeypatch: pytest.MonkeyPatch) -> Doings:
    found = Doings()
    for name in ("preview_reset", "reset_as_previewed", "resend"):
        monkeypatch.setattr(change_pages, name, getattr(found, name))
    return found


def client(access: Access) -> httpx.AsyncClient:
    return client_of(console_of(sampler_of(whole_look(), {GROUP: tables_of()}), access))


@pytest.fixture
async def web(doings: Doings) -> AsyncIterator[httpx.AsyncClient]:
    """A client that has signed in where changes are allowed."""
    async with client(Access(TOKEN, may_change=True)) as signed_in:
        await signed_in.post("/sign-in", data={"token": TOKEN})
        yield signed_in


async def fields(web: httpx.AsyncClient, path: str) -> dict[str, str]:
    """Return the fields of the form that confirms what a page shows."""
    answer = await web.get(path)
    assert answer.status_code == 200, answer.text
    return Parsed(answer.text).fields


async def test_a_reset_is_shown_and_then_done(web: httpx.AsyncClient, doings: Doings) -> None:
    shown = await web.get(RESET)
    said = " ".join(Parsed(shown.text).said.split())
    assert "broker-a 0 25 10 15 0" in said
    assert doings.done == []
    form = Parsed(shown.text).fields
    answer = await web.post("/confirm", data={"proof": form["proof"], "plan": form["plan"]})
    assert (answer.status_code, doings.done) == (200, [PREVIEW])
    assert "The offsets of billing in Orders are reset." in answer.text
    again = await web.post("/confirm", data={"proof": form["proof"], "plan": form["plan"]})
    assert (again.status_code, len(doings.done)) == (409, 1), "once"


async def test_dead_letters_are_shown_and_then_sent(web: httpx.AsyncClient, doings: Doings) -> None:
    shown = Parsed((await web.get(RESEND)).text)
    assert "k1" in shown.said
    assert "k3" not in shown.said, "the form's fields are random, and may say anything"
    form = shown.fields
    answer = await web.post("/confirm", data={"proof": form["proof"], "plan": form["plan"]})
    assert (answer.status_code, doings.done) == (200, [["k1", "k2"]])
    assert "2 dead letters of billing were sent again." in answer.text
    assert "k9: not sent: no topic" in answer.text


async def test_other_dead_letters_than_shown_are_not_sent(
    web: httpx.AsyncClient, doings: Doings
) -> None:
    form = await fields(web, RESEND)
    doings.letters = ["k2", "k3"]
    answer = await web.post("/confirm", data={"proof": form["proof"], "plan": form["plan"]})
    assert (answer.status_code, doings.done) == (409, [])
    assert "other dead letters would be sent by now" in answer.text


@pytest.mark.parametrize("path", [RESET, RESEND])
async def test_without_the_form_of_its_session_nothing_is_done(
    web: httpx.AsyncClient, doings: Doings, path: str
) -> None:
    form = await fields(web, path)
    answers = [
        await web.post("/confirm", data={"plan": form["plan"]}),
        await web.post("/confirm", data={"proof": form["proof"] + "x", "plan": form["plan"]}),
        await web.post("/confirm", data={"proof": form["proof"], "plan": "made up"}),
        await web.post("/confirm", content=b"\xff"),
        await web.get("/confirm", params=form),
        await web.post(
            "/confirm",
            data={"proof": form["proof"], "plan": form["plan"]},
            headers={"origin": "https://evil.example"},
        ),
    ]
    assert [each.status_code for each in answers] == [403, 403, 409, 400, 405, 403]
    async with client(Access(TOKEN, may_change=True)) as stranger:
        data = {"proof": form["proof"], "plan": form["plan"]}
        assert (await stranger.post("/confirm", data=data)).status_code == 403
        assert (await stranger.get(path)).status_code == 403
    assert doings.done == []


async def test_a_console_that_only_reads_changes_nothing(doings: Doings) -> None:
    async with client(Access(TOKEN)) as web:
        await web.post("/sign-in", data={"token": TOKEN})
        page = await web.get("/group?name=billing")
        proof = Parsed(page.text).fields["proof"]
        assert "Reset its offsets" not in page.text
        assert [(await web.get(path)).status_code for path in (RESET, RESEND)] == [403, 403]
        answer = await web.post("/confirm", data={"proof": proof, "plan": "x"})
        assert answer.status_code == 403
    assert doings.done == []


async def test_the_form_of_a_reset_is_for_those_who_signed_in(web: httpx.AsyncClient) -> None:
    assert "Reset its offsets" in (await web.get("/group?name=billing")).text
    async with client(Access(TOKEN, may_change=True)) as stranger:
        assert "Reset its offsets" not in (await stranger.get("/group?name=billing")).text


async def test_members_that_are_online_are_named(web: httpx.AsyncClient, doings: Doings) -> None:
    doings.preview = replace(PREVIEW, members=("client-1",))
    shown = Parsed((await web.get(RESET)).text)
    assert "Members are online. Brokers that can" in shown.said
    assert "client-1" in shown.said
    assert "plan" in shown.fields


async def test_offsets_that_did_not_go_back_are_said(
    web: httpx.AsyncClient, doings: Doings
) -> None:
    form = await fields(web, RESET)
    doings.problem = "the group is at 25"
    answer = await web.post("/confirm", data={"proof": form["proof"], "plan": form["plan"]})
    assert answer.status_code == 409
    assert "Not all offsets of billing in Orders are reset." in answer.text
    assert "broker-a, queue 0: refused: the group is at 25" in answer.text


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (ResetRefusedError("the group stands elsewhere by now"), "Nothing was changed: the group"),
        (NoRouteError("Orders"), "It was not carried out, or in part only"),
        (RequestFailedError(1, "outcome unknown"), "carried out, or in part only"),
    ],
)
async def test_a_change_that_fails_says_how(
    web: httpx.AsyncClient, doings: Doings, failure: Exception, words: str
) -> None:
    form = await fields(web, RESET)
    doings.failure = failure
    answer = await web.post("/confirm", data={"proof": form["proof"], "plan": form["plan"]})
    assert (answer.status_code, doings.done) == (409, [])
    assert words in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/reset?name=billing&topic=Orders&to=time&time=soon",
        "/reset?name=billing&topic=&to=first",
        "/reset?name=%3Cscript%3E&topic=Orders&to=first",
    ],
)
async def test_a_form_that_is_not_filled_in_asks_nobody(
    web: httpx.AsyncClient, doings: Doings, path: str
) -> None:
    doings.preview = AssertionError("asked")
    answer = await web.get(path)
    assert answer.status_code == 409
    assert "Nothing would be changed" in answer.text


async def test_a_preview_that_cannot_be_made_is_said(
    web: httpx.AsyncClient, doings: Doings
) -> None:
    doings.preview = NoRouteError("Orders")
    answer = await web.get(RESET)
    assert (answer.status_code, "it could not be found out" in answer.text) == (409, True)
    doings.preview = trio.TooSlowError()
    assert "it took longer than 30 s" in (await web.get(RESET)).text


async def test_each_queue_of_a_long_preview_can_be_seen(
    web: httpx.AsyncClient, doings: Doings
) -> None:
    places = [replace(PLACE, queue=MessageQueue("Orders", GROUP, each)) for each in range(150)]
    doings.preview = replace(PREVIEW, moves=tuple(PlannedMove(each, AT(10)) for each in places))
    shown = Parsed((await web.get(RESET)).text)
    (following,) = {link for link in shown.links if "moves-page=2" in link}
    assert f"{GROUP} 149 25" not in " ".join(shown.said.split())
    other = Parsed((await web.get(f"/reset{following}")).text)
    assert f"{GROUP} 149 25" in " ".join(other.said.split())
    assert "plan" in other.fields


async def test_letters_confirmed_twice_at_once_are_sent_once(
    web: httpx.AsyncClient, doings: Doings, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms = [await fields(web, RESEND) for _ in range(2)]
    at_once = doings.resend

    async def resend(*asked: str, **more: object) -> ResendOutcome:
        outcome: ResendOutcome = await at_once(*asked, **more)  # type: ignore[arg-type]
        await trio.sleep(0.01)
        return outcome

    monkeypatch.setattr(change_pages, "resend", resend)
    statuses: list[int] = []

    async def confirm(form: dict[str, str]) -> None:
        data = {"proof": form["proof"], "plan": form["plan"]}
        statuses.append((await web.post("/confirm", data=data)).status_code)

    async with trio.open_nursery() as nursery:
        for form in forms:
            nursery.start_soon(confirm, form)
    assert (sorted(statuses), doings.done) == ([200, 409], [["k1", "k2"]])


async def test_a_right_that_is_missing_is_told(web: httpx.AsyncClient, doings: Doings) -> None:
    form = await fields(web, RESET)
    refusal = RequestFailedError(16, "AclException: Need admin permission for request code=222")
    doings.preview = doings.failure = refusal
    confirmed = {"proof": form["proof"], "plan": form["plan"]}
    for answer in (await web.get(RESET), await web.post("/confirm", data=confirmed)):
        assert answer.status_code == 403
        assert "Need admin permission" in answer.text


async def test_what_is_logged_keeps_to_its_line(
    web: httpx.AsyncClient, doings: Doings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", change_pages.__name__)
    form = await fields(web, "/reset?name=billing&topic=Orders&to=%0Aall&time=1750000000000")
    doings.failure = RequestFailedError(1, "\x1b[2J\nall is well")
    await web.post("/confirm", data={"proof": form["proof"], "plan": form["plan"]})
    said = [each.getMessage() for each in caplog.records if each.name == change_pages.__name__]
    assert said[0] == "reset the offsets of billing in Orders to 2025-06-15 15:06:40 UTC"
    assert all(each.isprintable() for each in said)


@pytest.mark.parametrize(
    ("now", "wanted", "again", "skipped"),
    [
        (25, 10, 15, 0),
        (25, 30, 0, 5),
        (None, 10, 0, 0),
        (None, 30, 0, 20),
        (5, 30, 0, 20),
        (99, 10, 20, 0),
    ],
)
def test_what_a_move_means(now: int | None, wanted: int, again: int, skipped: int) -> None:
    move = PlannedMove(QueuePosition(QUEUE, now, 10, 30), AT(wanted))
    ((*_, shown_again, shown_skipped),) = reset_grid(
        ResetPreview("billing", "Orders", (move,), ()), {}
    ).rows
    assert (shown_again.order, shown_skipped.order) == (again, skipped)


class TestDoneAsShown:
    """`reset_as_previewed` against a group that stands somewhere."""

    @staticmethod
    async def reset(
        monkeypatch: pytest.MonkeyPatch, now: int | None, *online: str
    ) -> list[tuple[object, ...]]:
        """Return what would be moved."""
        moved: list[tuple[object, ...]] = []

        @asynccontextmanager
        async def open_cluster(_namesrv: list[str]) -> AsyncIterator[None]:
            yield

        async def online_members(_cluster: None, group: str) -> list[str]:
            assert group == "billing"
            return list(online)

        async def positions(_cluster: None, group: str, topic: str) -> list[QueuePosition]:
            assert (group, topic) == ("billing", "Orders")
            return [QueuePosition(QUEUE, now, 10, 30)]

        async def move(_cluster: None, *asked: object) -> list[ChangeOutcome]:
            moved.append(asked)
            return []

        for each in (open_cluster, online_members, positions, move):
            monkeypatch.setattr(resets, each.__name__, each)
        await resets.reset_as_previewed("", PREVIEW)
        return moved

    async def test_a_group_is_moved_as_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert await self.reset(monkeypatch, 25) == [("billing", PREVIEW.moves, [])]

    async def test_members_that_are_online_go_on_meanwhile(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert await self.reset(monkeypatch, 26, "c") == [("billing", PREVIEW.moves, ["c"])]

    @pytest.mark.parametrize("now", [26, 24, None])
    async def test_a_group_that_is_elsewhere_is_left_alone(
        self, monkeypatch: pytest.MonkeyPatch, now: int | None
    ) -> None:
        with pytest.raises(ResetRefusedError, match=f"at {now}, and not at 25"):
            await self.reset(monkeypatch, now)
