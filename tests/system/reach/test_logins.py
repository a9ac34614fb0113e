"""Logins that do something else than run our command: no shell ever gets our bytes, and the reason is the right one."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mltop.probes.reach import UsageProblem
from mltop.probes.reach.channel import LaunchOptions
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.launchers import LAUNCHERS
from tests.fakes.agents import program
from tests.fakes.ssh_program import fake_ssh, login
from tests.hubs import DEADLINE_S, await_state, opened, patient, set_limits
from tests.system.agent.test_bootstrap import PYTHONS
from tests.waiting import wait_until

BANNER = r"\033[31mAuthorized use only\033[0m\nWARNING: access is denied to others\nToo many authentication failures"
LIVE = ""
OTHER_SHELL = (
    r"its login shell runs another shell or program, not mltop's command \(exec in ~/\.bashrc, forced command\?\)"
)
READS_STDIN = r"a start-up file of its login shell starts what reads stdin \(a shell, read, cat\?\)"
FIRST_START = ("waiting for a slot", "starting ssh")
ENDED = r"its login shell ended before mltop's command ran \(exit code {}\)"


class Login(NamedTuple):
    """``rc``: the start-up file; ``reason``: what its state says in the end, LIVE for none."""

    rc: str = ""
    reason: str = LIVE
    shell: str = "bash"
    force: str = ""


RC_FILES = {"zsh": ".zshenv", "tcsh": ".tcshrc", "fish": ".config/fish/config.fish"}
# What needs no deadline.
AT_ONCE = {
    "nothing": Login(),
    "noise": Login("head -c 100000 /dev/urandom; printf '@MLT1 5 abc\\nno newline'; echo oops >&2"),
    "trace": Login("set -x"),
    "environment": Login("export PYTHONHOME=/x PYTHONPATH=/x LD_LIBRARY_PATH=/x PATH=/nonexistent IFS=/"),
    "alias": Login("alias python3=false; python3() { false; }; export -f python3"),
    "false": Login("false"),
    "limits": Login("ulimit -n 16; umask 0"),
    "forced and then a shell": Login(force='sh -c "$SSH_ORIGINAL_COMMAND"; exec bash'),
    "exit": Login("exit 0", ENDED.format(0)),
    "exit 3": Login("exit 3", ENDED.format(3)),
    "exit 255": Login("exit 255", r"ssh, or what it ran there, ended without a word \(exit code 255\)"),
    "set -e": Login("set -e; false", ENDED.format(1)),
    "no such shell": Login(
        "exec /nonexistent/zsh", ENDED.format(127) + ".*/nonexistent/zsh: No such file or directory"
    ),
    "tmux": Login("exec tmux", "starts tmux, screen or a container: open terminal failed: not a terminal"),
    "stdout elsewhere": Login("exec >/dev/null", "a start-up file of its login shell redirects stdout"),
    "stdin elsewhere": Login("exec </dev/null", "its stdin was closed before the agent had arrived"),
    "forced": Login(force="false", reason=ENDED.format(1)),
    "sftp": Login(force="echo This service allows sftp connections only.; exit 1", reason="allows nothing but sftp"),
    "no account": Login(shell="/usr/sbin/nologin", reason="no logins: This account is currently not available"),
    "no shell": Login(shell="false", reason=ENDED.format(1)),
    "restricted": Login(shell="rbash", reason="its login shell is restricted"),
    "git": Login(shell="git-shell", reason="its login shell is git-shell"),
}
# What says nothing until its stdin is closed, and then shows what it is.
LATE = {
    **{
        f"exec {shell}": Login(f"exec {shell}", OTHER_SHELL) for shell in ("bash", "dash", "zsh", "tcsh", "fish", "cat")
    },
    "tcsh, exec zsh": Login("exec zsh -f", OTHER_SHELL, shell="tcsh"),
    "zsh, exec bash": Login("exec bash", OTHER_SHELL, shell="zsh"),
    "fish, exec bash": Login("exec bash", OTHER_SHELL, shell="fish"),
    "what it gets": Login("exec tee got", OTHER_SHELL),
    "an echo": Login(force='echo "$SSH_ORIGINAL_COMMAND"; cat >got', reason=OTHER_SHELL),
    "cat": Login("cat >/dev/null", READS_STDIN),
    "a shell": Login("bash", READS_STDIN),
    "a question": Login(
        "printf 'Passcode: '; sleep 600", "no answer from its shell within 6 s, it waits at: Passcode:"
    ),
    "sleep": Login("sleep 600", r"no answer from its shell within 6 s \("),
}
# Likewise, and then it is started again, with as much time as it wants.
READS = {"read": Login("read x; read y; read z")}
CASES = {**AT_ONCE, **LATE, **READS}


@pytest.fixture(scope="module")
def hubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Hub, str, Path]]]:
    """All of these logins at once: name → the hub, the node in it, its home."""
    folder = tmp_path_factory.mktemp("logins")
    nodes = {name: f"node{number}" for number, name in enumerate(CASES)}
    for name, case in CASES.items():
        rc = folder / nodes[name] / RC_FILES.get(case.shell, ".bashrc")
        rc.parent.mkdir(parents=True)
        rc.write_text(case.rc + "\n")
    lines = {
        nodes[name]: login(folder / nodes[name], shutil.which(case.shell) or "/bin/false", case.force, BANNER)
        for name, case in CASES.items()
    }
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        for variable, value in fake_ssh(folder, lines).items():
            patch.setenv(variable, value)
        found = {}
        reading = patient(hello_s=6.0)
        for group, limits in ((LATE, patient(hello_s=6.0)), (READS, reading), (AT_ONCE, patient())):
            channels = LAUNCHERS["ssh"].launch(tuple(nodes[name] for name in group), LaunchOptions())
            hub = stack.enter_context(opened(*channels, limits=limits))
            found.update({name: (hub, nodes[name], folder / nodes[name]) for name in group})
        hub, node, _ = found["read"]
        wait_until(lambda: hub.node(node).state.reason not in FIRST_START, 90, "its second start")
        set_limits(reading, hello_s=DEADLINE_S)
        yield found


@pytest.mark.parametrize("name", CASES)
def test_a_login(name: str, hubs: dict[str, tuple[Hub, str, Path]]) -> None:
    case = CASES[name]
    if case.shell == "git-shell" and not shutil.which("git-shell"):
        pytest.skip("no git-shell here")
    hub, node, home = hubs[name]
    wait_until(lambda: hub.node(node).state.state != "connecting", 90, name)
    reason = hub.node(node).state.reason
    if case.reason == LIVE:
        assert (hub.node(node).state.state, reason) == ("live", "")
    else:
        assert re.search(case.reason, reason)
        assert not re.search("uthori|[Dd]enied|\x1b|31m", reason)  # the banner is no reason
    # No shell has run, and no program has read, what is for stage 0.
    made = {path.relative_to(home).as_posix(): path for path in home.rglob("*") if path.is_file()}
    ours = {RC_FILES.get(case.shell, ".bashrc"), "got", "fish_variables"}
    assert [file for file in made if file not in ours and not file.startswith((".cache", ".config", ".local"))] == []
    assert "got" not in made or made["got"].read_bytes() == b""


def test_nothing_is_sent_until_every_node_of_a_carrier_waits_for_it() -> None:
    code = """
