"""Which client is told what, when nobody can tell it its offset; the interop tests try it with the clients."""

from __future__ import annotations

import pytest

from broker.service.asking_again import Untold, offset_untold, wants_empty_list


@pytest.mark.parametrize(
    ("language", "version", "untold"),
    [
        ("CPP", 63, Untold.NO_OFFSET),
        ("CPP", 333, Untold.NO_OFFSET),
        ("JAVA", 121, Untold.NO_OFFSET),
        ("JAVA", 37, Untold.LATE_REASON),
        ("JAVA", 273, Untold.LATE_REASON),
        ("JAVA", 409, Untold.LATE_REASON),
        ("JAVA", 413, Untold.REASON),
        ("JAVA", 479, Untold.REASON),
        ("JAVA", 0, Untold.REASON),
        ("GO", 317, Untold.REASON),
        ("PYTHON", 409, Untold.REASON),
        ("RUST", 1, Untold.REASON),
    ],
)
def test_each_client_asks_again_in_its_own_way(language: str, version: int, untold: Untold) -> None:
    assert offset_untold(language, version) is untold


def test_only_the_node_client_wants_an_empty_list() -> None:
    wanting = [
        who
        for who in [("JAVA", 121), ("JAVA", 409), ("CPP", 63), ("GO", 317), ("PYTHON", 409)]
        if wants_empty_list(*who)
    ]
    assert wanting == [("JAVA", 121)]
