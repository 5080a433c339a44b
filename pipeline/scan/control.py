"""Control records, the broker's own data, as two columns beside those of messages.

`op` names the command and `command` is the command as JSON (docs/formats/control.md); bytes in it are base64.
A record that is no command, or one of a newer version, has neither, and a word in `problem`: the fold refuses
it too.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from broker.store.control import MalformedControlError, decode_control
from broker.store.errors import NewerVersionError
from dledger_mq.message.names import is_control_topic
from pipeline.scan.arrays import numpy_of
from pipeline.scan.records import RecordTable

_encoder = msgspec.json.Encoder()


def is_control(table: RecordTable) -> NDArray[np.bool_]:
    """Return a mask of the records on control topics."""
    topics = table.topics.dictionary_encode()
    known = [is_control_topic(topic) for topic in topics.dictionary.to_pylist()]
    flags: NDArray[np.bool_] = np.array(known, bool)[numpy_of(topics.indices)]
    return flags


def control_columns(table: RecordTable, which: NDArray[np.bool_]) -> dict[str, pa.Array]:
    """Return the columns `op`, `command` and `problem`; null where a record is none of `which`."""
    count = len(table)
    ops: list[str | None] = [None] * count
    commands: list[str | None] = [None] * count
    problems: list[str | None] = [None] * count
    topics = table.topics
    for place in np.flatnonzero(which).tolist():
        body = bytes(table.data[table.body_start[place] : table.topic_at[place]])
        try:
            command = decode_control(topics[place].as_py(), body)
        except (MalformedControlError, NewerVersionError) as error:
            problems[place] = str(error)
            continue
        ops[place] = command.__struct_config__.tag  # type: ignore[assignment] # each command has a text
        commands[place] = _encoder.encode(command).decode()
    columns = {"op": ops, "command": commands, "problem": problems}
    return {name: pa.array(values, pa.string()) for name, values in columns.items()}
