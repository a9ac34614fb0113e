"""What the user types for TARGETS, good and bad."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import pytest

from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions, Targets, channels, expand, options_from, read_hostfile
from mltop.probes.reach.targets import resolve as resolve_in
from mltop.probes.reach.targets.nodesets import MOST_NODES, split_user
from mltop.tui.cli import taken

HERE = platform.node()


def resolve(options: TargetOptions, **environ: str) -> Targets:
    return resolve_in(options, environ)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[08-10,20]", "node08 node09 node10 node20"),
        ("b,a,b", "b a"),  # as typed, once
        ("n[3,1] x", "n1 n3 x"),
        ("n[1-3],n2,m", "n1 n2 n3 m"),
        ("n[1-9/4]", "n1 n5 n9"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("n[1-4]!n[2-3]", "n1 n4"),
        ("a,n[1-4]&n[2-9]", "n2 n3 n4"),
        ("2001:db8::1,[fe80::2%eth0],[2001:db8::3]", "2001:db8::1 fe80::2%eth0 2001:db8::3"),
        ("10.0.0.[1-2]", "10.0.0.1 10.0.0.2"),
    ],
)
def test_node_lists_expand_as_clustershell_does(text: str, names: str) -> None:
    assert expand(text) == names.split()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no node"),
        (" , ", "names no node"),
        ("node[01-", "is not a node list: missing bracket"),
        ("a,node[3-1],b", "'node[3-1]' is not a node list"),
        ("a,@", "'@' names no node: no such group"),
        ("a,-oProxyCommand=x", "'-oProxyCommand=x' is not a host name"),
        ("n1;reboot", "is not a host name"),
        ("n[1-2];x", "'n1;x' is not a host name"),
        ("x*", "names no node"),
    ],
)
def test_a_bad_node_list_names_the_bad_part(text: str, words: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        expand(text)
    said = str(caught.value)
    assert said.startswith("-w '")
    assert words in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "text",
    [
        "node[1-10000000]",
        "a,b[0-99999999999999999999999]",
        "r[1-1000]n[1-1000]",
        "x,n[1-10000000]!n[1-9999999]",
        f"n[1-{'9' * 5000}]",
    ],
)
def test_a_list_that_names_millions_is_refused_without_making_them(text: str) -> None:
    started = time.process_time()
    with pytest.raises(UsageProblem, match=r"nodes, more than the 16,384") as caught:
        expand(text)
    assert len(str(caught.value)) < 400
    assert time.process_time() - started < 5.0
    assert len(expand(f"n[1-{MOST_NODES}]")) == MOST_NODES


def test_many_lists_together_have_the_same_limit() -> None:
    with pytest.raises(UsageProblem, match=r"16,386 nodes"):
        resolve(TargetOptions(nodes=(f"n[1-{MOST_NODES}]", "a,b")))


def test_hostfiles_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(
        "# training nodes\nn01 slots=8\nn02:8\n\n  n[03-04]   # two more\nn05.example.org max-slots=2\n"
        "n[06-07]:8 slots=8\n[2001:db8::1]:8\n[2001:db8::2] slots=4\n2001:db8::3\nn01\n\r\nn09\r\n"
    )
    expected = "n01 n02 n03 n04 n05.example.org n06 n07 2001:db8::1 2001:db8::2 2001:db8::3 n09"
    assert read_hostfile(path) == expected.split()
    path.write_bytes(b"\xef\xbb\xbfn01\r\nn02\r\n")  # as Windows' editors write it
    assert read_hostfile(path) == ["n01", "n02"]


def test_hostfile_errors_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("n01\nn[02 slots=8\n")
    with pytest.raises(UsageProblem, match=r"--hostfile .*: line 2: 'n\[02': is not a node list"):
        read_hostfile(path)
    path.write_text("n01\nalice@n02\n")
    with pytest.raises(UsageProblem, match=r"line 2: .*not a host name \(--user NAME\)"):
        read_hostfile(path)
    with pytest.raises(UsageProblem, match="No such file"):
        read_hostfile(tmp_path / "missing")
    with pytest.raises(UsageProblem, match="is a directory, not a regular file"):
        read_hostfile(tmp_path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageProblem, match="not text"):
        read_hostfile(path)
    path.write_text("# nothing\n")
    with pytest.raises(UsageProblem, match="names no host"):
        read_hostfile(path)
    with pytest.raises(UsageProblem, match="is a device, not a regular file"):
        read_hostfile(Path("/dev/zero"))
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(UsageProblem, match="is larger than 4 MiB"):
        read_hostfile(tmp_path / "large")


def test_nothing_typed_is_this_machine() -> None:
    targets = resolve(TargetOptions())
    assert (targets.nodes, targets.title, targets.via) == ((HERE,), "this machine", "local")


def test_everything_typed_adds_up_in_order(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("b\nc\n")
    targets = resolve(TargetOptions(nodes=("z", "b"), hostfile=str(hostfile)))
    assert targets.nodes == ("z", "b", "c")
    assert targets.title == "z + b + hosts"
    assert targets.via == "ssh"


def test_wcoll_is_read_only_when_nothing_else_is_said(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("b\nc[1-2]\n")
    found = resolve(TargetOptions(), WCOLL=str(hostfile))
    assert (found.nodes, found.title) == (("b", "c1", "c2"), "WCOLL")
    assert resolve(TargetOptions(nodes=("a",)), WCOLL=str(hostfile)).nodes == ("a",)
    assert resolve(TargetOptions(via="local"), WCOLL=str(hostfile)).nodes == (HERE,)
    in_job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "g[1-2]"}
    assert resolve(TargetOptions(), WCOLL=str(hostfile), **in_job).nodes == ("g1", "g2")
    with pytest.raises(UsageProblem, match=r"WCOLL .*No such file.*\(unset WCOLL, or mltop --via local\)"):
        resolve(TargetOptions(), WCOLL="/no/such/file")


def test_this_machine_is_read_directly_and_others_by_ssh() -> None:
    targets = resolve(TargetOptions(nodes=(f"other,localhost,{HERE}",)))
    assert targets.nodes == ("other", "localhost", HERE)
    assert [(route.via, route.nodes) for route in targets.routes] == [
        ("local", ("localhost", HERE)),
        ("ssh", ("other",)),
    ]
    assert targets.via == "local + ssh"
    assert resolve(TargetOptions(nodes=("localhost",), via="ssh")).via == "ssh"
    assert resolve(TargetOptions(nodes=(f"localhost,{HERE}",), via="local")).nodes == ("localhost", HERE)


def test_this_machine_is_not_read_under_the_name_of_another() -> None:
    with pytest.raises(UsageProblem, match=rf"--via local: n1 is not this machine \({HERE}\)"):
        resolve(TargetOptions(nodes=("localhost", "n[1-3]"), via="local"))


def test_the_login_name_may_stand_before_the_node() -> None:
    assert split_user("alice@n[1-2],alice@m") == ("alice", "n[1-2],m")
    assert split_user("@rack,n1") == ("", "@rack,n1")
    targets = resolve(TargetOptions(nodes=("alice@n[1-2]",)))
    assert (targets.nodes, targets.user) == (("n1", "n2"), "alice")
    assert resolve(TargetOptions(nodes=("n1",), user="bob")).user == "bob"
    with pytest.raises(UsageProblem, match="alice and bob at once"):
        resolve(TargetOptions(nodes=("alice@n1,bob@n2",)))
    with pytest.raises(UsageProblem, match="bob and alice at once"):
        resolve(TargetOptions(nodes=("alice@n1",), user="bob"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (TargetOptions(python="/nowhere/python"), "no such program"),
        (TargetOptions(via="srun"), "--via srun: needs a Slurm job"),
        (TargetOptions(user="bob"), "--user bob: local runs as you"),
        (TargetOptions(user="bob", nodes=("localhost",)), "--via ssh logs in"),
    ],
)
def test_bad_values_are_named(options: TargetOptions, words: str) -> None:
    with pytest.raises(UsageProblem, match=words):
        resolve(options)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"interval_s": 0.0}, "--interval 0"),
        ({"interval_s": float("nan")}, "--interval nan"),
        ({"timeout_s": -1}, "--timeout -1"),
    ],
)
def test_numbers_out_of_range_are_named(given: dict[str, float], words: str) -> None:
    with pytest.raises(UsageProblem, match=words):
        options_from(given)


def test_python_is_a_path_on_the_nodes() -> None:
    assert resolve(TargetOptions(nodes=("n1",), python="/opt/there/only/python3")).nodes == ("n1",)


def test_options_after_the_command_win_over_those_before_it() -> None:
    before = taken({"nodes": ("a",), "interval_s": 5.0, "timeout_s": 2.0, "accept_new": True, "via": None})
    after = taken({"nodes": ("b",), "interval_s": None, "timeout_s": 30.0, "accept_new": False, "via": "ssh"})
    found = options_from({**before, **after})
    assert (found.nodes, found.interval_s, found.timeout_s) == (("b",), 5.0, 30.0)  # 30 is also the default
    assert (found.accept_new, found.via) == (True, "ssh")
    assert options_from(taken({"nodes": (), "job": None, "accept_new": False, "as_json": True})) == TargetOptions()


@pytest.mark.parametrize("name", ["hostfile", "job", "recording", "python", "user"])
def test_an_empty_value_is_no_option_left_out(name: str) -> None:
    with pytest.raises(UsageProblem, match=f"--{name} '': names no"):
        options_from({name: ""})


def test_every_node_has_a_channel_that_knows_the_options() -> None:
    options = TargetOptions(nodes=(f"alice@other,{HERE}",), python="python3", accept_new=True, interval_s=2.0)
    found = {channel.nodes: channel for channel in channels(resolve(options), options)}
    assert {nodes: channel.via for nodes, channel in found.items()} == {(HERE,): "local", ("other",): "ssh"}
    ssh = found["other",].argv
    assert ssh[ssh.index("-l") + 1] == "alice"
    assert "StrictHostKeyChecking=accept-new" in ssh
    assert "2" in ssh[-1].split()


@pytest.mark.parametrize(
    "group", ["@x';touch${IFS}F;'", "@x$(touch${IFS}F)", "@x`touch${IFS}F`", "@local:';>F;'", "@x\\';>F;'"]
)
def test_a_group_in_a_host_file_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str) -> None:
    """ClusterShell's own configuration asks sed for groups, with the group's name in the shell command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text(f"n1\n{group}\n")
    with pytest.raises(UsageProblem, match=r"line 2: .* characters that no name and no group has"):
        read_hostfile(tmp_path / "hosts")
    assert [path.name for path in tmp_path.iterdir()] == ["hosts"]


@pytest.mark.parametrize("name", ["9" * 5000, "n" * 300, "n[1-2]" + "x" * 300, "@" + "g" * 300])
def test_a_name_that_is_no_host_s_is_refused(name: str) -> None:
    with pytest.raises(UsageProblem, match="has a name of more than 255 characters"):
        expand(name)
