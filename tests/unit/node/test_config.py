"""node.toml: what it says, and that each mistake in it is named before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.node.config import NAME_SERVER, choose_machine, read_node_file
from broker.node.plan import plan_node
from broker.node.values import TAKEN_NAMES
from broker.properties import read_properties
from broker.server.config import read_config
from dledger import ConfigError

FOLDER = Path("/etc/dledger")
THREE = '[machines]\nalpha = "10.0.0.1"\nbeta = "10.0.0.2"\ngamma = "10.0.0.3"\n'


def plans(text: str, *, secret: str | None = "s") -> list[dict[str, dict[str, str]]]:
    """The settings of every group's broker, machine by machine."""
    file = read_node_file(text, folder=FOLDER)
    found = []
    for machine in file.every_machine:
        children = plan_node(file, machine, secret=secret).children
        texts = {child.name: child.files[0][1] for child in children if child.name != NAME_SERVER}
        found.append({name: read_properties(text) for name, text in texts.items()})
    return found


def test_three_machines_share_three_groups_and_each_leads_one() -> None:
    alpha, beta, gamma = plans(THREE)
    assert list(alpha) == list(beta) == list(gamma) == ["broker-a", "broker-b", "broker-c"]
    assert [alpha[name]["preferredLeaderId"] for name in alpha] == ["n0", "n1", "n2"]
    assert [each["broker-b"]["dLegerSelfId"] for each in (alpha, beta, gamma)] == ["n0", "n1", "n2"]
    assert (
        alpha["broker-b"]["dLegerPeers"] == "n0-10.0.0.1:20921;n1-10.0.0.2:20921;n2-10.0.0.3:20921"
    )
    assert gamma["broker-a"]["namesrvAddr"] == "10.0.0.1:9876;10.0.0.2:9876;10.0.0.3:9876"
    assert gamma["broker-a"]["storePathRootDir"] == "/etc/dledger/data/gamma/broker-a"


def test_all_machines_agree_on_the_members_and_leaders_of_each_group() -> None:
    machines = plans(THREE)
    for key in ("dLegerPeers", "preferredLeaderId", "dLegerGroup", "namesrvAddr"):
        assert len({tuple(one[group][key] for group in one) for one in machines}) == 1, key


def test_what_is_planned_is_what_a_broker_reads() -> None:
    beta = plans(THREE)[1]
    read = [read_config(values, {"secret": "s"}) for values in beta.values()]
    assert [(config.group, str(config.listen)) for config, _ in read] == [
        ("broker-a", "10.0.0.2:10911"),
        ("broker-b", "10.0.0.2:10921"),
        ("broker-c", "10.0.0.2:10931"),
    ]
    assert [len(warnings) for _, warnings in read] == [1, 1, 1]  # that access control is off


def test_settings_are_for_all_groups_or_for_one() -> None:
    for_all = "[broker]\ndefaultTopicQueueNums = 4\nautoCreateTopicEnable = false\n"
    text = f"{THREE}{for_all}[group.broker-b]\ndefaultTopicQueueNums = 16\n"
    alpha = plans(text)[0]
    assert [alpha[name]["defaultTopicQueueNums"] for name in alpha] == ["4", "16", "4"]
    assert {alpha[name]["autoCreateTopicEnable"] for name in alpha} == {"false"}


def test_a_backslash_in_a_setting_arrives() -> None:
    alpha = plans(f"{THREE}[broker]\nregionId = 'a\\b'\n")[0]
    assert alpha["broker-a"]["regionId"] == "a\\b"


def test_one_machine_has_one_group_and_names_may_be_given() -> None:
    (only,) = plans('groups = ["orders", "events"]\n[machines]\nhere = "127.0.0.1"\n')
    assert list(only) == ["orders", "events"]
    (only,) = plans('[machines]\nhere = "127.0.0.1"\n')
    assert list(only) == ["broker-a"]


