"""What `mltop doctor` says of the machine it runs on: the terminal, and the programs that reach others."""

from __future__ import annotations

import locale
import os
import shutil
import subprocess
import sys
from collections.abc import Collection

from mltop.tui.commands.node_checks import Check, check

# (program, what it is for, the package that has it)
_PROGRAMS = (
    ("ssh", "--via ssh", "openssh-client"),
    ("pdsh", "--via pdsh", "pdsh"),
    ("srun", "--via srun", "slurm-client"),
    ("squeue", "--job", "slurm-client"),
)
VERSION_S = 5.0


def local_checks(via: Collection[str]) -> list[Check]:
    """``via``: how the nodes are reached; a program that this needs must be here, others may be missing."""
    return [terminal_check(), glyphs_check(), *(program_check(*program, via) for program in _PROGRAMS)]


def terminal_check() -> Check:
    size = shutil.get_terminal_size()
    term = os.environ.get("TERM", "")
    if not sys.stdout.isatty():
        return check("terminal", "ok", "output is not a terminal: text and --json only")
    if term in ("", "dumb", "unknown"):
        return check("terminal", "warning", f"TERM={term} cannot show the screen", "export TERM=xterm-256color")
    if size.columns < 80 or size.lines < 24:
        return check("terminal", "warning", f"{size.columns}x{size.lines} is small (80x24 holds 8 GPUs)", "enlarge it")
    return check("terminal", "ok", f"{term}, {size.columns}x{size.lines}")


def glyphs_check() -> Check:
    encoding = (getattr(sys.__stderr__, "encoding", "") or locale.getpreferredencoding(False)).lower()
    if "utf" in encoding:
        return check("glyphs", "ok", encoding)
    return check("glyphs", "warning", f"{encoding}: ASCII is drawn instead", "export LC_ALL=C.UTF-8")


def program_check(program: str, option: str, package: str, via: Collection[str]) -> Check:
    path = shutil.which(program)
    if path is None:
        needed = program in via
        fix = f"sudo apt install {package}" if needed else ""
        return check(program, "missing" if needed else "info", f"not here: {option} cannot be used", fix)
    return check(program, "ok", f"{ssh_version(path)} at {path}" if program == "ssh" else path)


def ssh_version(path: str) -> str:
    """ "OpenSSH_9.2p1" of what `ssh -V` says on stderr."""
    try:
        done = subprocess.run([path, "-V"], capture_output=True, text=True, timeout=VERSION_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run ({error})"
    words = (done.stderr or done.stdout).replace(",", " ").split()
    return words[0] if words else "of unknown version"
