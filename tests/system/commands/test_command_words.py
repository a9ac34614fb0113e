"""Words that end in remote commands, in shells and in requests: what cannot be passed on is one line, exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mltop.tui.cli import main

COMMANDS = (
    *([], ["snapshot"], ["check"], ["stacks"], ["capture"], ["doctor"], ["kernel"]),
    *(["probe", kind] for kind in ("matmul", "all-reduce", "memory", "copies", "pairs")),
)
WAYS = ("ssh", "pdsh", "srun", "local")
NO_PROGRAM = {
    "it's": "not every login shell takes",
    '/opt/"my"/python': "not every login shell takes",
    "/opt/`id`/python": "not every login shell takes",
    "/opt/wow!/python": "not every login shell takes",
    "a\\b": "not every login shell takes",
    "a\nb": "not every login shell takes",
    "a\rb": "not every login shell takes",
    "a\x00b": "not every login shell takes",
    "a\x1b[2Jb": "not every login shell takes",
    "a\u202eb": "not every login shell takes",
    "\udc80": "not every login shell takes",
    "python3 -u": "arguments cannot be given",
    " python3": "arguments cannot be given",
    "-V": "is an option",
    "": "names no program",
    "  ": "names no program",
    "x" * 200_000: "longer than any path",
    "/" + "é" * 3000: "longer than any path",
}
NOBODY = ("it's", "a b", "a\nb", "a\x00b", "-oProxyCommand=x", "$(id)", "a;b", "x" * 300, "")
NO_NODE = ("it's", "a\nb'", "a\x00b", "-oProxyCommand=x", "$(id)", "a;b", 'a"b', "a\\b", "a`b", "x" * 300, "", " ", "é")


def said(*words: str, capfd: pytest.CaptureFixture[str]) -> str:
    """The one line that mltop says of them before it ends with 2, nothing having been started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["mltop", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    out, err = capfd.readouterr()
    assert (ended.value.code, out) == (2, ""), (words, err)
    assert err.startswith("mltop: ") and err.endswith("\n"), err
    assert len(err.splitlines()) == 1 and len(err) < 400, err
    assert err[:-1].isprintable(), err
    return err


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("word", NO_PROGRAM, ids=lambda word: repr(word)[:20])
def test_an_interpreter_that_is_none(way: str, word: str, capfd: pytest.CaptureFixture[str]) -> None:
    line = said("snapshot", "--via", way, "--python", word, "-w", "n1", capfd=capfd)
    assert line.startswith("mltop: --python ") and NO_PROGRAM[word] in line


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_says_it(command: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    for way in WAYS:
        assert "login shell" in said(*command, "--via", way, "--python", "a'\nb", "-w", "n1", capfd=capfd)
        assert "is no user's name" in said(*command, "--via", way, "--user", "a'\nb", "-w", "n1", capfd=capfd)
        said(*command, "--via", way, "-w", "n'\n1", capfd=capfd)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("word", NOBODY, ids=lambda word: repr(word)[:20])
def test_a_user_who_is_none(way: str, word: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert said("snapshot", "--via", way, "--user", word, "-w", "n1", capfd=capfd).startswith("mltop: --user ")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("word", NO_NODE, ids=lambda word: repr(word)[:20])
def test_a_node_that_is_none(way: str, word: str, capfd: pytest.CaptureFixture[str]) -> None:
    said("snapshot", "--via", way, "-w", word, capfd=capfd)
    said("snapshot", "--via", way, "-w", f"ok,{word}" if word.strip() else word, capfd=capfd)


@pytest.mark.parametrize("word", NO_NODE, ids=lambda word: repr(word)[:20])
def test_a_node_of_a_host_file(word: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hosts").write_text(word + "\n")
    said("snapshot", "--hostfile", str(tmp_path / "hosts"), capfd=capfd)


@pytest.mark.parametrize("word", [*NO_PROGRAM, "venv/bin/python"], ids=lambda word: repr(word)[:20])
def test_a_python_with_torch_that_is_none(word: str, capfd: pytest.CaptureFixture[str]) -> None:
    for kind in ("matmul", "all-reduce"):
        line = said("probe", kind, "--torch-python", word, capfd=capfd)
        assert "--torch-python" in line
        assert NO_PROGRAM.get(word, "is no full path") in line


@pytest.mark.parametrize(
    ("option", "word"),
    [
        *(
            ("--gpus", word)
            for word in ("²", "9" * 5000, "GPU-a\nb", "GPU-'", "GPU-" + "a" * 5000, "0,", "", "-1", "0;1")
        ),
        *(("--size", word) for word in ("9" * 400, "1e400", "1" * 5000 + "G", "1\n", "nan", "", "-4K", "٣K\x00")),
        *(("--timeout", word) for word in ("nan", "inf", "-1", "1e999", "9" * 5000)),
        *(("--interval", word) for word in ("nan", "inf", "0", "9" * 5000)),
        *(("--job", word) for word in ("1'", "1\n2", "$(id)", "-1", "9" * 20 + "x")),
    ],
    ids=lambda word: repr(word)[:20],
)
def test_other_options_of_probes(option: str, word: str, capfd: pytest.CaptureFixture[str]) -> None:
    said("probe", "memory", option, word, "-w", "n1", capfd=capfd)


def test_a_path_with_blanks_is_a_path(tmp_path: Path) -> None:
    """As it is: by ssh and pdsh it stands in quotes."""
    python = tmp_path / "my python/bin/python3"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    words = [sys.executable, "-m", "mltop", "snapshot", "--via", "local", "--python", str(python)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
