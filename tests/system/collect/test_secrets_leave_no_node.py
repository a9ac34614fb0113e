"""Every text of a sample or an answer that strangers' processes choose: none of it takes a secret along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.agent.protocol import Message, Request
from mltop.probes.agent.requests import Requests
from mltop.probes.agent.sampler import guarded
from mltop.probes.collect.dcgm.readers import Exporter, Silence
from mltop.probes.collect.filesystems.source import WatchedMount, parse_mounts
from mltop.probes.collect.host.processes import Processes
from mltop.probes.collect.kernel_log.decode import decode
from mltop.probes.collect.kernel_log.records import Record
from mltop.probes.collect.kernel_log.scan import Patterns
from mltop.probes.collect.ranks import RankSource
from mltop.probes.collect.stacks import pyspy
from mltop.probes.collect.stacks.process import ProcessFacts
from mltop.probes.model import RankSample, to_json
from tests.fakes.proctree import ProcTree
from tests.waiting import wait_until

S, TOKEN = "hunter2", "hf_abcdefgh12"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (f"{S}://x", ""),
        (f"https://me:{S}@dav.host/a /mnt davfs rw 0 0", "https://***@dav.host/a"),
        (f":s3,access_key_id=AKIAIOSFODNN7EXAMPLE,secret_access_key={S}:bucket /mnt fuse.rclone rw 0 0",
         ":s3,access_key_id=***,secret_access_key=***"),
        (f"//server/share,password={S} /mnt cifs rw 0 0", "//server/share,password=***"),
        ("10.0.4.11@o2ib:/data /data lustre rw 0 0", "10.0.4.11@o2ib:/data"),
        ("/dev/mapper/vg-root / ext4 rw 0 0", "/dev/mapper/vg-root"),
        ("a@550e8400-e29b-41d4-a716-446655440000.fs=/x /y ceph rw 0 0", "a@550e8400-e29b-41d4-a716-446655440000.fs=/x"),
    ],
)  # fmt: skip
def test_what_a_mounts_device_is(line: str, shown: str) -> None:
    samples = [WatchedMount(mount).sample(0.0) for mount in parse_mounts(line)]
    assert [sample.device for sample in samples] == ([shown] if shown else [])


def test_where_something_is_mounted() -> None:
    assert WatchedMount(parse_mounts(f"x /home/{TOKEN}/data nfs rw 0 0")[0]).sample(0.0).mount == "/home/***/data"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            f'audit: type=1309 audit(1:2): argc=2 a0="curl" a1="{S}"',
            "audit: type=1309 audit(1:2): argc=2 a0=*** a1=***",
        ),
        ("audit: type=1327 audit(1:2): proctitle=68756E74657232", "audit: type=1327 audit(1:2): proctitle=***"),
        (
            f"Command line: BOOT_IMAGE=/vmlinuz ro rd.luks.key={S}",
            "Command line: BOOT_IMAGE=/vmlinuz ro rd.luks.key=***",
        ),
        (f'Unknown kernel command line parameters "pass={S}"', 'Unknown kernel command line parameters "pass=***"'),
        (f"x: started with {TOKEN}", "x: started with ***"),
        ("integrity: kernel key: " + "a1" * 20, "integrity: kernel key: " + "a1" * 20),
    ],
)
def test_kernel_lines(text: str, shown: str) -> None:
    kinds = Patterns()
    kinds.add_all([Record(1.0, 6, text)])
    (kind,) = kinds.lines()
    assert kind["example"] == shown
    assert S not in kind["pattern"] and TOKEN not in kind["pattern"]


def test_names_of_processes_in_the_kernels_events() -> None:
    text = f"NVRM: Xid (PCI:0000:05:00): 31, pid=7, name={TOKEN}, MMU Fault: ENGINE GR"
    event = decode(text, 0.0)
    assert event is not None and TOKEN not in to_json(event) and event.process == "***"
    killed = decode(f"oom-kill:constraint=CONSTRAINT_NONE,task={TOKEN},pid=7,uid=0", 0.0)
    assert killed is not None and TOKEN not in to_json(killed)


def test_names_of_processes(tmp_path: Path) -> None:
    """15 characters that a process may set itself, of those that are blocked and of a rank that died unseen."""
    tree = ProcTree(tmp_path)
    tree.add(9, argv=["/usr/bin/x"], comm=TOKEN, state="D")
    assert TOKEN not in to_json(Processes(str(tmp_path)).read(0.0, []).values)
    environ = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": f"run-{TOKEN}"}
    tree.add(20, argv=["/usr/bin/torchrun"])
    tree.add(21, ppid=20, argv=["/usr/bin/python3", "t.py"], comm=TOKEN, environ=environ)
    tree.add(22, ppid=20, comm=TOKEN, state="Z")
    ranks, _ = RankSource(str(tree.root)).read(0.0, {})
    assert [(rank.pid, rank.job) for rank in ranks] == [(21, "run-***"), (22, "run-***")]
    assert TOKEN not in to_json(ranks)


def test_words_of_errors() -> None:
    """Of a collector, of an operation, of py-spy."""

    def fail(*_: Any) -> Any:
        raise ValueError(f"cannot parse 'password={S}' of {TOKEN}")

    gaps = guarded("ranks", fail, list)[1]
    answered = threading.Event()
    told: list[Message] = []

    def send(message: Message) -> None:
        told.append(message)
        answered.set()

    Requests(send, fail).start(Request("request", id=1, op="stacks"))
    assert answered.wait(30)
    facts = ProcessFacts(os.getpid(), state="S")
    failure = pyspy.classify(f"Error: no such file\nCaused by:\n 0: /x/{TOKEN}: token={S}\n", facts)
    for text in (gaps[0].why, told[0].error, failure.error):
        assert S not in text and TOKEN not in text and "***" in text


RANK = """
import ctypes, os, threading, time
ctypes.CDLL(None).prctl(15, b"%s", 0, 0, 0)  # PR_SET_NAME
def work(pin, step):
    api_key, phone, global_step, batch_size, ok = 1234567, 5551234567, 98765432101, 4096, True
    os.write(1, b"ready\\n")  # at once: both threads do
    time.sleep(600)
