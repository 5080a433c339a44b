"""Transactions of the client against a group in memory (rules O1, O3, O20)."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest

from dledger_mq import (
    ClientUsageError,
    InvalidMessageError,
    Message,
    ReceivedMessage,
    RequestFailedError,
    SendError,
    SendOutcomeUnknownError,
    TransactionProducer,
    TransactionState,
    blocking,
)
from dledger_mq.client.link import Link
from dledger_mq.client.retry import SEND_STATUS
from dledger_mq.client.transaction_producer import LocalTransaction
from dledger_mq.message.properties import decode_properties
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.testing import LOST, FakeGroup, open_fake_group

pytestmark = pytest.mark.anyio

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = (
    TransactionState.COMMIT,
    TransactionState.ROLLBACK,
    TransactionState.UNKNOWN,
)


async def no_check(message: ReceivedMessage) -> TransactionState:
    raise AssertionError(f"not asked about {message.unique_key}")


def says(state: TransactionState | None) -> LocalTransaction:
    async def local(message: Message, transaction_id: str) -> TransactionState | None:
        return state

    return local


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(60):
        while not condition():
            await anyio.lowlevel.checkpoint()


async def test_o1_o3_the_message_is_stored_then_the_transaction_runs_then_it_is_visible() -> None:
    async with (
        open_fake_group() as group,
        TransactionProducer(group.namesrv, "p", checker=no_check) as producer,
    ):

        async def local(message: Message, transaction_id: str) -> TransactionState:
            (half,) = group.messages(HALF)
            named = decode_properties(half.properties)
            assert (named["TRAN_MSG"], named["PGROUP"]) == ("true", "p")
            assert named["UNIQ_KEY"] == transaction_id
            assert group.messages("T") == []
            return COMMIT

        result = await producer.send_in_transaction(Message("T", b"x", tags="A"), local)
        assert (result.state, result.is_confirmed) == (COMMIT, True)
        assert result.transaction_id == result.sent.transaction_id == result.sent.unique_key
        (message,) = group.messages("T")
        assert (message.body, message.sys_flag & 12) == (b"x", 8)
        assert message.find(b"TAGS") == b"A"


async def test_rolled_back() -> None:
    async with (
        open_fake_group() as group,
        TransactionProducer(group.namesrv, "p", checker=no_check) as producer,
    ):
        result = await producer.send_in_transaction(Message("T", b"x"), says(ROLLBACK))
        assert (result.state, result.is_confirmed) == (ROLLBACK, True)
        assert group.messages("T") == []


@pytest.mark.parametrize("state", [None, UNKNOWN])
async def test_unknown_says_nothing_and_the_checker_decides(state: TransactionState | None) -> None:
    asked: list[ReceivedMessage] = []

    async def check(message: ReceivedMessage) -> TransactionState | None:
        asked.append(message)
        return None if len(asked) == 1 else COMMIT

    async with (
        open_fake_group() as group,
        TransactionProducer(group.namesrv, "p", checker=check) as producer,
    ):
        result = await producer.send_in_transaction(Message("T", b"x"), says(state))
        assert (result.state, result.is_confirmed) == (UNKNOWN, False)
        await until(lambda: group.ask_about_open("p") and asked)
        assert asked[0].topic == "T"
        assert asked[0].unique_key == result.transaction_id
        await until(lambda: group.ask_about_open("p") == 0)
        assert [m.body for m in group.messages("T")] == [b"x"]


async def test_what_the_local_transaction_raises_goes_to_the_caller_and_leaves_it_open() -> None:
    async def fails(message: Message, transaction_id: str) -> TransactionState:
        raise LookupError("no stock")

    async def check(message: ReceivedMessage) -> TransactionState:
        return ROLLBACK

    async with (
        open_fake_group() as group,
        TransactionProducer(group.namesrv, "p", checker=check) as producer,
    ):
        with pytest.raises(LookupError):
            await producer.send_in_transaction(Message("T", b"x"), fails)
        assert group.transactions.verdicts == {}
        await until(lambda: group.ask_about_open("p") == 0)
        assert group.transactions.verdicts == {0: 12}


async def test_a_checker_that_fails_is_asked_again() -> None:
    calls = 0

    async def check(message: ReceivedMessage) -> TransactionState:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("the database is away")
        return COMMIT

    async with (
        open_fake_group() as group,
        TransactionProducer(group.namesrv, "p", checker=check) as producer,
    ):
        await producer.send_in_transaction(Message("T", b"x"), says(UNKNOWN))
        await until(lambda: group.ask_about_open("p") == 0)
        assert calls == 2


async def test_a_checker_whose_answer_is_none_is_asked_again() -> None:
    answers: list[object] = [True, "COMMIT", 8, COMMIT]

    async def check(message: ReceivedMessage) -> TransactionState:
        return answers.pop(0)  # type: ignore[return-value]  # on purpose

    async with (
        open_fake_group() as group,
        TransactionProducer(group.namesrv, "p", checker=check) as producer,
    ):
        await producer.send_in_transaction(Message("T", b"x"), says(UNKNOWN))
        await until(lambda: group.ask_about_open("p") == 0)
        assert not answers
        await producer.send(Message("T", b"the producer lives"))


async def test_a_transaction_has_no_message_group() -> None:
    async with (
        open_fake_group() as group,
        TransactionProducer(group.namesrv, "p", checker=no_check) as producer,
    ):
        with pytest.raises(InvalidMessageError, match="no message group"):
            await producer.send_in_transaction(Message("T", b"x", message_group="g"), says(COMMIT))


async def test_a_transaction_that_still_runs_here_is_not_checked() -> None:
    async with (
        open_fake_group() as group,
        TransactionProducer(group.namesrv, "p", checker=no_check) as producer,
    ):

        async def slow(message: Message, transaction_id: str) -> TransactionState:
            await until(lambda: any(node.heartbeats for node in group.nodes))
            assert group.ask_about_open("p") == 1
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            return COMMIT

        result = await producer.send_in_transaction(Message("T", b"x"), slow)
        assert result.is_confirmed


async def test_the_end_is_told_to_the_next_leader() -> None:
    async with (
        open_fake_group() as group,
        TransactionProducer(group.namesrv, "p", checker=no_check) as producer,
    ):

        async def local(message: Message, transaction_id: str) -> TransactionState:
            await group.kill(group.nodes[0])
            group.elect(group.nodes[1])
            return COMMIT

        result = await producer.send_in_transaction(Message("T", b"x"), local)
        assert (result.state, result.is_confirmed) == (COMMIT, True)
        assert len(group.messages("T")) == 1


async def test_an_end_that_nobody_takes_is_not_confirmed() -> None:
    async with (
        open_fake_group() as group,
        TransactionProducer(group.namesrv, "p", checker=no_check) as producer,
    ):

        async def local(message: Message, transaction_id: str) -> TransactionState:
            for node in group.nodes:
                await group.kill(node)
            return COMMIT

        await producer.queues("T")
        for timeout_s in (0.3, 5.0, 30.0):  # in which the half message has to be stored
            try:
                result = await producer.send_in_transaction(
                    Message("T", b"x"), local, timeout_s=timeout_s
                )
                break
            except SendError:
                pass
        assert (result.state, result.is_confirmed) == (COMMIT, False)


async def test_what_a_check_decided_before_counts() -> None:
    async with (
        open_fake_group() as group,
        TransactionProducer(group.namesrv, "p", checker=no_check) as producer,
    ):

        async def local(message: Message, transaction_id: str) -> TransactionState:
            group.transactions.verdicts[0] = 12
            return COMMIT

        result = await producer.send_in_transaction(Message("T", b"x"), local)
        assert (result.state, result.is_confirmed) == (ROLLBACK, True)


@pytest.mark.parametrize(("code", "fails"), [(604, False), (1, True)])
async def test_an_end_that_is_refused(
    code: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dledger_mq.remoting.header import make_response

    def refuse(request: RemotingCommand) -> RemotingCommand:
        return make_response(request.opaque, code, "no")

    async with (
        open_fake_group() as group,
        TransactionProducer(group.namesrv, "p", checker=no_check) as producer,
    ):
        monkeypatch.setattr(group.transactions, "end", refuse)
        if fails:
            with pytest.raises(RequestFailedError):
                await producer.send_in_transaction(Message("T", b"x"), says(COMMIT))
        else:
            result = await producer.send_in_transaction(Message("T", b"x"), says(COMMIT))
            assert (result.state, result.is_confirmed) == (UNKNOWN, False)


async def test_o3_other_statuses_than_send_ok_are_rolled_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    monkeypatch.setitem(SEND_STATUS, 0, "FLUSH_DISK_TIMEOUT")

    async def never(message: Message, transaction_id: str) -> TransactionState:
        raise AssertionError("it must not run")

    async with (
        open_fake_group() as group,
        TransactionProducer(group.namesrv, "p", checker=no_check) as producer,
    ):
        result = await producer.send_in_transaction(Message("T", b"x"), never)
        assert result.state is ROLLBACK


async def test_a_half_message_of_unknown_outcome_runs_nothing() -> None:
    async def never(message: Message, transaction_id: str) -> TransactionState:
        raise AssertionError("it must not run")

    async with (
        open_fake_group() as group,
        TransactionProducer(group.namesrv, "p", checker=no_check) as producer,
    ):
        await producer.queues("T")
        group.script.extend([LOST] * 50)
        for timeout_s in (0.3, 5.0, 30.0):  # in which it has to leave
            with pytest.raises(SendError) as caught:
                await producer.send_in_transaction(Message("T", b"x"), never, timeout_s=timeout_s)
            if isinstance(caught.value, SendOutcomeUnknownError):
                break
        assert isinstance(caught.value, SendOutcomeUnknownError)


async def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        open_fake_group() as group,
        TransactionProducer(group.namesrv, "p", checker=no_check) as producer,
    ):
        with pytest.raises(ClientUsageError):
            await producer.send_in_transaction(
                Message("T", b"x"),
                says(COMMIT),
                check_after_s=-1,
            )
        with pytest.raises(InvalidMessageError):
            await producer.send_in_transaction(Message("T", b""), says(COMMIT))
        full = Message("T", b"x", properties={"a": "x" * 32_700})
        with pytest.raises(InvalidMessageError, match="at most 32767"):
            await producer.send_in_transaction(full, says(COMMIT))
        assert group.messages(HALF) == []
        await producer.send_in_transaction(
            Message("T", b"x"),
            says(COMMIT),
            check_after_s=60,
        )
        (half,) = group.messages(HALF)
        assert half.find(b"CHECK_IMMUNITY_TIME_IN_SECONDS") == b"60"


async def test_checks_of_other_groups_and_unreadable_ones_are_left_alone() -> None:
    async with (
        open_fake_group() as group,
        TransactionProducer(group.namesrv, "p", checker=no_check) as producer,
    ):
        await producer.send_in_transaction(Message("T", b"x"), says(COMMIT))
        await until(lambda: group._producers.ids("p"))
        group.put(
            HALF,
            0,
            b"x",
            b"UNIQ_KEY\x01u\x02PGROUP\x01q\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02",
        )
        assert group.ask_about_open("p") == 1
        await _send_nonsense(group)
        await producer.send(Message("T", b"still here"))
        assert set(group.transactions.verdicts) == {0}


class Told(TransactionProducer):
    """Remembers what it was asked."""

    def _on_check(self, link: Link, command: RemotingCommand) -> None:
        self.asked = (link, command)
        super()._on_check(link, command)


async def test_a_check_that_comes_while_the_producer_is_closed_is_left_to_another_one() -> None:
    async def check(message: ReceivedMessage) -> TransactionState:
        with anyio.CancelScope(shield=True):  # as applications do around what must not be cut off
            await until(lambda: producer._maker.session is None)
        return COMMIT

    async with open_fake_group() as group:
        async with Told(group.namesrv, "p", checker=check) as producer:
            await producer.send_in_transaction(Message("T", b"x"), says(UNKNOWN))
            await until(lambda: group.ask_about_open("p") and hasattr(producer, "asked"))
            assert producer._checking
        assert not producer._checking
        assert group.messages("T") == []
        # What had been read already when it closed.
        producer._on_check(*producer.asked)  # type: ignore[attr-defined]  # set by the first
        assert producer._make_heartbeat() is None


async def _send_nonsense(group: FakeGroup) -> None:
    from dledger_mq.remoting.header import encode_command, make_request

    for connection in group._producers.connections("p"):
        connection.send_nowait(encode_command(make_request(39, 0, {}, b"xx", is_oneway=True)))


@pytest.mark.slow
async def test_without_async() -> None:
    def check(message: ReceivedMessage) -> TransactionState:
        return COMMIT

    def local(message: Message, transaction_id: str) -> TransactionState:
        return ROLLBACK if message.body == b"no" else COMMIT

    def run(namesrv: str) -> None:
        with blocking.TransactionProducer(namesrv, "p", checker=check) as producer:
            yes = producer.send_in_transaction(Message("T", b"yes"), local)
            no = producer.send_in_transaction(Message("T", b"no"), local)
            plain = producer.send(Message("T", b"plain"))
        assert (yes.state, no.state) == (COMMIT, ROLLBACK)
        assert plain.status == "SEND_OK"

    async with open_fake_group() as group:
        await anyio.to_thread.run_sync(run, group.namesrv)
        assert sorted(m.body for m in group.messages("T")) == [b"plain", b"yes"]
