"""The command lines for pdsh, and what is made of its words."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from mltop.probes.agent.protocol import Request
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.channel import LaunchOptions
from mltop.probes.reach.launchers import LAUNCHERS, pdsh
from mltop.probes.reach.launchers.pdsh import NodeEndings, pdsh_ended
from mltop.probes.reach.launchers.remote_command import installed_agent, plain_json

NASTY = """it's "quoted"! \\ \\\\ $HOME `id` 100% %h \n\t é | & ; * ? {a,b} ~ # <x> !! \\' \\" ^"""
ENDED = "pdsh@login: h02: ssh exited with exit code"
SHELLS = ("bash", "dash", "zsh", "tcsh", "fish")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH but for what a test puts there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def with_pdsh(programs: Path) -> None:
    (programs / "pdsh").write_text("#!/bin/sh\n")
    (programs / "pdsh").chmod(0o755)


def after(argv: tuple[str, ...], option: str) -> str:
    return argv[argv.index(option) + 1]


def test_no_pdsh_is_said_in_one_line(programs: Path) -> None:
    with pytest.raises(UsageProblem) as problem:
        LAUNCHERS["pdsh"].launch(("h01",), LaunchOptions())
    assert str(problem.value) == "--via pdsh: pdsh is not installed here (apt install pdsh, or --via ssh)"


@pytest.mark.parametrize("name", ["-h01", "^/etc/passwd", "/h0.*/", "rsh:h01", "root@h01", "h[01-02]", "h01,h02", ""])
def test_a_name_that_pdsh_would_read_as_something_else_is_refused(with_pdsh: None, name: str) -> None:
    with pytest.raises(UsageProblem, match="would not take this"):
        pdsh.launch((name,), LaunchOptions())


def test_one_process_for_up_to_256_nodes_all_at_once(with_pdsh: None) -> None:
    nodes = tuple(f"h{number:04}" for number in range(600))
    channels = pdsh.launch(nodes, LaunchOptions(user="bob", accept_new=True))
    assert [len(channel.nodes) for channel in channels] == [256, 256, 88]
    assert sum((channel.nodes for channel in channels), ()) == nodes
    for channel in channels:
        assert after(channel.argv, "-f") == str(len(channel.nodes))
        assert after(channel.argv, "-w").split(",") == list(channel.nodes)
        assert after(channel.argv, "-l") == "bob"
        assert "-o StrictHostKeyChecking=accept-new" in channel.argv[1]
        assert (channel.via, channel.takes_requests) == ("pdsh", False)


