"""A /proc on disk: builds the files that the rank reader opens, from a small description of each process."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.process_memory import memory_with

BOOT_TIME = 1_700_000_000
FIRST_PID_NAMESPACE = 4026531836  # PROC_PID_INIT_INO, linux/proc_ns.h
_CPU = "100 0 100 800 0 0 0 0 0 0"  # user nice system idle iowait irq softirq steal guest guest_nice
_PF_KTHREAD = 0x00200000


@dataclass
class FakeProcess:
    """One process. ``image`` stands for what exec lays out anew; forked processes share their parent's."""

    pid: int
    ppid: int = 1
    argv: list[str] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)
    exe: str = ""
    comm: str = ""
    state: str = "S"
    uid: int = 0
    session: int = 1
    start_ticks: int = 0
    cpu_ticks: int = 0
    rss_kib: int = 1000
    switches: int = 0
    reads: int = 0
    writes: int = 0
    wchan: str = "0"
    image: int = 0
    kernel_thread: bool = False
    environ_bytes: bytes | None = None
    memlock: str = "unlimited"
    open_files_limit: str = "1024"
    open_files: int = 3
    devices: list[str] = field(
        default_factory=list
    )  # files that it has open, beside those of which only the number counts
    cgroup: str = "0::/\n"
    user_ticks: int = 0  # of the main thread
    cpus: str = "0-7"
    exit_status: int = 0
    libraries: tuple[str, ...] = ()  # that are mapped
    live: dict[str, str] | None = None  # the environment by now; None: its memory cannot be read
    threads: tuple[str, ...] = ()  # names of those beside the main one
    other_pids: tuple[int, ...] = ()  # in other PID namespaces


class ProcTree:
    """``root`` is the /proc itself. Processes are added, changed and removed while a reader looks at it."""

    def __init__(self, sysroot: Path) -> None:
        self.root = sysroot / "proc"
        (self.root / "self").mkdir(parents=True)
        (self.root / "stat").write_text(f"cpu  {_CPU}\ncpu0 {_CPU}\nbtime {BOOT_TIME}\nprocesses 1\n")
        self.mount_options("rw,relatime")
        self.processes: dict[int, FakeProcess] = {}
        self.add(1, ppid=0, argv=["/sbin/init"])

    def pid_namespace(self, number: int = FIRST_PID_NAMESPACE) -> None:
        """Of whoever reads this tree. Without it there is no telling."""
        link = self.root / "self" / "ns" / "pid"
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(f"pid:[{number}]")

    def mount_options(self, options: str) -> None:
        (self.root / "self" / "mounts").write_text(f"sysfs /sys sysfs rw 0 0\nproc /proc proc {options} 0 0\n")

    def add(self, pid: int, **description: object) -> FakeProcess:
        process = FakeProcess(pid, **description)  # type: ignore[arg-type]
        process.exe = process.exe or (process.argv[0] if process.argv else "")
        process.comm = process.comm or Path(process.exe).name[:15]
        process.start_ticks = process.start_ticks or 1000 + pid
        process.image = process.image or pid
        self.processes[pid] = process
        self._write(process)
        return process

    def python(self, pid: int, *arguments: str, ppid: int = 1, environ: dict[str, str] | None = None) -> FakeProcess:
        """A Python process of a virtual environment."""
        argv = ["/venv/bin/python", *arguments]
        return self.add(pid, ppid=ppid, argv=argv, environ=environ or {}, exe="/usr/bin/python3.11")

    def fork(self, parent: int, pid: int, **changes: object) -> FakeProcess:
        """A child with its parent's memory image: same command line, same environment."""
        copied = {name: value for name, value in vars(self.processes[parent]).items() if name != "pid"}
        return self.add(pid, **{**copied, "ppid": parent, "start_ticks": 1000 + pid, **changes})

    def change(self, pid: int, **changes: object) -> None:
        for name, value in changes.items():
            setattr(self.processes[pid], name, value)
        self._write(self.processes[pid])

    def exec(self, pid: int, *argv: str, environ: dict[str, str] | None = None) -> None:
        image = self.processes[pid].image + 100_000
        self.change(pid, argv=list(argv), exe=argv[0], comm=Path(argv[0]).name[:15], image=image)
        if environ is not None:
            self.change(pid, environ=environ)

    def die(self, pid: int, exit_status: int = 0) -> None:
        """To a zombie: everything that hung on its memory is gone. Its children go to init."""
        gone = {"argv": [], "environ": {}, "environ_bytes": None, "exe": "", "image": 0}
        self.change(pid, state="Z", exit_status=exit_status, **gone)
        for child in [p.pid for p in self.processes.values() if p.ppid == pid]:
            self.change(child, ppid=1)

    def remove(self, pid: int) -> None:
        for child in [p.pid for p in self.processes.values() if p.ppid == pid]:
            self.change(child, ppid=1)
        del self.processes[pid]
        shutil.rmtree(self.root / str(pid))

    def _write(self, process: FakeProcess) -> None:
        directory = self.root / str(process.pid)
        (directory / "task" / str(process.pid)).mkdir(parents=True, exist_ok=True)
        put(directory / "stat", _stat(process))
        put(directory / "task" / str(process.pid) / "stat", _stat(process, process.user_ticks))
        put(directory / "limits", _limits(process))
        put(directory / "cgroup", process.cgroup)
        self._write_descriptors(directory / "fd", process.open_files, process.devices)
        put(directory / "maps", "".join(f"7f00-7f01 r-xp 0 08:01 1    {path}\n" for path in process.libraries))
        for number, name in enumerate(process.threads):
            thread = directory / "task" / str(100_000 + 100 * process.pid + number)
            thread.mkdir(exist_ok=True)
            put(thread / "comm", f"{name}\n")
            put(thread / "children", "")
        if process.live is not None:
            live = {**process.environ, **process.live}
            memory_with([f"{name}={value}".encode() for name, value in live.items()]).write(directory)
        put(directory / "status", _status(process))
        put(directory / "io", f"rchar: 1\nwchar: 1\nsyscr: {process.reads}\nsyscw: {process.writes}\n")
        put(directory / "wchan", process.wchan)
        put(directory / "cmdline", "".join(part + "\0" for part in process.argv).encode())
        environ = "".join(f"{name}={value}\0" for name, value in process.environ.items()).encode()
        put(directory / "environ", environ if process.environ_bytes is None else process.environ_bytes)
        link = directory / "exe"
        link.unlink(missing_ok=True)
        if process.exe:
            link.symlink_to(process.exe)
        self._write_children(process.pid)
        self._write_children(process.ppid)

    def _write_descriptors(self, directory: Path, count: int, devices: list[str]) -> None:
        directory.mkdir(exist_ok=True)
        for link in [entry for entry in directory.iterdir() if entry.is_symlink()]:
            link.unlink()
        for number, device in enumerate(devices):
            (directory / str(1000 + number)).symlink_to(device)
        for number in range(max(count, len(list(directory.iterdir())) - len(devices))):
            if number < count:
                (directory / str(number)).touch()
            else:
                (directory / str(number)).unlink()

    def _write_children(self, pid: int) -> None:
        directory = self.root / str(pid) / "task" / str(pid)
        if directory.exists():
            children = sorted(p.pid for p in self.processes.values() if p.ppid == pid)
            put(directory / "children", "".join(f"{child} " for child in children))


