"""All that can happen to a core, and all that it can do or refuse, occurs in some script. The exceptions stand here.

The lists are taken from the product: the closed unions of events, effects, messages and outcomes with their
flags, the tables of roles and of admission, the words of each refusal. So what is new needs a script.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

import dledger.raft
from dledger import errors
from dledger.raft import admission
from dledger.raft.admission import RULINGS, AdmissionState, Ruling, Sign
from dledger.raft.configuration_log import ConfigurationNote
from dledger.raft.effects import Effect, News, Outcome, Role
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.events import Event
from dledger.raft.messages import PeerMessage
from dledger.raft.node import RaftNode
from dledger.raft.roles import TRANSITIONS, Cause, next_role
from dledger.testing import interaction
from dledger.testing.core_trace import effect_line, message_line
from dledger.testing.datadriven import run_script
from dledger.testing.interaction import Interaction
from tests.interaction.test_scripts import SCRIPTS

CORE = Path(dledger.raft.__file__).parent

UNSHOWN = {
    "EntriesCut": "news of the engine, made of the core's TruncateLog",
    "MembersCommitted": "news of the engine, made of the core's Commit",
    "RepairRequest": "between disks, not between cores (adr/0100): tests/unit/repair",
    "RepairAnswer": "the same",
    "AppendRequest.first_kept": "no log of a script loses its beginning: tests/unit/raft/test_node.py",
    "AppendRequest.first_position": "the same",
    "AppendRequest.before_chain_crc": "the same",
    "SendEntries.first_kept": "the same",
}
"""What no script can show, with the reason."""

NOT_LOOKED_UP = {
    (AdmissionState.COUNTED, Sign.NEW_ANSWER),
    (AdmissionState.COUNTED, Sign.OLD_ANSWER),
}
"""Nearly all answers: they are taken without a look at the table."""


@dataclass
class Occurred:
    """What occurred in the scripts.

    Attributes:
        events: names of the events that were fed to a core.
        arms: of the effects and messages that were printed where nothing is quiet (`arms_of`).
        output: every line that was printed.
        transitions, rulings: rows of the two tables that were looked up.
    """

    events: set[str] = field(default_factory=set)
    arms: set[str] = field(default_factory=set)
    output: list[str] = field(default_factory=list)
    transitions: set[tuple[Role, Cause]] = field(default_factory=set)
    rulings: set[tuple[AdmissionState, Sign]] = field(default_factory=set)


def is_record(value: object) -> bool:
    """Whether a value has fields of its own: the core's are structs, those around it dataclasses."""
    return isinstance(value, msgspec.Struct) or is_dataclass(value)


def fields_of(kind: Any) -> Iterator[tuple[str, object]]:
    """Return the fields of a record or its class, with their defaults."""
    each_field = msgspec.structs.fields if hasattr(kind, "__struct_fields__") else fields
    return ((each.name, each.default) for each in each_field(kind))


def arms_of(value: object) -> Iterator[str]:
    """Return the arms that a value shows: its type, its flags, the numbers that usually are 0, and what it carries."""
    name = type(value).__name__
    yield name
    if not is_record(value):
        return
    for each, default in fields_of(value):
        content = getattr(value, each)
        if isinstance(content, bool | Enum):
            yield f"{name}.{each}={_word(content)}"
        elif default == 0 and content:
            yield f"{name}.{each}"
        elif isinstance(content, tuple):
            for part in content:
                if isinstance(part, Entry):
                    yield f"{name}.{each}={_word(part.kind)}"
                elif isinstance(part, ConfigurationNote):
                    yield f"{name}.{each}={part.is_settled}"
        elif is_record(content):
            yield from arms_of(content)


def _word(value: bool | Enum) -> str:
    return value.name if isinstance(value, Enum) else str(value)


def possible_arms(kind: type) -> Iterator[str]:
    """Return the arms that a type can show (`arms_of`), without those of what it carries."""
    name = kind.__name__
    yield name
    hints = get_type_hints(kind)
    for each, default in fields_of(kind):
        hint = hints[each]
        if hint is bool:
            yield from (f"{name}.{each}={flag}" for flag in (False, True))
        elif isinstance(hint, type) and issubclass(hint, Enum):
            yield from (f"{name}.{each}={_word(member)}" for member in hint)
        elif default == 0:
            yield f"{name}.{each}"
        elif hint == tuple[Entry, ...]:
            yield from (f"{name}.{each}={_word(member)}" for member in EntryKind)
        elif hint == tuple[ConfigurationNote, ...]:
            yield from (f"{name}.{each}={flag}" for flag in (False, True))


