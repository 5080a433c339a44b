"""The settings of a name server: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.namesrv.conf_keys import HONOURED, NAME_SERVER_KEYS
from broker.namesrv.config import read_config
from broker.namesrv.errors import NameServerConfigError
from broker.settings.tls import TLS_KEYS, TlsMode
from dledger_mq.net.address import Address, parse_address
from tests.certificates import write_files


def test_defaults_listen_on_loopback_and_keep_nothing() -> None:
    config = read_config([])
    assert config.listen == Address("127.0.0.1", 9876)
    assert (config.folder, config.group) == (None, None)
    assert read_config(["--listen", "1234"]).listen == Address("127.0.0.1", 1234)
    assert read_config(["--listen", "0.0.0.0:1"]).listen == Address("0.0.0.0", 1)


def test_a_rocketmq_namesrv_conf(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text(
        "# comment\nlistenPort = 19876\nkvConfigPath=/data/ns/kvConfig.json\n"
        "orderMessageEnable=true\nserverWorkerThreads=8\n"
    )
    config = read_config(["-c", str(file)])
    assert config.listen == Address("127.0.0.1", 19_876)
    assert config.folder == Path("/data/ns")
    assert config.orders_messages
    assert config.warnings == ("serverWorkerThreads is not used: sockets are not Netty's",)
    assert read_config(["-c", str(file), "--listen", "5"]).listen.port == 5


@pytest.mark.parametrize("text", ["", "x", "host:", "host:99999", "host:-1", "1.2.3.4", "host:٣"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_address(text)
    with pytest.raises(NameServerConfigError):
        read_config(["--listen", text])


def test_addresses() -> None:
    assert parse_address("[::1]:5") == Address("::1", 5)
    assert str(Address("::1", 5)) == "[::1]:5"
    assert parse_address("h:5") == Address("h", 5)


def password_file(folder: Path, text: str = "correct horse battery", mode: int = 0o600) -> str:
    path = folder / "password"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def group_options(folder: Path, password: str) -> list[str]:
    return [
        "--kv-listen",
        "127.0.0.1:1",
        "--kv-peers",
        "127.0.0.1:2,127.0.0.1:3",
        "--kv-password-file",
        password,
        "--store",
        str(folder),
    ]


def test_a_group_of_name_servers(tmp_path: Path) -> None:
    group = read_config(group_options(tmp_path, password_file(tmp_path))).group
    assert group is not None
    assert group.peers == (Address("127.0.0.1", 2), Address("127.0.0.1", 3))
    assert group.password == "correct horse battery"


@pytest.mark.parametrize("left_out", ["--kv-listen", "--kv-password-file", "--store", "--kv-peers"])
def test_a_group_needs_all_of_its_options(tmp_path: Path, left_out: str) -> None:
    """Above all: no group without a password, which is what keeps pickled strangers out."""
    options = group_options(tmp_path, password_file(tmp_path))
    at = options.index(left_out)
    with pytest.raises(NameServerConfigError):
        read_config(options[:at] + options[at + 2 :])


def test_unsafe_passwords_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NameServerConfigError, match="at least 16"):
        read_config(group_options(tmp_path, password_file(tmp_path, "short")))
    with pytest.raises(NameServerConfigError, match="chmod"):
        read_config(group_options(tmp_path, password_file(tmp_path, mode=0o644)))
    with pytest.raises(NameServerConfigError, match="cannot be read"):
        read_config(group_options(tmp_path, str(tmp_path / "absent")))


def test_a_peer_may_not_be_oneself(tmp_path: Path) -> None:
    options = group_options(tmp_path, password_file(tmp_path))
    options[1] = "127.0.0.1:2"
    with pytest.raises(NameServerConfigError, match="which is --kv-listen"):
        read_config(options)


@pytest.mark.parametrize("text", ["orderMessageEnable=maybe", "listenPort=x"])
def test_wrong_values_in_the_file_are_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text(text)
    with pytest.raises(NameServerConfigError, match=text.partition("=")[0]):
        read_config(["-c", str(file)])


def test_all_mistakes_of_the_file_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPrt=1\n\nclusterTest=true\nserverWorkerThreads=many\n")
    with pytest.raises(NameServerConfigError) as refused:
        read_config(["-c", str(file)])
    assert str(refused.value).splitlines() == [
        f"-c {file} has 3 mistakes:",
        "  line 1: listenPrt is unknown and cannot be used: is listenPort meant?",
        "  line 3: clusterTest=true: routes of another environment are not asked for; remove the line",
        "  line 4: serverWorkerThreads=many is not a whole number",
    ]


def test_a_lenient_start_passes_over_what_cannot_harm(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPrt=1\n")
    (warning,) = read_config(["-c", str(file), "--lenient"]).warnings
    assert warning.startswith("passed over: line 1: listenPrt is unknown")


@pytest.mark.parametrize(
    "line", ["tlsEnable=true", "tls.server.mode=on", "tlsMode=on", "authEnable=true"]
)
def test_what_asks_for_a_protection_is_refused_in_any_case(tmp_path: Path, line: str) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text(line)
    for options in ([], ["--lenient"]):
        with pytest.raises(NameServerConfigError, match=f"line 1: {line.partition('=')[0]}"):
            read_config(["-c", str(file), *options])


@pytest.mark.parametrize("release", ["in_49", "in_53"])
def test_rocketmqs_own_defaults_never_make_a_start_fail(tmp_path: Path, release: str) -> None:
    file = tmp_path / "namesrv.conf"
    defaults = {key.name: getattr(key, release) for key in NAME_SERVER_KEYS.keys}
    given = {key: value for key, value in defaults.items() if value and value != "by cores"}
    file.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    config = read_config(["-c", str(file)])
    assert len(config.warnings) > 15


def test_what_is_honoured_is_read(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text(
        "listenPort=1\nbindAddress=127.0.0.2\nkvConfigPath=/kv/x.json\norderMessageEnable=true\n"
    )
    assert {row.key.name for row in HONOURED} == {
        "listenPort",
        "bindAddress",
        "kvConfigPath",
        "orderMessageEnable",
        *(row.key.name for row in TLS_KEYS),
        "aclEnable",
        "aclFile",
    }
    config = read_config(["-c", str(file)])
    assert (config.listen, config.folder) == (Address("127.0.0.2", 1), Path("/kv"))
    assert config.orders_messages
    assert config.warnings == ()


def test_a_name_server_reads_the_keys_of_tls(tmp_path: Path) -> None:
    files, file = write_files(tmp_path), tmp_path / "namesrv.conf"
    file.write_text(
        f"tls.server.certPath={files.certificate}\ntls.server.keyPath={files.key}\n"
        f"tls.server.mode=enforcing\ntls.client.trustCertPath={files.trust}\n"
    )
    config = read_config(["-c", str(file)])
    assert config.tls.mode is TlsMode.ENFORCING
    assert config.tls.dials
    assert config.tls.client.trust == files.trust
    assert config.warnings == ()
    Path(files.key).unlink()
    with pytest.raises(NameServerConfigError, match=r"TLS: .*key\.pem cannot be read"):
        read_config(["-c", str(file)])


def test_half_of_what_tls_needs_is_refused_by_a_name_server(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPort=9\ntls.server.mode=enforcing\n")
    with pytest.raises(NameServerConfigError, match=r"line 2: tls.server.mode=enforcing: name a"):
        read_config(["-c", str(file)])


def test_accounts_stand_beside_the_file_that_asks_for_them(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    found = []
    for text in ("", "aclEnable=false", "aclEnable=true", "aclEnable=true\naclFile=x/rules.yml"):
        file.write_text(text)
        found.append(read_config(["-c", str(file)]).acl_file)
    assert found == [None, None, tmp_path / "plain_acl.yml", tmp_path / "x/rules.yml"]


def test_a_mistake_of_the_tls_file_is_told_of_that_file(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.mode=always\n")
    with pytest.raises(NameServerConfigError) as caught:
        read_config(["--tls-config", str(file)])
    assert str(caught.value).startswith(f"--tls-config {file}: tls.server.mode=always is not one")


def test_accounts_without_the_secret_of_brokers_are_warned_of(tmp_path: Path) -> None:
    file, secret = tmp_path / "namesrv.conf", tmp_path / "secret"
    file.write_text("aclEnable=true\n")
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    (warning,) = read_config(["-c", str(file)]).warnings
    assert "brokers, which have no account, cannot ask for routes" in warning
    config = read_config(["-c", str(file), "--group-secret-file", str(secret)])
    assert config.warnings == ()
    assert config.acl_file == tmp_path / "plain_acl.yml"
