"""Every reader of files, given everything: files that were right once and were changed somewhere, and that never were.

A reader answers with what it read or with its own exception, which says why; nothing else may be raised, and no example
may take long.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from mltop.probes.investigate.capture import finish_capture, load, material_of
from mltop.probes.investigate.material import Material
from mltop.probes.model import (
    Frame,
    Gap,
    GpuSample,
    NodeState,
    RankSample,
    RankStacks,
    Sample,
    StackDigest,
    to_json,
)
from mltop.probes.model.probe import PastResult
from mltop.probes.model.text import clean
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions, read_hostfile
from mltop.probes.record import BadRecording, CaptureWriter, read_raw, recording
from mltop.tui.commands import check, snapshot, stacks
from mltop.tui.state import BadState, lists, probe_history

MOST_SECONDS = 20  # of one example: none needs one
BATCH = 60  # examples of one seed

# Values.

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(10**40), max_value=10**40),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["", "\ud800", "a" * 5000, "\x1b[2J", "../../etc/passwd", 10**400, -1, 2**63, 2**64]),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)
FRAGMENTS = st.sampled_from(
    [
        b"[" * 2000,
        b'{"a":' * 2000,
        b"9" * 5000,
        b"NaN",
        b"-Infinity",
        b"1e999",
        b'"\\ud800"',
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\x00",
        b"\n" * 50,
        b"\r\n",
        b"null",
        b"{},{},{}",
        b'"' * 3,
        b"\\u0000",
        b"\x1f\x8b\x08",
    ]
)


@st.composite
def spoilt(draw: st.DrawFn, good: bytes) -> bytes:
    """Bytes that were right, changed at a few places; now and then something else altogether."""
    data = bytearray(good)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        how = draw(st.sampled_from(["cut", "flip", "insert", "drop", "double", "zero"]))
        if how == "cut":
            del data[at:]
        elif how == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "insert":
            data[at:at] = draw(st.one_of(FRAGMENTS, st.binary(max_size=20)))
        elif how == "drop":
            del data[at : at + draw(st.integers(1, 200))]
        elif how == "double":
            data[at:at] = data[at : at + 2000]
        else:
            data[at : at + 50] = bytes(50)
    return bytes(data) if draw(st.integers(0, 19)) else draw(st.one_of(st.binary(max_size=2000), FRAGMENTS))


@st.composite
def changed(draw: st.DrawFn, tree: Any) -> Any:
    """A JSON tree in which something is another thing, is missing, or was never there."""
    if isinstance(tree, dict) and tree and draw(st.integers(0, 5)):
        copy = dict(tree)
        name = draw(st.sampled_from(sorted(copy)))
        how = draw(st.integers(0, 9))
        if how == 0:
            del copy[name]
        elif how == 1:
            copy[draw(st.text(max_size=10))] = draw(TREES)
        else:
            copy[name] = draw(changed(copy[name]))
        return copy
    if isinstance(tree, list) and tree and draw(st.integers(0, 5)):
        at = draw(st.integers(0, len(tree) - 1))
        return [*tree[:at], draw(changed(tree[at])), *tree[at + 1 :] * draw(st.sampled_from([0, 1, 1, 1, 50]))]
    return draw(TREES)


@st.composite
def json_of(draw: st.DrawFn, good: str) -> bytes:
    """A changed tree as text, or changed text."""
    if draw(st.booleans()):
        tree = draw(changed(json.loads(good)))
        return json.dumps(tree, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    return draw(spoilt(good.encode()))


# Things that are right.


def good_sample(at: float) -> Sample:
    gpus = [GpuSample(0, uuid="GPU-1", busy=0.5, memory_used_bytes=1 << 30)]
    ranks = [RankSample(10, rank=0, world_size=2, job="j", user="u", command="train.py", gpus=[0], state="S")]
    return Sample("n1", at, gpus=gpus, ranks=ranks, gaps=[Gap("kernel_log", "needs root")])


RECORDING = recording([good_sample(float(at)) for at in range(3)])
LEMONS = json.dumps({"mltop_lemons": 1, "lemons": [{"gpu": "GPU-1", "note": "fans", "added_at": 1.0}]})
KERNEL_LINES = json.dumps({"mltop_kernel_lines": 1, "patterns": {"usb #: new": 5.0, "x": 6.0}})
PAST = [PastResult(f"GPU-{at % 2}", "matmul", 700.0, float(at), {"torch": "2.9"}) for at in range(4)]
HISTORY = b'{"mltop_probe_results": 1, "kept_bytes": 0}\n' + b"".join(to_json(one).encode() + b"\n" for one in PAST)
HOSTS = b"n01 slots=8\nn[02-04]:8 # a rack\n[2001:db8::1]:8\n\n"


def good_capture(directory: Path) -> None:
    frames = [Frame("train", "t.py", 5, {"step": 3})]
    digest = StackDigest(0, 10, state="S", frames=frames, node="n1", job="j")
    dump = RankStacks(10, 0, "j", node="n1", taken_at=1.0, digests=[digest], raw=[{"pid": 10, "threads": []}])
    writer = CaptureWriter(directory)
    states = [NodeState("n1", "live"), NodeState("n2", "lost", "gone", 4.0)]
    finish_capture(writer, Material(states, {"n1": [good_sample(1.0)]}, [dump], states[1:]), [], lambda *_: "text\n")


CAPTURE = ("manifest.json", "verdict.json", "samples/n1.jsonl.gz", "stacks/n1/rank-0-pid-10.json")

# Readers: each takes what is drawn and raises what it may not.


def says_something(error: Exception) -> None:
    """The printer makes it one line: names of files may hold line breaks."""
    assert clean(str(error)).strip(), repr(error)


@contextlib.contextmanager
def answers(*allowed: type[Exception]) -> Iterator[None]:
    """Nothing but these is raised, and that within the time that an example may take."""
    signal.alarm(MOST_SECONDS)
    try:
        yield
    except allowed as error:
        says_something(error)
    finally:
        signal.alarm(0)


def recordings(place: Path) -> Callable[[st.DataObject], None]:
    lines = RECORDING.splitlines()

    def read(data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(["line", "text", "gzip", "gzip of text"]))
        if kind == "line":
            line = data.draw(json_of(lines[1].decode()))
            text = b"\n".join([lines[0], line, *lines[2:], b""])
        else:
            text = data.draw(spoilt(gzip.compress(RECORDING, mtime=0) if kind == "gzip" else RECORDING))
        path = place / "r.jsonl"
        path.write_bytes(gzip.compress(text) if kind == "gzip of text" else text)
        with answers(BadRecording):
            look_at(path)

    return read


def look_at(path: Path) -> None:
    """What the commands do with it before anything is judged."""
    saved = load(path)
    assert len(list(saved.samples.by_time())) == sum(map(len, saved.samples.values()))
    assert len(saved.newest) == len(saved.samples.oldest()) == len(saved.samples)
    material_of(saved)


def captures(place: Path) -> Callable[[st.DataObject], None]:
    good = place / "good"
    good_capture(good)
    texts = {name: (good / name).read_bytes() for name in CAPTURE}

    def read(data: st.DataObject) -> None:
        target = place / "c"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(good, target)
        for name in data.draw(st.lists(st.sampled_from(CAPTURE), max_size=3, unique=True)):
            damage(data, target / name, texts[name])
        if not data.draw(st.integers(0, 5)):
            extra = data.draw(st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=20))
            with contextlib.suppress(OSError, UnicodeEncodeError):
                (target / "stacks" / "n1" / f"{extra}.json").write_bytes(data.draw(st.binary(max_size=50)))
        with answers(BadRecording):
            look_at(target)
        with answers(BadRecording):
            for dump in read_raw(target):
                assert isinstance(dump.raw, list)

    return read


def damage(data: st.DataObject, path: Path, good: bytes) -> None:
    kind = data.draw(st.sampled_from(["text", "text", "text", "gone", "link", "pipe", "folder"]))
    if kind == "text":
        path.write_bytes(data.draw(json_of(good.decode()) if path.suffix == ".json" else spoilt(good)))
        return
    path.unlink()
    if kind == "link":
        path.symlink_to(data.draw(st.sampled_from(["/etc/shadow", "/dev/zero", "../manifest.json", "nowhere"])))
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()


def commands(place: Path) -> Callable[[st.DataObject], None]:
    """The commands themselves, on samples whose fields say anything."""
    first, line, *_ = RECORDING.splitlines()
    path = place / "r.jsonl"
    ways: list[Callable[[TargetOptions], int]] = [
        lambda options: check.run(options, as_json=False, verbose=True),
        lambda options: check.run(options, as_json=True),
        lambda options: snapshot.run(options, as_json=False),
        lambda options: snapshot.run(options, as_json=True),
        lambda options: stacks.run(options, samples=None, native=False, locals_="ints", as_json=False, raw=False),
    ]

    def read(data: st.DataObject) -> None:
        path.write_bytes(b"\n".join([first, data.draw(json_of(line.decode())), line, b""]))
        for way in ways:
            printed = io.StringIO()
            with answers(UsageProblem), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                assert way(TargetOptions(recording=str(path))) in (0, 1, 2, 3)
                assert printed.getvalue(), "nothing was said"
            assert all(said.isprintable() for said in printed.getvalue().splitlines())

    return read


def state_files(place: Path) -> Callable[[st.DataObject], None]:
    folder = place / "state"
    folder.mkdir(mode=0o700)
    readers: dict[str, tuple[str, Callable[[Path], Any]]] = {
        lists.LEMONS: (LEMONS, lambda path: [one.words for one in lists.read_lemons(path).values()]),
        lists.KERNEL_LINES: (KERNEL_LINES, lists.read_known),
    }

    def read(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([*readers, probe_history.FILE]))
        path = folder / name
        if name in readers:
            good, reader = readers[name]
            path.write_bytes(data.draw(json_of(good)))
            with answers(BadState):
                reader(path)
            return
        text = data.draw(spoilt(HISTORY))
        path.write_bytes(text)
        with answers(BadState):
            before = probe_history.read_history(path=path)
            probe_history.remember([PastResult("GPU-new", "k", 1.0, 2.0)], path)
            after = probe_history.read_history(path=path)
            assert len(after.results) > len(before.results) or before.results[-1:] == after.results[-1:]
            assert any(one.uuid == "GPU-new" for one in after.results)

    return read


def host_files(place: Path) -> Callable[[st.DataObject], None]:
    def read(data: st.DataObject) -> None:
        path = place / "hosts"
        path.write_bytes(data.draw(st.one_of(spoilt(HOSTS), st.text(max_size=200).map(_encoded))))
        with answers(UsageProblem):
            assert read_hostfile(path)

    return read


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


READERS = {
    "recordings": recordings,
    "captures": captures,
    "commands": commands,
    "state": state_files,
    "hosts": host_files,
}


def run(reader: str, seconds: float, first_seed: int) -> str:
    """Examples in batches of one seed each; how many there were. A failure says the seed of its batch."""
    count, until = 0, time.monotonic() + seconds
    signal.signal(signal.SIGALRM, _too_long)
    with tempfile.TemporaryDirectory() as folder:
        read = READERS[reader](Path(folder))

        def example(data: st.DataObject) -> None:
            nonlocal count
            count += 1
            read(data)

        batch = 0
        while time.monotonic() < until:
            examples = given(st.data())(example)
            limits = settings(max_examples=BATCH, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            limits(seed(first_seed + batch)(examples))()
            batch += 1
    return f"{count} files"


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"an example took more than {MOST_SECONDS} s")
