"""Definite and indefinite: nothing is decided in the harness that the project's registries decide."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from dledger.errors import DLedgerError, OutcomeUnknownError, RefusedError, registry
from dledger_mq.client import errors as client_errors
from dledger_mq.client.errors import ClientError, RequestFailedError, SendError
from dledger_mq.remoting.codes import RESPONSES
from jepsen.history.outcomes import ended, is_definite


def client_classes() -> Iterator[type[ClientError]]:
    for _, kind in inspect.getmembers(client_errors, inspect.isclass):
        if issubclass(kind, ClientError) and kind is not RequestFailedError:
            yield kind


def made(kind: type[BaseException]) -> BaseException:
    """An error of a class, whatever its constructor wants: only the class is looked at."""
    return kind.__new__(kind)


@pytest.mark.parametrize("kind", list(client_classes()))
def test_every_error_of_the_clients_is_what_its_class_says(kind: type[ClientError]) -> None:
    assert is_definite(made(kind)) is kind.definite


@pytest.mark.parametrize("kind", list(registry().values()))
def test_every_error_of_the_log_is_what_its_class_says(kind: type[DLedgerError]) -> None:
    assert is_definite(made(kind)) is kind.definite


@pytest.mark.parametrize("code", list(RESPONSES))
def test_every_response_code_is_what_its_row_says(code: int) -> None:
    error = RequestFailedError(code, "said the broker")
    assert is_definite(error) is RESPONSES[code].definite  # type: ignore[index]  # an int finds its IntEnum key


def test_the_promises_that_everything_rests_on() -> None:
    assert is_definite(RefusedError("no"))
    assert not is_definite(OutcomeUnknownError("perhaps"))
    assert not is_definite(client_errors.ConnectionLostError("gone"))
    assert not is_definite(client_errors.RequestTimeoutError("silent"))
    assert is_definite(made(client_errors.SendRefusedError))
    assert not is_definite(made(client_errors.SendOutcomeUnknownError))
    assert not is_definite(made(SendError)) or SendError.definite


def test_a_code_that_nobody_knows_leaves_everything_open() -> None:
    assert not is_definite(RequestFailedError(31_999, "?"))


@pytest.mark.parametrize("error", [OSError("broken pipe"), ValueError("x"), TimeoutError()])
def test_what_is_of_no_registry_leaves_everything_open(error: Exception) -> None:
    assert ended(error).type == "info"


def test_what_changes_nothing_fails_whatever_the_error() -> None:
    outcome = ended(OSError("broken pipe"), {"queue": "q"}, changes_nothing=True, node="n1")
    assert (outcome.type, outcome.value, outcome.node) == ("fail", {"queue": "q"}, "n1")
    assert outcome.error == "OSError: broken pipe"


def test_a_refused_change_fails_and_one_without_an_answer_is_open() -> None:
    assert ended(RefusedError("no")).type == "fail"
    assert ended(OutcomeUnknownError("perhaps")).type == "info"
