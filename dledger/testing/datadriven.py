"""Tests as text files: prose, commands, and what they print.

A file is a row of blocks, separated by blank lines:

    # Prose. Comment lines may stand before a block, or alone.
    command one
    command two
    ----
    the output of both, up to a blank line

`run_script` carries out each block and returns the file as it would be true now, so that changes are read
as a diff. What the commands of a language have in common is in `Arguments` and `Commands`; what they do is
no business of this module. Idea: cockroachdb/datadriven, as used by etcd's raft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

SEPARATOR = "----"

Group = TypeVar("Group")


class ScriptError(Exception):
    """A script is malformed, or a command has a wrong argument. Names the line."""


@dataclass(frozen=True, slots=True)
class ScriptBlock:
    """One block of a script.

    Attributes:
        line: number of its first line, from 1.
        prose: comment lines before the commands, as they stand.
        commands: the commands; empty in a block of prose only.
        expected: the expected output.
    """

    line: int
    prose: tuple[str, ...]
    commands: tuple[str, ...]
    expected: tuple[str, ...]

    def render(self) -> str:
        """Return the block as text, without the blank line after it."""
        lines = [*self.prose, *self.commands]
        if self.commands:
            lines += [SEPARATOR, *self.expected]
        return "\n".join(lines)


def parse_script(text: str) -> list[ScriptBlock]:
    """Cut a script into its blocks.

    Raises:
        ScriptError: a block has no separator, or an output has no command.
    """
    return [_parse_block(line, lines) for line, lines in _paragraphs(text)]


def _paragraphs(text: str) -> Iterator[tuple[int, list[str]]]:
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            lines.append(line.rstrip())
        elif lines:
            yield number - len(lines), lines
            lines = []
    if lines:
        yield len(text.splitlines()) + 1 - len(lines), lines


def _parse_block(line: int, lines: list[str]) -> ScriptBlock:
    """Cut a block into prose, commands and expected output; `line` is its first line in the file, for errors."""
    prose_end = 0
    while prose_end < len(lines) and lines[prose_end].startswith("#"):
        prose_end += 1
    prose, rest = tuple(lines[:prose_end]), lines[prose_end:]
    if not rest:
        return ScriptBlock(line, prose, (), ())
    if SEPARATOR not in rest:
        raise ScriptError(f"line {line}: a block of commands needs a line {SEPARATOR}")
    cut = rest.index(SEPARATOR)
    if cut == 0:
        raise ScriptError(f"line {line}: an output without a command")
    return ScriptBlock(line, prose, tuple(rest[:cut]), tuple(rest[cut + 1 :]))


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ScriptError(f"{name}={text}: that is no number") from None


@dataclass(frozen=True, slots=True)
class Arguments:
    """A command line: words without `=` in order, the others by name."""

    words: tuple[str, ...]
    named: dict[str, str]

    @classmethod
    def parse(cls, line: str) -> Arguments:
        """Split a command's arguments."""
        parts = line.split()
        words = tuple(part for part in parts if "=" not in part)
        return cls(words, dict(part.split("=", 1) for part in parts if "=" in part))

    def need(self, name: str) -> str:
        """Return a named argument that must be there."""
        if name not in self.named:
            raise ScriptError(f"{name}=... is missing")
        return self.named[name]

    def word(self, place: int, what: str) -> str:
        """Return the word at a place (0 for the first); `what` names it for the message if it is missing."""
        if place >= len(self.words):
            raise ScriptError(f"{what} is missing")
        return self.words[place]

    def number_at(self, place: int, what: str) -> int:
        """Return the number at a place, as `word` does."""
        return _number(what, self.word(place, what))

    def number(self, name: str) -> int:
        """Return a named number that must be there."""
        return _number(name, self.need(name))

    def number_or(self, name: str, default: int) -> int:
        """Return a named number, or the default if it is missing."""
        return _number(name, self.named[name]) if name in self.named else default


class Commands:
    """The commands of one language, by their first word, and what they print.

    `quiet` and `loud` belong to every language: they stop and resume printing, for the set-up of a story.
    """

    def __init__(
        self,
        commands: Mapping[str, Callable[[Arguments], None]],
        *,
        otherwise: Callable[[str, str], None] | None = None,
    ) -> None:
        """Build a language.

        Args:
            commands: what to do, by name.
            otherwise: given the first word and the rest of a line that begins with none of these names.
        """
        assert not {"quiet", "loud"} & commands.keys(), "quiet and loud belong to every language"
        self._commands = commands
        self._otherwise = otherwise
        self._is_quiet = False
        self._output: list[str] = []

    def print(self, line: str) -> None:
        """Add a line to the output of the command that is carried out, or of the next one."""
        self._output.append(line)

    def run(self, line: str) -> list[str]:
        """Carry out one command, and return what was printed.

        Raises:
            ScriptError: the command or its arguments make no sense.
        """
        name, _, rest = line.partition(" ")
        self._output.clear()
        if name in {"quiet", "loud"}:
            self._is_quiet = name == "quiet"
        elif name in self._commands:
            self._commands[name](Arguments.parse(rest))
        elif self._otherwise is not None:
            self._otherwise(name, rest)
        else:
            raise ScriptError(f"no such command: {name}")
        return [] if self._is_quiet else self._output[:]


def begun(group: Group | None) -> Group:
    """Return the group of a script, which has to begin with one."""
    if group is None:
        raise ScriptError("no group yet: begin with `group n0 n1 n2`")
    return group


def run_script(text: str, run: Callable[[str], list[str]]) -> str:
    """Carry out a script; the returned text has the true outputs.

    Args:
        text: the script.
        run: carries out one command line and returns its output lines, none of them blank.

    Raises:
        ScriptError: a command failed; the message names its block's line.
    """
    blocks = []
    for block in parse_script(text):
        output: list[str] = []
        for command in block.commands:
            try:
                output += run(command)
            except ScriptError as error:
                raise ScriptError(f"block at line {block.line}, {command!r}: {error}") from error
        if block.commands and not output:
            output = ["ok"]
        assert all(line.strip() for line in output), "an output line is blank"
        blocks.append(replace(block, expected=tuple(output)))
    return "\n\n".join(block.render() for block in blocks) + "\n"
