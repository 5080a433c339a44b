"""The command that a report names makes such a run again."""

from __future__ import annotations

from jepsen.demo import Settings, run_settings
from jepsen.measure import FAILOVER, settings_of
from jepsen.reports.summary import command_of
from jepsen.run import RunSettings


def test_a_run() -> None:
    settings = RunSettings("queue", "kill:leader", 20.0, nodes=5, seed=7, network="proxies")
    assert command_of(settings) == (
        "dledger-jepsen run --workload queue --nemesis kill:leader --time-limit 20 --nodes 5 "
        "--seed 7 --rate 150 --concurrency 8 --network proxies"
    )


def test_a_run_of_several_groups() -> None:
    settings = RunSettings("queue", "kill:leader", 20.0, seed=7, groups=3)
    assert command_of(settings).endswith("--concurrency 8 --groups 3")


def test_kills_in_rounds() -> None:
    settings = settings_of(FAILOVER, rounds=4, seed=2, rate=100.0, nodes=3)
    assert (
        command_of(settings) == "dledger-jepsen failover --rounds 4 --nodes 3 --rate 100 --seed 2"
    )


def test_a_demo() -> None:
    settings = Settings(3, 14.0, with_cpp=False, seed=9, keep=None, as_json=False)
    run = run_settings(settings, has_cpp=False)
    assert command_of(run) == "python -m jepsen.demo --kills 3 --seconds 14 --seed 9 --no-cpp"
