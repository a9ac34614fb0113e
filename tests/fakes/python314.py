"""A server on Python 3.14 whose event loop is idle, and a py-spy that reads it: both answer as real ones were recorded.

python = FakePython(folder)
server = python.start(); python.answers("server")
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.documents import ROOT
from tests.fakes.scripts import python_script

SOURCE = Path(__file__).with_suffix(".c")
RECORDED = ROOT / "tests/fixtures/asyncio"
PY_SPY = """
import json, sys
pid = int(sys.argv[sys.argv.index("--pid") + 1])
threads = json.load(open({recorded!r}))
for thread in threads:
    thread.update(pid=pid, os_thread_id=pid)
    for frame in thread["frames"]:
        frame["filename"] = frame["filename"].replace("/python3.14/", "/python{version}/")
print(json.dumps(threads))
"""


class FakePython:
    """``folder``: where it lies, and what it says and hears."""

    def __init__(self, folder: Path, name: str = "python3.14") -> None:
        self.folder = folder
        self.program = folder / name
        folder.mkdir(parents=True, exist_ok=True)
        command = [os.environ.get("CC", "cc"), "-O1", "-Wall", str(SOURCE), "-o", str(self.program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the fake Python does not compile:\n{done.stderr}")
        (folder / "asked").touch()
        (folder / "asked").chmod(0o666)

    def answers(self, name: str, code: object = 0) -> None:
        """As it was recorded; "" for nothing. ``code``: the exit code, "hang" or "flood"."""
        for kind, file in (("output", f"{name}.txt"), ("errors", f"{name}.errors.txt")):
            recorded = RECORDED / file
            (self.folder / kind).write_bytes(recorded.read_bytes() if recorded.is_file() else b"")
        (self.folder / "code").write_text(str(code))

    @property
    def asked(self) -> list[str]:
        """A line for each time that it was asked: "uid gid groups arguments libraries=… variables=N forks=no"."""
        return (self.folder / "asked").read_text().splitlines()

    def start(self, **options: object) -> subprocess.Popen[bytes]:
        """A process of it, which waits. ``options``: Popen's."""
        process = subprocess.Popen([self.program], stdout=subprocess.PIPE, start_new_session=True, **options)  # type: ignore[call-overload]
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process  # type: ignore[no-any-return]


def fake_py_spy(path: Path, version: str = "3.14") -> Path:
    """Sees the recorded server in every process; ``version``: of the Python that it runs on."""
    recorded = str(RECORDED / "server.py-spy.json")
    return python_script(path, PY_SPY.format(recorded=recorded, version=version))
