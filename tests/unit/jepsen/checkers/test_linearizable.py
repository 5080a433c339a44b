import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen.checkers.linearizable import FIRST_SHARE, check_linearizable
from jepsen.checkers.models import LIST_APPEND, REGISTER, TEXT, Call, Model, S
from jepsen.history.ops import Op
from jepsen.history.recorded import RecordedFormatError, read_kv_edn, read_register_log
from jepsen.history.values import Keyed, shaped
from tests.unit.jepsen.checkers.histories import History, assert_shows_only

RECORDED = Path("tests/data/histories")


def do(
    history: History, process: int, f: str, argument: Any = None, result: Any = None, key: str = "x"
) -> None:
    history.do(process, f, [key, argument], [key, result])


def begin(history: History, process: int, f: str, argument: Any = None, key: str = "x") -> None:
    history.begin(process, f, [key, argument])


def end(history: History, process: int, result: Any = None, key: str = "x") -> None:
    history.end(process, [key, result])


# A register.


def test_a_register_read_and_written_in_turn() -> None:
    history = History()
    do(history, 0, "read")
    do(history, 0, "write", 1)
    do(history, 1, "read", None, 1)
    do(history, 1, "cas", [1, 2], True)
    do(history, 1, "cas", [1, 3], False)
    do(history, 0, "read", None, 2)
    result = check_linearizable(history.ops, model=REGISTER)
    assert result.valid is True
    assert result.counts["operations"] == 6


def test_a_stale_read() -> None:
    history = History()
    do(history, 0, "write", 1)
    do(history, 0, "write", 2)
    do(history, 1, "read", None, 1)
    result = check_linearizable(history.ops, model=REGISTER)
    assert_shows_only(result, "nonlinearizable")
    assert "2 of 3 operations can be explained" in result.anomalies[0].text
    assert "the state is (2,)" in result.anomalies[0].text
    assert "#4 read -> 1" in result.anomalies[0].text
    assert result.anomalies[0].ops == (4,)


def test_operations_at_the_same_time_take_effect_in_any_order() -> None:
    history = History()
    begin(history, 0, "write", 1)
    begin(history, 1, "write", 2)
    begin(history, 2, "read")
    end(history, 1)
    end(history, 0)
    end(history, 2, 2)
    do(history, 3, "read", None, 1)
    assert check_linearizable(history.ops, model=REGISTER).valid is True


def test_two_readers_that_see_two_writes_in_different_orders() -> None:
    history = History()
    begin(history, 0, "write", 1)
    begin(history, 1, "write", 2)
    do(history, 2, "read", None, 1)
    do(history, 2, "read", None, 2)
    do(history, 3, "read", None, 1)
    end(history, 1)
    end(history, 0)
    assert_shows_only(check_linearizable(history.ops, model=REGISTER), "nonlinearizable")


def test_an_unknown_write_may_take_effect_long_after() -> None:
    history = History()
    history.do(0, "write", ["x", 1], type_="info")
    do(history, 1, "write", 2)
    do(history, 1, "read", None, 2)
    do(history, 1, "read", None, 1)
    assert check_linearizable(history.ops, model=REGISTER).valid is True


def test_an_unknown_write_takes_effect_once() -> None:
    history = History()
    history.do(0, "write", ["x", 1], type_="info")
    do(history, 1, "read", None, 1)
    do(history, 1, "write", 2)
    do(history, 1, "read", None, 1)
    assert_shows_only(check_linearizable(history.ops, model=REGISTER), "nonlinearizable")


def test_an_unknown_write_does_not_take_effect_before_it_began() -> None:
    history = History()
    do(history, 1, "read", None, 1)
    history.do(0, "write", ["x", 1], type_="info")
    assert_shows_only(check_linearizable(history.ops, model=REGISTER), "nonlinearizable")


