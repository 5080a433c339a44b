"""What comments, docstrings and pages cite, and what of it there is.

A citation is one of

    rule O4, (M8), rules O4 to O11   a rule of docs/rules, by its id
    rules M                          all rules of a letter
    house rule 5                     a rule of docs/rules/house.md
    adr/0061                         a decision
    formats/entry.md                 a page, from the file's own folder, the root or docs/
    formats/remoting.md, "Header"    a section of a page, by its heading
    [text](page#anchor)              a link, from the page that has it
    faults.md row 42                 a row of the list of faults
    tests/unit/raft                  a path from the root
    `queue_log.py`                   a file of the code by its name alone, or by the end of its path
    the name of a test, or of a module of tests
    `LogServer`                      in a page: a class or another name of the code

and the rule in the name of a test (`test_o4_the_header`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.architecture.sources import ROOT, parsed, statements

RULES = ROOT / "docs/rules"

FOLDERS = (
    "bench|broker|changelog\\.d|dledger|dledger_mq|docs|examples|jepsen|pipeline|scripts|tests"
)
_LINK = re.compile(r"\]\(([^)#\s:]*)(?:#([\w-]+))?\)")
_RULE = re.compile(r"(?<![\w./%$@#=^+-])(ZZ|AC|[A-Z])(\d{1,2})[a-h]?(?![\w.]\w|\w|-\w|/)")
_LETTER = re.compile(r"\brules? (ZZ|AC|[A-Z])(?=[\s.,;:)]|$)")
_HOUSE = re.compile(r"\bhouse rules? (\d+)")
_DECISION = re.compile(r"\b(?:adr/|ADRs? )(\d{1,4})\b", re.IGNORECASE)
_PAGE = re.compile(
    r"(?<![\w/*:.{-])([\w./-]*\w\.md)"
    r'(?:#([\w-]+)|`?\)?,? (?:(?:section )?"([^"]+)"|(?:section (?=\d)|(?=\d+\.\d))([\d.]*\d))|,? rows? ([\d ,and-]+))?'
)
_PATH = re.compile(rf"(?<![\w/.$~<-])((?:{FOLDERS})/[\w./*-]*[\w*])(?![<{{(])")
_FILE = re.compile(rf"`(?!(?:{FOLDERS})/)((?:\w+/)*\w+\.py)`")
_TEST = re.compile(r"(?<![\w/.])(test_[a-z0-9_]{6,})\b(?!\()")
_OUTSIDE = re.compile(
    r"\bsemantics [A-Z]\w*|\bsemantics\b(?= (?:section|reference))|\bstore-format\b|\bDESIGN\b"
    r"|\bshared/reference|\b(?:remoting|store|performance) reference\b"
)
_NAME = re.compile(r"`([A-Z][a-z]+(?:[A-Z][a-z0-9]*)+)[`.(]")
_WHOLE: Final = {
    "letter": _LETTER,
    "house rule": _HOUSE,
    "decision": _DECISION,
    "file": _FILE,
    "test": _TEST,
    "outside": _OUTSIDE,
}
"""Kinds of citations whose pattern gives the target."""

_COMMENT = re.compile(r"(?:^\s*|\s\s)# (.*)")
_TEST_OF_RULE = re.compile(r"^test_(zz|ac|[a-z])(\d{1,2})_")

NO_RULES = frozenset({"V1", "V2", "N0", "C0", "P0", "S3"})
"""Look like rules: the two forms of a record (docs/formats/message.md); a node; ports; a protocol of object stores."""

OTHER_NAMES = ("docs/adr/", "docs/rocketmq-tests.md", "docs/rules/", "tests/golden/")
"""Pages with names that are not this code's, or not any more: decisions keep those of their time, others theirs."""

JAVA_NAMES = frozenset(
    {
        "DefaultLitePullConsumer",
        "DefaultMQPullConsumer",
        "MessageListenerConcurrently",
        "MessageListenerOrderly",
        "MessageQueueSelector",
        "SendCallback",
        "TransactionListener",
        "TransactionMQProducer",
    }
)
"""Of RocketMQ's client; docs/client.md says what they are called here."""

PATTERNS = frozenset({"ISSUE.KIND.md", "ISSUE.some-words.KIND.md"})
"""Names that stand for many files."""


