"""The errors of a store. Every reason names the file and the byte."""

from __future__ import annotations

from pipeline.errors import PipelineError, PipelineUsageError


class DamagedLogError(PipelineError):
    """Bytes of the committed log are not what was written.

    Attributes:
        path: the file.
        byte_offset: where in it.
        problem: what is wrong there.
    """

    def __init__(self, path: str, byte_offset: int, problem: str) -> None:
        self.path = path
        self.byte_offset = byte_offset
        self.problem = problem
        super().__init__(f"{path}, byte {byte_offset}: {problem}")

    def __reduce__(self) -> tuple[type[DamagedLogError], tuple[str, int, str]]:
        """Let errors of tasks travel to the driver pickled."""
        return type(self), (self.path, self.byte_offset, self.problem)


class NotAStoreError(PipelineUsageError):
    """The folder has no log in it."""
