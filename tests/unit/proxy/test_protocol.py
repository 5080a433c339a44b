"""The messages of the wire, and their numbers."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

import pytest

pytest.importorskip("google.protobuf")

from broker.proxy import protocol
from broker.proxy.protocol import numbers

FOLDER = Path(protocol.__file__).parent


@pytest.mark.parametrize(
    "kind",
    [
        numbers.ClientType,
        numbers.Code,
        numbers.DigestType,
        numbers.Encoding,
        numbers.FilterType,
        numbers.MessageType,
        numbers.QueuePermission,
        numbers.TransactionResolution,
    ],
)
def test_numbers_are_those_of_the_wire(kind: type[IntEnum]) -> None:
    name = kind.__name__.removeprefix("Queue")
    found = protocol.POOL.FindEnumTypeByName(f"{protocol.PACKAGE}.{name}")
    assert {one.name: one.value for one in kind} == {
        one.name: found.values_by_name[one.name].number for one in kind
    }


def test_the_source_of_a_check_is_that_of_the_wire() -> None:
    found = protocol.POOL.FindEnumTypeByName(f"{protocol.PACKAGE}.TransactionSource")
    assert found.values_by_name["SOURCE_SERVER_CHECK"].number == numbers.SOURCE_SERVER_CHECK


def test_the_messages_are_made_from_the_text_beside_them(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed")
    made = tmp_path / "messaging.pb"
    arguments = [f"-I{FOLDER}", f"--descriptor_set_out={made}", str(FOLDER / "messaging.proto")]
    assert protoc.main(["protoc", *arguments]) == 0
    assert made.read_bytes() == (FOLDER / "messaging.pb").read_bytes()