@dataclass(frozen=True, slots=True)
class Citation:
    """Something that a file says exists.

    Attributes:
        path: of the file, from the root.
        line: in it, from 1; that of the docstring's or comment's beginning.
        kind: rule, letter, house rule, decision, page, section, link, row, path, file, test, name or outside.
        target: what is cited.
    """

    path: str
    line: int
    kind: str
    target: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind} {self.target}"


@cache
def files() -> tuple[Path, ...]:
    """Return the Python files and pages of the repository, in order; an unpacked sdist has the same."""
    folders = [ROOT / folder.replace("\\", "") for folder in FOLDERS.split("|")]
    return tuple(
        sorted(
            path
            for pattern in ("*.py", "*.md")
            for path in (
                *ROOT.glob(pattern),
                *(one for folder in folders for one in folder.rglob(pattern)),
            )
        )
    )


def citations(path: Path) -> Iterator[Citation]:
    """Yield everything that a file cites."""
    name = str(path.relative_to(ROOT))
    return _of_page(path, name) if path.suffix == ".md" else _of_module(path, name)


def _of_page(path: Path, name: str) -> Iterator[Citation]:
    has_other_names = name.startswith(OTHER_NAMES)
    for line, text in _paragraphs(path.read_text()):
        for kind, target in cited_in(text):
            if not (has_other_names and kind == "file"):
                yield Citation(name, line, kind, target)
        if not has_other_names:
            yield from (Citation(name, line, "name", each) for each in names_in(text))


