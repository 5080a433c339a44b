"""Commands: the header of a frame read and written, with all its fields.

This is the general way, for every code; `requests.py` has the fast way for the hot requests.
Headers are read as JSON or ROCKETMQ (binary) and always written as JSON, which every client reads.
Whatever type a client gave an ext value (C++ and Node send numbers and booleans), it is text here:
true -> "true", 5 -> "5". What goes out is text always: Go and C++ read nothing else.

Layout of a ROCKETMQ header, big-endian (docs/formats/remoting.md, "Header"): int16 code, int8 language, int16
version, int32 opaque, int32 flag, int32 remark length, remark, int32 ext length, then per entry int16 key
length, key, int32 value length, value; texts in UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct as Layout
from struct import error as LayoutError  # noqa: N812 - an exception class, named like its companion
from typing import Final

import msgspec

from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import Frame, SerializeType, encode_frame

PROTOCOL_VERSION: Final = 409
"""The release that our answers claim: 4.9.8. It lets Java use SQL92 and promises nothing of 5.x."""

LANGUAGE: Final = "JAVA"

LANGUAGES: Final = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
)
"""By the number that a ROCKETMQ header holds."""

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

EXT_ENTRIES_MAX: Final = 1024
"""The largest real header has 20 entries."""

_BINARY_HEAD: Final = Layout(">hbhii")
_INT32: Final = Layout(">i")
_INT16: Final = Layout(">h")


class RemotingCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A request or an answer.

    Attributes:
        code: request code or response code.
        opaque: int32; an answer carries that of its request. Both directions count on their own.
        flag: FLAG_ bits. Do not rely on FLAG_ONEWAY being set: Go, C++ and Node omit it.
        language: name of the sender's language.
        version: ordinal of the sender's release.
        remark: free text; the error text of a failure.
        ext: the named fields.
        body: not interpreted.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    language: str = LANGUAGE
    version: int = PROTOCOL_VERSION
    remark: str | None = None
    ext: dict[str, str] = {}
    body: bytes = b""

    @property
    def is_response(self) -> bool:
        """True if this answers a request of the receiver."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """True if the sender asks for no answer."""
        return bool(self.flag & FLAG_ONEWAY)


_Scalar = str | int | float | bool | None


class _JsonHeader(msgspec.Struct):
    code: int
    flag: int = 0
    language: str | int | None = LANGUAGE
    version: int = 0
    opaque: int = 0
    remark: str | None = None
    extFields: dict[str, _Scalar] | None = None  # noqa: N815 - the name on the wire


class _TextHeader(msgspec.Struct):
    """A header whose ext values are all text, as Java and ours write them: these need no look at each."""

    code: int
    flag: int = 0
    language: str | int | None = LANGUAGE
    version: int = 0
    opaque: int = 0
    remark: str | None = None
    texts: dict[str, str] | None = msgspec.field(name="extFields", default=None)


class _JsonHeaderOut(msgspec.Struct):
    """Members in the order in which the Java side writes them."""

    code: int
    extFields: dict[str, str]  # noqa: N815 - the name on the wire
    flag: int
    language: str
    opaque: int
    remark: str | msgspec.UnsetType
    serializeTypeCurrentRPC: str  # noqa: N815 - the name on the wire
    version: int


_decode_json: Final = msgspec.json.Decoder(_JsonHeader).decode
_decode_text: Final = msgspec.json.Decoder(_TextHeader).decode
_encode_json: Final = msgspec.json.Encoder().encode


def decode_command(frame: Frame) -> RemotingCommand:
    """Read the header of a frame.

    Raises:
        FrameError: the header is not what its serialize type demands, or holds more than
            EXT_ENTRIES_MAX entries.
    """
    if frame.serialize_type == SerializeType.JSON:
        return _from_json(frame)
    return _from_binary(frame)


def _from_json(frame: Frame) -> RemotingCommand:
    """Decode a JSON header; other types than text become text, as all fields are kept (the module's head)."""
    header: _TextHeader | _JsonHeader
    try:
        header = _decode_text(frame.header)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        header, ext = _mixed_json(frame)
    else:
        ext = header.texts or {}
        _check_count(ext)
    if not (_is_int32(header.opaque) and _is_int32(header.flag) and _is_int32(header.code)):
        raise FrameError(
            f"code {header.code}, opaque {header.opaque} or flag {header.flag} is not an int32"
        )
    language = header.language
    if not isinstance(language, str):
        language = _language_name(-1 if language is None else language)
    return RemotingCommand(
        code=header.code,
        opaque=header.opaque,
        flag=header.flag,
        language=language,
        version=header.version if _is_int32(header.version) else 0,
        remark=header.remark,
        ext=ext,
        body=frame.body,
    )


def _mixed_json(frame: Frame) -> tuple[_JsonHeader, dict[str, str]]:
    """Decode a JSON header whose ext values are of several types, and make them text."""
    try:
        header = _decode_json(frame.header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FrameError(f"header is not a JSON command header: {error}") from error
    ext = header.extFields or {}
    _check_count(ext)
    return header, {key: _text(value) for key, value in ext.items() if value is not None}


def _check_count(ext: Mapping[str, object]) -> None:
    if len(ext) > EXT_ENTRIES_MAX:
        raise FrameError(f"{len(ext)} ext fields, at most {EXT_ENTRIES_MAX}")


def _text(value: str | int | float) -> str:
    """Return the text of an ext value as the Java side would turn it into a string."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return str(int(value))
    return str(value)


def _is_int32(value: int) -> bool:
    return -(2**31) <= value < 2**31


def _language_name(number: int) -> str:
    return LANGUAGES[number] if 0 <= number < len(LANGUAGES) else "OTHER"


def _from_binary(frame: Frame) -> RemotingCommand:
    """Decode a ROCKETMQ header, laid out as the module's head says; lengths are checked before they are used."""
    header = frame.header
    try:
        code, language, version, opaque, flag = _BINARY_HEAD.unpack_from(header)
        remark, position = _binary_text(header, _BINARY_HEAD.size, _INT32)
        ext_bytes = _INT32.unpack_from(header, position)[0]
        position += _INT32.size
        if ext_bytes != len(header) - position and ext_bytes != 0:
            raise FrameError(
                f"ext fields of {ext_bytes} bytes, {len(header) - position} bytes are left"
            )
        ext: dict[str, str] = {}
        end = position + ext_bytes
        while position < end:
            key, position = _binary_text(header, position, _INT16)
            value, position = _binary_text(header, position, _INT32)
            ext[key] = value
            if len(ext) > EXT_ENTRIES_MAX:
                raise FrameError(f"more than {EXT_ENTRIES_MAX} ext fields")
    except LayoutError as error:
        raise FrameError(f"ROCKETMQ header of {len(header)} bytes is cut off") from error
    except UnicodeDecodeError as error:
        raise FrameError(f"text in a ROCKETMQ header is not UTF-8: {error}") from error
    return RemotingCommand(
        code=code,
        opaque=opaque,
        flag=flag,
        language=_language_name(language),
        version=version,
        remark=remark or None,
        ext=ext,
        body=frame.body,
    )


def _binary_text(header: bytes, position: int, length: Layout) -> tuple[str, int]:
    (count,) = length.unpack_from(header, position)
    start = position + length.size
    if not 0 <= count <= len(header) - start:
        raise FrameError(f"text of {count} bytes at byte {position} of {len(header)}")
    return header[start : start + count].decode(), start + count


def encode_command(command: RemotingCommand) -> bytes:
    """Write a command as a frame with a JSON header.

    An `extFields` object is always there, empty if need be: C++ dies on some answers without it.

    Raises:
        FrameError: it does not fit a frame, or a text cannot be written as UTF-8.
    """
    try:
        header = _encode_json(
            _JsonHeaderOut(
                command.code,
                command.ext,
                command.flag,
                command.language,
                command.opaque,
                msgspec.UNSET if command.remark is None else command.remark,
                "JSON",
                command.version,
            )
        )
    except UnicodeEncodeError as error:
        raise FrameError(f"a text of the header cannot be written as UTF-8: {error}") from error
    return encode_frame(header, command.body)


def encode_binary_command(command: RemotingCommand) -> bytes:
    """Write a command with a ROCKETMQ header, for a server that is to answer in kind, and tests.

    Raises:
        FrameError: a number or a text does not fit its field (codes have 16 bits here).
    """
    remark = (command.remark or "").encode()
    try:
        pieces: list[bytes] = []
        for key, value in command.ext.items():
            name, text = key.encode(), value.encode()
            pieces += (_INT16.pack(len(name)), name, _INT32.pack(len(text)), text)
        ext = b"".join(pieces)
        language = LANGUAGES.index(command.language) if command.language in LANGUAGES else 7
        head = _BINARY_HEAD.pack(
            command.code, language, command.version, command.opaque, command.flag
        )
    except (LayoutError, UnicodeEncodeError) as error:
        raise FrameError(f"a field does not fit a ROCKETMQ header: {error}") from error
    header = b"".join((head, _INT32.pack(len(remark)), remark, _INT32.pack(len(ext)), ext))
    return encode_frame(header, command.body, SerializeType.ROCKETMQ)


def make_request(
    code: int,
    opaque: int,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    is_oneway: bool = False,
) -> RemotingCommand:
    """Make a request of our own."""
    return RemotingCommand(
        code=code,
        opaque=opaque,
        flag=FLAG_ONEWAY if is_oneway else 0,
        ext=dict(ext or {}),
        body=body,
    )


def make_response(
    opaque: int,
    code: int,
    remark: str | None = None,
    *,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> RemotingCommand:
    """Make the answer to the request with that opaque. A failure always gets a remark: Node shows nothing else."""
    return RemotingCommand(
        code=code,
        opaque=opaque,
        flag=FLAG_RESPONSE,
        remark=remark,
        ext=dict(ext or {}),
        body=body,
    )
