"""The ssh launcher: its command line, jump hosts from the user's configuration, and what ssh's words mean."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from mltop.probes.agent.protocol import payload_of
from mltop.probes.investigate.advice import is_known
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.bundle import opening
from mltop.probes.reach.channel import Ending, LaunchOptions, agent_ended
from mltop.probes.reach.launchers import ssh
from mltop.probes.reach.launchers.remote_command import FIX, remote_command
from mltop.probes.reach.launchers.ssh import login_ended, plain_session, ssh_ended
from mltop.probes.reach.records import Records
from tests.fakes.scripts import shell_script

WITHOUT_A_WORD = "ssh, or what it ran there, ended without a word (exit code 255)"
# OpenSSH 9.2's own words, collected from real failures; the last lines of what it said.
WORDS = {
    "permission": "root@10.0.0.7: Permission denied (publickey,password).",
    "host key unknown": "No ED25519 host key is known for gpu7 and you have requested strict checking.\n"
    "Host key verification failed.",
    "host key changed": "@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n@@@\n"
    "Host key for gpu7 has changed and you have requested strict checking.\nHost key verification failed.",
    "keys": "Received disconnect from 10.0.0.7 port 22:2: Too many authentication failures\n"
    "Disconnected from 10.0.0.7 port 22",
    "slurm": "Access denied by pam_slurm_adopt: you have no active jobs on this node\n"
    "Connection closed by 10.0.0.7 port 22",
    "refused": "ssh: connect to host gpu7 port 22: Connection refused",
    "timed out": "ssh: connect to host gpu7 port 22: Connection timed out",
    "no route": "ssh: connect to host gpu7 port 22: No route to host",
    "name": "ssh: Could not resolve hostname gpu7: Name or service not known",
    "startups": "kex_exchange_identification: Connection closed by remote host\nConnection closed by 10.0.0.7 port 22",
    "startups reset": "kex_exchange_identification: read: Connection reset by peer\n"
    "Connection reset by 10.0.0.7 port 22",
    "banner": "Connection timed out during banner exchange\nConnection to 10.0.0.7 port 22 timed out",
    "link": "Timeout, server gpu7 not responding.",
    "closed": "Connection to gpu7 closed by remote host.",
    "jump": "channel 0: open failed: connect failed: Connection refused\nstdio forwarding failed\n"
    "Connection closed by UNKNOWN port 65535",
    "kex": "Unable to negotiate with 10.0.0.7 port 22: no matching host key type found. Their offer: ssh-rsa",
}


@pytest.mark.parametrize(
    ("words", "reason", "retry"),
    [
        ("permission", "login refused (publickey,password)", False),
        ("host key unknown", "its host key is not known here", False),
        ("host key changed", "its host key is not the known one", False),
        ("keys", "login refused: too many keys were tried", False),
        ("slurm", "Slurm admits only users with a job on this node", False),
        ("kex", "ssh: Unable to negotiate with 10.0.0.7 port 22: no matching host key type found. ", False),
        ("refused", "connection refused: no sshd is listening", True),
        ("timed out", "no answer to a connection (timed out)", True),
        ("no route", "no route to it", True),
        ("name", "unknown host name", True),
        ("startups", "sshd closed the connection before the login (too many at once?)", True),
        ("startups reset", "sshd closed the connection before the login (too many at once?)", True),
        ("banner", "no answer to a connection (timed out)", True),
        ("link", "the link is dead: it did not answer for 15 s", True),
        ("closed", "the connection was closed", True),
        ("jump", "its jump host cannot reach it: Connection refused", True),
    ],
)
def test_what_ssh_says(words: str, reason: str, retry: bool) -> None:
    ending = ssh_ended(255, WORDS[words], host="gpu7")
    assert ending.reason.startswith(reason)
    assert ending.retry is retry
    assert "{" not in str(ending)
    # A login banner before it changes nothing.
    assert ssh_ended(255, "Authorized users only.\n" + WORDS[words], host="gpu7") == ending


def test_the_fixes_can_be_typed() -> None:
    def fix(words: str) -> str:
        return ssh_ended(255, WORDS[words], host="gpu7").fix

    assert fix("permission") == "ssh gpu7 once by hand; ssh-add -l"
    assert fix("host key unknown") == "ssh gpu7 once by hand, or --accept-new"
    assert fix("host key changed") == "if it was reinstalled: ssh-keygen -R gpu7"
    assert fix("slurm") == "--via srun, from inside the job"


def test_ends_that_are_not_sshs() -> None:
    nothing = ssh_ended(97, "", host="gpu7")
    assert (nothing.reason, nothing.fix) == ("no Python 3.9 or newer on this node", FIX)
    assert nothing.retry
    chosen = ssh_ended(97, "", host="gpu7", python="/opt/py")
    assert chosen.reason == "/opt/py is no Python 3.9 or newer on this node"
    assert ssh_ended(1, "banner\nKeyError: 'x'", host="gpu7").reason == "the agent ended (exit code 1): KeyError: 'x'"
    # What the agent quotes is not taken for ssh's words.
    assert ssh_ended(1, "Permission denied (publickey).", host="gpu7").retry
    assert ssh_ended(-9, "", host="gpu7").reason == "the agent ended (killed by signal 9)"
    for banner in ("", "something new", "Access denied to strangers.\nToo many authentication failures lock you"):
        assert ssh_ended(255, banner, host="gpu7").reason == WITHOUT_A_WORD
    assert ssh_ended(255, "ssh_x: something new", host="gpu7").reason == "ssh failed: ssh_x: something new"


@pytest.fixture
def no_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`ssh` with an empty configuration file, that notes each call; returns the note."""
    return fake_ssh(tmp_path, monkeypatch, "")