def test_tls_and_log_options_reach_all_processes() -> None:
    text = (
        'tls_config_file = "tls.properties"\nlog_format = "json"\nlog_level = "debug"\nlog_folder = "/var/log/d"\n'
        + THREE
    )
    file = read_node_file(text, folder=FOLDER)
    tls = {"tls.server.mode": "enforcing", "tls.server.certPath": "c"}
    name_server, *brokers = plan_node(file, "alpha", secret="s", tls=tls).children
    for child in (name_server, *brokers):
        words = " ".join(child.command)
        assert (
            "--tls-config /etc/dledger/tls.properties --log-level debug --log-format json" in words
        )
        assert f"--log-file /var/log/d/alpha-{child.name}.log" in words
        assert not any("certPath" in content for _, content in child.files)
    bare = plan_node(read_node_file(THREE, folder=FOLDER), "alpha", secret="s").children
    assert not any(word.startswith(("--tls", "--log")) for each in bare for word in each.command)


def test_machines_that_others_reach_need_a_secret_or_certificates() -> None:
    file = read_node_file(THREE, folder=FOLDER)
    with pytest.raises(ConfigError, match=r"--secret-file FILE.*tls\.peer\.mode=enforcing"):
        plan_node(file, "alpha", secret=None)
    shown = {
        "tls.peer.mode": "enforcing",
        "tls.peer.certPath": "c",
        "tls.peer.trustCertPath": "t",
    }
    assert plan_node(file, "alpha", secret=None, tls=shown).children


def test_a_secret_reaches_brokers_and_the_name_server_but_no_settings_file_of_a_broker() -> None:
    file = read_node_file(f'secret_file = "secret"\n{THREE}', folder=FOLDER)
    name_server, *brokers = plan_node(file, "alpha", secret="s3cret").children
    assert len(name_server.files) == 1
    assert name_server.command[-2:] == ("--group-secret-file", "/etc/dledger/secret")
    for broker in brokers:
        assert broker.command[-2:] == ("--secret-file", "/etc/dledger/secret")
        assert [text for _, text in broker.files if "s3cret" in text] == []


def test_groups_of_a_machine_do_not_give_their_figures_at_one_port() -> None:
    file = read_node_file(f"{THREE}[broker]\nmetricsExporterType = 'PROM'\n", folder=FOLDER)
    with pytest.raises(
        ConfigError, match=r"group broker-b, broker-c: .*:5557, as those of broker-a.*\[ports\]"
    ):
        plan_node(file, "alpha", secret="s")
    assert plans(f"{THREE}[group.broker-a]\nmetricsExporterType = 'PROM'\n")
    assert plans(f"{THREE}[broker]\nmetricsExporterType = 'PROM'\n[ports]\nmetrics = 5557\n")


@pytest.mark.parametrize("text", [f"x = {'9' * 5000}\n", f"x = {'[' * 100_000}\n"])
def test_what_python_cannot_read_is_no_toml(text: str) -> None:
    with pytest.raises(ConfigError, match="this is not TOML"):
        read_node_file(text + THREE, folder=FOLDER)


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.b", "a." * 127 + "b"])
def test_what_is_no_name_for_dns_is_no_host(host: str) -> None:
    with pytest.raises(ConfigError, match="is not a host name"):
        read_node_file(f'[machines]\nhere = "{host}"\n', folder=FOLDER)


ACCOUNTS = 'aclEnable = true\naclFile = "rules.yml"\n'


@pytest.mark.parametrize(
    ("settings", "asks", "warned"),
    [
        ("", {}, False),
        (f"[broker]\n{ACCOUNTS}", {"aclEnable": "true", "aclFile": "rules.yml"}, False),
        ("[broker]\naclEnable = true\n", {"aclEnable": "true", "aclFile": "plain_acl.yml"}, False),
        (f"[group.broker-a]\n{ACCOUNTS}", {}, True),
        (f"[broker]\n{ACCOUNTS}[group.broker-b]\naclEnable = false\n", {}, True),
        (f"[broker]\n{ACCOUNTS}[group.broker-b]\naclFile = 'other.yml'\n", {}, True),
    ],
)
def test_the_name_server_asks_for_the_accounts_that_all_groups_have(
    settings: str, asks: dict[str, str], warned: bool
) -> None:
    file = read_node_file(f'secret_file = "secret"\n{THREE}{settings}', folder=FOLDER)
    plan = plan_node(file, "alpha", secret="s")
    name_server = read_properties(plan.children[0].files[0][1])
    assert {key: text for key, text in name_server.items() if key.startswith("acl")} == asks
    assert any("the name server lets everybody" in each for each in plan.warnings) == warned


FOUR = f"{THREE}[joined]\ndelta = '10.0.0.4'\n"


