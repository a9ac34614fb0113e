"""`bash tests/run` with arguments: what is selected runs in its lane, and nothing selected is an error.

In a checkout of a few tests of its own, with the linters left out.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.fakes.scripts import shell_script

LANES = {
    "pure tests": "pure",
    "pure tests, 3.11": "pure",
    "Pilot tests, 3.11": "pilot",
    "pure tests, 3.12": "pure, on the newest",
    "Pilot tests, 3.12": "pilot, on the newest",
    "every Python": "matrix",
    "tests": "others",
    "tests of all jobs of a machine": "jobs",
    "tests that measure": "serial",
    "tests on hosts of their own": "hosts",
    "tests of the machine itself": "machine",
}
PLAIN = "def test_one(): pass\ndef test_two(): pass\n"
NINE = "import pytest\n@pytest.mark.parametrize('number', range(9))\ndef test_it(number): pass\n"
MARKED = "import pytest\npytestmark = pytest.mark.{}\ndef test_it(): pass\n"
BOTH = "import pytest\n@pytest.mark.serial\n@pytest.mark.hosts\ndef test_both(): pass\ndef test_neither(): pass\n"
PYTHONS = (
    "def found(): return {'3.11': 'no-such-python'}\ndef operators(): return ['3.11']\n"  # its environment is there
)
BROKEN = "import no_such_module\n"
ASKS = "def test_it(): assert 'no-such-shell'\n"
FAILS = "def test_it(): assert False\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "a checkout"
    for folder in ("unit", "tui", "system", "matrix"):
        (root / "tests" / folder).mkdir(parents=True)
    for name in ("tests/run", "tests/needs.py", "tests/conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    (root / "torch/distributed").mkdir(parents=True)  # it is imported to be compiled
    for name in ("torch/__init__.py", "torch/distributed/__init__.py"):
        (root / name).touch()
    for name, text in {
        "pythons.py": PYTHONS,
        "unit/test_plain.py": PLAIN,
        "tui/test_pilot.py": PLAIN,
        "matrix/test_matrix.py": MARKED.format("matrix"),
        "system/test_both.py": BOTH,
        "system/test_jobs.py": MARKED.format("jobs"),
        "system/test_hosts.py": MARKED.format("hosts"),
        "system/test_machine.py": MARKED.format("machine"),
        "system/test_serial.py": MARKED.format("serial"),
    }.items():
        (root / "tests" / name).write_text(text)
    for name in ("venv", "venv-3.11"):
        venv(root / name, root)
    return root


def venv(folder: Path, root: Path) -> None:
    """One that is up to date, and whose linters find nothing."""
    programs = dict.fromkeys(("ruff", "mypy", "lint-imports", "vermin"), "exit 0")
    programs["python"] = f'exec "{sys.executable}" "$@"'
    programs["pytest"] = f'exec "{Path(sys.executable).with_name("pytest")}" "$@"'
    for name, line in programs.items():
        shell_script(folder / "bin" / name, line)
    (folder / ".torch-for").write_text("torch==2.13.0\n")
    wanted = hashlib.sha256(b"".join((root / name).read_bytes() for name in ("pyproject.toml", "tests/run")))
    (folder / ".installed-for").write_text(wanted.hexdigest() + "\n")


def run(checkout: Path, *args: str, before: Sequence[str] = ()) -> tuple[int, dict[str, int], str]:
    """The exit code, how many tests passed in each lane that ran, and what was said."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    done = subprocess.run(
        [*before, "bash", str(checkout / "tests/run"), *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
        env={**own, "MLTOP_TEST_VENV": str(checkout / "venv")},
    )
    passed: dict[str, int] = {}
    lane = ""
    for line in done.stdout.splitlines():
        if line.startswith("== "):
            lane = LANES.get(line.removeprefix("== "), "")
        elif lane:
            counted = re.search(r"(\d+) passed", line)
            passed[lane] = int(counted[1]) if counted else passed.get(lane, 0)
    return done.returncode, passed, done.stdout


ALL = {"pure": 2, "pilot": 2, "matrix": 1, "others": 1, "jobs": 1, "serial": 1, "hosts": 2, "machine": 1}
ONCE = {"pure": 1, "pilot": 1}


@pytest.mark.parametrize(
    ("args", "passed"),
    [
        (("--fast",), {"pure": 2}),
        (("tests/unit/test_plain.py::test_two",), {"others": 1}),
        (("tests/unit/test_plain.py", "-k", "one or nothing"), {"others": 1}),
        (("-k", "both"), {"others": 1, "hosts": 1}),
        (
            ("tests/system/test_hosts.py", "tests/system/test_machine.py", "tests/system/test_jobs.py"),
            {"hosts": 1, "machine": 1, "jobs": 1},
        ),
        (("-m", "serial and hosts", "-n", "2"), {"hosts": 1}),
    ],
)
def test_what_is_selected_runs_in_its_lane(checkout: Path, args: tuple[str, ...], passed: dict[str, int]) -> None:
    code, ran, said = run(checkout, *args)
    assert (code, ran) == (0, passed), said
    assert "0 stages failed" in said
    assert "no tests ran" not in said


