"""A real Slurm on one machine: its nodes are as separate as a test can see.

    with slurm_cluster(nodes=4) as slurm:
        job = slurm.submit("srun sleep 600")
        slurm.wait_running(job)
        slurm.run(["mltop", "snapshot", "--job", job])

Every node is a slurmd in its own PID, mount and UTS namespace: its own processes, /proc, host name and, below one
path, home directory. Ending its first process ends all of it. Ports are free ones, files are in one directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mltop.probes.system.spawn import die_with_parent
from tests.ports import free_ports
from tests.waiting import wait_until

REPOSITORY = Path(__file__).parents[1]
SERVERS = "/usr/local/sbin:/usr/sbin:/sbin"  # where Debian keeps daemons
START_S = 60.0
# Mapped to themselves: munge compares user numbers. Rights are kept for mount and sethostname.
AS_USER = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
APART = ["unshare", *AS_USER, "--pid", "--fork", "--kill-child", "--mount-proc", "--mount", "--uts"]
OWN_COMMANDS = ("slurmd ", "slurmstepd", "ps -eo", "sh -c hostname ")  # what runs on every node
AGENT_WORDS = "--frame-bytes"
CONFIG = """\
ClusterName=mltop
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmctldPidFile={directory}/slurmctld.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdSpoolDir={directory}/%n/spool
SlurmdPidFile={directory}/%n/slurmd.pid
SlurmdLogFile={directory}/%n/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SchedulerParameters=bf_interval=1,sched_min_interval=10000
MpiDefault=none
KillWait=2
SlurmdParameters=config_overrides
PlugStackConfig={directory}/plugstack.conf
NodeName={names} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs=8 RealMemory=4000
PartitionName=batch Nodes=ALL Default=YES
"""


class Slurm:
    """A running cluster. ``env``: for its clients, mltop among them; ``nodes``: gpu01, gpu02, …"""

    def __init__(self, directory: Path, count: int) -> None:
        self.directory = directory
        self.nodes = [f"gpu{number:02d}" for number in range(1, count + 1)]
        self.home = directory / "home"
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "WCOLL"))},
            "SLURM_CONF": str(directory / "slurm.conf"),
            "PATH": f"{os.environ.get('PATH', '/usr/bin:/bin')}:{SERVERS}",
            "PYTHONPATH": f"{REPOSITORY / '.dev'}:{REPOSITORY}",
            "HOME": str(self.home),
        }
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Returns when every node is idle."""
        for path in (self.home, self.directory / "state", *(self.home_of(node) for node in self.nodes)):
            path.mkdir(parents=True)
        (self.directory / "plugstack.conf").touch()
        (self.directory / "munge.key").write_bytes(os.urandom(1024))
        (self.directory / "munge.key").chmod(0o400)
        (self.directory / "slurm.conf").write_text(self._config())
        self._daemon("munged", ["munged", "--foreground", "--force", *self._munge_files()])
        wait_until((self.directory / "munge.socket").exists, START_S, "munged's socket")
        self._daemon("slurmctld", ["slurmctld", "-D"])
        for node in self.nodes:
            self.start_node(node)
        wait_until(self._all_idle, START_S, f"idle nodes (logs in {self.directory})")

    def start_node(self, node: str) -> None:
        """A slurmd with a machine of its own; its home directory is that of no other node."""
        # The shell stays, as the init that collects what jobs leave: slurmd would keep it as zombies.
        prepare = 'hostname "$1" && mount --bind "$2" "$3" && slurmd -D -N "$1"; exit $?'
        self._daemon(node, [*APART, "sh", "-c", prepare, "sh", node, str(self.home_of(node)), str(self.home)])

    def signal_slurmd(self, node: str, number: int) -> None:
        """Stop or continue a node's daemon; what runs on the node goes on."""
        self.on_node(node, ["pkill", f"-{int(number)}", "-x", "slurmd"])

    def home_of(self, node: str) -> Path:
        """Where the directory lies that is $HOME on ``node``."""
        return self.directory / node / "home"

    def submit(self, script: str, nodes: int | None = None, *options: str) -> str:
        """The job's id. ``script``: lines of shell, run on the job's first node; its output is ``output(job)``."""
        count = len(self.nodes) if nodes is None else nodes
        command = ["sbatch", "--parsable", f"-N{count}", f"-n{count}", "--chdir=/", *options]
        done = self.run([*command, "-o", str(self.directory / "%A_%a.out")], stdin="#!/bin/sh\n" + script)
        return done.stdout.strip()

    def output(self, job: str) -> str:
        """What a job has printed so far."""
        return "".join(path.read_text() for path in sorted(self.directory.glob(f"{job}_*.out")))

    def state(self, job: str) -> str:
        """ "RUNNING", "COMPLETED" …; "" when Slurm does not know the job."""
        done = self.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"], check=False)
        return done.stdout.split("\n", 1)[0]

    def wait_running(self, job: str) -> None:
        wait_until(lambda: self.state(job) == "RUNNING", START_S, f"job {job} running")

    def wait_ended(self, job: str) -> None:
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "")
        wait_until(lambda: self.state(job) in ended, START_S, f"the end of job {job}")

    def cancel(self, job: str) -> None:
        self.run(["scancel", job])
        self.wait_ended(job)

    def cancel_all(self) -> None:
        """Returns when every node is idle again."""
        self.run(["scancel", "-p", "batch"])
        wait_until(self._all_idle, START_S, "idle nodes")

    def run(
        self, command: list[str], *, check: bool = True, timeout_s: float = 90.0, stdin: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        """A client of this cluster. AssertionError with its output when it fails and ``check`` is set."""
        done = subprocess.run(
            command,
            env={**self.env, **env},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{command}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr}"
        return done

    def mltop(self, *args: str, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        """mltop as on a login node."""
        return self.run([sys.executable, "-m", "mltop", *args], check=check, **env)

    def on_node(self, node: str, command: list[str], check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command among the processes and files of a node."""
        enter = [
            "nsenter",
            "-t",
            str(self._first_process(node)),
            *(["--user", "--preserve-credentials"] if AS_USER else []),
            "-m",
            "-p",
        ]
        return self.run([*enter, *command], check=check)

    def processes(self, node: str) -> dict[int, str]:
        """Pid, as the node sees it, to command of what runs there beside Slurm's own."""
        # Whole lines, also where COLUMNS says 80.
        lines = self.on_node(node, ["ps", "-ww", "-eo", "pid=,args="]).stdout.splitlines()
        found = {int(pid): command for pid, command in (line.split(None, 1) for line in lines)}
        return {pid: command for pid, command in found.items() if not command.startswith(OWN_COMMANDS)}

    def forget_caches(self, node: str) -> None:
        """As if mltop had never been there."""
        shutil.rmtree(self.home_of(node) / ".cache", ignore_errors=True)

    def agents(self, node: str) -> list[int]:
        """Pids of mltop's agents there, their bootstrap and children included."""
        return [pid for pid, command in self.processes(node).items() if AGENT_WORDS in command]

    def stop(self) -> None:
        """Everything ends: each node with all that runs on it, then the controller, then munge."""
        for name in [*self.nodes, "slurmctld", "munged"]:
            self.stop_daemon(name)

    def stop_daemon(self, name: str) -> None:
        """A node's name, "slurmctld" or "munged"; what is not running is left."""
        daemon = self._daemons.pop(name, None)
        if daemon is None:
            return
        if name in self.nodes:
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(self._first_process(name, daemon), 9)  # the namespace's init: all of it ends
        else:
            daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    # Below: how it is made.

    def _first_process(self, node: str, daemon: subprocess.Popen[bytes] | None = None) -> int:
        unshare = (daemon or self._daemons[node]).pid
        return int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()[0])

    def _config(self) -> str:
        port, *ports = free_ports(1 + len(self.nodes))
        return CONFIG.format(
            host=socket.gethostname(),
            port=port,
            ports=f"[{','.join(map(str, ports))}]",
            user=Path(f"/proc/{os.getpid()}").owner(),
            directory=self.directory,
            names=f"gpu[{','.join(node[3:] for node in self.nodes)}]",
        )

    def _munge_files(self) -> list[str]:
        names = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        return [f"--{option}={self.directory}/munge.{suffix}" for option, suffix in names.items()]

    def _daemon(self, name: str, command: list[str]) -> None:
        (self.directory / name).mkdir(exist_ok=True)
        with (self.directory / name / "output").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                command,
                env=self.env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def _all_idle(self) -> bool:
        for name, daemon in self._daemons.items():
            said = (self.directory / name / "output").read_text()
            assert daemon.poll() is None, f"{name} ended: {said[-1000:]}"
        states = self.run(["sinfo", "-h", "-N", "-o", "%T"], check=False).stdout.split()
        return states == ["idle"] * len(self.nodes)


@contextlib.contextmanager
def slurm_cluster(nodes: int = 4) -> Iterator[Slurm]:
    """A cluster that is idle at first and gone at the end, with all that runs on it."""
    directory = Path(tempfile.mkdtemp(prefix=f"mltop-slurm-{os.getpid()}-"))
    directory.chmod(0o755)  # munge wants nobody else to write there, and jobs look in
    slurm = Slurm(directory, nodes)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
        shutil.rmtree(directory)
