"""What every test leaves behind as it was, and the lanes of `tests/run`."""

from __future__ import annotations

import gc
import os
import re
import shlex
import signal
import subprocess
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from execnet import XSpec

# What a test may do to others decides with whom it runs (markers in pyproject.toml): the first that it has, or OTHERS.
MARKED = ("jobs", "hosts", "machine", "serial", "matrix")
OTHERS = "others"
# Of those one begins first that takes minutes, most of which it waits: at the end everybody would wait for it.
FIRST = ("test_rules_driven.py", "test_motion.py")

# What is pure has a lane of its own, for which nothing but Python packages is installed.
PURE = Path(__file__).parent / "unit"
NOT_PURE = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"})

# What the surroundings of a run say must not decide what the tests see: how programs draw and in which language they
# speak, and whose job we are in.
DECIDES = re.compile(
    r"COLUMNS|LINES|(FORCE|NO)_COLOR|CLICOLOR\w*|TTY_\w+|TEXTUAL\w*|LC_\w+|LANG|LANGUAGE"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|(SLURM|PMI|PMIX|OMPI|TORCHELASTIC|NCCL|TORCH_NCCL)_\w+"
    r"|CUDA_VISIBLE_DEVICES|WCOLL|MLTOP_(?!TEST_)\w+|PYTHONWARNINGS"
)
for name in filter(DECIDES.fullmatch, tuple(os.environ)):
    del os.environ[name]
os.environ["LC_ALL"] = "C.UTF-8"

# What the tests start must not ignore a signal because we do (a handler ends with exec, SIG_IGN does not): under nohup,
# where we go on, and in the background of a script, whose shell lets us ignore Ctrl-C.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda _number, _frame: None)
for number, otherwise in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, otherwise)


@pytest.fixture(autouse=True, scope="session")
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever mltop keeps for its user is not kept for ours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(autouse=True)
def _psutil_reads_this_machine() -> Iterator[None]:
    """A host source over a made-up /proc points psutil at it, for the whole process."""
    yield
    psutil.PROCFS_PATH = "/proc"


NOT_HERE = "what starts a process or loads torch belongs to tests/system"
_watched: list[str] | None = None  # what the pure test that runs now has done beside


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if _watched is not None and (event in NOT_PURE or (event == "import" and args[0] == "torch")):
        _watched.append("import torch" if event == "import" else event)


sys.addaudithook(_watch)  # for good: Python takes none back


@pytest.fixture(autouse=True)
def _what_is_pure_stays_pure(request: pytest.FixtureRequest) -> Iterator[None]:
    global _watched
    if not request.path.is_relative_to(PURE):
        yield
        return
    _watched = did = []
    yield
    _watched = None
    assert not did, f"{did[0]}: {NOT_HERE}"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """The same for what a module of pure tests does when it is imported."""
    global _watched
    if not (isinstance(collector, pytest.Module) and collector.path.is_relative_to(PURE)):
        return (yield)
    _watched = did = []
    report = yield
    _watched = None
    if did:
        raise pytest.UsageError(
            f"{collector.nodeid}: {did[0]}: what starts a process or loads torch belongs to tests/system"
        )
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lanes of tests/run")
    group.addoption("--sparse", type=int, metavar="N", help="N tests of each file, none of them twice")
    group.addoption("--lane", choices=[*MARKED, OTHERS], help="of the selected tests those of one lane only")
    group.addoption("--write-lanes", metavar="FILE", help='write which are selected, as in "jobs path of the file"')
    group.addoption("--read-lanes", metavar="FILE", help="what --write-lanes wrote: other files are not imported")


FILES = pytest.StashKey[set[str]]()


def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[XSpec]) -> None:
    """Root's tests that run side by side do not see each other's processes: who asks what runs on this machine is told
    what the test itself has started. The first process of each worker's namespace reaps what is left behind.
    """
    if config.getoption("lane") not in (None, OTHERS, "matrix") or os.geteuid() != 0:
        return  # who is not root would need a user namespace, in which sshd and the kernel take him for another
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    tried = subprocess.run([*unshare, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise pytest.UsageError(f"root may not make process namespaces here: {tried.stderr.strip()}")
    for spec in specs:
        spec.python = shlex.join([*unshare, "bash", "-c", '"$@"; exit $?', "-", sys.executable])


def keep(config: pytest.Config, items: list[pytest.Item], kept: set[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def some_of_each(items: list[pytest.Item], most: int) -> set[pytest.Item]:
    """Of each file ``most`` tests, each with one of its parameters, by their checksums: the same in each run."""
    chosen: defaultdict[Path, dict[str, pytest.Item]] = defaultdict(dict)
    for item in sorted(items, key=lambda item: zlib.crc32(item.nodeid.encode())):
        of_file = chosen[item.path]
        if len(of_file) < most:
            of_file.setdefault(item.nodeid.partition("[")[0], item)
    return {item for of_file in chosen.values() for item in of_file.values()}


def lane_of(item: pytest.Item) -> str:
    return next((mark for mark in MARKED if item.get_closest_marker(mark)), OTHERS)


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if lane_of(item) != OTHERS and item.path.is_relative_to(PURE):
            raise pytest.UsageError(f"{item.nodeid}: tests/unit is one lane, what has a mark belongs to tests/system")
    if (most := config.getoption("sparse")) is not None:
        keep(config, items, some_of_each(items, most))
    if (lane := config.getoption("lane")) is not None:
        keep(config, items, {item for item in items if lane_of(item) == lane})
    items.sort(key=lambda item: item.path.name not in FIRST)


def pytest_collection_finish(session: pytest.Session) -> None:
    # What is there by now stays: to look through it for garbage after each 700 new objects takes a tenth of all time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    written = session.config.getoption("write_lanes")
    if written is not None:
        Path(written).write_text("".join(f"{lane_of(item)} {item.path}\n" for item in session.items))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """To import all files takes seconds, in each process of each lane."""
    if config.stash.get(FILES, None) is None:
        read, lane = config.getoption("read_lanes"), config.getoption("lane")
        lines = Path(read).read_text().splitlines() if read is not None and lane is not None else []
        config.stash[FILES] = {path for of, _, path in (line.partition(" ") for line in lines) if of == lane}
    files = config.stash[FILES]
    return True if files and collection_path.suffix == ".py" and str(collection_path) not in files else None
