"""The environment as a process has it now, of real programs of every kind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.live_environ import Unreadable, read_live_environ

SETS = "import os, sys; os.environ['RANK'] = '3'; del os.environ['GONE']; print('set', flush=True); sys.stdin.read()"
C_SETS = """
#include <stdio.h>
#include <stdlib.h>
extern char **environ;
int main(void) { setenv("RANK", "3", 1); unsetenv("GONE"); puts("set"); fflush(stdout); return getchar() + !environ; }
"""


@contextmanager
def running(argv: Sequence[str], ready: bytes = b"set\n") -> Iterator[int]:
    environ = {**os.environ, "GONE": "1", "STAYS": "x"}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == ready
            yield process.pid
        finally:
            process.kill()


def live(pid: int) -> set[bytes]:
    return set(read_live_environ("/proc", pid, procfs.read_stat("/proc", pid).start_ticks).split(b"\0"))


def assert_seen(pid: int) -> None:
    variables = live(pid)
    assert {b"RANK=3", b"STAYS=x"} <= variables
    assert not any(variable.startswith(b"GONE=") for variable in variables)
    assert b"RANK=3" not in procfs.read_environ("/proc", pid).split(b"\0")


def test_what_python_sets_is_seen() -> None:
    with running([sys.executable, "-c", SETS]) as pid:
        assert_seen(pid)


@pytest.mark.parametrize(
    "options",
    [
        ("-pie",),
        ("-no-pie",),  # the program has libc's variable, by a copy relocation
        ("-no-pie", "-Wl,--hash-style=both"),
    ],
)
def test_programs_of_every_kind(options: tuple[str, ...], tmp_path: Path) -> None:
    program = compiled(tmp_path, *options)
    with running([str(program)]) as pid:
        assert_seen(pid)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("-static",), "static"),
        (("-static-pie",), "static"),
        (("-no-pie", "-Wl,--hash-style=sysv"), "no GNU hash table"),  # libc's own variable is not the one that counts
    ],
)
def test_programs_that_cannot_be_read_say_so(options: tuple[str, ...], why: str, tmp_path: Path) -> None:
    with running([str(compiled(tmp_path, *options))]) as pid, pytest.raises(Unreadable, match=why):
        live(pid)


def test_a_program_that_is_run_by_the_dynamic_linker_says_so(tmp_path: Path) -> None:
    program = compiled(tmp_path, "-pie")
    lines = subprocess.run(["ldd", program], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    linker = next(Path(line.split()[-2]) for line in lines if "/ld-" in line)
    with running([str(linker), str(program)]) as pid, pytest.raises(Unreadable):
        live(pid)


def compiled(folder: Path, *options: str) -> Path:
    (folder / "sets.c").write_text(C_SETS)
    subprocess.run(["cc", *options, "-o", folder / "sets", folder / "sets.c"], check=True)
    return folder / "sets"


def test_a_title_over_the_environment_hides_nothing(tmp_path: Path) -> None:
    """As setproctitle: it moves the environment before it writes over where the kernel looks for it."""
    source = C_SETS.replace(
        "int main(void) {",
        """#include <string.h>
        int main(int argc, char **argv) {
            char *from = environ[0], *to = from; int n = 0;
            while (environ[n]) { to = environ[n] + strlen(environ[n]); n++; }
            char **moved = calloc(n + 1, sizeof *moved);
            for (int i = 0; i < n; i++) moved[i] = strdup(environ[i]);
            environ = moved; memset(from, 0, to - from); (void) argc; (void) argv;""",
    )
    (tmp_path / "sets.c").write_text(source)
    subprocess.run(["cc", "-o", tmp_path / "sets", tmp_path / "sets.c"], check=True)
    with running([str(tmp_path / "sets")]) as pid:
        assert procfs.read_environ("/proc", pid).strip(b"\0") == b""
        assert {b"RANK=3", b"STAYS=x"} <= live(pid)


def test_in_a_container_nothing_of_its_files_is_needed() -> None:
    """Its own mounts, its own process ids, and the libraries' folder hidden after the start."""
    hides = "import os; os.system('mount -t tmpfs none /usr >&2');" + SETS
    argv = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        sys.executable,
        "-c",
        hides,
    ]
    with running(argv) as pid:
        (child,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        assert_seen(child)


def test_another_process_with_the_same_pid_is_not_taken() -> None:
    with running([sys.executable, "-c", SETS]) as pid, pytest.raises(ProcessLookupError):
        read_live_environ("/proc", pid, procfs.read_stat("/proc", pid).start_ticks - 1)


def test_a_process_that_changes_while_it_is_read() -> None:
    """Torn reads give no wrong rank, no error and no end of it."""
    busy = (
        "import os, sys; print('set', flush=True); n = 0\n"
        "while True:\n n += 1; os.environ['RANK'] = str(n % 10); os.environ['X%d' % (n % 300)] = 'y' * (n % 97)"
    )
    with running([sys.executable, "-c", busy]) as pid:
        for _ in range(20):
            try:
                ranks = {variable for variable in live(pid) if variable.startswith(b"RANK=")}
            except Unreadable:
                continue
            assert ranks <= {f"RANK={n}".encode() for n in range(10)}


def test_only_who_may_attach_may_read() -> None:
    if os.geteuid() != 0:
        with pytest.raises((PermissionError, FileNotFoundError)):
            read_live_environ("/proc", 1, procfs.read_stat("/proc", 1).start_ticks)
        return
    with running([sys.executable, "-c", SETS]) as pid:
        ticks = procfs.read_stat("/proc", pid).start_ticks
        raised: list[BaseException] = []

        def as_nobody() -> None:
            try:
                os.setegid(65534)
                os.seteuid(65534)
                read_live_environ("/proc", pid, ticks)
            except BaseException as error:  # noqa: BLE001 - it is what is asserted
                raised.append(error)

        child = os.fork()
        if child == 0:
            thread = threading.Thread(target=as_nobody)
            thread.start()
            thread.join()
            os._exit(0 if raised and isinstance(raised[0], PermissionError) else 1)
        assert os.waitpid(child, 0)[1] == 0
