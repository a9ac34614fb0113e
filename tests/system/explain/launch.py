"""Starts jobs that die, and keeps what they left: ``python -m tests.system.explain.launch`` records the fixtures anew."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_ports

HERE = Path(__file__).parent
FIXTURES = HERE.parents[1] / "fixtures" / "dead_jobs"
RANKS = 3
LONGEST_S = 90.0


@dataclass(frozen=True)
class Way:
    """How a job is started: with ``folders`` of logs, ``recorded`` exceptions, each line with its rank (``tee``)."""

    mode: str
    folders: bool = True
    recorded: bool = True
    tee: bool = False
    restarts: int = 0

    @property
    def name(self) -> str:
        more = (
            ("" if self.folders else "-console")
            + ("" if self.recorded else "-unrecorded")
            + ("-tee" if self.tee else "")
        )
        return self.mode.replace(" ", "-") + more


RECORDED = (
    Way("well"),
    Way("exception"),
    Way("exception", folders=False, recorded=False),
    Way("kill"),
    Way("kill", folders=False, recorded=False),
    Way("segfault", folders=False),
    Way("timeout"),
    Way("timeout", folders=False, recorded=False),
    Way("timeout", tee=True),
    Way("full disk"),
    Way("barrier"),
    Way("first attempt", tee=True, restarts=1),
    Way("alike"),
)


def left_by(way: Way, folder: Path) -> int:
    """Run it; its exit code. ``folder`` has what it left: console.out, and logs/."""
    (port,) = free_ports(1)
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={RANKS}",
        f"--max-restarts={way.restarts}",
    ]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}"]
    if way.folders:
        command += ["--log-dir", str(folder / "logs"), "--redirects", "3"]
    if way.tee:
        command += ["--tee", "3"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **({"RECORDED": "1"} if way.recorded else {})}
    with (folder / "console.out").open("wb") as output:
        done = subprocess.run(
            [*command, str(HERE / "dying.py"), way.mode],
            env=environ,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=LONGEST_S,
            check=False,
        )
    return done.returncode


def _neutral(folder: Path) -> None:
    """Without the paths of this machine."""
    prefix = str(Path(sys.prefix))
    for path in folder.rglob("*"):
        if path.is_file():
            text = path.read_text("utf-8", "surrogateescape")
            for ours, theirs in (
                (str(folder), "/job"),
                (str(HERE), "/job"),
                (prefix, "/venv"),
                (sys.base_prefix, "/usr"),
            ):
                text = text.replace(ours, theirs)
            path.write_text(text, "utf-8", "surrogateescape")


def record_all() -> None:
    for way in RECORDED:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / way.name
            code = left_by(way, folder)
            _neutral(folder)
            with tarfile.open(FIXTURES / f"{way.name}.tar.gz", "w:gz") as archive:
                archive.add(folder, way.name)
            print(way.name, code)


if __name__ == "__main__":
    record_all()
