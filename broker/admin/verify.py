"""The comparison of the digests of all nodes at the same applied index. Pure: answers in, a verdict out.

It must not know how nodes are asked, nor how a verdict is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker.admin.ask import NodeAnswer
from broker.admin.facts import read_object_in, whole_number
from dledger import NO_INDEX, Index


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        index: applied index at which was compared; 0 when there is none that all have.
        nodes: names of the nodes that were compared.
        digests: per component, the digest of each node in the order of `nodes`, as eight hex digits;
            empty where a node does not have the component.
        differing: components whose digests differ.
        odd: nodes that differ from the majority in some component; all when there is no majority.
        alarms: per node, what it has found itself at earlier marks.
        problems: why the comparison is not of the whole group.
    """

    index: Index
    nodes: tuple[str, ...]
    digests: Mapping[str, tuple[str, ...]]
    differing: tuple[str, ...]
    odd: tuple[str, ...]
    alarms: Mapping[str, str]
    problems: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """True if every member of the group was compared."""
        return bool(self.index) and not self.problems

    @property
    def is_equal(self) -> bool:
        """True if nothing differs, now and at earlier marks."""
        return not self.differing and not self.alarms


def marks_of(answer: NodeAnswer) -> dict[Index, dict[str, str]]:
    """Return a node's digests by applied index, those that can be read."""
    return {
        Index(index): {str(name): str(digest) for name, digest in digests.items()}
        for text, digests in read_object_in(answer.table, "digestMarks").items()
        if (index := whole_number(text)) is not None and isinstance(digests, dict)
    }


def compare(answers: Sequence[NodeAnswer]) -> Comparison:
    """Compare what the nodes have at the newest mark that all of them have."""
    present = [answer for answer in answers if answer.table]
    problems = [f"{each.address}: {each.problem}" for each in answers if not each.table]
    members = {name for each in present for name in each.table.get("raftMembers", "").split(",")}
    names = tuple(each.name for each in present)
    problems += [f"{name} is not known to the name server" for name in sorted(members - set(names))]
    marks = [marks_of(each) for each in present]
    common = set.intersection(*map(set, marks)) if marks else set()
    index = max(common, default=NO_INDEX)
    if not present:
        problems.append("no node answered: nothing was compared")
    elif not index:
        problems.append(
            "there is no mark that all nodes have, so nothing was compared; marks come with new records"
        )
    rows = [each[index] for each in marks] if index else []
    components = sorted({component for row in rows for component in row})
    digests = {name: tuple(row.get(name, "") for row in rows) for name in components}
    differing = tuple(name for name, values in digests.items() if len(set(values) - {""}) > 1)
    return Comparison(
        index,
        names,
        digests,
        differing,
        tuple(name for place, name in enumerate(names) if _is_odd(place, digests, differing)),
        {each.name: text for each in present if (text := each.table.get("digestAlarms", ""))},
        tuple(problem for problem in problems if problem),
    )


def _is_odd(place: int, digests: Mapping[str, tuple[str, ...]], differing: tuple[str, ...]) -> bool:
    for component in differing:
        values = digests[component]
        value, count = Counter(values).most_common(1)[0]
        if values[place] != value or count * 2 <= len(values):
            return True
    return False
