"""`dledger-admin web` beside a real group, over HTTP: what was sent is shown, whatever dies meanwhile."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import httpx
import pytest

from dledger_mq import ConsumeResult, Message, NoRouteError, ReceivedMessage
from dledger_mq.blocking import Producer, PushConsumer
from jepsen.processes import Group, poll
from tests.integration.admin.web_console import PATIENCE_S, TOKEN, web_console
from tests.integration.broker.test_processes import leader_of

pytestmark = [pytest.mark.slow, pytest.mark.integration]

EVIL = "<script>document.title='taken'</script>"
COUNT = 12


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with Group(tmp_path_factory.mktemp("web")) as running:
        running.start()
        running.wait_listening()
        send(running)
        yield running


@pytest.fixture(scope="module")
def web(group: Group) -> Iterator[httpx.Client]:
    with (
        web_console(group.folder, group.namesrv, "--changes") as place,
        httpx.Client(base_url=place, timeout=PATIENCE_S, follow_redirects=True) as client,
    ):
        yield client


def send(group: Group) -> None:
    with Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer:

        def is_sent() -> bool:
            try:
                producer.send(Message("Orders", EVIL.encode(), keys="order-0", tags="new"))
            except NoRouteError:
                return False
            return True

        assert poll(is_sent, PATIENCE_S)
        producer.send_many(
            Message("Orders", b'{"n":%d}' % number, keys=f"order-{number}")
            for number in range(1, COUNT)
        )


def text_of(web: httpx.Client, path: str, **query: str) -> str:
    """Return what a page says, without its markup."""
    answer = web.get(path, params=query or None)
    assert "<script>document" not in answer.text
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", answer.text))


def wait_for(web: httpx.Client, wanted: str, path: str, **query: str) -> str:
    """Return what a page says once it says this."""
    said = ""

    def is_there() -> bool:
        nonlocal said
        said = text_of(web, path, **query)
        return re.search(wanted, said) is not None

    assert poll(is_there, PATIENCE_S, 0.2), said
    return said


def test_figures_are_those_of_what_was_sent(group: Group, web: httpx.Client) -> None:
    wait_for(web, rf"Orders application 1 \d+ read and write {COUNT} ", "/topics")
    done: list[bytes] = []

    def handle(message: object) -> ConsumeResult:
        done.append(b"")
        return ConsumeResult.SUCCESS

    with PushConsumer(
        group.namesrv, "billing", handle, subscriptions={"Orders": "*"}, start_from="first"
    ):
        assert poll(lambda: len(done) >= COUNT, PATIENCE_S)
        wait_for(
            web,
            r"Members: 1, clustering; .*They subscribe to .*Orders \(\*\)",
            "/group",
            name="billing",
        )
    wait_for(web, r"billing 1 0 0 s ", "/groups")
    send(group)
    said = wait_for(web, rf"billing 1 {COUNT} \d+ (ms|s|min) ", "/groups")
    assert "Consumer groups" in said


def test_the_death_of_a_leader_is_seen(group: Group, web: httpx.Client) -> None:
    wait_for(web, "nothing is to be looked into", "/")
    leader = leader_of(group)
    leader.kill()
    wait_for(web, rf"{leader.name} \(away\)", "/")
    wait_for(web, r"1 of 1 groups have a leader, and something is to be looked into", "/")
    wait_for(web, rf"\d\d:\d\d:\d\d broker-a n\d \d+ {leader.name} ", "/")
    leader.start()
    wait_for(web, "nothing is to be looked into", "/")


def test_a_group_without_a_leader_is_shown_as_such(group: Group, web: httpx.Client) -> None:
    wait_for(web, "nothing is to be looked into", "/")
    lost = group.nodes[:2]
    for node in lost:
        node.kill()
    wait_for(web, r"0 of 1 groups have a leader\. .*no leader", "/")
    wait_for(
        web,
        r"nobody leads: offsets cannot be asked for; shown is what was known at .* Orders application 1 \d+ read",
        "/topics",
    )
    for node in lost:
        node.start()
    wait_for(web, "nothing is to be looked into", "/")


def test_a_dead_name_server_is_shown_with_what_is_known(group: Group, web: httpx.Client) -> None:
    wait_for(web, "nothing is to be looked into", "/")
    (server,) = group.name_servers
    server.kill()
    wait_for(
        web, "No name server answers: shown are the members that were known before.", "/topics"
    )
    wait_for(web, r"n\d leads in term", "/")
    server.start()
    wait_for(web, "nothing is to be looked into", "/")


def test_messages_are_found_by_key_id_and_time(group: Group, web: httpx.Client) -> None:
    wait_for(web, "nothing is to be looked into", "/")
    said = wait_for(
        web, r"Orders broker-a \d", "/messages", by="key", topic="Orders", key="order-0"
    )
    assert "No message was found." not in said
    page = web.get("/messages", params={"by": "key", "topic": "Orders", "key": "order-0"}).text
    link = re.findall(r'href="(/message\?[^"]*)"', page)[-1].replace("&amp;", "&")
    message = web.get(link)
    assert "<script>document" not in message.text
    assert "&lt;script&gt;document.title=&#39;taken&#39;&lt;/script&gt;" in message.text
    assert "6f 63 75 6d" in text_of(web, f"{link}&as=hex"), "its digits"
    (message_id,) = re.findall(r"<dt>Message id</dt><dd>([0-9A-F]{32})</dd>", message.text)
    wait_for(web, "order-0 new", "/messages", by="id", id=message_id)
    (stored,) = re.findall(r"<dt>Stored \(UTC\)</dt><dd>(\S+ \S+) at", message.text)
    wait_for(web, "order-0", "/messages", by="time", topic="Orders", time=stored)
    wait_for(web, r"No message was found\.", "/messages", by="key", topic="Orders", key="x")
    wait_for(
        web, "offsets from 0 to before", "/queue", topic="Orders", broker="broker-a", queue="0"
    )


def confirmed(web: httpx.Client, path: str, **query: str) -> str:
    """Look at a change, confirm it, and return what the page says then."""
    fields: dict[str, str] = {}
    shown = ""

    def is_planned() -> bool:
        nonlocal shown
        shown = web.get(path, params=query).text
        fields.update(
            re.findall(r'<input type="hidden" name="(proof|plan)" value="([^"]+)">', shown)
        )
        return {"plan", "proof"} == set(fields)

    assert poll(is_planned, PATIENCE_S, 0.2), shown
    answer = web.post("/confirm", data=fields)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", answer.text))


def test_offsets_are_reset_after_a_preview(group: Group, web: httpx.Client) -> None:
    wait_for(web, "nothing is to be looked into", "/")
    asked = {"name": "billing", "topic": "Orders", "to": "last"}
    assert web.get("/reset", params=asked).status_code == 403, "not signed in"
    web.post("/sign-in", data={"token": TOKEN})
    assert "The offsets of billing in Orders are reset." in confirmed(web, "/reset", **asked)
    wait_for(web, r"Orders 0 0 s ", "/group", name="billing")
    asked["to"] = "first"
    is_done = "The offsets of billing in Orders are reset." in confirmed(web, "/reset", **asked)
    wait_for(web, rf"Orders {2 * COUNT if is_done else 0} ", "/group", name="billing")


def test_dead_letters_are_sent_again_after_a_preview(group: Group, web: httpx.Client) -> None:
    wait_for(web, "nothing is to be looked into", "/")
    web.post("/sign-in", data={"token": TOKEN})
    is_well = threading.Event()
    done: list[bytes] = []

    def handle(message: ReceivedMessage) -> ConsumeResult:
        if not is_well.is_set():
            return ConsumeResult.LATER
        done.append(message.body)
        return ConsumeResult.SUCCESS

    with PushConsumer(
        group.namesrv,
        "sick",
        handle,
        subscriptions={"Orders": "*"},
        start_from="first",
        max_reconsume_times=0,
    ):
        wait_for(web, rf"dead letters: {2 * COUNT} ", "/group", name="sick")
        is_well.set()
        said = confirmed(web, "/resend", name="sick", limit="5", to="retry")
        assert "5 dead letters of sick were sent again." in said
        assert poll(lambda: len(done) == 5, PATIENCE_S)
        wait_for(web, "The newest dead letters", "/dead-letters", name="sick")
    assert len(done) == 5, "and no other"