def test_pure_and_pilot_tests_run_on_the_newest_python_and_one_of_each_on_the_oldest(checkout: Path) -> None:
    text = PYTHONS.replace("'3.11': 'no-such-python'", "'3.11': '-', '3.12': '-'").replace(
        "['3.11']", "['3.11', '3.12']"
    )
    (checkout / "tests/pythons.py").write_text(text)
    for name in ("unit/test_plain.py", "tui/test_pilot.py"):
        (checkout / "tests" / name).write_text(NINE)
    venv(checkout / "venv-3.12", checkout)
    code, ran, said = run(checkout)
    assert (code, ran) == (0, {**ALL, **ONCE, "pure, on the newest": 9, "pilot, on the newest": 9}), said
    assert "0 stages failed" in said and "no tests ran" not in said


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("-k", "nothing or nobody"), "tests/run: no test is selected by: -k nothing or nobody"),
        (("-k", "no such thing"), "ERROR: Wrong expression passed to '-k': no such thing"),
        (
            ("tests/unit/test_plain.py", "-m", "jobs"),
            "tests/run: no test is selected by: tests/unit/test_plain.py -m jobs",
        ),
        (("tests/unit/test_gone.py",), "ERROR: file or directory not found: tests/unit/test_gone.py"),
        (("tests/unit/test_plain.py::test_gone",), "test_plain.py::test_gone"),
        (("tests/unit/test_broken.py", "tests/unit/test_plain.py"), "No module named 'no_such_module'"),
    ],
)
def test_a_selection_that_is_none_fails(checkout: Path, args: tuple[str, ...], line: str) -> None:
    if "tests/unit/test_broken.py" in args:
        (checkout / "tests/unit/test_broken.py").write_text(BROKEN)
    code, ran, said = run(checkout, *args)
    assert (code, ran) == (1, {}), said
    assert any(line in one for one in said.splitlines()), said
    assert "test_plain.py::test_one" not in said
    assert said.splitlines()[-1] == "== FAILED: selecting tests"


APART = "import os\ndef test_it(): assert sorted(filter(str.isdigit, os.listdir('/proc'))) == ['1', '2']\n"


def test_workers_do_not_see_each_others_processes(checkout: Path) -> None:
    """Root's: each is the second process of a namespace of its own, whose first one reaps."""
    for name in ("one", "two"):
        (checkout / f"tests/system/test_{name}.py").write_text(APART)
    as_root = [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]
    code, ran, said = run(checkout, "tests/system/test_one.py", "tests/system/test_two.py", before=as_root)
    assert (code, ran) == (0, {"others": 2}), said


def test_a_test_that_fails_fails_the_run(checkout: Path) -> None:
    (checkout / "tests/unit/test_fails.py").write_text(FAILS)
    code, ran, said = run(checkout, "tests/unit/test_fails.py", "tests/system/test_serial.py")
    assert (code, ran) == (1, {"others": 0, "serial": 1}), said
    assert said.splitlines()[-1] == "== FAILED: tests"


def test_fast_takes_no_selection(checkout: Path) -> None:
    code, ran, said = run(checkout, "--fast", "tests/unit/test_plain.py")
    assert (code, ran, said) == (2, {}, "tests/run: --fast takes no arguments: tests/unit/test_plain.py\n")


def test_fast_needs_no_torch_and_no_programs(checkout: Path) -> None:
    (checkout / "venv/.torch-for").unlink()
    (checkout / "tests/system/test_asks.py").write_text(ASKS)
    code, ran, said = run(checkout, "--fast")
    assert (code, ran) == (0, {"pure": 2}), said
    assert "installing" not in said


@pytest.mark.parametrize(
    "line", ["import torch", "import subprocess; subprocess.run(['true'])", "import os; os.system('true')"]
)
def test_a_pure_test_that_is_none_fails(checkout: Path, line: str) -> None:
    (checkout / "tests/unit/test_not_pure.py").write_text(f"def test_it():\n    {line}\n")
    code, _, said = run(checkout, "--fast")
    assert code == 1
    assert "belongs to tests/system" in said
    assert said.splitlines()[-1] == "== FAILED: pure tests"


def test_a_pure_test_has_no_mark(checkout: Path) -> None:
    (checkout / "tests/unit/test_marked.py").write_text(MARKED.format("serial"))
    code, _, said = run(checkout, "--fast")
    assert code == 1
    assert "tests/unit is one lane, what has a mark belongs to tests/system" in said


def test_what_a_selection_needs_is_asked_for_and_nothing_else(checkout: Path) -> None:
    """A program that no machine has stands for one that is missing here."""
    needs = checkout / "tests/needs.py"
    needs.write_text(needs.read_text().replace('"zsh": "zsh"', '"no-such-shell": "no-such-package"'))
    (checkout / "tests/system/test_asks.py").write_text(ASKS)
    programs = checkout / "programs"
    shell_script(programs / "id", "echo 1000")
    shell_script(programs / "apt-get", f'echo "$*" >>"{checkout}/asked"')
    path = ["env", f"PATH={programs}:{os.environ['PATH']}"]
    code, ran, said = run(checkout, "tests/system/test_serial.py", before=path)
    assert (code, ran) == (0, {"serial": 1}), said
    code, ran, said = run(checkout, "tests/system/test_asks.py", before=path)
    assert (code, ran) == (1, {}), said
    assert said == "tests/run: missing: no-such-package (sudo apt-get install no-such-package)\n"
    assert not (checkout / "asked").exists()
    shell_script(programs / "id", "echo 0")
    code, ran, said = run(checkout, "tests/system/test_asks.py", before=path)
    assert (code, ran) == (0, {"others": 1}), said
    assert (checkout / "asked").read_text().splitlines()[-1].endswith(" no-such-package")
