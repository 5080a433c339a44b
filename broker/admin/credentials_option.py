"""The option of `dledger-admin` about accounts: who it is to servers that let only accounts in."""

from __future__ import annotations

import argparse
import os

from dledger import ConfigError
from dledger_mq.client.credentials import CREDENTIALS_VARIABLE, Credentials, read_credentials
from dledger_mq.client.errors import ClientUsageError


def add_credentials_option(parser: argparse.ArgumentParser) -> None:
    """Add the option; it stands before the command, since it holds for every request."""
    group = parser.add_argument_group("access control (before the command)")
    group.add_argument(
        "--credentials",
        metavar="FILE",
        help="the account that signs all requests: lines accessKey: ... and secretKey: ..., as RocketMQ's tools.yml "
        f"(default: the file that the environment variable {CREDENTIALS_VARIABLE} names, else nothing is signed)",
    )


def credentials_of(options: argparse.Namespace) -> Credentials | None:
    """Return what signs all requests; None: nothing is signed.

    Raises:
        ConfigError: the file cannot be used.
    """
    if options.credentials is None and not os.environ.get(CREDENTIALS_VARIABLE):
        return None
    try:
        return read_credentials(options.credentials)
    except ClientUsageError as error:
        raise ConfigError(str(error)) from error