def fake_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch, config: str) -> Path:
    """The real ssh with this configuration file in place of the user's."""
    (folder / "config").write_text(config)
    lines = ('echo "$*" >>{calls}', 'exec /usr/bin/ssh -F {config} "$@"')
    program = shell_script(folder / "bin/ssh", *lines, calls=folder / "calls", config=folder / "config")
    (folder / "calls").touch()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return folder / "calls"


def test_one_channel_per_node(no_config: Path) -> None:
    options = LaunchOptions(interval_s=0.5, user="ada", accept_new=True, python="/opt/py/bin/python3")
    first, second = ssh.launch(("gpu7", "gpu8"), options)
    assert (first.nodes, second.nodes) == (("gpu7",), ("gpu8",))
    assert first.opening() == opening()
    assert (first.via, first.takes_requests, first.dies_with_us) == ("ssh", True, True)
    *before, dashes, host, remote = first.argv
    assert (dashes, host) == ("--", "gpu7")
    assert before[:4] == ["ssh", "-T", "-x", "-a"]
    settings = [before[at + 1] for at, word in enumerate(before) if word == "-o"]
    assert {"BatchMode=yes", "ConnectTimeout=8", "ServerAliveInterval=5", "ServerAliveCountMax=3"} < set(settings)
    assert {"ControlMaster=no", "StrictHostKeyChecking=accept-new"} < set(settings)
    assert before[-2:] == ["-l", "ada"]
    assert remote == remote_command(["--node", "gpu7", "--interval", "0.5", "--silence", "20"], "/opt/py/bin/python3")
    assert first.ending(97, "").reason == "/opt/py/bin/python3 is no Python 3.9 or newer on this node"
    assert first.ending(255, WORDS["host key unknown"]).fix.startswith("ssh -l ada gpu7 once")


def test_host_keys_are_as_the_user_has_them_unless_asked(no_config: Path) -> None:
    (channel,) = ssh.launch(("gpu7",), LaunchOptions())
    assert not [word for word in channel.argv if "StrictHostKeyChecking" in word or word == "-l"]


def test_the_program_takes_every_option(no_config: Path) -> None:
    command = ssh.ssh_command(LaunchOptions(user="ada", accept_new=True))
    done = subprocess.run([command[0], "-G", *command[1:], "--", "gpu7"], capture_output=True, text=True, check=True)
    settings = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    wanted = {"user": "ada", "batchmode": "yes", "connecttimeout": "8", "controlmaster": "false", "loglevel": "INFO"}
    assert {name: settings[name] for name in wanted} == wanted
    assert (settings["forwardagent"], settings["forwardx11"], settings["requesttty"]) == ("no", "no", "false")


def test_nothing_of_the_users_configuration_makes_another_session_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled = "LocalForward 18888 localhost:1\nRemoteCommand tmux attach\nSessionType none\nStdinNull yes\n"
    fake_ssh(tmp_path, monkeypatch, f"{spoiled}ForkAfterAuthentication yes\n")
    command = ssh.ssh_command(LaunchOptions())
    done = subprocess.run([*command, "-G", "--", "gpu7"], capture_output=True, text=True, check=True)
    settings = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert settings["clearallforwardings"] == "yes" and settings.get("remotecommand", "none") == "none"
    assert (settings["sessiontype"], settings["stdinnull"], settings["forkafterauthentication"]) == (
        "default",
        "no",
        "no",
    )


