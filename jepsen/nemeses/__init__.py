"""Faults, each with its cure; `named("kill:leader")` returns one, and docs/nemeses.md describes all."""

from jepsen.nemeses.api import Fault, NothingStruckError, PromiseBrokenError, Scope, targets
from jepsen.nemeses.registry import UnknownFaultError, named, specifications

__all__ = [
    "Fault",
    "NothingStruckError",
    "PromiseBrokenError",
    "Scope",
    "UnknownFaultError",
    "named",
    "specifications",
    "targets",
]
