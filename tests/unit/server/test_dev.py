"""The processes of `dledger-broker --dev` are its own: a lost one is found by its command, which no other --dev has."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from broker.log_output import LogOutput
from broker.server import cli
from broker.server.dev import DevOptions, plan_dev


def options(store: Path, *, first_port: int = 10911) -> DevOptions:
    return DevOptions(store, first_port, 9876, "DefaultCluster", LogOutput("info"))


def test_no_process_has_the_command_of_one_with_another_store(tmp_path: Path) -> None:
    one = {program.command for program in plan_dev(options(tmp_path / "one"))}
    other = {program.command for program in plan_dev(options(tmp_path / "other", first_port=12911))}
    assert (len(one), one & other) == (4, set())


def test_figures_of_all_four_processes_are_on_ports_of_their_own(tmp_path: Path) -> None:
    asked = dataclasses.replace(options(tmp_path), metrics_port=5557)
    told = [program.command[program.command.index("--metrics") + 1] for program in plan_dev(asked)]
    assert told == [f"127.0.0.1:{port}" for port in (5560, 5557, 5558, 5559)]


def test_tls_and_log_options_are_passed_on_each_with_a_file_of_its_own(tmp_path: Path) -> None:
    log = LogOutput("debug", is_json=True, file=str(tmp_path / "dev.log"))
    asked = dataclasses.replace(options(tmp_path), log=log, tls_config="/tls.properties")
    name_server, *brokers = plan_dev(asked)
    for name, program in zip(("namesrv", "n0", "n1", "n2"), (name_server, *brokers), strict=True):
        words = " ".join(program.command)
        assert f"--log-format json --log-file {tmp_path}/dev-{name}.log" in words
        assert "--tls-config /tls.properties" in words
        assert ("--log-level debug" in words) == (program is not name_server)


@pytest.mark.parametrize("store", [(), ("--store", "here")])
def test_the_store_is_the_same_folder_wherever_it_is_looked_for(
    store: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[DevOptions] = []

    async def take(chosen: DevOptions, _console: object) -> int:
        taken.append(chosen)
        return 0

    monkeypatch.setattr(cli, "run_dev", take)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--dev", *store]) == 0
    assert [one.store for one in taken] == [tmp_path / (store[1] if store else "data/dev")]
