"""The rules for Prometheus and the board for Grafana name figures that servers give, with labels that they have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml

from broker.namesrv.config import NameServerConfig
from broker.namesrv.server import NameServer
from broker.server.config import MetricsSettings
from dledger_mq.net.address import Address
from tests.integration.broker.conftest import ANSWER_S, ClusterMaker
from tests.integration.broker.scraping import Figures, scrape

DOCS = Path(__file__).resolve().parents[3] / "docs"
RULES = DOCS / "prometheus-rules.yml"
BOARD = DOCS / "grafana-board.json"
PAGE = DOCS / "operations.md"
LOOPBACK = Address("127.0.0.1", 0)
NAME = re.compile(r"\b(?:rocketmq|dledger|process)_[a-z_]+\b")
SUFFIX = re.compile(r"_(?:bucket|count|sum)$")
OF_RESOURCES = {"cluster", "node_id", "instance", "job", "member", "le"}


def alerts() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def board_expressions() -> Iterator[str]:
    board = json.loads(BOARD.read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in board["templating"]["list"]:
        yield variable["query"]


def names_in(expression: str) -> set[str]:
    return set(NAME.findall(expression))


def test_each_alarm_has_a_text_and_a_chapter_of_its_own_and_no_chapter_is_of_none() -> None:
    found = alerts()
    chapters = re.findall(r"^### (DLedger\w+)$", PAGE.read_text(), re.MULTILINE)
    assert sorted(chapters) == sorted(rule["alert"] for rule in found)
    assert [rule["alert"] for rule in found if not rule["annotations"]["summary"]] == []
    assert {rule["labels"]["severity"] for rule in found} == {"critical", "warning", "info"}


def test_prometheus_takes_the_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    checked = subprocess.run(
        [promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_board_lies_in_its_grid() -> None:
    panels = json.loads(BOARD.read_text())["panels"]
    places = [panel["gridPos"] for panel in panels]
    taken = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


async def given_figures(make_cluster: ClusterMaker) -> tuple[Figures, str]:
    """What a broker and a name server give, and the page that tells of it."""
    cluster = await make_cluster(1, metrics=MetricsSettings(LOOPBACK))
    leader = await cluster.leader()
    server = NameServer(NameServerConfig(LOOPBACK, metrics=LOOPBACK))
    with trio.fail_after(ANSWER_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            found = await scrape(leader.metrics_address)
            of_name_server = await scrape(server.metrics_address)
            nursery.cancel_scope.cancel()
    found.names |= of_name_server.names
    return found, PAGE.read_text()


async def test_figures_in_rules_board_and_page_are_those_that_servers_give(
    make_cluster: ClusterMaker,
) -> None:
    figures, page = await given_figures(make_cluster)
    # The parser gives a counter without its suffix.
    given = {name for each in figures.names for name in (each, f"{each}_total")}
    asked = set[str]()
    for expression in (*(rule["expr"] for rule in alerts()), *board_expressions()):
        asked |= {SUFFIX.sub("", name) for name in names_in(expression)}
    assert asked - given == set()
    assert len(asked) > 30
    told = page.replace("dledger_namesrv_*", "")
    of_brokers = {
        name for name in figures.names if not name.startswith(("process", "dledger_namesrv"))
    }
    assert {name for name in of_brokers if name not in told} == set()
    not_given = {"rocketmq_message_size", "rocketmq_timer_enqueue_lag"}
    not_given |= {"rocketmq_timer_message_snapshot"}
    not_given |= {"rocketmq_finish_message_latency", "rocketmq_delay_message_latency"}
    assert {SUFFIX.sub("", each) for each in names_in(told.replace("`", " "))} - given == not_given
