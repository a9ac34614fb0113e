"""A login node and several hosts on one machine, each as separate as a test can see.

    with Hosts(16) as hosts:
        hosts.login.run(["ssh", "h01", "hostname"])

Every host has its own network (10.77.0.0/16 on a bridge that nothing outside sees), processes, /proc, /tmp, home and
host name, and one real sshd. The login node reaches them by ~/.ssh/config; nothing of this user's is read or written.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.hosts.host import AS_USER, ORDINARY_ID, SSHD, Host, base_interpreter, make_key, suitable
from tests.hosts.keeper import INSIDE, SCRATCH, SHARED

REPOSITORY = Path(__file__).parents[2]
LOGIN_ADDRESS = "10.77.255.1"
USERS = {"root": 0, "trainer": ORDINARY_ID}
LOGIN_PATH = "/usr/local/bin:/usr/bin:/bin"
SSHD_CONFIG = f"""\
Port 22
HostKey {INSIDE}/host_key
PidFile /run/sshd.pid
AuthorizedKeysFile .ssh/authorized_keys
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
StrictModes no
PrintMotd no
PrintLastLog no
LogLevel VERBOSE
SetEnv PATH={INSIDE}/bin:{LOGIN_PATH}
"""


class Hosts:
    """``hosts.login`` is where the operator sits, ``hosts["h01"]`` … the others, also by iteration."""

    def __init__(self, count: int = 16, shared_home: bool = False) -> None:
        """``shared_home``: all hosts have one home directory, as on a cluster with a network file system."""
        self.directory = Path(tempfile.mkdtemp(prefix=f"mltop-hosts-{os.getpid()}-"))
        width = max(2, len(str(count)))
        self.names = [f"h{number:0{width}d}" for number in range(1, count + 1)]
        self.pattern = f"h[{self.names[0][1:]}-{self.names[-1][1:]}]"
        self._addresses = {name: f"10.77.{i // 250}.{i % 250 + 1}" for i, name in enumerate(self.names)}
        self._shared_home = shared_home
        self._user_namespace = os.geteuid() != 0
        self._user = "trainer" if self._user_namespace else "root"
        self._by_name: dict[str, Host] = {}

    def __enter__(self) -> Hosts:
        try:
            self._write_files()
            self._keeper = self._start_keeper()
            self._meet()
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Every process on every host is killed, then everything is gone."""
        self._keeper.communicate()
        assert not self.directory.exists(), f"{self.directory} is left"

    def __getitem__(self, name: str) -> Host:
        return self._by_name[name]

    def __iter__(self) -> Iterator[Host]:
        return (self._by_name[name] for name in self.names)

    @property
    def login(self) -> Host:
        return self._by_name["login"]

    @property
    def shared(self) -> Path:
        """A directory that every machine sees as /run/shared."""
        return self.directory / "shared"

    def address(self, name: str) -> str:
        return self._addresses[name]

    def mltop(self, *args: str, timeout_s: float = 90.0, check: bool = True) -> subprocess.CompletedProcess[str]:
        """mltop on the login node."""
        return self.login.run(
            self.mltop_command(*args), timeout_s, check, env=self.mltop_environment(), cwd=str(REPOSITORY)
        )

    def mltop_command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "mltop", *args]

    def mltop_environment(self) -> dict[str, str]:
        return {"PYTHONPATH": f"{REPOSITORY / '.dev'}:{REPOSITORY}"}

    def know_keys(self, but: tuple[str, ...] = ()) -> None:
        """The login node's known_hosts: every host's key, without those of ``but``."""
        lines = [
            f"{name},{self._addresses[name]} {(self.directory / name / 'host_key.pub').read_text().strip()}"
            for name in self.names
            if name not in but
        ]
        (self.directory / "login/home/.ssh/known_hosts").write_text("\n".join(lines) + "\n")

    def wait_clean(self, timeout_s: float = 30.0) -> None:
        """Return when nothing but init and sshd runs on any machine; AssertionError names what is left."""
        deadline = time.monotonic() + timeout_s
        for host in (self.login, *self):
            host.wait_clean(max(0.0, deadline - time.monotonic()))

    # Below: how it is made.

    def _write_files(self) -> None:
        (self.directory / "shared").mkdir()
        make_key(self.directory / "user_key")
        for name in ["login", *self.names]:
            self._write_machine(self.directory / name)
        keygens = [
            subprocess.Popen(
                [
                    "ssh-keygen",
                    "-q",
                    "-t",
                    "ed25519",
                    "-N",
                    "",
                    "-C",
                    name,
                    "-f",
                    str(self.directory / name / "host_key"),
                ]
            )
            for name in self.names
        ]
        assert [keygen.wait() for keygen in keygens] == [0] * len(keygens)
        self._write_login()

    def _write_machine(self, directory: Path) -> None:
        directory.mkdir()
        home = directory / "home"
        if self._shared_home and directory.name != "login":
            (self.directory / "shared/home").mkdir(exist_ok=True)
            home.symlink_to(SHARED / "home")
            home = self.directory / "shared/home"
        (home / ".ssh").mkdir(parents=True, mode=0o700, exist_ok=True)
        (home / ".ssh/authorized_keys").write_text((self.directory / "user_key.pub").read_text())
        (directory / "empty").touch(mode=0o644)
        (directory / "bin").mkdir()
        if not suitable("/usr/bin/python3"):
            (directory / "bin/python3").symlink_to(base_interpreter())
        (directory / "sshd_config").write_text(SSHD_CONFIG)
        others = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("root:")]
        own = [f"{name}:x:{uid}:{uid}::{INSIDE}/home:/bin/bash" for name, uid in USERS.items()]
        (directory / "passwd").write_text("\n".join([*own, *others]) + "\n")
        (directory / "shadow").write_text("".join(f"{name}:*:19000:0:99999:7:::\n" for name in USERS))
        names = [f"{address} {name}" for name, address in self._addresses.items()]
        (directory / "hosts").write_text("\n".join(["127.0.0.1 localhost", f"{LOGIN_ADDRESS} login", *names]) + "\n")

    def _write_login(self) -> None:
        ssh = self.directory / "login/home/.ssh"
        (self.directory / "user_key").rename(ssh / "id_ed25519")
        blocks = [f"Host {name}\n  HostName {address}\n" for name, address in self._addresses.items()]
        (ssh / "config").write_text("".join(blocks) + f"Host *\n  User {self._user}\n  IdentitiesOnly yes\n")
        self.know_keys()

    def _start_keeper(self) -> subprocess.Popen[bytes]:
        login = {"name": "login", "address": LOGIN_ADDRESS, "cable": ""}
        hosts = [
            {"name": name, "address": self._addresses[name], "cable": f"v{number}"}
            for number, name in enumerate(self.names, 1)
        ]
        spec = {
            "machines": [login, *hosts],
            "keep": kept_in_sight(),
            "sshd": [*AS_USER, *SSHD] if self._user_namespace else SSHD,
            "user_namespace": self._user_namespace,
        }
        (self.directory / "spec.json").write_text(json.dumps(spec))
        return subprocess.Popen(
            [sys.executable, "-IS", str(Path(__file__).with_name("keeper.py")), str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def _meet(self) -> None:
        assert self._keeper.stdout is not None
        said = self._keeper.stdout.readline()
        answer: dict[str, Any] = json.loads(said) if said else {"error": "the keeper ended"}
        if "error" in answer:
            self._keeper.communicate()
            raise RuntimeError(f"no hosts: {answer['error']} (namespaces need root, or user namespaces)")
        for name, pid in answer["pids"].items():
            address = self._addresses.get(name, LOGIN_ADDRESS)
            self._by_name[name] = Host(name, pid, address, self.directory / name, self._user_namespace)


def kept_in_sight() -> list[str]:
    """What a host needs that would vanish under its own scratch directories."""
    needed = {str(REPOSITORY.resolve()), str(Path(sys.prefix).resolve()), str(Path(sys.base_prefix).resolve())}
    return sorted(path for path in needed if path.startswith(tuple(f"{scratch}/" for scratch in SCRATCH)))