@pytest.mark.parametrize(
    ("unknown", "left"),
    [
        ("SessionType", ("ClearAllForwardings=yes", "RemoteCommand=none")),
        ("RemoteCommand", ("ClearAllForwardings=yes",)),
    ],
)
def test_an_older_ssh_gets_no_option_that_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unknown: str, left: tuple[str, ...]
) -> None:
    program = tmp_path / "ssh"
    program.write_text(f'#!/bin/sh\ncase "$*" in *{unknown}*) exit 255;; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert plain_session() == left


def test_who_shares_connections_has_a_second_way_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ssh(tmp_path, monkeypatch, "Host gpu*\n  ControlPath /tmp/none-%C\n")
    shared, alone = ssh.launch(("gpu7", "login"), LaunchOptions(user="ada"))
    assert alone.fallback is None and "ControlPath=none" not in shared.argv
    assert shared.fallback is not None and "ControlPath=none" in shared.fallback.argv
    assert [word for word in shared.fallback.argv if word != "ControlPath=none"][-3:] == list(shared.argv[-3:])
    assert shared.fallback_fix == "a stuck ControlMaster: ssh -O exit -l ada gpu7"


def test_a_login_shell_that_ends_is_not_the_agent() -> None:
    ended = login_ended(1, "Welcome\nThis account is currently not available.\nbanner", host="gpu7", user="ada")
    assert (ended.reason, ended.retry) == ("no logins: This account is currently not available.", False)
    other = login_ended(127, "sh: exec: not found", host="gpu7", user="ada")
    assert other.reason == "its login shell ended before mltop's command ran (exit code 127): sh: exec: not found"
    assert other.fix == "ssh -l ada gpu7 echo ok must print ok: look for exit, exec or a forced command"
    assert other.retry and is_known(other.fix)
    for code in (255, 97, None, -9):
        assert login_ended(code, WORDS["refused"], host="gpu7") == ssh_ended(code, WORDS["refused"], host="gpu7")


def test_a_name_that_ssh_would_take_for_an_option(no_config: Path) -> None:
    with pytest.raises(UsageProblem, match=r"-oProxyCommand=x: a node's name cannot begin with a dash"):
        ssh.launch(("gpu7", "-oProxyCommand=x"), LaunchOptions())


def test_jump_hosts_are_gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_ssh(
        tmp_path,
        monkeypatch,
        "Host direct*\n  ProxyJump none\nHost gpu*\n  ProxyJump ada@login1\n"
        "Host old*\n  ProxyCommand ssh -W %h:%p login2\n",
    )
    nodes = ("gpu001", "gpu002", "old7", "direct1", "other", "gpu003")
    channels = ssh.launch(nodes, LaunchOptions())
    assert [channel.gate for channel in channels] == [
        "ada@login1",
        "ada@login1",
        "ssh -W %h:%p login2",
        "",
        "",
        "ada@login1",
    ]
    asked = calls.read_text().splitlines()
    assert len([line for line in asked if "localhost" not in line]) == 4  # once for each kind of name
    assert all(line.startswith("-G ") for line in asked)


def test_the_command_means_the_same_to_every_shell() -> None:
    command = remote_command(["--node", "gpu7", "--interval", "1", "--silence", "20"])
    assert command.startswith("exec /bin/sh -c '")
    assert not re.search(r"[!\\\n\x00]", command)
    assert len(command) < 2700
    # Outside of single quotes there is nothing that any shell expands.
    outside = re.sub(r"'[^']*'", "", command)
    assert re.fullmatch(r"[A-Za-z0-9_./:,@%+ -]*", outside), outside


@pytest.mark.parametrize("word", ["it's", "wow!", "a\\b", "a\nb", "\x00"])
def test_words_that_no_shell_takes_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match="which not every login shell takes"):
        remote_command(["--node", word])


def test_a_python_with_a_strange_name_is_told_as_far_as_it_can() -> None:
    command = remote_command([], python='/opt/"my" py')
    done = subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 97
    frame = json.loads(payload_of(done.stdout.rstrip(b"\n")))
    assert frame["error"] == "/opt/?my? py is no Python 3.9 or newer on this node: it is not there"


def state_of(ending: Ending) -> tuple[str, str]:
    """What the hub makes of it: why, and the fix."""
    records = Records(["gpu7"], 1.0)
    records.set_phase("gpu7", "lost", ending.reason, ending.fix)
    state = records.node("gpu7").state
    assert state.reason == str(ending)
    return state.why, state.fix


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("user", ["", "alice"])
def test_a_node_s_state_has_the_fix_beside_the_reason(words: str, user: str) -> None:
    ending = ssh_ended(255, WORDS[words], host="gpu7", user=user)
    assert state_of(ending) == (ending.reason, ending.fix)


@pytest.mark.parametrize(
    "ending",
    [
        Ending("plain"),
        Ending("plain", "do (this) or that"),
        Ending("its login shell ended (exit code 1)", "ssh h1 true shows why"),
        Ending("odd)", "fix"),
        agent_ended(1, ""),
        agent_ended(-9, ""),
        agent_ended(1, "KeyError: ('a', 'b')"),
        agent_ended(None, "died (core dumped)"),
    ],
)
def test_so_has_one_of_any_other_end(ending: Ending) -> None:
    assert state_of(ending) == (ending.reason, ending.fix)


def test_the_fix_logs_in_as_the_user_that_was_given() -> None:
    assert ssh_ended(255, WORDS["permission"], host="gpu7", user="al").fix == "ssh -l al gpu7 once by hand; ssh-add -l"
    assert ssh_ended(255, "", host="gpu7", user="al").fix == "ssh -l al gpu7 shows why"
    (channel,) = ssh.launch(("gpu7",), LaunchOptions(user="al"))
    assert "ssh -l al gpu7" in channel.ending(255, WORDS["permission"]).fix
