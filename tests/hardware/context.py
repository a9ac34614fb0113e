"""What a slice is given: how long it may take, the Pythons, the machine, and where its records go."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
_MADE_UP = "00000000-0000-0000-0000-"
_UUID = re.compile(r"\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b")
_OF_ALL = ("", "/", "/usr", "/usr/local")  # folders of Pythons that tell nothing about a machine


def _made_up_uuid(found: re.Match[str]) -> str:
    """The same one for the same, in every file and whichever letters it is written with."""
    if found[0].startswith(_MADE_UP):
        return found[0]
    return _MADE_UP + hashlib.sha256(found[0].lower().encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Pythons:
    """``mltop``: the one that the tested mltop runs in; without one, a Python with pynvml and psutil, as far as there
    is one. ``torch``: a Python with torch, "" when there is none.

    ``program``: mltop as a user starts it, "" when there is none (``no_program``: why). ``package``: the folder of
    its package; without a program the checkout's.
    """

    mltop: str
    torch: str
    program: str = ""
    package: str = ""
    no_program: str = ""


@dataclass(frozen=True)
class Machine:
    """The machine's versions and GPUs (machine.py); None or "" is unknown. ``gaps``: why, by name."""

    versions: dict[str, str | None] = field(default_factory=dict)
    gpus: list[dict[str, Any]] = field(default_factory=list)  # index, uuid, name, serial
    gaps: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """`<model>-<driver>`, the name of a folder."""
        model = self.gpus[0]["name"] if self.gpus else "no-gpu"
        text = f"{re.sub('^NVIDIA ', '', model)}-{self.versions.get('driver') or 'unknown'}"
        return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.") or "unknown"


@dataclass(frozen=True)
class Context:
    """``deadline_s``: of CLOCK_MONOTONIC. ``directory``: of the whole run."""

    directory: Path
    deadline_s: float
    pythons: Pythons
    machine: Machine
    root: bool

    def left_s(self) -> float:
        return max(0.0, self.deadline_s - time.monotonic())

    def record(self, name: str, text: str) -> Path:
        """Saves what will be a fixture, without what tells which machine it was: copy it to tests/fixtures/gpu/."""
        path = self.directory / "fixtures" / self.machine.label / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.scrubbed(text), encoding="utf-8")
        return path

    def record_json(self, name: str, data: Any) -> Path:
        return self.record(name, json.dumps(data, indent=1, sort_keys=True) + "\n")

    def scrubbed(self, text: str) -> str:
        """UUIDs and serial numbers become made-up ones, one for each; this host's name becomes "host", a home "~".

        Of processes nvidia-smi tells whole command lines: none of them stays. Nor does whose home a file is in, or
        where this checkout and the Pythons are, or a folder that is called as who runs this.
        """
        for path in filter(None, (self.pythons.torch, self.pythons.mltop)):
            text = text.replace(path, "python")
            folder = os.path.dirname(os.path.dirname(path))
            text = text if folder in _OF_ALL else text.replace(f"{folder}/", "python/")
        text = text.replace(str(CHECKOUT), ".")
        home = os.path.expanduser("~")  # as it is where nobody knows; "/" of a uid without a name
        text = text.replace(f"{home}/", "~/") if len(home) > 1 else text
        text = re.sub(r"(?:/home/[^/\s\"':]+|/root)(?![^/\s\"':])", "~", text)
        for user in {_user(), os.environ.get("SUDO_USER", "")} - {"", "root"}:
            text = re.sub(rf"(?<=/){re.escape(user)}(?=[/\s\"':]|$)", "user", text)
        text = re.sub(
            r"<process_name>.*?</process_name>", "<process_name>program</process_name>", text, flags=re.DOTALL
        )
        for gpu in self.machine.gpus:
            made_up = {"uuid": f"GPU-{_MADE_UP}{gpu['index']:012}", "serial": f"{gpu['index'] + 1:013}"}
            for key, instead in made_up.items():
                if len(gpu.get(key) or "") > 4:
                    text = text.replace(gpu[key], instead)
            bare = (gpu.get("uuid") or "").removeprefix("GPU-")  # as torch writes it
            if len(bare) > 4:
                text = text.replace(bare, made_up["uuid"].removeprefix("GPU-"))
        text = _UUID.sub(_made_up_uuid, text)  # of MIG instances, of an NVLink domain
        for element in ("chassis_serial_number", "gpu_fabric_guid"):
            text = re.sub(rf"(<{element}>)(?!N/A)[^<]+", r"\g<1>0", text)
        whole = self.machine.versions.get("host") or ""
        for host in (whole, whole.partition(".")[0]):  # NCCL and others tell the short one
            if len(host) > 2:
                text = re.sub(rf"(?<![\w-]){re.escape(host)}(?![\w-])", "host", text)
        return text


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a uid without a name, as in containers
        return ""
