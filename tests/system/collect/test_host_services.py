"""NVIDIA's services through a systemctl of our own: what it says, and what happens when it says nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mltop.probes.collect.host.part import Reading
from mltop.probes.collect.host.services import SERVICES, Services, parse_states
from tests.fakes.scripts import shell_script
from tests.processes import is_gone
from tests.waiting import wait_until

STATES = {
    "nvidia-fabricmanager": ("loaded", "failed"),
    "nvidia-imex": ("not-found", "inactive"),
    "nvidia-persistenced": ("loaded", "active"),
    "nvidia-dcgm": ("masked", "inactive"),
}
TOLD = {
    "nvidia-fabricmanager": "failed",
    "nvidia-imex": "absent",
    "nvidia-persistenced": "active",
    "nvidia-dcgm": "inactive",
}


def answer(states: dict[str, tuple[str, str]]) -> str:
    return "\n".join(
        f"Id={n}.service\nLoadState={load}\nActiveState={active}\n" for n, (load, active) in states.items()
    )


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return tmp_path


@pytest.fixture
def source(root: Path) -> Iterator[Services]:
    opened = Services(str(root))
    yield opened
    opened.close()


def systemctl(root: Path, script: str) -> None:
    shell_script(root / "bin/systemctl", "echo $$ >> {asked}", script, asked=root / "asked")


def asked(root: Path) -> list[str]:
    return (root / "asked").read_text().split()


def next_reading(source: Services, now: float, before: Reading) -> Reading:
    def read() -> Reading | None:
        reading = source.read(now, [])
        return None if reading is before else reading

    return wait_until(read, what="systemctl's answer")


def test_states_are_asked_once_a_minute_and_when_a_service_comes_or_goes(root: Path, source: Services) -> None:
    (root / "answer").write_text(answer(STATES))
    systemctl(root, f"[ $1 = show ] && cat '{root}/answer'")
    first = source.read(0.0, [])
    assert [(gap.what, gap.kind) for gap in first.gaps] == [("host.services", "starting")]
    reading = next_reading(source, 1.0, first)
    assert reading == Reading({"services": TOLD})
    assert all(source.read(float(now), []) is reading for now in range(2, 60))
    assert len(asked(root)) == 1
    (root / "answer").write_text(answer({**STATES, "nvidia-dcgm": ("loaded", "activating")}))
    (root / "sys/fs/cgroup/system.slice/nvidia-dcgm.service").mkdir(parents=True)
    source.read(64.0, [])
    assert next_reading(source, 65.0, reading).values["services"]["nvidia-dcgm"] == "activating"
    assert len(asked(root)) == 2


def test_a_systemctl_that_fails_is_told_in_its_words(root: Path, source: Services) -> None:
    systemctl(root, "echo Failed to connect to bus: No such file >&2; exit 1")
    reading = next_reading(source, 1.0, source.read(0.0, []))
    assert [gap.why for gap in reading.gaps] == ["systemctl show: Failed to connect to bus: No such file"]


def test_an_end_of_ours_takes_a_hanging_systemctl_along(root: Path, source: Services) -> None:
    systemctl(root, "exec sleep 600")
    first = source.read(0.0, [])
    pid = int(wait_until(lambda: (root / "asked").exists() and asked(root), what="systemctl's start")[0])
    assert source.read(1.0, []) is first
    source.close()
    wait_until(lambda: is_gone(pid), what="its end")


def test_without_systemd_nothing_is_missed(tmp_path: Path) -> None:
    reading = Services(str(tmp_path)).read(0.0, [])
    assert [(gap.what, gap.kind) for gap in reading.gaps] == [("host.services", "unsupported")]


def test_without_systemctl_the_states_are_unknown(
    root: Path, source: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{root}/bin")
    assert [(gap.why, gap.kind) for gap in source.read(0.0, []).gaps] == [("systemctl is not in PATH", "unknown")]


@pytest.mark.parametrize("text", ["", "\n\n\n", "Id=x\n\nId=y", "A=1\n\nB=2\n\nC=3\n\nD=4", "\0"])
def test_strange_answers_are_no_states(text: str) -> None:
    assert parse_states(text) == {}


@pytest.mark.parametrize(
    ("load", "active", "word"),
    [("loaded", "reloading", "active"), ("loaded", "deactivating", "inactive"), ("not-found", "active", "active"),
     ("loaded", "activating", "activating"), ("error", "failed", "failed"), ("loaded", "maintenance", "inactive")],
)  # fmt: skip
def test_words(load: str, active: str, word: str) -> None:
    assert set(parse_states(answer(dict.fromkeys(SERVICES, (load, active)))).values()) == {word}
