"""`dledger-admin`: questions to a broker group, repairs, and what operators change (docs/admin.md).

Each subcommand is described and carried out in a module of its own; here they are listed, and here is what a failure
of any of them means for a script.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Final

from broker.admin.ask import NobodyAnsweredError
from broker.admin.at import AT
from broker.admin.command import PROGRAM, Row, add_rows, names_of_mqadmin
from broker.admin.config import CONFIG
from broker.admin.connections import CONNECTIONS
from broker.admin.credentials_option import add_credentials_option, credentials_of
from broker.admin.exit_codes import (
    EXIT_DIFFERENT,
    EXIT_OK,
    EXIT_UNCHANGED,
    EXIT_UNKNOWN,
    EXIT_USAGE,
)
from broker.admin.failures import NotThereError, UnchangedError
from broker.admin.groups import GROUPS
from broker.admin.import_store import IMPORT
from broker.admin.lag import LAG
from broker.admin.members import MEMBERS
from broker.admin.messages import MESSAGES
from broker.admin.offsets import OFFSETS
from broker.admin.printing import print_error
from broker.admin.resend_dlq_command import RESEND_DLQ
from broker.admin.retention import RETENTION
from broker.admin.snapshots import SNAPSHOTS
from broker.admin.status import STATUS
from broker.admin.tls_options import add_tls_options, tls_of
from broker.admin.top import TOP
from broker.admin.topics import TOPICS
from broker.admin.upgrade_check import UPGRADE_CHECK
from broker.admin.verify_command import VERIFY
from broker.admin.web.command import WEB
from broker.admin.why import WHY
from broker.command_line import innermost
from dledger import ConfigError, DLedgerError, UsageError
from dledger.version import __version__
from dledger_mq.client.credentials import credentials_for_all
from dledger_mq.client.errors import ClientError, ClientUsageError
from dledger_mq.client.tls import tls_for_all

COMMANDS: Final[tuple[Row, ...]] = (
    STATUS,
    TOP,
    LAG,
    TOPICS,
    GROUPS,
    OFFSETS,
    MESSAGES,
    WHY,
    AT,
    CONNECTIONS,
    CONFIG,
    VERIFY,
    SNAPSHOTS,
    RETENTION,
    MEMBERS,
    UPGRADE_CHECK,
    RESEND_DLQ,
    IMPORT,
    WEB,
)
"""Every subcommand, in the order in which the help lists them."""

EPILOG: Final = """\
exit codes:
  0  done, and nothing is wrong
  1  something is not as it should be, or surely nothing was changed: a group has no leader (status; with --strict:
     anything to look into), the replicas differ, there is no such topic, group or message, some dead letters could
     not be sent again, a store cannot be imported as it is, a change was refused or not confirmed with --yes
  2  the command line is wrong; import: no store can be read there, or the target is not empty
  3  not all could be asked: of nodes it is printed what the others say, of topics, groups and messages nothing, since
     it would not be all; status: nobody could be asked; a change may have been made, or may yet be; import: it was
     begun, and failed; a file could not be read, or the output not be written; or it was interrupted

Names of RocketMQ's mqadmin in brackets may be used as subcommands, too.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = parser().parse_args(spelled_out(sys.argv[1:] if arguments is None else arguments))
    _print_any_text()
    try:
        code = _carry_out(options)
        sys.stdout.flush()
    except* KeyboardInterrupt:  # nurseries have wrapped it
        print_error("interrupted")
        code = EXIT_UNKNOWN
    except* BrokenPipeError:
        # Whoever read our output has seen enough; Python must not complain about it at exit.
        _drop_output()
        code = EXIT_OK
    except* OSError as group:  # the output's disk is full, a folder may not be read
        print_error(str(innermost(group)))
        _flush_or_drop_output()
        code = EXIT_UNKNOWN
    except* UnicodeEncodeError:
        # Bytes of the command line come as half characters, which nobody can send.
        print_error("an argument is no text in UTF-8")
        code = EXIT_USAGE
    return code


def _print_any_text() -> None:
    """Let characters that an output cannot have be written as escapes there."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _flush_or_drop_output() -> None:
    """Write what was printed before something failed, unless that is what failed."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()


def _drop_output() -> None:
    """Let Python not complain at exit of an output that takes no more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _carry_out(options: argparse.Namespace) -> int:
    """Run a subcommand; say in a line why it could not be carried out, and return what that means."""
    try:
        with tls_for_all(tls_of(options)), credentials_for_all(credentials_of(options)):
            code: int = options.run(options)
    except (ClientUsageError, ConfigError, UsageError) as error:
        print_error(error)
        return EXIT_USAGE
    except (NotThereError, UnchangedError) as error:
        print_error(error)
        return EXIT_UNCHANGED
    except (NobodyAnsweredError, ClientError) as error:
        print_error(error)
        return EXIT_UNKNOWN
    except DLedgerError as error:
        print_error(error)
        return EXIT_DIFFERENT if error.definite else EXIT_UNKNOWN
    return code


def spelled_out(words: Sequence[str]) -> list[str]:
    """Return a command line in our words: what mqadmin calls a verb of ours may stand where a subcommand does."""
    names, ours = names_of_mqadmin(COMMANDS), {row.name for row in COMMANDS}
    for place, word in enumerate(words):
        if word in ours:
            break
        if word in names:
            return [*words[:place], *names[word], *words[place + 1 :]]
    return list(words)


def parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command."""
    whole = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Questions to a broker group, repairs, and what operators change.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    add_tls_options(whole)
    add_credentials_option(whole)
    add_rows(whole.add_subparsers(dest="command", required=True, metavar="COMMAND"), COMMANDS)
    return whole


if __name__ == "__main__":
    sys.exit(main())
