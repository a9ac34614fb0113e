"""`mltop config`, targets by name, and `--ascii`, as they are typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mltop.probes.model import GpuSample, Sample
from mltop.probes.record import recording as records


def mltop(*args: str, cwd: Path, text: str = "", **environ: str) -> subprocess.CompletedProcess[bytes]:
    config = cwd / "config.toml"
    config.write_text(text)
    config.chmod(0o600)
    return subprocess.run(
        [sys.executable, "-m", "mltop", *args],
        env={**os.environ, "MLTOP_STATE_DIR": str(cwd / "state"), "MLTOP_CONFIG": str(config), **environ},
        capture_output=True,
        timeout=60,
        cwd=cwd,
        check=False,
    )


def test_config_says_what_holds_and_where_it_comes_from(tmp_path: Path) -> None:
    done = mltop("--interval", "2", "config", "--json", cwd=tmp_path, text="theme = 'light'\n", MLTOP_ASCII="1")
    assert (done.returncode, done.stderr) == (0, b"")
    told = json.loads(done.stdout)
    found = {entry["key"]: (entry["value"], entry["origin"]) for entry in told["settings"]}
    assert found["theme"] == ("light", "file") and found["ascii"] == (True, "environment")
    assert found["interval"] == (2.0, "command line") and found["mouse"] == (True, "default")
    assert told["file"] == str(tmp_path / "config.toml")


def test_a_mistake_is_one_line_for_every_command_and_nothing_ends_of_it(tmp_path: Path) -> None:
    text = "ascii = 3\n[columns]\ngpus = ['nope']\n"
    for command, code in ((["config"], 1), (["lemon"], 0), (["kernel", "--via", "local", "--json"], 0)):
        done = mltop(*command, cwd=tmp_path, text=text)
        lines = done.stderr.decode().splitlines()
        assert done.returncode in (code, 1, 3), done
        if command != ["lemon"]:  # takes nothing of it
            assert [line.split(": ")[1] for line in lines[:2]] == [f"{tmp_path}/config.toml:{at}" for at in (1, 3)]
        assert "Traceback" not in done.stderr.decode()


def test_targets_by_name(tmp_path: Path) -> None:
    text = "[targets]\nprod = { nodes = ['localhost', '127.0.0.1'], via = 'local' }\nlab = { nodes = '::1' }\n"
    both, all_three = ["127.0.0.1", "localhost"], ["127.0.0.1", "::1", "localhost"]
    asked = ((["@prod", "snapshot"], both), (["snapshot", "@prod"], both), (["@prod", "@lab", "snapshot"], all_three))
    for words, nodes in asked:
        done = mltop(*words, "--json", "--timeout", "20", cwd=tmp_path, text=text)
        assert sorted(node["node"] for node in json.loads(done.stdout)["nodes"]) == nodes, done
    files = "[targets]\na = { hostfile = '/x' }\nb = { hostfile = '/y' }\n"
    done = mltop("check", "@a", "@b", cwd=tmp_path, text=files)
    assert done.returncode == 2 and b"@b: has another hostfile than the targets before it" in done.stderr, done
    done = mltop("@nope", "check", cwd=tmp_path, text=text)
    assert done.stderr == b"mltop: @nope: the configuration names no such targets (@prod, @lab) (mltop config)\n"
    assert done.returncode == 2
    assert b"got unexpected extra argument (prod)" in mltop("check", "prod", cwd=tmp_path).stderr


def test_check_goes_by_the_users_threshold_and_says_so(tmp_path: Path) -> None:
    gpus = [GpuSample(0, "GPU-0", "H100", "0", temperature_c=79.0, temperature_slowdown_c=86.0)]
    recording = tmp_path / "run.jsonl"
    recording.write_bytes(records([Sample("n1", 100.0 + at, "boot", gpus=gpus) for at in range(0, 200, 5)]))
    command = ("check", "--recording", str(recording), "--json")
    assert "gpu.temp.margin" not in mltop(*command, cwd=tmp_path).stdout.decode()
    done = mltop(*command, cwd=tmp_path, text="[thresholds]\ngpu.temp.margin = 8\n")
    told = json.loads(done.stdout)
    (finding,) = [one for one in told["findings"] if one["id"] == "gpu.temp.margin"]
    assert "threshold set by you: 8 °C, for 60 s (default: 5 °C, for 60 s)" in finding["evidence"]
    assert told["thresholds"] == [
        {"rule": "gpu.temp.margin", "threshold": "8 °C, for 60 s", "default": "5 °C, for 60 s"}
    ]
    text = mltop(*command[:-1], cwd=tmp_path, text="[thresholds]\ngpu.temp.margin = 8\n").stdout.decode()
    assert "thresholds of your configuration: gpu.temp.margin 8 °C" in text


WAYS = (
    ([], {"LC_ALL": "C"}, ""),
    ([], {"LC_ALL": "", "LANG": "C"}, ""),
    ([], {"LC_ALL": "POSIX"}, ""),
    ([], {"MLTOP_ASCII": "1"}, ""),
    ([], {}, "ascii = true"),
)


@pytest.fixture
def of_other_letters(tmp_path: Path) -> str:
    """A recording."""
    gpu = GpuSample(0, "GPU-0", "H\xe9100 \u4e2d", "0", state="lost", error="\u4e2d\xe9")
    recording = tmp_path / "run.jsonl"
    recording.write_bytes(records([Sample("n1", 100.0 + at, "boot", gpus=[gpu]) for at in range(3)]))
    return str(recording)


def test_no_command_prints_what_is_above_127_where_that_was_asked(of_other_letters: str, tmp_path: Path) -> None:
    for command in (["snapshot"], ["check", "-v"], ["stacks"]):
        done = mltop("--ascii", *command, "--recording", of_other_letters, cwd=tmp_path)
        assert done.stdout and done.stdout.isascii() and done.stderr.isascii(), done
    assert mltop("--ascii", "config", cwd=tmp_path).stdout.isascii()
    assert mltop("snapshot", "--recording", of_other_letters, "--ascii", cwd=tmp_path).stdout.isascii()


@pytest.mark.parametrize(("words", "environ", "text"), WAYS, ids=str)
def test_it_can_be_asked_in_many_ways(
    words: list[str], environ: dict[str, str], text: str, of_other_letters: str, tmp_path: Path
) -> None:
    done = mltop(*words, "snapshot", "--recording", of_other_letters, cwd=tmp_path, text=text, **environ)
    assert done.stdout and done.stdout.isascii() and done.stderr.isascii(), done


def test_without_that_it_is_printed_as_it_is(tmp_path: Path) -> None:
    recording = tmp_path / "run.jsonl"
    recording.write_bytes(records([Sample("n1", 100.0, "boot", gpus=[GpuSample(0, "GPU-0", "H100", "0")])]))
    assert not mltop("snapshot", "--recording", str(recording), cwd=tmp_path).stdout.isascii()