def test_a_failed_write_never_takes_effect() -> None:
    history = History()
    history.do(0, "write", ["x", 1], type_="fail")
    do(history, 1, "read", None, 1)
    assert_shows_only(check_linearizable(history.ops, model=REGISTER), "nonlinearizable")


def test_an_operation_that_never_ended_is_of_unknown_outcome() -> None:
    history = History()
    begin(history, 0, "write", 1)
    do(history, 1, "read", None, None)
    do(history, 1, "read", None, 1)
    assert check_linearizable(history.ops, model=REGISTER).valid is True


# Lists and keys.


def test_a_list_that_forgets() -> None:
    history = History()
    do(history, 0, "append", 1)
    do(history, 0, "append", 2)
    do(history, 1, "read", None, [2])
    assert_shows_only(check_linearizable(history.ops, model=LIST_APPEND), "nonlinearizable")


def test_a_list_whose_order_changes() -> None:
    history = History()
    begin(history, 0, "append", 1)
    do(history, 1, "append", 2)
    end(history, 0)
    do(history, 1, "read", None, [1, 2])
    do(history, 1, "read", None, [2, 1])
    assert_shows_only(check_linearizable(history.ops, model=LIST_APPEND), "nonlinearizable")


def test_keys_are_judged_apart() -> None:
    history = History()
    do(history, 0, "append", 1, key="x")
    do(history, 0, "read", None, [], key="y")
    do(history, 0, "append", 2, key="y")
    do(history, 0, "read", None, [], key="z")
    do(history, 0, "read", None, [], key="y")
    result = check_linearizable(history.ops, model=LIST_APPEND)
    assert_shows_only(result, "nonlinearizable")
    assert result.anomalies[0].text.startswith("key y: 2 of 3")
    assert result.counts["keys"] == 3


# Bounds.


def _hard(width: int) -> History:
    """Many writes at once, and a read of what nobody wrote: every order must be tried."""
    history = History()
    _make_hard(history, width, "x")
    return history


def _make_hard(history: History, width: int, key: str) -> None:
    for process in range(width):
        begin(history, process, "append", process, key)
    for process in range(width):
        end(history, process, None, key)
    do(history, 99, "read", None, [99], key)


def test_a_search_that_meets_its_bound_of_configurations_is_unknown() -> None:
    result = check_linearizable(_hard(9).ops, model=LIST_APPEND, configurations_max=1000)
    assert result.valid is None
    assert result.why_unknown == "the search met its bound of configurations at key x"


def test_a_search_that_meets_its_bound_of_time_is_unknown() -> None:
    moments = itertools.count()
    result = check_linearizable(
        _hard(9).ops, model=LIST_APPEND, seconds_max=0.5, clock_s=lambda: float(next(moments))
    )
    assert result.valid is None
    assert result.why_unknown == "the search met its bound of time at key x"


def test_a_hard_key_does_not_use_up_what_refutes_the_others() -> None:
    history = History()
    for number in range(5):
        _make_hard(history, 20, f"hard{number}")
        do(history, 0, "append", 1, key=f"easy{number}")
        do(history, 0, "read", None, [2], key=f"easy{number}")
    result = check_linearizable(history.ops, model=LIST_APPEND, configurations_max=100_000)
    assert result.valid is False
    assert [one.text.split(":")[0] for one in result.anomalies] == [
        f"key easy{number}" for number in range(5)
    ]
    assert result.counts["undecided_keys"] == 5


@pytest.mark.slow
def test_a_search_goes_on_where_its_share_was_used_up() -> None:
    """Of two keys alike each has its share, and one round is not enough: 7! orders have 13 700 beginnings."""
    history = History()
    _make_hard(history, 7, "x")
    _make_hard(history, 7, "y")
    alone = check_linearizable(_hard(7).ops, model=LIST_APPEND)
    both = check_linearizable(history.ops, model=LIST_APPEND)
    assert len(both.anomalies) == 2
    assert isinstance(alone.counts["configurations"], int)
    assert alone.counts["configurations"] > FIRST_SHARE
    assert both.counts["configurations"] == 2 * alone.counts["configurations"]