def test_a_machine_that_comes_later_joins_and_changes_nothing_for_the_others() -> None:
    (*before, delta), was = plans(FOUR), plans(THREE)
    servers = "10.0.0.1:9876;10.0.0.2:9876;10.0.0.3:9876;10.0.0.4:9876"
    named = {group: {"namesrvAddr": servers} for group in was[0]}
    assert before == [{group: each[group] | named[group] for group in each} for each in was]
    assert list(delta) == ["broker-a", "broker-b", "broker-c"]
    assert delta["broker-b"]["dLegerSelfId"] == "n3"
    assert delta["broker-b"]["dLegerPeers"] == (
        "n0-10.0.0.1:20921;n1-10.0.0.2:20921;n2-10.0.0.3:20921;n3-10.0.0.4:20921"
    )
    config, warnings = read_config(delta["broker-b"], {"secret": "s"})
    assert config.joins
    assert ["aclEnable" in each for each in warnings] == [True]
    assert [each["broker-a"].get("raftJoin") for each in before] == [None, None, None]


def test_what_is_to_be_ordered_for_it_is_said() -> None:
    file = read_node_file(f"secret_file = 'secret'\n{FOUR}", folder=FOLDER)
    delta, alpha = (plan_node(file, name, secret="s") for name in ("delta", "alpha"))
    assert delta.changes[1] == (
        "dledger-admin members add n3-10.0.0.4:20921 -g broker-b "
        '-n "10.0.0.1:9876;10.0.0.2:9876;10.0.0.3:9876;10.0.0.4:9876" --secret-file /etc/dledger/secret'
    )
    assert (len(delta.changes), alpha.changes) == (3, ())


