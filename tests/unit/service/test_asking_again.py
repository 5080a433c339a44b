"""Which client is told what, when nobody can tell it its offset; the interop tests try it with the clients."""

from __future__ import annotations

import pytest

from broker.service.asking_again import UnknownOffsetAnswer, unknown_offset_answer, wants_empty_list


@pytest.mark.parametrize(
    ("language", "version", "answer"),
    [
        ("CPP", 63, UnknownOffsetAnswer.NO_OFFSET),
        ("CPP", 333, UnknownOffsetAnswer.NO_OFFSET),
        ("JAVA", 121, UnknownOffsetAnswer.NO_OFFSET),
        ("JAVA", 37, UnknownOffsetAnswer.LATE_REASON),
        ("JAVA", 273, UnknownOffsetAnswer.LATE_REASON),
        ("JAVA", 409, UnknownOffsetAnswer.LATE_REASON),
        ("JAVA", 413, UnknownOffsetAnswer.REASON),
        ("JAVA", 479, UnknownOffsetAnswer.REASON),
        ("JAVA", 0, UnknownOffsetAnswer.REASON),
        ("GO", 317, UnknownOffsetAnswer.REASON),
        ("PYTHON", 409, UnknownOffsetAnswer.REASON),
        ("RUST", 1, UnknownOffsetAnswer.REASON),
    ],
)
def test_each_client_asks_again_in_its_own_way(
    language: str, version: int, answer: UnknownOffsetAnswer
) -> None:
    assert unknown_offset_answer(language, version) is answer


def test_only_the_node_client_wants_an_empty_list() -> None:
    wanting = [
        who
        for who in [("JAVA", 121), ("JAVA", 409), ("CPP", 63), ("GO", 317), ("PYTHON", 409)]
        if wants_empty_list(*who)
    ]
    assert wanting == [("JAVA", 121)]
