"""The list of faults: what is done, what must hold, and which commands show it.

Expected of every row unless it says otherwise: no acknowledged message is lost, no committed offset goes
back, nothing is stored twice under one UNIQ_KEY, and all replicas have equal digests after healing. A
row is shown by a scenario on real processes (`*_faults.py`, run as `dledger-jepsen checklist --row N`),
by the simulator, by tests, or by several of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ChecklistRow:
    """One row of the list.

    Attributes:
        number: in the order of the sections.
        section: process, network, clock, disk, input or operations.
        fault: what is done.
        expectation: what must hold beside what always must.
        how: how it is injected here, in prose.
        tests: pytest node ids (files, or file::test) that show it.
        sim: fault kinds of the simulator that are the same fault, as `--set faults=` names them.
        runs: workloads with a nemesis that show it, beside the scenarios, which have the queue workload.
        unbuilt: what is not built yet and would be needed; such a row is never "holds".
        gap: what of the row is not done or not shown; such a row holds "in part" at best.
    """

    number: int
    section: str
    fault: str
    expectation: str
    how: str
    tests: tuple[str, ...] = ()
    sim: tuple[str, ...] = ()
    runs: tuple[tuple[str, str], ...] = ()
    unbuilt: str = ""
    gap: str = ""


_HOSTILE = "tests/integration/hostile/test_bad_input.py"
_DISK_FULL = "tests/integration/hostile/test_full_disk.py"
_TIMERS = "tests/integration/broker/test_timers.py"

PROCESS: Final = (
    ChecklistRow(
        1,
        "process",
        "leader kill -9, idle",
        "first success within 2 s",
        "SIGKILL by pid",
        sim=("crash-leader",),
    ),
    ChecklistRow(
        2,
        "process",
        "leader kill -9 under full load, 50 rounds",
        "p99 gap under 3 s; retries recognised",
        "SIGKILL by pid, one producer object sending to every queue",
        sim=("crash-leader",),
        runs=(("transactions", "kill:leader"), ("ordered", "kill:leader")),
    ),
    ChecklistRow(
        3, "process", "follower kill -9", "no visible error", "SIGKILL by pid", sim=("crash-one",)
    ),
    ChecklistRow(
        4,
        "process",
        "two of three killed",
        "writes refused with a clear code, reads by policy",
        "SIGKILL twice",
        (
            "tests/integration/broker/test_three_nodes.py::test_without_a_majority_the_reason_is_told",
        ),
    ),
    ChecklistRow(
        5,
        "process",
        "all killed at once, restarted in every order",
        "everything acknowledged is there",
        "SIGKILL three times, six orders of start",
        sim=("crash-all",),
    ),
    ChecklistRow(
        6,
        "process",
        "kill during an election",
        "elects again",
        "the winner is killed at once when an observer sees it lead",
        sim=("cut-new-leader",),
    ),
    ChecklistRow(
        7,
        "process",
        "kill during recovery at restart, 20 times",
        "recovery may be interrupted anywhere",
        "SIGKILL 0 to 1 s after the start of the process",
        sim=("crash-during-save",),
    ),
    ChecklistRow(
        8,
        "process",
        "crash loop of one node",
        "the others stay as they are, terms do not grow",
        "SIGKILL every second, restart at once",
        sim=("crash-one",),
    ),
    ChecklistRow(
        9,
        "process",
        "leader paused for longer than an election",
        "the stale leader never acknowledges, no stale reads",
        "SIGSTOP, SIGCONT",
        sim=("pause",),
    ),
    ChecklistRow(
        10,
        "process",
        "follower paused for long",
        "it catches up; the leader's memory is bounded",
        "SIGSTOP, SIGCONT under load",
        sim=("pause",),
    ),
    ChecklistRow(
        11,
        "process",
        "whole group paused (a machine that is suspended)",
        "no storm of elections",
        "SIGSTOP of all, SIGCONT of all",
        sim=("pause",),
    ),
    ChecklistRow(
        12,
        "process",
        "SIGTERM of the leader",
        "leadership moves first, no send fails",
        "SIGTERM under load",
        (
            "tests/integration/broker/test_three_nodes.py::test_an_orderly_stop_of_the_leader_fails_no_send",
        ),
    ),
    ChecklistRow(
        13,
        "process",
        "same id twice, same store twice",
        "the second refuses",
        "a second process",
        (
            f"{_HOSTILE}::test_a_second_process_on_the_same_store_refuses_to_start",
            f"{_HOSTILE}::test_a_second_process_with_the_same_id_refuses_to_start",
            "tests/integration/dledger/test_command.py::test_a_twin_at_another_address_is_refused_by_the_group",
        ),
    ),
    ChecklistRow(
        14,
        "process",
        "exception in the fold at one entry",
        "the node stops there, again after a restart; the others go on",
        "a fold that raises at entry k",
        tests=("tests/integration/hostile/test_failing_fold.py",),
    ),
)

NETWORK: Final = (
    ChecklistRow(
        15,
        "network",
        "leader isolated",
        "the old leader steps down within one election timeout",
        "proxies or namespaces: all links of the leader cut",
        sim=("partition-leader",),
    ),
    ChecklistRow(
        16,
        "network",
        "a follower isolated, healed",
        "no needless election on its return",
        "proxies or namespaces",
        sim=("partition-one",),
    ),
    ChecklistRow(
        17,
        "network",
        "one-way cut leader to follower",
        "no endless elections",
        "proxy: one direction of a link",
        sim=("partition-one-way",),
    ),
    ChecklistRow(
        18,
        "network",
        "bridge and ring, five nodes",
        "progress while a majority is mutually linked",
        "proxies: matrix of links",
        sim=("partition-bridge",),
    ),
    ChecklistRow(
        19, "network", "clients see only the minority", "a clear refusal", "proxies or namespaces"
    ),
    ChecklistRow(
        20,
        "network",
        "members do not hear each other, clients reach all",
        "no two leaders acknowledge",
        "proxies between members only",
        sim=("partition-creeping",),
    ),
    ChecklistRow(
        21,
        "network",
        "flapping link, 100 ms up, 100 ms down",
        "the growth of terms is bounded",
        "proxies: all links of one follower",
        sim=("flap",),
    ),
    ChecklistRow(
        22, "network", "delay 50 to 500 ms with jitter", "throughput falls smoothly", "proxies"
    ),
    ChecklistRow(
        23, "network", "loss 1, 10, 30 %", "no stall afterwards", "proxies lose whole frames"
    ),
    ChecklistRow(
        24,
        "network",
        "frames duplicated and reordered, old ones replayed",
        "refused by term, index and round",
        "proxies",
        sim=("clog",),
    ),
    ChecklistRow(
        25,
        "network",
        "bytes corrupted in flight",
        "the frame's CRC refuses, the connection is dropped",
        "proxies flip bits",
    ),
    ChecklistRow(
        26, "network", "bandwidth 1 Mbit/s", "bulk data does not starve heartbeats", "proxies"
    ),
    ChecklistRow(
        27,
        "network",
        "half-open connections (a peer vanishes)",
        "noticed by heartbeats, not by TCP",
        "proxies hold connections open and carry nothing",
    ),
    ChecklistRow(
        28,
        "network",
        "MTU 600 on a link, large frames",
        "progress, or a clean timeout",
        "namespaces: MTU of the veth pairs",
    ),
    ChecklistRow(
        29,
        "network",
        "a client that does not read",
        "only that client is cut; the leader's memory stays flat",
        "a socket that asks for pulls and reads nothing",
    ),
    ChecklistRow(
        30,
        "network",
        "a flood of idle connections",
        "members' port and other clients unaffected",
        "thousands of connections to the client port",
    ),
)

CLOCK: Final = (
    ChecklistRow(
        31,
        "clock",
        "wall clock +1 h, -1 h on one node",
        "store times never fall, nothing early",
        "preloaded clock calls",
        (f"{_TIMERS}::test_clocks_that_differ_and_jump_deliver_nothing_early",),
        runs=(("delay", "clock:jump"),),
    ),
    ChecklistRow(
        32,
        "clock",
        "strobing clock, every 100 ms",
        "no elections from wall time",
        "preloaded clock calls",
    ),
    ChecklistRow(
        33,
        "clock",
        "skew of 5 minutes, then a failover",
        "what is due follows the time of the log",
        "preloaded clock calls",
        tests=(
            f"{_TIMERS}::test_a_node_that_started_with_a_wrong_clock_leads_by_the_time_of_the_others",
        ),
        runs=(
            ("delay", "clock:skew,transfer"),
            ("delay", "clock:ahead,transfer"),
            ("delay", "clock:behind,transfer"),
        ),
    ),
    ChecklistRow(
        34,
        "clock",
        "jump of the monotonic clock after a suspend",
        "no lease is trusted across the gap",
        "preloaded clock calls; SIGSTOP in row 11",
        sim=("pause",),
    ),
    ChecklistRow(
        35,
        "clock",
        "1970 or 2106 at the start",
        "warns or refuses, deletes nothing",
        "preloaded clock calls",
    ),
    ChecklistRow(
        36,
        "clock",
        "leap second, summer time",
        "nothing happens",
        "preloaded clock calls around the second",
    ),
)

DISK: Final = (
    ChecklistRow(
        37,
        "disk",
        "disk full on the leader",
        "hands over or refuses with the true cause; goes on when there is room",
        "tmpfs of 24 MiB",
        (f"{_DISK_FULL}::test_a_leader_with_a_full_disk_hands_over",),
        ("full-disk",),
    ),
    ChecklistRow(
        38,
        "disk",
        "disk full on a follower, on all",
        "a minority: nobody notices; all: writes refused, reads work",
        "tmpfs, preloaded ENOSPC",
        (f"{_DISK_FULL}::test_when_all_disks_are_full_sends_are_refused_with_the_cause",),
        ("full-disk",),
    ),
    ChecklistRow(
        39,
        "disk",
        "disk full exactly at the vote, the next segment, the index",
        "no half state",
        "preloaded ENOSPC by path",
        sim=("full-disk",),
    ),
    ChecklistRow(
        40,
        "disk",
        "fdatasync fails once with EIO",
        "never acknowledged; the node fences itself",
        "preloaded EIO",
        sim=("fail-sync",),
    ),
    ChecklistRow(
        41,
        "disk",
        "a committed entry cannot be read (EIO)",
        "fetched from a peer; until then what needs it waits, and a leader hands over",
        "preloaded EIO",
        sim=("fail-read",),
    ),
    ChecklistRow(
        42,
        "disk",
        "syncs of 0.5 to 5 s",
        "a leader with a slow disk hands over; its health shows it",
        "preloaded delay",
        ("tests/integration/hostile/test_slow_disk.py",),
        ("slow-disk",),
    ),
    ChecklistRow(
        43,
        "disk",
        "unsynced writes lost at a crash, one node",
        "acknowledged data is safe",
        "a preloaded journal of what was not synced, rolled back after SIGKILL",
        sim=("crash-one", "crash-after-ack"),
    ),
    ChecklistRow(
        44,
        "disk",
        "unsynced writes lost on all nodes at once",
        "acknowledged data is safe",
        "the same on all",
        sim=("crash-all", "crash-all-after-ack"),
        runs=(("transactions", "lost-unsynced:all"),),
    ),
    ChecklistRow(
        45,
        "disk",
        "torn last write",
        "cut to the last whole entry, not further",
        "the file is cut in mid-entry after SIGKILL",
        ("tests/unit/storage/test_recovery.py",),
        ("crash-during-save",),
    ),
    ChecklistRow(
        46,
        "disk",
        "bit flip in a committed entry, one replica, stopped and running",
        "noticed, repaired from peers",
        "a bit in the file",
        sim=("flip-log",),
    ),
    ChecklistRow(
        47,
        "disk",
        "bit flips in a different part of every replica",
        "everything is still served",
        "bits in the files of all replicas",
        sim=("damage-all",),
    ),
    ChecklistRow(
        48,
        "disk",
        "flip in the vote, the index, a queue, a snapshot",
        "no vote until that is safe; what is derived is rebuilt",
        "a bit in each file",
        sim=("flip-index", "flip-hard-state", "flip-snapshot"),
    ),
    ChecklistRow(
        49,
        "disk",
        "segment deleted, or an older copy in its place",
        "noticed by identity, fetched again",
        "rm, cp",
    ),
    ChecklistRow(
        50,
        "disk",
        "whole store wiped on one node",
        "it rejoins and does not vote with amnesia",
        "rm -r and restart",
        (
            "tests/integration/admin/test_admin_processes.py::test_a_wiped_follower_rejoins_under_load_and_agrees",
            "tests/simulation/test_wipes.py",
        ),
        sim=("wipe-one",),
    ),
    ChecklistRow(
        51,
        "disk",
        "misdirected write",
        "the checksum covers the place, so it is noticed",
        "a part of the file copied over another",
        sim=("misdirect-write",),
    ),
    ChecklistRow(
        52, "disk", "file system turns read-only", "the node fences itself", "preloaded EROFS"
    ),
)

INPUT: Final = (
    ChecklistRow(
        53,
        "input",
        "random bytes, huge and zero lengths, a header longer than its frame",
        "the connection is closed, memory bounded, one line in the log",
        "bytes on client, member and name server ports",
        (
            f"{_HOSTILE}::test_garbage_ends_its_connection_and_nothing_else",
            f"{_HOSTILE}::test_claims_of_huge_frames_cost_no_memory",
            f"{_HOSTILE}::test_large_frames_that_never_end_have_a_budget",
            f"{_HOSTILE}::test_the_logs_name_the_connection_and_show_no_traceback",
            "tests/integration/namesrv/test_server.py::test_hostile_bytes_cost_one_connection",
            "tests/unit/remoting/test_frame.py",
            "tests/unit/runtime/test_frame.py",
        ),
    ),
    ChecklistRow(
        54,
        "input",
        "whole frames with hostile fields",
        "an error code, never a traceback",
        "requests with bad fields, unknown codes, bad UTF-8",
        (
            f"{_HOSTILE}::test_a_hostile_send_is_refused_with_a_reason",
            f"{_HOSTILE}::test_a_request_without_its_fields_is_refused",
            f"{_HOSTILE}::test_an_unknown_code_is_told_so",
            f"{_HOSTILE}::test_a_heartbeat_that_is_none_is_refused",
            "tests/unit/remoting/test_header.py",
        ),
    ),
    ChecklistRow(
        55,
        "input",
        "oversize bodies and properties, long and strange topic names",
        "refused on both sides; names are no paths",
        "requests",
        (
            f"{_HOSTILE}::test_a_hostile_send_is_refused_with_a_reason",
            "tests/unit/message/test_names.py",
        ),
    ),
    ChecklistRow(
        56,
        "input",
        "append requests and votes of yesterday",
        "refused by term and group",
        "recorded messages, replayed",
        ("tests/property/raft/test_group.py", "tests/unit/runtime/test_handshake.py"),
    ),
    ChecklistRow(
        57,
        "input",
        "a peer of another group or version",
        "refused with the reason",
        "handshakes",
        ("tests/unit/runtime/test_handshake.py",),
    ),
    ChecklistRow(
        58,
        "input",
        "half frames, very slow ones",
        "closed when idle; nobody else waits",
        "sockets that send byte by byte",
        (
            f"{_HOSTILE}::test_half_a_frame_does_not_hold_up_others",
            "tests/unit/net/test_connection.py",
        ),
    ),
    ChecklistRow(
        59,
        "input",
        "a message that breaks its consumer",
        "retries, then the dead letters; the queue goes on",
        "a body that the handler refuses",
        (
            "tests/integration/admin/test_resend_processes.py",
            "tests/integration/broker/test_single_node.py::test_a_message_that_is_sent_back_comes_again",
        ),
    ),
    ChecklistRow(
        60,
        "input",
        "late, repeated and contradictory ends of transactions",
        "the first one wins, later ones get its result",
        "ends after a failover",
        (
            "tests/integration/broker/test_transactions.py::test_a_repeated_or_contradictory_end_is_told_what_was_recorded",
            "tests/integration/broker/test_transactions.py::test_a_failover_between_half_commit_and_answer",
        ),
    ),
)

OPERATIONS: Final = (
    ChecklistRow(
        61,
        "operations",
        "memory limit reached, a large backlog",
        "back-pressure on the clients, no change of leader",
        "cgroup memory limit under a backlog",
    ),
    ChecklistRow(
        62,
        "operations",
        "file descriptors and threads run out",
        "clients refused before members",
        "prlimit",
    ),
    ChecklistRow(
        63,
        "operations",
        "no CPU",
        "no storm of elections",
        "busy loops on every core, broker at lowest priority",
    ),
    ChecklistRow(
        64,
        "operations",
        "members added, removed, replaced under load and partition",
        "never two majorities",
        "`dledger members` and `dledger-admin members`, with dead members, and while clients send; the simulator, "
        "under all its faults",
        tests=(
            "tests/simulation/test_members.py::test_members_change_under_all_faults",
            "tests/unit/runtime/test_changing_members.py",
            "tests/integration/dledger/test_changing_members.py::test_a_dead_member_is_replaced_and_the_new_one_counts",
            "tests/integration/admin/test_moving_a_group.py",
        ),
    ),
    ChecklistRow(
        65,
        "operations",
        "rolling upgrade and downgrade under load",
        "nothing lost, digests equal across versions",
        "two built versions, nodes restarted one by one",
    ),
    ChecklistRow(
        66,
        "operations",
        "one node from an old backup, all nodes from one backup",
        "the old one catches up; all restored: a notice",
        "folders copied; that all nodes went back is said by the operator, or by a name server of ours that lived on "
        "(where nothing lived on, nobody can know)",
        tests=(
            "tests/unit/runtime/test_old_copies.py",
            "tests/unit/server/test_loss_watch.py",
            "tests/unit/namesrv/test_committed_places.py",
            "tests/integration/broker/test_went_back.py",
        ),
        sim=("old-copy",),
    ),
    ChecklistRow(
        67,
        "operations",
        "wrong --peers",
        "the node does not start and says why; the group stays whole",
        "a node of the group is started on its store with itself alone, with a part of the members, with one more; "
        "members with other --peers, and with other committed entries, meet",
        tests=(
            "tests/unit/raft/test_membership.py",
            "tests/unit/runtime/test_group_check.py",
            "tests/unit/storage/test_member_file.py",
            "tests/integration/dledger/test_members.py",
            "tests/integration/broker/test_processes.py::test_other_members_in_the_configuration_are_refused",
        ),
    ),
    ChecklistRow(
        68,
        "operations",
        "foreign registrations",
        "refused under a name that a group has; what they changed ends with their connection; the route follows the "
        "leader all the while",
        "frames of a stranger to the name server: claims to lead in the highest term, to be the leader, that it "
        "left, that a topic is gone, that more was committed; a server that answers as brokers do, while the group has "
        "no majority",
        tests=(
            "tests/unit/namesrv/test_routes.py",
            "tests/unit/namesrv/test_registrants.py",
            "tests/unit/namesrv/test_committed_places.py",
            "tests/integration/namesrv/test_strangers.py",
        ),
    ),
    ChecklistRow(
        69,
        "operations",
        "a second group of the same name",
        "an error in the logs of both groups and of the name server at once; the route stays with the first",
        "a group of one with a store of its own, under the name and at the name server of the group",
        tests=(
            "tests/integration/namesrv/test_strangers.py::test_two_groups_of_one_name_are_both_told",
            "tests/unit/server/test_name_contested.py",
        ),
    ),
    ChecklistRow(
        70,
        "operations",
        "a machine that shares several groups dies",
        "all groups take messages while it is dead, those that it led as well",
        "SIGKILL at once to the supervisor, the name server and the members of all groups of the machine that leads "
        "one, for each of three machines; left dead, then started again",
        tests=("tests/integration/jepsen/test_machines.py",),
    ),
)

ROWS: Final[tuple[ChecklistRow, ...]] = PROCESS + NETWORK + CLOCK + DISK + INPUT + OPERATIONS
