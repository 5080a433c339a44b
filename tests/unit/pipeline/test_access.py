"""BrokerAccess of the pipeline: options name files, and nothing of what is in them gets anywhere."""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

from dledger_mq import Credentials
from dledger_mq.client.credentials import CREDENTIALS_VARIABLE, chosen_credentials
from pipeline import cli
from pipeline.access import BrokerAccess, access_options
from pipeline.errors import PipelineUsageError
from pipeline.log_options import read_log_options
from pipeline.option_names import SINK_OPTIONS, SOURCE_OPTIONS
from pipeline.sink.options import read_options
from pipeline.source_options import read_source_options
from tests.certificates import write_files

SECRET = "8dca1ea9a3f0c2"
BILLING = Credentials("billing", SECRET)


def read_source(given: Mapping[str, str]) -> BrokerAccess:
    return read_source_options({"nameServer": "h:1", "topic": "T", **given}, "either").access


def read_sink(given: Mapping[str, str]) -> BrokerAccess:
    return read_options({"nameServer": "h:1", "topic": "T", **given}, is_stream=True).access


def read_log(given: Mapping[str, str]) -> BrokerAccess:
    return read_log_options({"nameServer": "h:1", "path": "/store", **given}).access


FORMATS: list[Callable[[Mapping[str, str]], BrokerAccess]] = [read_source, read_sink, read_log]


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "keys.yml"
    path.write_text(f"accessKey: billing\nsecretKey: {SECRET}\n")
    return str(path)


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CREDENTIALS_VARIABLE, raising=False)


@pytest.mark.parametrize("read", FORMATS)
def test_a_file_is_named_and_read_by_who_connects(
    read: Callable[[Mapping[str, str]], BrokerAccess], keys: str
) -> None:
    assert read({}).arguments() == {"credentials": None, "tls": None}
    access = read({"CredentialsPath": keys})
    assert access.arguments()["credentials"] == BILLING
    sent: BrokerAccess = pickle.loads(pickle.dumps(access))
    assert sent.arguments()["credentials"] == BILLING
    assert SECRET not in repr(access)
    assert SECRET.encode() not in pickle.dumps(access)


@pytest.mark.parametrize("read", FORMATS)
def test_the_environment_names_a_file_and_an_option_another(
    read: Callable[[Mapping[str, str]], BrokerAccess],
    keys: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CREDENTIALS_VARIABLE, keys)
    assert read({}).arguments()["credentials"] == BILLING
    other = tmp_path / "other.yml"
    other.write_text("accessKey: others\nsecretKey: another\n")
    found = read({"credentialsPath": str(other)}).arguments()["credentials"]
    assert found == Credentials("others", "another")


@pytest.mark.parametrize("read", FORMATS)
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"secretKey": SECRET}, "option secretKey is not taken, since plans show options"),
        ({"accessKey": "billing"}, "for credentialsPath or the environment variable DLEDGER_CRED"),
        ({"tlsKeyPassword": SECRET}, "for tlsKeyPasswordPath"),
        ({"tlsKeyPath": "k"}, "option tlsCertPath is missing: a key is given"),
        ({"tlsInsecure": "true", "tlsTrustPath": "ca"}, "option tlsInsecure checks nothing"),
        ({"tls": "yes"}, "it must be true or false"),
    ],
)
def test_what_is_refused_shows_no_key(
    read: Callable[[Mapping[str, str]], BrokerAccess], given: dict[str, str], why: str
) -> None:
    with pytest.raises(PipelineUsageError, match=why) as caught:
        read(given)
    assert SECRET not in str(caught.value)


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "keys.yml"
    broken.write_text(f"accessKey billing\n{SECRET}\n")
    for given, why in (
        ({"credentialsPath": str(tmp_path / "none")}, "none cannot be read: No such file"),
        ({"credentialsPath": str(broken)}, "line 1 begins with none of"),
        ({"tlsTrustPath": str(tmp_path / "none")}, "none"),
        (
            {"tlsCertPath": "c", "tlsKeyPasswordPath": str(tmp_path / "none")},
            "tlsKeyPasswordPath .*none cannot be read: No such file",
        ),
    ):
        with pytest.raises(PipelineUsageError, match=why) as caught:
            read_source(given).arguments()
        assert SECRET not in str(caught.value)


def test_tls(tmp_path: Path) -> None:
    files = write_files(tmp_path)
    for given in (
        {"tls": "true"},
        {"tlsInsecure": "true"},
        {"tlsTrustPath": files.trust},
        {"tlsCertPath": files.certificate, "tlsKeyPath": files.key},
    ):
        context = read_sink(given).arguments()["tls"]
        assert context is not None
        assert context.check_hostname != ("tlsInsecure" in given)


def test_a_table_has_them_for_both_uses(keys: str) -> None:
    given = {"nameServer": "h:1", "topic": "T", "credentialsPath": keys, "tls": "true"}
    source = read_source_options(given, "batch", is_table=True)
    assert source.access == read_options(given, is_stream=False, is_table=True).access
    assert {"credentialsPath", "tlsTrustPath"} <= SOURCE_OPTIONS & SINK_OPTIONS


def test_within_the_block_everything_signs(keys: str) -> None:
    with BrokerAccess(credentials=keys).for_all():
        assert chosen_credentials() == BILLING
        with BrokerAccess().for_all():
            assert chosen_credentials() == BILLING, "who says nothing changes nothing"
    assert chosen_credentials() is None


class _Job:
    """Says what it runs as."""

    name = "fake"
    summary = "for tests"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """It has none."""

    def run(self, context: Any) -> int:
        self.credentials = chosen_credentials()
        self.options = access_options(context.options)
        return 0


def test_the_command_line_has_the_words_of_the_admin(
    keys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = _Job()
    monkeypatch.setattr(cli, "JOBS", ("fake",))
    monkeypatch.setattr(cli, "load", lambda _name: job)
    monkeypatch.chdir(tmp_path)
    trust = write_files(tmp_path).trust
    words = ["--credentials", "keys.yml", "--tls-trust", trust]
    assert cli.main([*words, "fake"]) == 0
    assert job.credentials == BILLING
    assert job.options == {"credentialsPath": keys, "tlsTrustPath": trust}
    assert cli.main(["--credentials", "none.yml", "fake"]) == 2
    assert "none.yml cannot be read: No such file" in capsys.readouterr().err


def test_a_shipped_file_goes_before_one_of_the_same_name(
    keys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, shipped = tmp_path / "here", tmp_path / "shipped"
    here.mkdir()
    shipped.mkdir()
    monkeypatch.chdir(here)
    for folder in (here, shipped):
        (folder / "keys.yml").write_text(f"accessKey: {folder.name}\nsecretKey: x\n")
    (here / "own.yml").write_text("accessKey: own\nsecretKey: x\n")

    def account(name: str) -> str:
        access = read_sink({"credentialsPath": name}).shipped_in(shipped)
        found = access.arguments()["credentials"]
        assert found is not None
        return found.access_key

    assert account("keys.yml") == "shipped"
    assert account("own.yml") == "own"
    assert account(keys) == "billing", "an absolute name stays what it is"
    with pytest.raises(PipelineUsageError, match=r"credentials none\.yml cannot be read"):
        account("none.yml")
    assert read_sink({}).shipped_in(shipped) == read_sink({})