threading.Thread(target=work, args=(4321, 7), name="upload %s", daemon=True).start()
work(4321, 7)
"""


def test_a_real_rank_and_its_dump(tmp_path: Path) -> None:
    script = tmp_path / f"{TOKEN}.py"
    script.write_text(RANK % (TOKEN, TOKEN))
    secrets = {"HF_TOKEN": S, "NCCL_API_KEY": S, "NCCL_NET": S + "!", "MASTER_ADDR": f"{os.getpid()}.job"}
    command = [sys.executable, str(script), "--password", S, f"--url=https://a:{S}@h/x?k={S}", "--lr", "0.1"]
    process = subprocess.Popen(
        command, env={**os.environ, "RANK": "0", "WORLD_SIZE": "1", **secrets}, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
        source = RankSource()

        def found() -> list[RankSample]:
            return [rank for rank in source.read(time.monotonic(), {})[0] if rank.pid == process.pid]

        ranks = wait_until(found, what="the rank")
        assert ranks[0].command.endswith("/***.py --password *** --url=https://***@h/x?*** --lr 0.1")
        assert ranks[0].settings == {"NCCL_NET": "***"}
        ended = threading.Event()
        told: list[Message] = []

        def send(message: Message) -> None:
            told.append(message)
            if message.kind in ("done", "error"):
                ended.set()

        requests = Requests(send, lambda: ranks)
        requests.start(Request("request", id=1, op="stacks", args={"raw": True, "pids": [process.pid]}))
        assert ended.wait(60) and told[-1].kind == "done"
        text = to_json(told)
        for secret in (S, TOKEN, "4321", "1234567", "5551234567"):
            assert f'"{secret}"' not in text and f":{secret}," not in text and f"{secret}." not in text
        (stacks,) = [message.stacks for message in told if message.stacks is not None]
        ints = {
            name: value for digest in stacks.digests for frame in digest.frames for name, value in frame.ints.items()
        }
        assert ints == {"step": 7, "global_step": 98765432101, "batch_size": 4096}
        raw = json.dumps(stacks.raw)
        assert TOKEN not in raw and S not in raw and "98765432101" in raw
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize(
    "url", [f"http://me:{S}@127.0.0.1:1/metrics", f"http://me:{S}@127.0.0.1:x/metrics", f"ftp://me:{S}@h/"]
)
def test_where_dcgm_is_asked(url: str) -> None:
    """MLTOP_DCGM_EXPORTER may be one behind a password."""
    said = Exporter(url, 1.0).scrape()
    assert isinstance(said, Silence) and S not in said.why and ("127.0.0.1" in said.why or "ftp" in said.why)