def put(path: Path, content: str | bytes) -> None:
    """In place: whoever has the file open sees it, and never sees it empty."""
    data = content.encode() if isinstance(content, str) else content
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)


def _limits(process: FakeProcess) -> str:
    rows = (
        ("Limit", "Soft Limit", "Hard Limit", "Units"),
        ("Max cpu time", "unlimited", "unlimited", "seconds"),
        ("Max open files", process.open_files_limit, "1048576", "files"),
        ("Max locked memory", process.memlock, "unlimited", "bytes"),
        ("Max nice priority", "0", "0", ""),
    )
    return "".join(f"{name:<25} {soft:<20} {hard:<20} {unit:<10}\n" for name, soft, hard, unit in rows)


def _stat(process: FakeProcess, ticks: int | None = None) -> str:
    fields = ["0"] * 50
    fields[0:4] = [process.state, str(process.ppid), str(process.pid), str(process.session)]
    fields[6] = str(_PF_KTHREAD if process.kernel_thread else 0)
    fields[11] = str(process.cpu_ticks if ticks is None else ticks)
    fields[17] = str(1 + len(process.threads))
    fields[19] = str(process.start_ticks)
    fields[23:26] = [str(process.image), str(process.image + 1), str(process.image + 2)]
    fields[49] = str(process.exit_status)
    return f"{process.pid} ({process.comm}) {' '.join(fields)}\n"


def _status(process: FakeProcess) -> str:
    pids = "\t".join(map(str, (process.pid, *process.other_pids)))
    memory = "" if process.state == "Z" else f"VmRSS:\t{process.rss_kib:8d} kB\n"
    return (
        f"Name:\t{process.comm}\nUmask:\t0022\nState:\t{process.state} (state)\nPid:\t{process.pid}\n"
        f"PPid:\t{process.ppid}\nNSpid:\t{pids}\nUid:\t{process.uid}\t{process.uid}\t{process.uid}\t{process.uid}\n{memory}"
        f"Cpus_allowed:\tff\nCpus_allowed_list:\t{process.cpus}\nMems_allowed:\t1\nMems_allowed_list:\t0-1\n"
        f"voluntary_ctxt_switches:\t{process.switches}\nnonvoluntary_ctxt_switches:\t999\n"
    )
