"""Calls and answers of log clients; above all: an error keeps its certainty on the way."""

from __future__ import annotations

import msgspec
import pytest

from dledger.codec.client_rpc import (
    AppendAnswer,
    AppendCall,
    EntriesAnswer,
    Failure,
    GetCall,
    StatusAnswer,
    StatusCall,
    TransferAnswer,
    TransferCall,
    decode_answer,
    decode_call,
    error_of,
    failure_of,
)
from dledger.codec.wire_types import Header, encode_header
from dledger.errors import (
    CompactedError,
    CorruptionError,
    DLedgerError,
    HandshakeRefusedError,
    NotLeaderError,
    OutcomeUnknownError,
    OutOfRangeError,
    PeerProtocolError,
    registry,
)


@pytest.mark.parametrize(
    "call",
    [
        AppendCall(1),
        GetCall(2, 3, 4, 5, True),
        StatusCall(6),
        TransferCall(7, "n1"),
        TransferCall(8, ""),
    ],
)
def test_calls_come_back(call: Header) -> None:
    assert decode_call(encode_header(call)) == call


@pytest.mark.parametrize(
    "answer",
    [
        AppendAnswer(1, 2, 3, 4),
        EntriesAnswer(1, 2),
        TransferAnswer(1, "n2"),
        Failure(1, "not_leader", "why", leader_id="n0"),
        StatusAnswer(
            1,
            "n0",
            "leader",
            2,
            "n0",
            1,
            9,
            8,
            7,
            9,
            True,
            ["n1"],
            {"n1": 9},
            150,
            3,
            {"a": "b"},
            77,
        ),
    ],
)
def test_answers_come_back(answer: Header) -> None:
    assert decode_answer(encode_header(answer)) == answer


def test_nonsense_is_refused() -> None:
    for header in (["append"], ["append", "1"], ["get", 1, 2, 3, 4, 5], ["nothing", 1]):
        with pytest.raises(PeerProtocolError):
            decode_call(msgspec.msgpack.encode(header))
        with pytest.raises(PeerProtocolError):
            decode_answer(msgspec.msgpack.encode(header))


def example_of(kind: type[DLedgerError]) -> DLedgerError:
    if kind is NotLeaderError:
        return NotLeaderError("n2", 5)
    if kind is CompactedError:
        return CompactedError(3, 10)
    if kind is OutOfRangeError:
        return OutOfRangeError(30, 1, 20)
    if kind is CorruptionError:
        return CorruptionError("data/0", 4096, "crc")
    if kind is HandshakeRefusedError:
        return HandshakeRefusedError("group", "other group")
    return kind("some reason")


@pytest.mark.parametrize("code", sorted(registry()))
def test_an_error_is_never_more_definite_after_the_wire(code: str) -> None:
    """Less is allowed: what has no plain text form becomes an unknown outcome."""
    error = example_of(registry()[code])
    failure = failure_of(7, error)
    found = error_of(decode_answer(encode_header(failure)))
    assert error.definite or not found.definite
    if type(found) is not OutcomeUnknownError:
        assert type(found) is type(error)
        assert str(found) == str(error)


def test_a_redirect_keeps_leader_address_and_term() -> None:
    failure = failure_of(7, NotLeaderError("n2", 5), leader_address="10.0.0.2:20911")
    assert (failure.leader_id, failure.leader_address, failure.term) == ("n2", "10.0.0.2:20911", 5)
    found = error_of(failure)
    assert isinstance(found, NotLeaderError)
    assert (found.leader_id, found.term) == ("n2", 5)


def test_why_there_is_no_leader_is_told() -> None:
    error = NotLeaderError(None, 5, "the majority is lost: n1; and n2")
    assert str(error_of(failure_of(7, error))) == str(error)


def test_an_unheard_of_code_is_an_unknown_outcome() -> None:
    assert type(error_of(Failure(1, "from-the-future", "?"))) is OutcomeUnknownError
