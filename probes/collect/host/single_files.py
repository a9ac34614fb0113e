"""Fields that are one small file each, and the count of open files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from mltop.probes.collect.host.files import MALFORMED, KeptFile, read_file
from mltop.probes.collect.host.part import Reading, unreadable, unsupported
from mltop.probes.model import Gap, RankSample


@dataclass(frozen=True)
class SmallFile:
    """``absent``: what it means that there is no such file; "" where every machine has it."""

    field: str
    path: str
    parse: Callable[[str], Any]
    absent: str = ""


SMALL_FILES = (
    SmallFile("clocksource", "/sys/devices/system/clocksource/clocksource0/current_clocksource", str),
    # Documentation/admin-guide/LSM/Yama.rst
    SmallFile("ptrace_scope", "/proc/sys/kernel/yama/ptrace_scope", int, "Yama is not built into this kernel"),
    # "healthy" or "NOT HEALTHY"; LBUG where it has crashed (lustre/obdclass/obd_sysfs.c)
    SmallFile("lustre_health", "/sys/fs/lustre/health_check", lambda text: text[:100], "no Lustre here"),
)


class SmallFiles:
    """``clocksource``, ``ptrace_scope``, ``lustre_health``."""

    def __init__(self, root: str, files: Sequence[SmallFile] = SMALL_FILES) -> None:
        self._root = root
        self._files = files

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        reading = Reading()
        for file in self._files:
            what = f"host.{file.field}"
            try:
                text = read_file(self._root + file.path).decode("utf-8", "replace").strip()
                reading.values[file.field] = file.parse(text)
            except FileNotFoundError as error:
                reading.gaps.append(unsupported(what, file.absent) if file.absent else unreadable(what, error))
            except OSError as error:
                reading.gaps.append(unreadable(what, error))
            except MALFORMED:
                reading.gaps.append(Gap(what, f"{self._root}{file.path} is not as expected"))
        return reading


class OpenFiles:
    """``open_files`` and ``open_files_max`` of the whole machine. Source: /proc/sys/fs/file-nr (proc_sys_fs(5))."""

    def __init__(self, root: str) -> None:
        self._file = KeptFile(root, "/proc/sys/fs/file-nr")

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        what = "host.{open_files,open_files_max}"
        try:
            allocated, unused, most = (int(word) for word in self._file.read().split())
        except OSError as error:
            return Reading(gaps=[unreadable(what, error)])
        except MALFORMED:
            return Reading(gaps=[Gap(what, f"{self._file.path} is not as expected")])
        return Reading({"open_files": allocated - unused, "open_files_max": most})
