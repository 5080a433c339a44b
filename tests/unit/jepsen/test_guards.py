"""What keeps strangers out of a run's groups: the files, and what those show who are let in."""

from __future__ import annotations

import argparse
import stat
from pathlib import Path

import pytest
from cryptography import x509

from dledger import MemberTls
from dledger_mq import make_tls_context, read_credentials
from dledger_mq.client.credentials import chosen_credentials
from dledger_mq.client.tls import chosen_tls
from dledger_mq.remoting.signature import SigningKey, is_signed_with
from jepsen.catalogue import UnknownNameError, check_guards
from jepsen.cli import guards as asked
from jepsen.clients.raw import signed
from jepsen.guards import ACCOUNT, GUARDS, Guards, make_guards
from jepsen.reports.summary import command_of
from jepsen.run import RunSettings

LOOPBACK = ["127.0.0.1"]


def test_nothing_is_asked_for_on_loopback(tmp_path: Path) -> None:
    guards = make_guards(tmp_path, (), LOOPBACK)
    assert guards == Guards()
    assert guards.broker_options() == guards.name_server_options() == guards.log_options() == []
    assert not guards.settings()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("hosts", [LOOPBACK, ["10.0.0.1"]])
def test_a_secret_comes_with_accounts_and_with_other_machines(
    tmp_path: Path, hosts: list[str]
) -> None:
    guards = make_guards(tmp_path, ("accounts",) if hosts == LOOPBACK else (), hosts)
    assert guards.secret_file is not None
    assert "--secret-file" in guards.broker_options()
    assert "--group-secret-file" in guards.name_server_options()


def test_what_is_secret_is_for_its_owner(tmp_path: Path) -> None:
    guards = make_guards(tmp_path, GUARDS, LOOPBACK)
    assert guards.secret_file is not None
    assert guards.rules is not None
    assert guards.tls_files is not None
    for path in (guards.secret_file, guards.rules, Path(guards.tls_files.key)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    words = [*guards.broker_options(), *guards.name_server_options(), *guards.log_options()]
    assert guards.secret is not None
    assert guards.secret not in " ".join(words)


def test_a_certificate_is_believed_for_each_address(tmp_path: Path) -> None:
    hosts = ["127.0.0.1", "10.200.0.254"]
    files = make_guards(tmp_path, ("tls",), hosts).tls_files
    assert files is not None
    leaf = x509.load_pem_x509_certificate(Path(files.certificate).read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == hosts
    make_tls_context(trust=files.trust)
    MemberTls.from_files(certificate=files.certificate, key=files.key, trust=files.trust)


def test_who_is_let_in_shows_what_is_wanted_and_nobody_afterwards(tmp_path: Path) -> None:
    guards = make_guards(tmp_path, GUARDS, LOOPBACK)
    with guards.lets_in():
        assert chosen_credentials() == ACCOUNT
        assert chosen_tls() is not None
        fields = signed({"topic": "T"})
        assert is_signed_with(SigningKey(ACCOUNT.secret_key), fields, b"")
    assert chosen_credentials() is None
    assert chosen_tls() is None
    assert signed({"topic": "T"}) == {"topic": "T"}


def test_rules_are_those_of_the_account(tmp_path: Path) -> None:
    guards = make_guards(tmp_path, ("accounts",), LOOPBACK)
    assert guards.rules is not None
    lines = guards.rules.read_text().splitlines()
    keys = tmp_path / "keys.yml"
    keys.write_text("\n".join(line.removeprefix("-").strip() for line in lines[1:3]))
    assert read_credentials(keys) == ACCOUNT
    assert guards.settings() == {"aclEnable": "true", "aclFile": str(guards.rules)}


def test_the_words_of_the_command_line() -> None:
    assert asked("accounts, secret") == ("secret", "accounts")
    assert asked("") == ()
    with pytest.raises(argparse.ArgumentTypeError, match="'locks': there are secret, tls"):
        asked("locks,tls")
    settings = RunSettings("queue", "none", 1.0, guards=GUARDS)
    assert command_of(settings).endswith(" --guards secret,tls,accounts")


@pytest.mark.parametrize(
    ("workload", "system", "network", "guards", "why"),
    [
        ("log-set", "pysyncobj", "none", ("secret",), "no guards of ours"),
        ("log-set", "", "none", ("accounts",), "knows no accounts"),
        ("queue-cpp", "", "none", ("tls", "accounts"), "without tls and accounts"),
        ("queue", "", "proxies", ("tls",), "--network namespaces"),
    ],
)
def test_what_cannot_be_guarded_so(
    workload: str, system: str, network: str, guards: tuple[str, ...], why: str
) -> None:
    with pytest.raises(UnknownNameError, match=why):
        check_guards(workload, system, network, guards)  # type: ignore[arg-type]  # words of the table


def test_what_can() -> None:
    check_guards("queue", "", "namespaces", GUARDS)
    check_guards("queue", "", "proxies", ("secret", "accounts"))
    check_guards("queue-java", "", "none", ("secret",))
    check_guards("queue-node", "", "none", ("secret",))
    check_guards("log-append", "log", "namespaces", ("secret", "tls"))
