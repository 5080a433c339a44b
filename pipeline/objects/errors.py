"""Errors of the libraries of stores as OSError: one sentence that names the place, with no secret in it.

What an error came from is dropped as well, since tracebacks show it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SECRETS: Final = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")
_HIDDEN: Final = "(hidden)"
_UPLOAD: Final = re.compile(r"(upload_id=)[^\s&'\"]+")
"""Whoever has the address of an upload to Google's store may go on with it, without an account."""

_OF_LIBRARIES: Final = (
    ("botocore.exceptions", "BotoCoreError"),
    ("aiohttp", "ClientError"),
    ("google.api_core.exceptions", "GoogleAPIError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("google.cloud.storage.exceptions", "DataCorruption"),
    ("google.cloud.storage.exceptions", "InvalidResponse"),
)
"""Base classes of what the libraries raise beside Python's own errors."""

_OF_HADOOP: Final = re.compile(r'(?:Fatal)?RPCError\("(?:\w+\.)*(\w+)", "(.*)"\)', re.DOTALL)
"""A name node's answer as hdfs-native tells it: a Java class, and its message, often with a stack behind it."""

_OF_DATA_NODES: Final = re.compile(r'DataTransferError\("(.*)"\)', re.DOTALL)
_DATA_NODE: Final = re.compile(r'host_name: \\?"([^"\\]*).*?xfer_port: ([0-9]+)', re.DOTALL)
"""One of a list of data nodes, each of which hdfs-native shows with all that the name node knows of it."""

_CUT_OFF: Final = "RPC listener disconnected"

_OF_CODES: Final = {
    401: PermissionError,
    403: PermissionError,
    404: FileNotFoundError,
    412: FileExistsError,
}
_OF_CLASSES: Final = {
    "AccessControlException": PermissionError,
    "AuthorizationException": PermissionError,
    "FileAlreadyExistsException": FileExistsError,
    "FileNotFoundException": FileNotFoundError,
}
_PLAIN: Final = (FileNotFoundError, FileExistsError, PermissionError)


@contextmanager
def plain_errors(place: str) -> Iterator[None]:
    """Let errors of the libraries out as OSError, FileNotFoundError, FileExistsError or PermissionError.

    Args:
        place: what was asked for, for the text.
    """
    try:
        yield
    except _library_errors() as error:
        kind, text = _described(error)
        text = shown(text)
        raise kind(text if place in text else f"{place}: {text}") from None


def _library_errors() -> tuple[type[BaseException], ...]:
    """Return what the libraries raise that are in use."""
    found: list[type[BaseException]] = [OSError, ValueError, RuntimeError]
    for module, name in _OF_LIBRARIES:
        if module in sys.modules:
            found.append(getattr(sys.modules[module], name))
    return tuple(found)


def _described(error: BaseException) -> tuple[type[OSError], str]:
    """Return the kind of a library's error, and its text in the words of people."""
    text = str(error) or type(error).__name__
    of_hadoop = _OF_HADOOP.fullmatch(text)
    if of_hadoop:
        message = of_hadoop[2].partition("\\n")[0].replace('\\"', '"')
        return _OF_CLASSES.get(of_hadoop[1], OSError), f"{of_hadoop[1]}: {message}"
    of_data_nodes = _OF_DATA_NODES.fullmatch(text)
    if of_data_nodes:
        return OSError, _without_details(of_data_nodes[1])
    if text == _CUT_OFF:
        return OSError, f"what listens there ended the connection before it answered ({text})"
    for kind in _PLAIN:
        if isinstance(error, kind):
            return kind, text
    answer = getattr(error, "response", None)
    code = getattr(error, "code", None) or getattr(answer, "status_code", None)
    return _OF_CODES.get(code or 0, OSError), text


def _without_details(text: str) -> str:
    """Return what a client of data nodes says, with no more of these than their addresses."""
    said, _, nodes = text.partition(" [")
    addresses = [f"{host}:{port}" for host, port in _DATA_NODE.findall(nodes)]
    return f"{said} {', '.join(addresses)}" if addresses else text


def shown(text: str) -> str:
    """Return a text of a library without the credentials of this process's environment."""
    for name in _SECRETS:
        secret = os.environ.get(name)
        if secret:
            text = text.replace(secret, _HIDDEN)
    return _UPLOAD.sub(rf"\g<1>{_HIDDEN}", text)
