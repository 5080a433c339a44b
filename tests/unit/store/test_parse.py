"""What the fold reads of properties."""

from __future__ import annotations

import pytest

from broker.store.parse import folded_properties


@pytest.mark.parametrize(
    "before", [b"", b"MY_UNIQ_KEY\x01other\x02", b"a\x01UNIQ_KEY\x02", b"a\x01b\x02"]
)
@pytest.mark.parametrize("behind", [b"", b"a\x01b\x02", b"MY_UNIQ_KEY\x01other\x02"])
def test_the_unique_key_is_the_property_of_that_name_and_of_no_longer_one(
    before: bytes, behind: bytes
) -> None:
    assert folded_properties(before + b"UNIQ_KEY\x01k\x02" + behind)[1] == b"k"


def test_a_longer_name_is_no_unique_key() -> None:
    assert folded_properties(b"MY_UNIQ_KEY\x01other\x02")[1] is None