def refusals() -> dict[str, str]:
    """Return a pattern of the printed words of each refusal that the core makes, by place and class."""
    found = {}
    for path in sorted(CORE.glob("*.py")):
        tree = ast.parse(path.read_text())
        texts = {
            assigned.targets[0].id: assigned.value
            for assigned in ast.walk(tree)
            if isinstance(assigned, ast.Assign) and isinstance(assigned.targets[0], ast.Name)
        }
        for call in ast.walk(tree):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                continue
            kind = getattr(errors, call.func.id, None)
            if kind is None:
                continue
            text = call.args[0]
            words = _pattern(texts.get(text.id, text) if isinstance(text, ast.Name) else text)
            is_raised = issubclass(kind, errors.PeerProtocolError)
            head = "protocol error" if is_raised else rf"{kind.code} \(.*\)"
            found[f"{path.stem}: {kind.__name__} {words}"] = f": {head}: {words}$"
    return found


def _pattern(text: ast.expr) -> str:
    match text:
        case ast.Constant(value=str(words)):
            return re.escape(words)
        case ast.JoinedStr(values=parts):
            return "".join(_pattern(part) for part in parts)
        case _:
            return ".*"


@pytest.fixture(scope="module")
def occurred() -> Occurred:
    """Carry out all scripts once, and note what occurs in them."""
    noted = Occurred()
    printed: dict[str, object] = {}

    def noting(word: Callable[[Any], str]) -> Callable[[Any], str]:
        def worded(value: object) -> str:
            line = word(value)
            printed[line] = value
            return line

        return worded

    step, ruling = RaftNode.step, admission.ruling

    def noted_step(self: RaftNode, event: Event, now_ms: int) -> list[Effect]:
        noted.events.add(type(event).__name__)
        return step(self, event, now_ms)

    def noted_role(role: Role, cause: Cause) -> Role:
        noted.transitions.add((role, cause))
        return next_role(role, cause)

    def noted_ruling(state: AdmissionState, sign: Sign) -> Ruling:
        noted.rulings.add((state, sign))
        return ruling(state, sign)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RaftNode, "step", noted_step)
        patch.setattr("dledger.raft.node.next_role", noted_role)
        patch.setattr(admission, "ruling", noted_ruling)
        patch.setattr(interaction, "effect_line", noting(effect_line))
        patch.setattr(interaction, "message_line", noting(message_line))
        for path in SCRIPTS:
            run = Interaction().run

            def shown(line: str, run: Callable[[str], list[str]] = run) -> list[str]:
                printed.clear()
                lines = run(line)
                for words, value in printed.items():
                    if any(each.endswith(f" {words}") for each in lines):
                        noted.arms.update(arms_of(value))
                noted.output += lines
                return lines

            run_script(path.read_text(), shown)
    return noted


def test_every_event(occurred: Occurred) -> None:
    assert {kind.__name__ for kind in get_args(Event)} - occurred.events == set()


def test_every_arm_of_effects_messages_and_outcomes(occurred: Occurred) -> None:
    kinds = {*get_args(Effect), *get_args(News), *get_args(PeerMessage), *get_args(Outcome)}
    possible = {arm for kind in kinds for arm in possible_arms(kind)}
    missing = possible - occurred.arms
    assert {arm for arm in missing if not {arm, arm.partition(".")[0]} & UNSHOWN.keys()} == set()
    assert missing >= UNSHOWN.keys(), "no exception any more"


def test_every_change_of_role(occurred: Occurred) -> None:
    assert TRANSITIONS.keys() - occurred.transitions == set()


def test_every_ruling_on_a_member(occurred: Occurred) -> None:
    assert RULINGS.keys() - occurred.rulings == NOT_LOOKED_UP


def test_every_refusal_in_its_words(occurred: Occurred) -> None:
    text = "\n".join(occurred.output)
    missing = {
        name for name, words in refusals().items() if not re.search(words, text, re.MULTILINE)
    }
    assert missing == set()
