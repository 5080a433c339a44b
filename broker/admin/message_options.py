"""Options of commands that print messages: how many, of which time, and how their bodies are shown."""

from __future__ import annotations

import argparse

from broker.admin.message_view import BODY_BYTES, BODY_BYTES_MAX
from broker.admin.moments import FORMS
from broker.admin.options import count, moment
from dledger_mq.message.errors import MessageIdError
from dledger_mq.message.ids import parse_offset_msg_id


def add_body_form(command: argparse.ArgumentParser) -> None:
    """Add how bodies are shown."""
    command.add_argument(
        "--body",
        choices=("text", "hex", "base64", "none"),
        default="text",
        help="how bodies are shown; text: what is no text in hex (default)",
    )
    command.add_argument(
        "--body-bytes",
        type=count(0, BODY_BYTES_MAX),
        default=BODY_BYTES,
        metavar="N",
        help="at most so many bytes of each body (%(default)s)",
    )


def add_limit(command: argparse.ArgumentParser, default: int, most: int) -> None:
    """Add how many messages are printed."""
    command.add_argument(
        "-c",
        "--limit",
        type=count(1, most),
        default=default,
        metavar="N",
        help="at most so many messages (%(default)s)",
    )


def add_key_kind(command: argparse.ArgumentParser) -> None:
    """Add among which keys a key is looked for."""
    command.add_argument(
        "-kt",
        "--kind",
        choices=("any", "keys", "unique"),
        default="any",
        help="among which keys: one of KEYS, the UNIQ_KEY, or any (default)",
    )


def add_span(command: argparse.ArgumentParser) -> None:
    """Add the time in which they were stored."""
    command.add_argument(
        "-b", "--begin", type=moment, metavar="TIME", help=f"stored then or later: {FORMS}"
    )
    command.add_argument("-e", "--end", type=moment, metavar="TIME", help="stored then or earlier")


def offset_id(text: str) -> str:
    """Read an offset message id.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        parse_offset_msg_id(text)
    except MessageIdError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text.upper()