def test_keys_that_stay_undecided_are_named() -> None:
    history = History()
    for number in range(7):
        _make_hard(history, 12, f"k{number}")
    result = check_linearizable(history.ops, model=LIST_APPEND, configurations_max=10_000)
    assert result.why_unknown == (
        "the search met its bound of configurations at key k0, k1, k2, k3, k4 and 2 more"
    )


def test_a_history_without_a_success_is_unknown() -> None:
    history = History()
    history.do(0, "write", ["x", 1], type_="info")
    assert check_linearizable(history.ops, model=REGISTER).valid is None


@pytest.mark.parametrize("model", [REGISTER, TEXT, LIST_APPEND])
def test_an_operation_that_the_model_does_not_know_is_refused(model: Model[S]) -> None:
    history = History()
    do(history, 0, "explode")
    with pytest.raises(ValueError, match="explode"):
        check_linearizable(history.ops, model=model)


def test_thousands_of_operations_over_keys_and_many_at_once() -> None:
    history = History()
    lists: dict[str, list[int]] = {f"k{number}": [] for number in range(20)}
    for number in range(1500):
        key = f"k{number % 20}"
        begin(history, 0, "append", number, key)
        begin(history, 1, "read", None, key)
        end(history, 1, list(lists[key]), key)
        end(history, 0, None, key)
        if number % 50 == 49:  # unknown, and never seen
            history.do(2, "append", [key, -number], type_="info")
        lists[key].append(number)
    result = check_linearizable(history.ops, model=LIST_APPEND, configurations_max=20_000)
    assert result.valid is True
    assert result.counts["operations"] == 3000


# Against a search without any cleverness.


def brute_force(calls: list[tuple[Call, int]], model: Model[S]) -> bool:
    """Try every order of every choice of the unknown calls; an end of -1 is none."""
    known = [one for one in calls if one[0].is_known]
    unknown = [one for one in calls if not one[0].is_known]
    for count in range(len(unknown) + 1):
        for chosen in itertools.combinations(unknown, count):
            for order in itertools.permutations([*known, *chosen]):
                if _keeps_to_time(order) and _explains(order, model):
                    return True
    return False


def _keeps_to_time(order: tuple[tuple[Call, int], ...]) -> bool:
    return not any(
        later[1] != -1 and later[1] < earlier[0].index
        for earlier, later in itertools.combinations(order, 2)
    )


def _explains(order: tuple[tuple[Call, int], ...], model: Model[S]) -> bool:
    state = model.initial
    for call, _ in order:
        following = model.step(state, call)
        if following is None:
            return False
        state = following
    return True


REGISTER_CALLS = st.one_of(
    st.tuples(st.just("read"), st.none(), st.sampled_from([None, 0, 1])),
    st.tuples(st.just("write"), st.sampled_from([0, 1]), st.none()),
    st.tuples(
        st.just("cas"), st.lists(st.sampled_from([0, 1]), min_size=2, max_size=2), st.booleans()
    ),
)
LIST_CALLS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from([1, 2, 3]), st.none()),
    st.tuples(st.just("read"), st.none(), st.lists(st.sampled_from([1, 2, 3]), max_size=3)),
)


@st.composite
def small_histories(draw: st.DrawFn, some: st.SearchStrategy[Any]) -> list[Op]:
    """Up to six operations of up to three processes, some of unknown outcome."""
    ops: list[Op] = []
    running: dict[int, tuple[str, Any]] = {}
    fresh = itertools.count()
    workers = [next(fresh) for _ in range(3)]
    begun = 0
    while begun < 6 or running:
        idle = [worker for worker in workers if worker not in running]
        if begun < 6 and idle and (not running or draw(st.booleans())):
            process = draw(st.sampled_from(idle))
            f, argument, result = draw(some)
            running[process] = (f, result)
            ops.append(Op(len(ops), len(ops), process, "invoke", f, ["x", argument]))
            begun += 1
        else:
            process = draw(st.sampled_from(sorted(running)))
            f, result = running.pop(process)
            if draw(st.integers(0, 3)) == 0:
                ops.append(Op(len(ops), len(ops), process, "info", f, None))
                workers[workers.index(process)] = next(fresh)
            else:
                ops.append(Op(len(ops), len(ops), process, "ok", f, ["x", result]))
    return ops


