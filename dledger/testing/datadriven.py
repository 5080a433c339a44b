"""Tests as text files: prose, commands, and what they print.

A file is a row of blocks, separated by blank lines:

    # Prose. Comment lines may stand before a block, or alone.
    command one
    command two
    ----
    the output of both, up to a blank line

`run_script` carries out each block and compares; with `rewrite` it returns the file as it would be
true now, so that changes are read as a diff. Idea: cockroachdb/datadriven, as used by etcd's raft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

SEPARATOR = "----"


class ScriptError(Exception):
    """A script is malformed, or a command has a wrong argument. Names the line."""


@dataclass(frozen=True, slots=True)
class Block:
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
        """The block as text, without the blank line after it."""
        lines = [*self.prose, *self.commands]
        if self.commands:
            lines += [SEPARATOR, *self.expected]
        return "\n".join(lines)


def parse_script(text: str) -> list[Block]:
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


def _parse_block(line: int, lines: list[str]) -> Block:
    prose_end = 0
    while prose_end < len(lines) and lines[prose_end].startswith("#"):
        prose_end += 1
    prose, rest = tuple(lines[:prose_end]), lines[prose_end:]
    if not rest:
        return Block(line, prose, (), ())
    if SEPARATOR not in rest:
        raise ScriptError(f"line {line}: a block of commands needs a line {SEPARATOR}")
    cut = rest.index(SEPARATOR)
    if cut == 0:
        raise ScriptError(f"line {line}: an output without a command")
    return Block(line, prose, tuple(rest[:cut]), tuple(rest[cut + 1 :]))


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
