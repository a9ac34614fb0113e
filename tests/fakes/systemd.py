"""A systemd of our own: a `systemctl` that says what it is told, and the cgroups of the services that run."""

from __future__ import annotations

import shutil
from pathlib import Path

from mltop.probes.collect.host.services import SERVICES


class FakeSystemd:
    """NVIDIA's services on a fake machine. ``bin``: the folder to put first on PATH."""

    def __init__(self, directory: Path, root: Path, **states: str) -> None:
        """``states``: by the service's name without "nvidia-"; the others are absent."""
        self.bin = directory / "bin"
        self._answer = directory / "systemctl.answer"
        self._slice = root / "sys" / "fs" / "cgroup" / "system.slice"
        self._states = {name: states.get(name.removeprefix("nvidia-"), "absent") for name in SERVICES}
        (root / "run" / "systemd" / "system").mkdir(parents=True)
        self.bin.mkdir(parents=True)
        program = self.bin / "systemctl"
        program.write_text(f"#!/bin/sh\nexec cat '{self._answer}'\n")
        program.chmod(0o755)
        self._write()

    def set(self, name: str, state: str) -> None:
        """``set("fabricmanager", "failed")``."""
        self._states[f"nvidia-{name}"] = state
        self._write()

    def _write(self) -> None:
        """The answer before the cgroups: that these change makes mltop ask."""
        blocks = []
        for name, state in self._states.items():
            is_there = state != "absent"
            loaded, active = "loaded" if is_there else "not-found", state if is_there else "inactive"
            blocks.append(f"Id={name}.service\nLoadState={loaded}\nActiveState={active}\n")
        self._answer.write_text("\n".join(blocks))
        for name, state in self._states.items():
            folder = self._slice / f"{name}.service"
            if state == "active":
                folder.mkdir(parents=True, exist_ok=True)
            elif folder.exists():
                shutil.rmtree(folder)
