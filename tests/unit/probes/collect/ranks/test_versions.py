"""Versions of what ranks have loaded, told from outside: by files that they have mapped, and folders beside these."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mltop.probes.collect.ranks import details
from mltop.probes.collect.ranks.details import Versions, distributions, versions_of
from tests.waiting import wait_until

SITE = "/opt/venv/lib/python3.11/site-packages"
INSTALLED = ("torch-2.8.0+cu128", "nvidia_nccl_cu12-2.27.5", "nvidia_cuda_runtime_cu12-12.8.90", "megatron_core-0.14.0")


def _process(root: Path, *mapped: str, installed: tuple[str, ...] = INSTALLED, site: str = SITE, pid: int = 20) -> str:
    """A /proc in which a process has mapped these files, and sees a root of its own."""
    own = root / f"container-{pid}"
    folder = own / site.strip("/")
    folder.mkdir(parents=True)
    for name in installed:
        (folder / f"{name}.dist-info").mkdir()
    (root / str(pid)).mkdir()
    lines = [f"7f{place:010x}-7f{place:010x} r-xp 00000000 fd:01 1234  {path}" for place, path in enumerate(mapped)]
    (root / str(pid) / "status").write_text(f"Uid:\t{pid}\t{pid}\t{pid}\t{pid}\n")
    (root / str(pid) / "maps").write_text("\n".join(["00400000-00401000 rw-p 00000000 00:00 0", *lines, ""]))
    (root / str(pid) / "root").symlink_to(own)
    return str(root)


TORCH, NCCL = f"{SITE}/torch/lib/libtorch_cuda.so", f"{SITE}/nvidia/nccl/lib/libnccl.so.2"


def test_a_wheel_of_torch(tmp_path: Path) -> None:
    assert versions_of(_process(tmp_path, TORCH, NCCL), 20) == {
        "cuda": "12.8.90",
        "megatron_core": "0.14.0",
        "nccl": "2.27.5",
        "python": "3.11",
        "torch": "2.8.0+cu128",
    }


def test_libraries_of_the_system_count_more_than_what_is_installed_beside(tmp_path: Path) -> None:
    """LD_PRELOAD, or NVIDIA's images: the file that is loaded is called after its version."""
    system = ("/usr/lib/x86_64-linux-gnu/libnccl.so.2.26.2", "/usr/local/cuda/lib64/libcudart.so.12.6.77 (deleted)")
    found = versions_of(_process(tmp_path, TORCH, NCCL, *system), 20)
    assert (found["nccl"], found["cuda"], found["torch"]) == ("2.26.2", "12.6.77", "2.8.0+cu128")


def test_what_is_installed_and_not_loaded_is_not_told(tmp_path: Path) -> None:
    site = "/usr/lib/python3/dist-packages"
    root = _process(tmp_path, f"{site}/numpy/core.so", installed=(*INSTALLED, "jaxlib-0.7.0"), site=site)
    assert versions_of(root, 20) == {"megatron_core": "0.14.0"}


def test_a_process_without_packages(tmp_path: Path) -> None:
    assert versions_of(_process(tmp_path, "/usr/lib/libc.so.6"), 20) == {}
    with pytest.raises(FileNotFoundError):
        versions_of(str(tmp_path), 21)


def test_no_link_of_a_strangers_is_followed(tmp_path: Path) -> None:
    """Between the mapping and the look somebody puts a link there: to what only root may list."""
    secret = tmp_path / "secret"
    (secret / "torch-6.6.6.dist-info").mkdir(parents=True)
    root = _process(tmp_path, TORCH)
    folder = tmp_path / "container-20" / SITE.strip("/")
    for name in os.listdir(folder):
        (folder / name).rmdir()
    folder.rmdir()
    folder.symlink_to(secret)
    assert versions_of(root, 20) == {"python": "3.11"}
    folder.unlink()
    above = folder.parent
    above.rmdir()
    above.symlink_to(secret.parent)
    (secret.parent / "site-packages").symlink_to(secret)
    assert versions_of(root, 20) == {"python": "3.11"}


def test_a_path_that_climbs_is_not_walked(tmp_path: Path) -> None:
    (tmp_path / "site-packages" / "torch-6.6.6.dist-info").mkdir(parents=True)
    root = _process(tmp_path, "/opt/../../site-packages/torch/x.so")
    assert versions_of(root, 20) == {}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("torch-2.8.0.dist-info", {"torch": "2.8.0"}),
        ("Torch-2.8.0.dist-info", {"torch": "2.8.0"}),
        ("megatron.core-0.14.dist-info", {"megatron_core": "0.14"}),
        ("torch-2.8.0\x1b[31m.dist-info", {}),
        ("torch-2.8.0 .dist-info", {}),
        (f"torch-2{'0' * 60}.dist-info", {}),
        ("torch-hunter2.dist-info", {}),
        ("numpy-2.0.dist-info", {}),
        ("torch-2.8.0.dist-infos", {}),
        ("torch", {}),
    ],
)
def test_names_of_folders(name: str, found: dict[str, str]) -> None:
    assert distributions([name]) == found


def test_a_folder_is_listed_once_and_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = _process(tmp_path, TORCH)
    folder = tmp_path / "container-20" / SITE.strip("/")
    listed: list[object] = []
    scan = os.scandir
    monkeypatch.setattr(details.os, "scandir", lambda folder: listed.append(folder) or scan(folder))
    for _ in range(3):
        assert versions_of(root, 20)["torch"] == "2.8.0+cu128"
    assert len(listed) == 1
    (folder / "torch-2.8.0+cu128.dist-info").rename(folder / "torch-2.9.0.dist-info")
    os.utime(folder, ns=(1, 1))
    assert versions_of(root, 20)["torch"] == "2.9.0" and len(listed) == 2


def test_an_endless_folder_is_read_for_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(details, "_MOST_ENTRIES", 3)
    root = _process(tmp_path, TORCH, installed=tuple(f"deepspeed-0.{at}" for at in range(9)))
    assert set(versions_of(root, 20)) <= {"python", "deepspeed"}


def test_it_is_read_by_and_by(tmp_path: Path) -> None:
    root = _process(tmp_path, TORCH, NCCL)
    one = Versions(root, 20)
    one.look("first image")
    wait_until(lambda: one.newest.get("nccl") == "2.27.5")
    (tmp_path / "20" / "maps").write_text("")
    one.look("first image")
    assert one.newest["torch"] == "2.8.0+cu128", "all is known: nothing is read again"
    one.look("after an exec")
    assert one.newest == {}
    gone = Versions(root, 4711)
    gone.look("image")
    wait_until(lambda: not gone._waits)
    assert gone.newest == {}


def test_nobody_waits_for_what_does_not_answer(tmp_path: Path) -> None:
    """A process whose maps block: here a pipe that nobody writes to."""
    root = _process(tmp_path, TORCH, NCCL)
    _process(tmp_path, TORCH, pid=30)
    (tmp_path / "30" / "maps").unlink()
    os.mkfifo(tmp_path / "30" / "maps")
    stuck, other = Versions(root, 30), Versions(root, 20)
    stuck.look("image")
    stuck.look("image")
    other.look("image")
    assert (stuck.newest, other.newest) == ({}, {})
    wait_until(lambda: other.newest.get("torch") == "2.8.0+cu128")
    os.close(os.open(tmp_path / "30" / "maps", os.O_WRONLY))  # ends the thread that waits
