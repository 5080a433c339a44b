"""Faults, each with its cure. `named("kill:leader")` gives one; docs/nemeses.md describes them all."""

from jepsen.nemeses.api import Fault, PromiseBrokenError, Scope, targets
from jepsen.nemeses.registry import UnknownFaultError, named, specifications

__all__ = [
    "Fault",
    "PromiseBrokenError",
    "Scope",
    "UnknownFaultError",
    "named",
    "specifications",
    "targets",
]