def test_members_are_started_with_the_same_ones_whoever_comes_or_leaves_later() -> None:
    text = f"left = ['gamma']\n{FOUR}epsilon = '10.0.0.3'\n"
    file = read_node_file(text, folder=FOLDER)
    now = dict(zip(file.every_machine, plans(text), strict=True))
    for one in ("alpha", "delta"):
        (was,) = (
            each
            for each in plans(FOUR)
            if each["broker-a"]["storePathRootDir"].endswith(f"/{one}/broker-a")
        )
        assert now[one]["broker-a"]["dLegerPeers"] == was["broker-a"]["dLegerPeers"]
    assert now["epsilon"]["broker-a"]["dLegerSelfId"] == "n4"
    assert now["epsilon"]["broker-a"]["dLegerPeers"] == (
        "n0-10.0.0.1:20911;n1-10.0.0.2:20911;n3-10.0.0.4:20911;n4-10.0.0.3:20911"
    )
    # Nobody is sent to a machine that is gone, and it may be stopped and looked at still.
    assert now["alpha"]["broker-a"]["namesrvAddr"] == (
        "10.0.0.1:9876;10.0.0.2:9876;10.0.0.4:9876;10.0.0.3:9876"
    )
    gone = plan_node(file, choose_machine(file, "gamma", ""), secret="s")
    assert (gone.has_left, len(gone.children)) == (True, 4)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "machines is missing"),
        ("machines = 3", "machines: expected `object`, got `int`"),
        ("[machines", "this is not TOML"),
        ('[machines]\na = "10.0.0.1"\nb = "10.0.0.2"', "has 2: a group needs a majority"),
        ("[machines]\n" + "".join(f'm{i} = "10.0.0.{i}"\n' for i in range(9)), "has 9"),
        ("[machines]", "has 0"),
        ('[machines]\n"a/b" = "10.0.0.1"', "machine 'a/b': a name is made of"),
        ('[machines]\n".." = "10.0.0.1"', "machine '..': a name is made of"),
        ('[machines]\na = "10.0.0.1:80"', "is not a host name or an IPv4 address"),
        (
            '[machines]\na = "10.0.0.1"\nb = "10.0.0.1"\nc = "10.0.0.2"',
            "machines a and b have the same address 10.0.0.1",
        ),
        (f"store_path = '/x'\n{THREE}", "store_path is no setting"),
        (f"{THREE}[ports]\nnameserver = 9", "ports.nameserver is no setting"),
        (f"{THREE}[ports]\nnamesrv = 0", "ports.namesrv: expected `int` >= 1"),
        (f"store = ''\n{THREE}", "store: expected `str` of length >= 1"),
        (f"{THREE}[ports]\nbroker = 65530", "clients of broker-b port 65540, which does not exist"),
        (
            f"{THREE}[ports]\nnamesrv = 10919",
            "port 10919 to the name server and to old clients (vipListenEnable) of broker-b",
        ),
        (f"{THREE}[ports]\nbroker = 20911", "gives port 20911 to clients of broker-a and to members of broker-a"),
        (f"{THREE}[ports]\nmember = 10921", "gives port 10921 to members of broker-a and to clients of broker-b"),
        (f"{THREE}[broker]\nlistenPort = 1", "[broker] listenPort: leave it out, it follows from [ports]"),
        (f"{THREE}[group.broker-a]\nsecret = 'x'", "[group.broker-a] secret: leave it out, set `secret_file`"),
        (f"{THREE}[group.broker-x]\nregionId = 'x'", "[group.broker-x] is not among the groups"),
        (f'groups = ["a", "a"]\n{THREE}', "groups names one twice: a, a"),
        ('[machines]\na = 3', "machines.a is 3, which is no text"),
        ('[machines]\na = "0.0.0.0"', "machine a: 0.0.0.0 is no address that others can reach"),
        ('[machines]\na = "224.0.0.1"', "machine a: 224.0.0.1 is no address that others can reach"),
        ('[machines]\na = "10.0.0.300"', "machine a: '10.0.0.300' is not a host name or an IPv4 address"),
        ('[machines]\na = "10.0.1"', "machine a: '10.0.1' is not a host name or an IPv4 address"),
        ('[machines]\na = "host/1"', "machine a: 'host/1' is not a host name or an IPv4 address"),
        (
            '[machines]\na = "127.0.0.1"\nb = "10.0.0.2"\nc = "10.0.0.3"',
            "machine a has the loopback address 127.0.0.1, at which b (10.0.0.2) cannot reach it",
        ),
        (f"{THREE}[broker]\ndefaultTopicQueueNums = 3.5", "broker.defaultTopicQueueNums is 3.5, which is neither"),
        (f"{THREE}[group.broker-a]\nx = []", "group.broker-a.x is [], which is neither"),
        (f'{THREE}[broker]\nregionId = "a\\nlistenPort=1"', "broker.regionId: 'a\\nlistenPort=1' is not one line"),
        (f'{THREE}[broker]\nregionId = "a\u2028b"', "is not one line of printable characters"),
        (f'{THREE}[broker]\n"region Id" = "a"', "broker: 'region Id' is no name of a setting"),
        (f'store = "a\\tb"\n{THREE}', "store: 'a\\tb' is not one line"),
        (f'cluster = "a\\nb"\n{THREE}', "cluster: 'a\\nb' is not one line"),
        *((f'groups = ["{name}"]\n{THREE}', f"group '{name}': that name is taken") for name in sorted(TAKEN_NAMES)),
        (f'groups = ["a b"]\n{THREE}', "group 'a b': a name is made of"),
        (f"groups = {[f'g{i}' for i in range(27)]}\n{THREE}", "groups has 27 names: at most 26"),
        ("[machines]\na = '10.0.0.1'\nb = '10.0.0.2'", "that come later, to groups that exist, stand in [joined]"),
        (f"{THREE}[joined]\nalpha = '10.0.0.4'", "machine alpha stands in [machines] and in [joined]"),
        (f"{THREE}[joined]\ndelta = '10.0.0.3'", "machines gamma and delta have the same address 10.0.0.3"),
        (f"{THREE}[joined]\ndelta = 4", "joined.delta is 4, which is no text"),
        (f"{THREE}[joined]\ndelta = '10.0.0.300'", "machine delta: '10.0.0.300' is not a host name"),
        (f"{THREE}[joined]\n" + "".join(f"j{i} = '10.0.1.{i}'\n" for i in range(5)), "8 machines are there, without"),
        (f"left = ['delta']\n{THREE}", "left names delta, which is not among the machines alpha, beta, gamma"),
        (f"left = ['alpha', 'beta', 'gamma']\n{THREE}", "0 machines are there, without those in left"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_node_file(text, folder=FOLDER)
    assert reason in str(caught.value)


def test_a_wrong_setting_of_a_broker_names_the_group() -> None:
    file = read_node_file(f"{THREE}[group.broker-b]\nmaxMessageSize = 0\n", folder=FOLDER)
    with pytest.raises(
        ConfigError, match=r"^group broker-b: maxMessageSize=0 is not a number from 1"
    ):
        plan_node(file, "alpha", secret="s")


def test_the_machine_is_the_one_that_is_wanted_or_the_hosts() -> None:
    file = read_node_file(THREE, folder=FOLDER)
    assert choose_machine(file, "beta", "gamma") == "beta"
    assert choose_machine(file, None, "gamma") == "gamma"
    with pytest.raises(ConfigError, match=r"--machine delta is not among the machines alpha, beta"):
        choose_machine(file, "delta", "gamma")
    with pytest.raises(ConfigError, match="this host is called box, which is not among"):
        choose_machine(file, None, "box")


def test_all_mistakes_of_all_groups_are_told_at_once_each_one_time() -> None:
    text = f"{THREE}[broker]\ndefaultTopicQueuNums = 3\n[group.broker-b]\nregionID = 'x'\nbrokerPermission = 9\n"
    with pytest.raises(ConfigError) as refused:
        plan_node(read_node_file(text, folder=FOLDER), "alpha", secret="s")
    assert str(refused.value).splitlines() == [
        "3 settings are wrong:",
        "  all groups: defaultTopicQueuNums is unknown and cannot be used: is defaultTopicQueueNums meant?",
        "  group broker-b: regionID is unknown and cannot be used: is regionId meant?",
        "  group broker-b: brokerPermission=9 is not a number from 0 to 7",
    ]


def test_a_lenient_plan_keeps_mistakes_from_the_brokers_and_says_so() -> None:
    text = (
        f"{THREE}[broker]\ndefaultTopicQueuNums = 3\n[group.broker-b]\ntransactionTimeOut = '6s'\n"
    )
    plan = plan_node(read_node_file(text, folder=FOLDER), "alpha", secret="s", is_lenient=True)
    unknown, wrong = (text for text in plan.warnings if "EVERYBODY" not in text)
    assert unknown.startswith("all groups: passed over: defaultTopicQueuNums is unknown")
    assert wrong.startswith("group broker-b: passed over: transactionTimeOut=6s is not a number")
    assert wrong.endswith(": it counts milliseconds, without a unit")
    files = "".join(child.files[0][1] for child in plan.children)
    assert "defaultTopicQueuNums" not in files
    assert "transactionTimeOut" not in files


def test_a_lenient_plan_refuses_what_protects() -> None:
    text = f"{THREE}[broker]\nauthenticationEnabled = true\n"
    with pytest.raises(
        ConfigError, match="all groups: authenticationEnabled=true: users and rights"
    ):
        plan_node(read_node_file(text, folder=FOLDER), "alpha", secret="s", is_lenient=True)


def test_values_with_blanks_and_other_letters_reach_the_broker() -> None:
    (alpha, *_) = plans(f"store = '/mit Leer ü/#1 = x'\n{THREE}[broker]\nregionId = '= ü: !'\n")
    assert alpha["broker-a"]["storePathRootDir"] == "/mit Leer ü/#1 = x/alpha/broker-a"
    assert alpha["broker-a"]["regionId"] == "= ü: !"


def test_figures_of_each_process_are_on_a_port_of_their_own_for_this_machine_alone() -> None:
    text = f"{THREE}[ports]\nmetrics = 5557\n"
    shared = {"secret": "s"}
    read = [read_config(values, shared)[0] for values in plans(text)[1].values()]
    assert [str(config.metrics.listen) for config in read] == [
        f"127.0.0.1:{port}" for port in (5558, 5559, 5560)
    ]
    name_server = plan_node(read_node_file(text, folder=FOLDER), "beta", secret="s").children[0]
    assert name_server.command[-2:] == ("--metrics", "127.0.0.1:5557")
    elsewhere = f'{text}[broker]\nmetricsPromExporterHost = "10.0.0.2"\n'
    read = [read_config(values, shared)[0] for values in plans(elsewhere)[1].values()]
    assert str(read[0].metrics.listen) == "10.0.0.2:5558"


@pytest.mark.parametrize("metrics", [9875, 10_908, 65_535])
def test_ports_of_figures_are_nobody_elses(metrics: int) -> None:
    with pytest.raises(ConfigError, match=r"\[ports\]"):
        plans(f"{THREE}[ports]\nmetrics = {metrics}\n")
