"""Reads the options of a format: every one is known, of the right type, and taken once.

Spark hands options over as texts, in a map that ignores case. What is left over when a format has taken its
own is an error that names the option and the nearest known one, never silence.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from pipeline.errors import PipelineUsageError

_T = TypeVar("_T", int, None)


class OptionReader:
    """Takes options one by one; `finish` complains about the rest.

    Args:
        given: names and texts; names are compared without case.
        what: the format, for errors: `format "rocketmq"`.
    """

    def __init__(self, given: Mapping[str, str], what: str) -> None:
        self._given = {str(name).lower(): str(text) for name, text in given.items()}
        self._what = what
        self._known: list[str] = []

    def text(self, name: str) -> str | None:
        """Return an option's text without blanks around it; None when it is not given.

        Raises:
            PipelineUsageError: it is given, and blank.
        """
        self._known.append(name)
        given = self._given.get(name.lower())
        if given is None:
            return None
        if not given.strip():
            raise self.error(name, "is blank")
        return given.strip()

    def required(self, name: str) -> str:
        """Return the text of an option that must be there.

        Raises:
            PipelineUsageError: it is missing or blank.
        """
        text = self.text(name)
        if text is None:
            raise PipelineUsageError(f"{self._what} needs option {name}")
        return text

    def number(self, name: str, default: _T, *, least: int = 0, most: int = 2**63 - 1) -> int | _T:
        """Return a whole number within bounds.

        Raises:
            PipelineUsageError: it is none, or outside.
        """
        text = self.text(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            raise self.error(name, f"is {text!r}, not a whole number") from None
        if not least <= value <= most:
            raise self.error(name, f"is {value}, it must be {least} to {most}")
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        """Return true or false.

        Raises:
            PipelineUsageError: it is neither.
        """
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def choice(self, name: str, among: Sequence[str], default: str) -> str:
        """Return one of a few words, written as in `among`.

        Raises:
            PipelineUsageError: it is another.
        """
        text = self.text(name)
        if text is None:
            return default
        found = next((word for word in among if word.lower() == text.lower()), None)
        if found is None:
            raise self.error(name, f"is {text!r}, it must be {' or '.join(among)}")
        return found

    def duration_ms(self, name: str, default_ms: int) -> int:
        """Return a duration, "500ms", "15m", "2h" or "1d", in milliseconds.

        Raises:
            PipelineUsageError: it is none.
        """
        text = self.text(name)
        if text is None:
            return default_ms
        for unit, size_ms in (
            ("ms", 1),
            ("s", 1000),
            ("m", 60_000),
            ("h", 3_600_000),
            ("d", 86_400_000),
        ):
            digits = text.removesuffix(unit).strip()
            if text.endswith(unit) and digits.isascii() and digits.isdigit():
                return int(digits) * size_ms
        raise self.error(name, f"is {text!r}, not a duration such as 500ms, 30s or 15m")

    def refuse(self, name: str, why: str) -> None:
        """Refuse an option that only other uses of the format have.

        Raises:
            PipelineUsageError: it is given.
        """
        if name.lower() in self._given:
            raise self.error(name, why)

    def error(self, name: str, why: str) -> PipelineUsageError:
        """Return the error for an option."""
        return PipelineUsageError(f"{self._what}: option {name} {why}")

    def finish(self, ignored: Collection[str] = ()) -> None:
        """Refuse options that were given and never read.

        Args:
            ignored: names that are somebody else's, and may be given.

        Raises:
            PipelineUsageError: names the options, and what may have been meant.
        """
        known = {name.lower(): name for name in self._known}
        for name in sorted(self._given.keys() - known.keys() - {each.lower() for each in ignored}):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {known[near[0]]}?" if near else ""
            raise PipelineUsageError(
                f"{self._what} has no option {name}{hint} (it has {', '.join(sorted(self._known))})"
            )