def test_the_users_own_ssh_arguments_are_kept_behind_ours(with_pdsh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDSH_SSH_ARGS_APPEND", "-F /etc/other_config")
    (channel,) = pdsh.launch(("h01",), LaunchOptions())
    assert channel.argv[1].startswith("PDSH_SSH_ARGS_APPEND=-o BatchMode=yes ")
    assert channel.argv[1].endswith(" -F /etc/other_config")


def test_only_the_nodes_name_is_for_pdsh_to_fill_in(with_pdsh: None) -> None:
    (channel,) = pdsh.launch(("h01", "h02"), LaunchOptions())
    assert channel.one_shot is not None
    request = Request("request", op="stacks", args={"job": "100%h"})
    line = channel.one_shot(("h01",), request).argv[-1]
    assert "100%%h" in line
    assert line.replace("%%", "").count("%") == line.replace("%%", "").count("%h") == 3


def test_nodes_that_were_lost_get_the_same_command(with_pdsh: None) -> None:
    (channel,) = pdsh.launch(("h01", "h02"), LaunchOptions(interval_s=2.5))
    assert channel.rejoin is not None
    again = channel.rejoin(("h02",))
    assert again.nodes == ("h02",)
    assert again.argv[-1] == channel.argv[-1]
    assert "'--interval' '2.5'" in again.argv[-1]


def test_an_interpreter_that_no_shell_takes_is_refused(with_pdsh: None) -> None:
    with pytest.raises(UsageProblem, match="not every login shell takes"):
        LAUNCHERS["pdsh"].launch(("h01",), LaunchOptions(python="/opt/o'neill/python"))


@pytest.mark.parametrize("shell", SHELLS)
def test_json_passes_every_login_shell(shell: str) -> None:
    value = {"text": NASTY, "list": [1, None, True, "!"]}
    done = subprocess.run(
        [shell, "-c", f"exec /usr/bin/printf %s '{plain_json(value)}'"],
        capture_output=True,
        check=True,
        timeout=30,
    )
    assert json.loads(done.stdout) == value


@pytest.mark.parametrize("shell", SHELLS)
def test_a_node_without_the_agent_says_so_in_a_frame(shell: str, tmp_path: Path) -> None:
    line = installed_agent("h01", ["--node", "h01"], {"": "no-such"}, python=str(tmp_path / "no-python"))
    done = subprocess.run([shell, "-c", line], capture_output=True, check=False, timeout=30)
    assert done.returncode == 96
    mark, size, payload = done.stdout.rstrip(b"\n").split(b" ", 2)
    assert (mark, int(size)) == (b"@MLT1", len(payload))
    message = json.loads(payload)
    assert (message["kind"], message["node"], message["error"]) == ("error", "h01", "the agent is not on this node")


LOADER = b"""
import sys
def import_installed(folder, digest, exit_code):
    print(digest, *sys.argv[1:])
    sys.exit(7)
"""


def test_the_agent_of_the_machines_own_type_is_run(tmp_path: Path) -> None:
    machine = subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()
    cache = tmp_path / "mltop"
    for name in ("own", "other", "any"):
        (cache / name).mkdir(parents=True)
        (cache / name / "bundle.zip").write_text("")
    cache.chmod(0o700)

    def said(hashes: dict[str, str]) -> tuple[int, str]:
        line = installed_agent("h01", ["--x", "a b"], hashes, loader=LOADER)
        environment = {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, env=environment)
        assert done.stderr == ""
        return done.returncode, done.stdout.strip()

    own, other, anys = "own", "other", "any"
    assert said({"": anys, "sparc64": other, machine: own}) == (7, "own --x a b")
    assert said({machine: own, "": anys}) == (7, "own --x a b")
    assert said({"sparc64": other, "": anys}) == (7, "any --x a b")
    cache.chmod(0o750)
    assert said({machine: own})[0] == 96
    cache.chmod(0o700)
    tmp_path.chmod(0o777)  # another could be put in its place
    assert said({machine: own})[0] == 96


@pytest.mark.parametrize(
    ("lines", "reason", "retry"),
    [
        (["h02: ssh: connect to host h02 port 22: Connection refused", f"{ENDED} 255"],
         "connection refused: no sshd is listening", True),
        (["h02: root@h02: Permission denied (publickey).", f"{ENDED} 255"],
         "login refused (publickey) (ssh h02 once by hand; ssh-add -l)", False),
        ([f"{ENDED} 96"],
         "the agent is not on this node (once: mltop snapshot -w h02 (by ssh) puts it into ~/.cache/mltop, or pip "
         "install mltop there)", True),
        ([f"{ENDED} 95"], "the agent ended", True),
        (["h02: Killed", f"{ENDED} 137"], "the agent ended (exit code 137): Killed", True),
        (["pdsh@login: h02: ssh killed by signal 9"], "the agent ended (killed by signal 9)", True),
    ],
)  # fmt: skip
def test_the_end_of_one_node_among_others(lines: list[str], reason: str, retry: bool) -> None:
    endings = NodeEndings(("h01", "h02"))
    assert endings("h01: ssh: something else") is None
    *words, last = lines
    assert all(endings(line) is None for line in words)
    ended = endings(last)
    assert ended is not None
    assert (ended[0], str(ended[1]), ended[1].retry) == ("h02", reason, retry)
    assert endings("pdsh@login: h09: ssh exited with exit code 255") is None


def test_the_end_of_the_whole_pdsh() -> None:
    words = "h02: ssh: connect to host h02 port 22: Connection refused\npdsh@login: h02: ssh exited with exit code 255"
    assert str(pdsh_ended(0, words, nodes=("h02",))) == "connection refused: no sshd is listening"
    assert str(pdsh_ended(-9, "", nodes=("h01", "h02"))) == "pdsh ended (killed by signal 9)"