import select
say(Message("stage0", node="n1"))
early = select.select([0], [], [], 1.0)[0]
say(Message("error", node="n2", error="no Python"))
sent = os.read(0, 100)
hello("n1"); beat("n1")
for request in requests():
    if request.kind == "request":
        say(Message("done", node="n1", id=request.id, data={"early": bool(early), "sent": sent.decode()}))
"""
    with opened(program(code, "n1", "n2", opening=lambda: b"stage 1")) as hub:
        await_state(hub, "live", "n1")
        (answer,) = hub.request("what", nodes=["n1"]).answers(DEADLINE_S)
        assert answer.message.data == {"early": False, "sent": "stage 1"}


def test_what_was_said_before_the_agent_is_no_reason_for_its_end() -> None:
    code = (
        "print('Authorized use only', file=sys.stderr, flush=True); say(Message('stage0')); os.read(0, 9); os._exit(3)"
    )
    with opened(program(code, opening=lambda: b"stage 1"), limits=patient()) as hub:
        assert await_state(hub, "lost") == "the agent ended (exit code 3)"


def test_a_slow_login_is_waited_for_as_long_as_the_user_says(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("sleep 24\n")
    words = [sys.executable, "-m", "mltop", "snapshot", "-w", "n1", "--timeout", "120"]
    done = subprocess.run(words, env=fake_ssh(tmp_path, {"n1": login(tmp_path)}), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("via", "version"),
    [*(("ssh", version) for version in PYTHONS), ("local", min(PYTHONS)), ("local", max(PYTHONS))],
    ids=str,
)
def test_every_python(via: str, version: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fake_ssh(tmp_path, {"n1": login(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    python = PYTHONS[version]
    with opened(*LAUNCHERS[via].launch(("n1",), LaunchOptions(python=python)), limits=patient()) as hub:
        if version >= (3, 9):
            await_state(hub, "live")
            assert hub.node("n1").connection.hello.python.startswith("{}.{}.".format(*version))
        else:
            found = "2" if version < (3,) else "{}.{}.".format(*version)
            reason = await_state(hub, "lost")
            assert reason.startswith(f"{python} is no Python 3.9 or newer on this node: it is Python {found}")
            assert "(name another one with --python PATH, or install one there: apt install python3, " in reason


def test_a_python_without_parts_of_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian's python3-minimal: another one is taken; where there is none, the missing module is named."""
    home = tmp_path / "home"
    programs = tmp_path / "minimal"
    home.mkdir()
    programs.mkdir()
    for tool in ("sh", "id", "ls", "tail", "cut", "tr", "getent", "readlink", "uname"):
        (programs / tool).symlink_to(shutil.which(tool))
    without = (
        "import sys; sys.path = [path for path in sys.path if path.endswith('lib-dynload')]; exec(sys.argv.pop(1))"
    )
    minimal = f'#!/bin/sh\nshift 3  # -I -S -c\nexec {sys.executable} -I -S -c "{without}" "$@"\n'
    (programs / "python3").write_text(minimal)
    (programs / "python3").chmod(0o755)
    (home / ".bashrc").write_text(f"PATH={programs}\n")
    for name, value in fake_ssh(tmp_path, {"n*": login(home)}).items():
        monkeypatch.setenv(name, value)
    named, other = (
        LAUNCHERS["ssh"].launch((node,), LaunchOptions(python=python))[0]
        for node, python in (("n1", f"{programs}/python3"), ("n2", ""))
    )
    with opened(named, other, limits=patient()) as hub:
        assert "it does not work: No module named ctypes" in await_state(hub, "lost", "n1")
        assert "apt install python3" in hub.node("n1").state.fix
        await_state(hub, "live", "n2")


def test_no_ssh_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageProblem) as problem:
        LAUNCHERS["ssh"].launch(("n1",), LaunchOptions())
    assert str(problem.value) == "--via ssh: ssh is not installed here (apt install openssh-client)"