def _of_module(path: Path, name: str) -> Iterator[Citation]:
    pieces = _comments(path.read_text())
    for node in statements(parsed(path)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                pieces.append((node.lineno, text))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if found := _TEST_OF_RULE.match(node.name):
                    yield Citation(name, node.lineno, "rule", (found[1] + found[2]).upper())
    for line, text in sorted(pieces):
        for kind, target in cited_in(_joined(text)):
            if kind != "link":
                yield Citation(name, line, kind, target)


def exists(cited: Citation) -> bool:
    """Return whether the cited thing exists."""
    return cited.kind in _EXISTS and _EXISTS[cited.kind](cited.path, cited.target)


def _is_decision(_citing: str, target: str) -> bool:
    return len(list((ROOT / "docs/adr").glob(f"{int(target):04}-*.md"))) == 1


def _is_section(citing: str, target: str) -> bool:
    of, _, heading = target.partition(" # ")
    found = page(citing, of)
    return found is not None and heading in headings(found) | anchors(found)


def _is_link(citing: str, target: str) -> bool:
    to, _, anchor = target.partition(" # ")
    # Fragments become parts of a page at the root.
    own = ROOT if citing.startswith("changelog.d/") else (ROOT / citing).parent
    linked = own / to if to else ROOT / citing
    return linked.exists() and (not anchor or anchor in anchors(linked.resolve()))


def _is_path(_citing: str, target: str) -> bool:
    """Accept a file, a folder, a pattern of files, or a file without its ending (`dledger/raft/core`)."""
    if "*" in target:
        return any(ROOT.glob(target))
    return target in PATTERNS or (ROOT / target).exists() or (ROOT / (target + ".py")).exists()


def _is_file(_citing: str, target: str) -> bool:
    return f"/{target}" in _ends_of_files()


@cache
def _ends_of_files() -> frozenset[str]:
    """Return what the path of a file may end with, from a slash on."""
    return frozenset(
        "/" + "/".join(parts[first:])
        for path in files()
        for parts in [path.relative_to(ROOT).parts]
        for first in range(len(parts))
    )


def page(citing: str, name: str) -> Path | None:
    """Return the page that a file means by a name; None if there is none."""
    own = (ROOT / citing).parent
    for folder in (own, ROOT, ROOT / "docs", RULES, ROOT / "docs/formats", ROOT / "docs/adr"):
        if (folder / name).is_file():
            return (folder / name).resolve()
    return None


@cache
def rules() -> dict[str, Path]:
    """Return the page of each rule, by id."""
    found: dict[str, Path] = {}
    for path in sorted(RULES.glob("*.md")):
        for rule in anchors(path):
            if re.fullmatch(r"[A-Z]{1,2}\d+", rule):
                assert rule not in found, f"{rule} stands in {found[rule]} and in {path}"
                found[rule] = path
    return found


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the names by which places of a page can be linked: those written out, and those of headings."""
    text = path.read_text()
    written = re.findall(r'<a id="([^"]+)">', text)
    assert len(written) == len(set(written)), f"{path}: an anchor stands twice"
    made = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings(path)}
    return frozenset(written) | made


@cache
def headings(path: Path) -> frozenset[str]:
    """Return the headings of a page, without marks."""
    found = re.findall(r"^#+ (.+?) *$", path.read_text(), re.MULTILINE)
    bold = re.findall(r"^\*\*([^*]+?)[.:]?\*\*", path.read_text(), re.MULTILINE)
    return frozenset(re.sub(r"[`*]", "", each) for each in [*found, *bold])


@cache
def rows() -> frozenset[int]:
    """Return the numbers of the rows of the list of faults."""
    from jepsen.checklist.rows import ROWS

    return frozenset(row.number for row in ROWS)


@cache
def words() -> frozenset[str]:
    """Return all words of our code that begin with a capital, except those of these tests."""
    return frozenset(
        word
        for path in files()
        if path.suffix == ".py" and not path.is_relative_to(ROOT / "tests/architecture")
        for word in re.findall(r"[A-Z]\w+", path.read_text())
    )


@cache
def tests() -> frozenset[str]:
    """Return the names of all tests and of their modules."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        found.add(path.stem)
        found |= set(re.findall(r"def (test_\w+)", path.read_text()))
    return frozenset(found)


def names_in(text: str) -> Iterator[str]:
    """Yield the names of code in a piece of a page: those in backquotes that are written like classes."""
    return (found[1] for found in _NAME.finditer(text))


def cited_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield kind and target of each citation in a piece of prose."""
    for rule in _RULE.finditer(text):
        name = rule[1] + rule[2]
        if rule[1] in letters() and name not in NO_RULES:
            yield "rule", name
    for found in _PAGE.finditer(text):
        name, anchor, heading, number, listed = found.groups()
        section = anchor or heading or number
        if section:
            yield "section", f"{name} # {section}"
        else:
            yield "page", name
        for row in re.findall(r"\d+", listed or ""):
            yield "row", row
    for found in _LINK.finditer(text):
        yield "link", f"{found[1]} # {found[2]}" if found[2] else found[1]
    for found in _PATH.finditer(text):
        if not _DECISION.search(found[1]):
            yield "path", found[1]
    for kind, pattern in _WHOLE.items():
        for found in pattern.finditer(text):
            yield kind, found[found.lastindex or 0]


@cache
def letters() -> frozenset[str]:
    return frozenset(rule.rstrip("0123456789") for rule in rules())


def _comments(source: str) -> list[tuple[int, str]]:
    """Return line and text of each block of comments: of lines with a `#` at their start or after two blanks."""
    blocks: list[tuple[int, str]] = []
    last = -1
    for number, line in enumerate(source.split("\n"), 1):
        if "#" not in line:
            continue
        found = _COMMENT.search(line)
        if found is None:
            continue
        if number == last + 1 and blocks:
            blocks[-1] = (blocks[-1][0], blocks[-1][1] + " " + found[1])
        else:
            blocks.append((number, found[1]))
        last = number
    return blocks


def _joined(text: str) -> str:
    return " ".join(text.split())


def _paragraphs(source: str) -> Iterator[tuple[int, str]]:
    begin = 1
    lines: list[str] = []
    for number, line in enumerate([*source.split("\n"), ""], 1):
        if line.strip() and not line.lstrip().startswith(("|", "- ", "* ", "#")):
            begin = begin if lines else number
            lines.append(line)
            continue
        if lines:
            yield begin, _joined(" ".join(lines))
            lines = []
        if line.strip():
            begin, lines = number, [line]
    if lines:
        yield begin, _joined(" ".join(lines))


_EXISTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "rule": lambda _, target: target in rules(),
    "letter": lambda _, target: target in letters(),
    "house rule": lambda _, target: f"house-{target}" in anchors(RULES / "house.md"),
    "decision": _is_decision,
    "page": lambda citing, target: target in PATTERNS or page(citing, target) is not None,
    "section": _is_section,
    "link": _is_link,
    "row": lambda _, target: int(target) in rows(),
    "path": _is_path,
    "file": _is_file,
    "test": lambda _, target: target in tests(),
    "name": lambda _, target: target in words() or target in JAVA_NAMES,
}
"""Of each kind: whether a file (its path) may cite something. Of a text outside of this repository nothing exists."""
