"""`python -m bench.pipeline WHAT`: measure or prove something about the pipeline."""

from __future__ import annotations

import sys

from bench.pipeline import decode, exactly_once, memory, scan, sink, source

COMMANDS = {
    "archive": scan.main_archive,
    "decode": decode.main,
    "exactly-once": exactly_once.main,
    "memory": memory.main,
    "scan": scan.main_scan,
    "sink": sink.main,
    "source": source.main,
}


def main() -> int:
    """Run the named measurement or proof."""
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        sys.stderr.write(f"usage: python -m bench.pipeline {'|'.join(COMMANDS)} [options]\n")
        return 2
    return COMMANDS[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
