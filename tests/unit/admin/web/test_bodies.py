"""Bodies as text, JSON and hexadecimal digits: bounded, whatever they inflate to or how deep they are."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.admin.web.bodies import HEX_BYTES_MAX, SHOWN_BYTES_MAX, body_view
from dledger_mq.message import sys_flags

ZLIB = sys_flags.COMPRESSED | sys_flags.COMPRESSION_ZLIB


@given(
    st.binary(max_size=200),
    st.sampled_from([0, sys_flags.COMPRESSED, ZLIB, 0x101, 0x201, 2**31 - 1]),
)
def test_any_body_has_digits(body: bytes, sys_flag: int) -> None:
    view = body_view(body, sys_flag)
    assert list(view.forms())[-1] == "hex"
    if not sys_flag:
        assert bytes.fromhex("".join(row[8:55] for row in view.as_hex.split("\n"))) == body
        is_text = b"\0" not in body and body.decode(errors="replace").encode() == body
        assert (view.text is not None) == is_text or "\ufffd" in body.decode(errors="replace")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.lists(JSON) | st.dictionaries(st.text(), JSON))
def test_json_is_laid_out_and_means_the_same(value: object) -> None:
    text = json.dumps(value)
    view = body_view(text.encode(), 0)
    assert view.as_json is not None
    assert json.loads(view.as_json) == value
    assert (view.text, view.form("")[0]) == (text, "json")


@pytest.mark.parametrize(
    "body", [b"[" * 50_000, b"{", b'{"a":}', b"[1,]", b"plain", b"12", b"[" + b"9" * 5000 + b"]"]
)
def test_what_is_no_json_is_text(body: bytes) -> None:
    assert body_view(body, 0).form("json") == ("text", body.decode())


def test_a_form_that_it_has_not_is_the_best_that_it_has() -> None:
    assert body_view(b"\xff\x00", 0).form("text")[0] == "hex"
    assert body_view(b"[]", 0).form("text") == ("text", "[]")
    assert body_view(b"[]", 0).form("evil")[0] == "json"


def test_a_compressed_body_is_shown_as_it_was_sent() -> None:
    view = body_view(zlib.compress(b'{"a": 1}'), ZLIB)
    assert (view.text, view.note) == ('{"a": 1}', "was compressed")


def test_a_small_body_that_inflates_without_end_is_cut() -> None:
    bomb = zlib.compress(b"\n" * (16 * 1024 * 1024), 9)
    view = body_view(bomb, ZLIB)
    assert view.stored_bytes == len(bomb) < 20_000
    assert len(view.text or "") == SHOWN_BYTES_MAX
    assert f"only the first {SHOWN_BYTES_MAX} bytes" in view.note


@pytest.mark.parametrize(
    ("body", "sys_flag", "note"),
    [
        (b"no zlib", ZLIB, "said to be compressed, but cannot be unpacked"),
        (
            b"\x04\x22",
            sys_flags.COMPRESSED | sys_flags.COMPRESSION_LZ4,
            "in a way that is not known",
        ),
    ],
)
def test_what_cannot_be_unpacked_is_shown_as_it_is_stored(
    body: bytes, sys_flag: int, note: str
) -> None:
    view = body_view(body, sys_flag)
    assert note in view.note
    assert body[:2].hex(" ") in view.as_hex


def test_a_long_body_is_cut_between_characters() -> None:
    for shift in range(3):
        body = b"x" * shift + "\N{EURO SIGN}".encode() * SHOWN_BYTES_MAX
        view = body_view(body, 0)
        assert view.text is not None
        assert set(view.text[shift:]) == {"\N{EURO SIGN}"}
        assert view.as_json is None
        assert len(view.as_hex.split("\n")) == HEX_BYTES_MAX // 16


def test_half_a_character_at_the_end_of_a_whole_body_is_no_text() -> None:
    assert body_view("\N{EURO SIGN}".encode()[:2], 0).text is None
