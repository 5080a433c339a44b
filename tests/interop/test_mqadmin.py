"""mqadmin's subcommands of both releases against a group: those that an operator needs show what is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from jepsen.processes import poll
from tests.interop.conftest import WAIT_S, RunningGroup
from tests.interop.mqadmin import (
    CALLS,
    GROUP,
    MESSAGES,
    OFFLINE,
    RELEASES,
    ROOT,
    TOPIC,
    Call,
    Mqadmin,
    Scene,
    Verdict,
    calls_for,
    consumed_count,
    outcome_of,
    scene,
)

NEEDED = (
    "updateTopic",
    "deleteTopic",
    "updateSubGroup",
    "topicRoute",
    "topicStatus",
    "brokerStatus",
    "queryMsgById",
    "queryMsgByUniqueKey",
    "consumerConnection",
    "consumerProgress",
    "consumerStatus",
    "cloneGroupOffset",
    "clusterList",
    "resetOffsetByTime",
    "skipAccumulatedMessage",
    "exportConfigs",
    "haStatus",
    "getBrokerEpoch",
)
"""A part of all: each takes a second or two on a busy machine. docs/mqadmin.md is made from all of them."""

Running = tuple[str, Mqadmin, Scene]


def tools(release: str) -> tuple[Path, Path]:
    """The jars of a release and the driver; skips where they are not there."""
    jars, classes = ROOT / f".interop/tools-{release}/jars", ROOT / ".interop/mqadmin/classes"
    if not (jars.parent / ".ready").exists() or not classes.exists():
        pytest.skip(f"mqadmin {release} is not installed (make interop)")
    return jars, classes


@pytest.fixture(scope="module", params=RELEASES)
def running(
    request: pytest.FixtureRequest, group: RunningGroup, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    jars, classes = tools(request.param)
    folder = tmp_path_factory.mktemp("mqadmin")
    group.create_topic(TOPIC)
    create_groups(group)
    leader = group.wait_leader()
    with (
        Mqadmin(jars, classes, folder) as mqadmin,
        scene(group.namesrv, leader.address, "broker-a", "DefaultCluster", folder) as made,
    ):
        yield request.param, mqadmin, made


def create_groups(group: RunningGroup) -> None:
    for name in (GROUP, OFFLINE):
        body = json.dumps({"groupName": name}).encode()
        group.ask(200, {}, body)


@pytest.mark.parametrize("name", NEEDED)
def test_it_works(running: Running, name: str) -> None:
    release, mqadmin, made = running
    if name not in mqadmin.names():
        pytest.skip(f"{release} has no {name}")
    (call,) = calls_for(release, [name])
    printed = mqadmin.run(made.words(call))
    assert outcome_of(call, printed).verdict is Verdict.WORKS, printed


def test_every_subcommand_has_its_call(running: Running) -> None:
    release, mqadmin, _made = running
    unknown = [call.name for call in calls_for(release, mqadmin.names()) if call.not_run == "?"]
    assert unknown == []
    assert len({(call.name, call.only) for call in CALLS}) == len(CALLS)


def test_a_reset_takes_a_group_back_and_to_the_end(running: Running) -> None:
    _release, mqadmin, made = running
    back = Call("resetOffsetByTime", "-g {offline} -t {topic} -s 0", "#offset")
    skip = Call("skipAccumulatedMessage", "-g {offline} -t {topic}", "#offset")

    mqadmin.run(made.words(skip))
    assert poll(lambda: consumed_count(made.broker, OFFLINE) >= MESSAGES, WAIT_S)
    mqadmin.run(made.words(back))
    assert poll(lambda: consumed_count(made.broker, OFFLINE) == 0, WAIT_S)