def _calls(ops: list[Op]) -> list[tuple[Call, int]]:
    from jepsen.history.ops import pairs

    found = []
    for pair in pairs(ops):
        is_known = pair.type == "ok"
        result = shaped(pair.completion.value, Keyed).what if is_known and pair.completion else None
        argument = shaped(pair.invoke.value, Keyed).what
        call = Call(pair.invoke.f, argument, result, is_known, pair.invoke.index)
        found.append((call, pair.completion.index if is_known and pair.completion else -1))
    # A read of unknown outcome has no effect and no result that could be tried.
    return [one for one in found if one[0].is_known or one[0].f != "read"]


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(small_histories(REGISTER_CALLS))
def test_registers_are_judged_as_by_trying_every_order(ops: list[Op]) -> None:
    calls = _calls(ops)
    expected = brute_force(calls, REGISTER) if any(call.is_known for call, _ in calls) else None
    assert check_linearizable(ops, model=REGISTER).valid is expected


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(small_histories(LIST_CALLS))
def test_lists_are_judged_as_by_trying_every_order(ops: list[Op]) -> None:
    calls = _calls(ops)
    expected = brute_force(calls, LIST_APPEND) if any(call.is_known for call, _ in calls) else None
    assert check_linearizable(ops, model=LIST_APPEND).valid is expected


# Histories that others recorded, with known verdicts.

LINEARIZABLE = {"002", "005", "007", "018", "025", "031"}


@pytest.mark.parametrize("path", sorted(RECORDED.glob("etcd_*.log")), ids=lambda path: path.stem)
def test_recorded_histories_of_etcd_get_their_verdicts(path: Path) -> None:
    ops = read_register_log(path.read_text().splitlines())
    assert check_linearizable(ops, model=REGISTER).valid is (path.stem[-3:] in LINEARIZABLE)


@pytest.mark.parametrize("path", sorted(RECORDED.glob("kv_*.txt")), ids=lambda path: path.stem)
def test_recorded_histories_of_a_key_value_service_get_their_verdicts(path: Path) -> None:
    ops = read_kv_edn(path.read_text().splitlines())
    assert check_linearizable(ops, model=TEXT).valid is path.stem.endswith("-ok")


def test_logs_may_have_blanks_for_tabs_and_other_ends_of_lines() -> None:
    lines = (RECORDED / "etcd_002.log").read_text().splitlines()
    blank = [line.replace("\t", " ") + "\r\n" for line in lines]
    assert read_register_log(blank) == read_register_log(lines)
    maps = (RECORDED / "kv_c01-ok.txt").read_text().splitlines()
    spread = [line.replace(", ", "  ").replace(" ", "\t") + " \n" for line in maps]
    assert len(read_kv_edn(spread)) == len(read_kv_edn(maps))


def test_every_recorded_history_is_there() -> None:
    assert len(list(RECORDED.glob("etcd_*.log"))) == 12
    assert len(list(RECORDED.glob("kv_*.txt"))) == 4


def test_lines_of_another_format_are_refused_by_number() -> None:
    good = "INFO  jepsen.util - 0\t:invoke\t:read\tnil"
    with pytest.raises(RecordedFormatError, match="line 2"):
        read_register_log([good, "what?"])
    with pytest.raises(RecordedFormatError, match="no value"):
        read_register_log(["INFO  jepsen.util - 0\t:invoke\t:write\tabc"])
    with pytest.raises(RecordedFormatError, match="line 1"):
        read_kv_edn(["{:process 0}"])
