"""Rows of sinks at the leader: each stored once, whoever sends it and however often."""

from __future__ import annotations

import pytest

from broker.service import rows as row_rules
from tests.unit.server.row_bench import RowBench, result_of


@pytest.fixture
def bench() -> RowBench:
    return RowBench()


def test_a_row_is_stored_once_over_repeats_and_leaders(bench: RowBench) -> None:
    first = bench.rows("4 s", 1)
    assert not first.answers(), "nothing is told before it is committed"
    bench.commit()
    assert result_of(first) == "1"
    assert result_of(bench.rows("4 s", 1)) == "0"
    bench.new_term()
    assert result_of(bench.rows("4 s", 1)) == "0"
    assert bench.bodies() == [b"1"]


def test_of_a_batch_message_only_what_is_missing_is_stored(bench: RowBench) -> None:
    bench.rows("4 s", 2)
    bench.commit()
    mixed = bench.rows("4 s", 1, 2, 3, 3)
    bench.commit()
    assert result_of(mixed) == "1010", "a key twice in one send is one row"
    assert mixed.answers()[0].ext["queueOffset"] == "1"
    assert bench.bodies() == [b"2", b"1", b"3"]


def test_batches_and_sinks_are_apart(bench: RowBench) -> None:
    for sink in ("4 s", "4 t", "5 s"):
        bench.rows(sink, 1)
        bench.commit()
    assert bench.bodies() == [b"1"] * 3


def test_a_lower_batch_is_done(bench: RowBench) -> None:
    bench.rows("5 s", 1)
    bench.commit()
    late = bench.rows("4 s", 1, 2)
    assert result_of(late) == "00"
    assert late.answers()[0].ext["dledgerNewerBatch"] == "5"
    assert "dledgerNewerBatch" not in bench.rows("5 s", 1).answers()[0].ext
    assert bench.bodies() == [b"1"]


def test_who_asks_for_rows_on_their_way_waits_for_them(bench: RowBench) -> None:
    first, again = bench.rows("4 s", 1, 2), bench.rows("4 s", 2, 3)
    other = bench.rows("4 s", 9)
    bench.commits.flush()
    assert not first.answers() + again.answers()
    bench.log.commit()
    assert (result_of(first), result_of(other)) == ("11", "1")
    assert not again.answers(), "brought to the leader again, which is the router's work"
    bench.bring_held()
    bench.commit()
    assert result_of(again) == "01"
    assert sorted(bench.bodies()) == [b"1", b"2", b"3", b"9"]


def test_a_lower_batch_waits_for_a_higher_one_on_its_way(bench: RowBench) -> None:
    bench.rows("5 s", 1)
    late = bench.rows("4 s", 7)
    assert not late.answers()
    bench.commit()
    bench.bring_held()
    assert result_of(late) == "0"


def test_rows_that_did_not_survive_are_stored_by_the_next_leader(bench: RowBench) -> None:
    first, again = bench.rows("4 s", 1), bench.rows("4 s", 1)
    bench.commits.flush()
    bench.fail_over(survives=0)
    assert first.answers()[0].code == 1, "outcome unknown"
    bench.bring_held()
    bench.commit()
    assert result_of(again) == "1"
    assert bench.bodies() == [b"1"]


def test_rows_that_survived_are_there_for_the_next_leader(bench: RowBench) -> None:
    first, again = bench.rows("4 s", 1), bench.rows("4 s", 1)
    bench.commits.flush()
    bench.fail_over(survives=1)
    assert first.answers()[0].code == 1, "outcome unknown"
    bench.bring_held()
    bench.commit()
    assert result_of(again) == "0"
    assert bench.bodies() == [b"1"]
    assert not bench.sends._rows._flying
    assert not bench.sends._rows._flying_count


def test_the_property_alone_makes_no_row(bench: RowBench) -> None:
    """Copies for retries, and deliveries, carry it along."""
    for _ in range(2):
        bench.send(None, b"copy")
        bench.commit()
    assert bench.bodies() == [b"copy"] * 2


def test_a_delayed_row_counts_when_it_is_taken(bench: RowBench) -> None:
    delayed = bench.rows("4 s", 1, DELAY="3")
    bench.commit()
    assert result_of(delayed) == "1"
    assert result_of(bench.rows("4 s", 1, DELAY="3")) == "0"
    assert bench.stored(b"SCHEDULE_TOPIC_XXXX") == 1


@pytest.mark.parametrize(
    ("sink", "named", "why"),
    [
        ("x s", {}, "not a number"),
        ("1" * 19 + " s", {}, "not a number"),
        ("4", {}, "1 to 128 bytes"),
        ("4 " + "s" * 129, {}, "1 to 128 bytes"),
        ("4 s", {"SINK_ROW": "0000000000000001 5 s"}, "no row of batch"),
        ("4 s", {"SINK_ROW": "000000000000000g 4 s"}, "not hexadecimal"),
        ("4 s", {"SINK_ROW": "1 4 s"}, "no row of batch"),
        ("4 s", {"SINK_ROW": "00 000000 000000 4 s"}, "not hexadecimal"),
        ("4 s", {"TRAN_MSG": "true"}, "transaction"),
    ],
)
def test_what_is_no_row_is_refused(
    bench: RowBench, sink: str, named: dict[str, str], why: str
) -> None:
    origin = bench.rows(sink, 1, **named)
    assert why in result_of(origin)
    assert "nothing was stored" in result_of(origin)
    bench.commit()
    assert not bench.bodies()


def test_bounds_are_kept_before_anything_is_stored(
    bench: RowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_rules, "BATCH_KEYS_MAX", 3)
    monkeypatch.setattr(row_rules, "KEYS_MAX", 5)
    monkeypatch.setattr(row_rules, "SINKS_MAX", 2)
    bench.rows("4 s", 1, 2, 3)
    bench.commit()
    assert "batch 4 of sink s has 3 rows, at most 3 fit" in result_of(bench.rows("4 s", 4))
    assert result_of(bench.rows("4 s", 1, 2, 3)) == "000", "a repeat needs no room"
    bench.rows("1 t", 1, 2)
    assert "have 3 rows, at most 5 fit together" in result_of(bench.rows("1 u", 9)), (
        "2 are on their way"
    )
    bench.commit()
    assert "there are 2 sinks, at most 2" in result_of(bench.rows("1 u", 1))
    ended = bench.rows("5 s", 1)
    bench.commit()
    assert result_of(ended) == "1", "the rows of the batch that it ends make room"


def test_rows_whose_answer_waits_for_a_route_are_in_flight_no_more(bench: RowBench) -> None:
    bench.hold_routes()
    first = bench.rows("4 s", 1, topic="New")
    bench.commit()
    assert not bench.sends._rows._flying_count
    again = bench.rows("4 s", 1, topic="New")
    assert not first.answers() + again.answers()
    bench.take_routes()
    assert (result_of(first), result_of(again)) == ("1", "0")
