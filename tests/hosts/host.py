"""One machine of a cluster: running programs on it, looking at it, and breaking it in many ways."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hosts.keeper import CLEAN, INSIDE
from tests.waiting import wait_until

# Without root, sshd may not change groups (user_namespaces(7)): there it runs as the user who logs in.
ORDINARY_ID = 1000
AS_USER = ["unshare", "--user", f"--map-user={ORDINARY_ID}", f"--map-group={ORDINARY_ID}", "--"]
SSHD = ["/usr/sbin/sshd", "-f", str(INSIDE / "sshd_config"), "-E", str(INSIDE / "sshd.log")]
ENTER = ["--mount", "--uts", "--ipc", "--net", "--pid", "--root"]
PYTHON_DIRECTORIES = ("/usr/local/bin", "/usr/bin", "/bin", "/opt/conda/bin", "/usr/libexec", str(INSIDE / "bin"))


@dataclass(frozen=True)
class Process:
    """A process of one machine; pids as that machine numbers them, ``parent`` 0 for what was started from outside."""

    pid: int
    parent: int
    state: str
    command: str


@dataclass
class Host:
    """``pid``: of its init, as this process sees it; ``directory``: its files, seen as /run/host on the machine."""

    name: str
    pid: int
    address: str
    directory: Path
    user_namespace: bool = False
    _undo: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def root(self) -> Path:
        """The machine's file system with everything that is mounted there, seen from here."""
        return Path(f"/proc/{self.pid}/root")

    @property
    def home(self) -> Path:
        """The home directory, seen from here. A link would lead astray: it means the machine's own root."""
        home = self.inside(INSIDE / "home")
        return self.inside(home.readlink()) if home.is_symlink() else home

    def inside(self, path: Path | str) -> Path:
        return self.root / str(path).lstrip("/")

    # Running programs.

    def command(self, argv: list[str], cwd: str = "/") -> list[str]:
        """The command that runs ``argv`` on the machine."""
        user = ["--user", "--preserve-credentials"] if self.user_namespace else []
        change = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", cwd]
        return ["nsenter", f"--target={self.pid}", *user, *ENTER, "--", *change, *argv]

    def environment(self, **more: str) -> dict[str, str]:
        home = str(INSIDE / "home")
        return {**CLEAN, "HOME": home, "USER": "root", "LOGNAME": "root", "LANG": "C.UTF-8", **more}

    def as_login(self, argv: list[str]) -> list[str]:
        """The command that runs ``argv`` as one who has logged in would: only then may an agent look into it.

        Without root, sshd is in a user namespace of its own, and so are all logins.
        """
        if not self.user_namespace:
            return argv
        sshd = wait_until(self._sshd_pid, what="sshd")  # it writes the file when it listens
        return ["nsenter", f"--user=/proc/{sshd}/ns/user", "--preserve-credentials", "--", *argv]

    def start(
        self, argv: list[str], env: dict[str, str] | None = None, cwd: str = "/", **options: Any
    ) -> subprocess.Popen[Any]:
        """``env`` is added to a login's environment. Killing the returned process does not kill the program."""
        return subprocess.Popen(self.command(argv, cwd), env=self.environment(**(env or {})), **options)

    def run(
        self,
        argv: list[str],
        timeout_s: float = 60.0,
        check: bool = True,
        env: dict[str, str] | None = None,
        cwd: str = "/",
        stdin_text: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end, output as text; AssertionError with the output when ``check`` and it fails."""
        done = subprocess.run(
            self.command(argv, cwd),
            env=self.environment(**(env or {})),
            input=stdin_text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
        said = f"{self.name}: {shlex.join(argv)}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0 or not check, said
        return done

    # Looking at it.

    def processes(self) -> list[Process]:
        """Everything that runs there, also what is ours or the machine's own."""
        return sorted(self._read_processes(), key=lambda process: process.pid)

    def strangers(self) -> list[Process]:
        """Everything that runs there but its init and its listening sshd."""
        own = {1, self._sshd_pid()}
        return [process for process in self.processes() if process.pid not in own]

    def wait_clean(self, timeout_s: float = 30.0) -> None:
        """Return when nothing but init and sshd runs there; AssertionError names what is left."""
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.strangers(), timeout_s, "a clean machine")
        left = self.strangers()
        assert not left, f"{self.name}: left behind: {left}"

    def sshd_log(self) -> str:
        return (self.directory / "sshd.log").read_text(errors="replace")

    def _read_processes(self) -> list[Process]:
        found = []
        for entry in (self.root / "proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):  # it ended meanwhile
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                stat = (entry / "stat").read_text(errors="replace")
                name, _, rest = stat.partition("(")[2].rpartition(")")
                fields = rest.split()
                found.append(Process(int(entry.name), int(fields[1]), fields[0], words or f"[{name}]"))
        return found

    def _sshd_pid(self) -> int:
        try:
            return int(self.inside("/run/sshd.pid").read_text())
        except (OSError, ValueError):
            return 0

    # Ending programs.

    def signal(self, name: str, *pids: int) -> None:
        """Signal by the machine's own pids; those that are gone already are passed over."""
        if pids:
            self.run(["sh", "-c", f"kill -s {name} {' '.join(map(str, pids))} 2>/dev/null; true"])

    def kill_strangers(self) -> None:
        self.signal("KILL", *(process.pid for process in self.strangers()))

    # Breaking it. ``heal`` undoes all of it.

    def heal(self) -> None:
        self._undo.close()

    def stop_sshd(self) -> None:
        """No more logins; with its sessions, as when a machine goes down in order."""
        pids = [process.pid for process in self.processes() if process.command.startswith("sshd")]
        self.signal("KILL", *pids, self._sshd_pid())
        self._undo.callback(self.start_sshd)

    def start_sshd(self) -> None:
        pid = self._sshd_pid()
        if pid and self.inside(f"/proc/{pid}").exists():
            return
        self.inside("/run/sshd.pid").unlink(missing_ok=True)
        self.run([*AS_USER, *SSHD] if self.user_namespace else SSHD)
        wait_until(self._sshd_pid, what="sshd")  # it writes the file when it listens

    def freeze_sshd(self) -> None:
        """Its port still takes connections; nobody answers."""
        self.signal("STOP", self._sshd_pid())
        self._undo.callback(self.thaw_sshd)

    def thaw_sshd(self) -> None:
        self.signal("CONT", self._sshd_pid())

    def drop_connects(self) -> None:
        """New connections get no answer; those that are open live on."""
        self._drop("INPUT", "--protocol", "tcp", "--syn")

    def close_ports(self) -> None:
        """As a firewall that lets logins in and nothing else; what the host itself begins passes."""
        self._drop("INPUT", "!", "--in-interface", "lo", "--protocol", "tcp", "--syn", "!", "--destination-port", "22")

    def cut_link(self) -> None:
        """Nothing arrives and nothing leaves any more, and nobody is told."""
        self._drop("INPUT")
        self._drop("OUTPUT")

    def restore_link(self) -> None:
        self.run(["iptables", "--wait", "--flush"])

    def _drop(self, chain: str, *match: str) -> None:
        self.run(["iptables", "--wait", "--append", chain, *match, "--jump", "DROP"])
        self._undo.callback(self.restore_link)

    def write_rc(self, text: str) -> None:
        """What bash runs first in every ssh session."""
        rc = self.home / ".bashrc"
        rc.write_text(text)
        self._undo.callback(rc.unlink, missing_ok=True)

    def hang_login(self) -> None:
        """A login succeeds, then its shell waits for ever, as over a home directory on a dead file server.

        Healing lets all of them go on, to whatever is left of their sessions.
        """
        fifo = self.directory / "dead_home"
        os.mkfifo(fifo)
        self._undo.callback(fifo.unlink)
        self._undo.callback(lambda: os.close(os.open(fifo, os.O_RDWR)))
        self.write_rc(f"read -r _ < {INSIDE / fifo.name}")

    def use_shell(self, path: str) -> None:
        """The user's login shell."""
        before = (self.directory / "passwd").read_text()
        first, *others = before.splitlines()
        text = "\n".join([first.rpartition(":")[0] + ":" + path, *others]) + "\n"
        (self.directory / "passwd").write_text(text)  # in place: it is mounted over /etc/passwd
        self._undo.callback((self.directory / "passwd").write_text, before)

    def new_host_key(self) -> None:
        """As after a reinstallation: its clients know another key."""
        self._undo.callback(self._restart_listener)
        for name in ("host_key", "host_key.pub"):
            kept = (self.directory / name).rename(self.directory / f"{name}.kept")
            self._undo.callback(kept.rename, self.directory / name)
        make_key(self.directory / "host_key")
        self._restart_listener()

    def _restart_listener(self) -> None:
        pid = self._sshd_pid()
        self.signal("KILL", pid)
        wait_until(lambda: not self.inside(f"/proc/{pid}").exists(), what="the end of sshd")
        self.start_sshd()

    def remove_key(self) -> None:
        """Nobody may log in."""
        keys = self.home / ".ssh/authorized_keys"
        before = keys.read_bytes()
        keys.write_bytes(b"")
        self._undo.callback(keys.write_bytes, before)

    def hide_python(self) -> None:
        """No Python that a login would find."""
        for path in sorted({os.path.realpath(path) for path in self._interpreters()}):
            self._mount("--bind", str(INSIDE / "empty"), path)

    def _interpreters(self) -> list[str]:
        found = []
        for directory in PYTHON_DIRECTORIES:
            with contextlib.suppress(OSError):
                names = os.listdir(self.inside(directory))
                found += [f"{directory}/{n}" for n in names if n.startswith(("python", "platform-python"))]
        return [path for path in found if path.rpartition("-")[2] != "config"]

    def hide_directory(self, path: Path) -> None:
        """It is empty there."""
        self._mount("-t", "tmpfs", "tmpfs", str(path))

    def read_only_home(self) -> None:
        self._mount("--bind", str(INSIDE / "home"), str(INSIDE / "home"))
        self.run(["mount", "-o", "remount,bind,ro", str(INSIDE / "home")])

    def read_only_scratch(self) -> None:
        """/tmp and its like, where a cache could go instead of the home directory."""
        for path in ("/tmp", "/var/tmp", "/dev/shm"):
            self._mount("-t", "tmpfs", "-o", "ro", "tmpfs", path)

    def noexec_home(self) -> None:
        """What lies in the home directory cannot be executed or mapped as a library."""
        self._mount("--bind", str(INSIDE / "home"), str(INSIDE / "home"))
        self.run(["mount", "-o", "remount,bind,noexec", str(INSIDE / "home")])

    def _mount(self, *words: str) -> None:
        target = words[-1]
        self.run(["mount", *words])
        self._undo.callback(self.run, ["umount", "--lazy", target])


def make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "mltop-test", "-f", str(path)], check=True)


def suitable(python: str) -> bool:
    """At least Python 3.9, with the parts of the standard library that an agent needs."""
    code = "import ctypes, dataclasses, hashlib, json, selectors, sys, zlib; sys.exit(sys.version_info < (3, 9))"
    try:
        return subprocess.run([python, "-ISc", code], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def base_interpreter() -> str:
    return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
