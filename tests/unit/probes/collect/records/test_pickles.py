"""Pickles of strangers: plain values as Python reads them, everything else one clear line, and never much memory."""

from __future__ import annotations

import os
import pickle
import pickletools
import struct
import tracemalloc
from collections import OrderedDict
from pathlib import Path

import pytest

from mltop.probes.collect.records.flight_recorder import parse_flight_record
from mltop.probes.collect.records.pickles import CutOff, Malformed, read_pickle
from mltop.probes.collect.records.values import read_json
from tests.builders.flight_records import as_json, as_pickle, done_to, operation, record

GLOO = Path(__file__).parents[4] / "fixtures" / "records" / "gloo"
PLAIN = {
    "a": [1, -1, 255, 65_536, 1 << 40, -(1 << 63), 0.5, None, True, False, "", "é☃😀", b"\x00\xff"],
    7: {"nested": [[], {}, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)]},
    "again": ["shared"] * 300,
}


@pytest.mark.parametrize("protocol", [*range(pickle.HIGHEST_PROTOCOL + 1)])
def test_plain_values_of_every_protocol(protocol: int) -> None:
    plain = PLAIN if protocol > 2 else {**PLAIN, "a": [each for each in PLAIN["a"] if not isinstance(each, bytes)]}
    content = pickle.dumps(plain, protocol)
    if protocol == 0:
        plain = {**plain, "a": [each if not isinstance(each, str) else "" for each in plain["a"]]}
        content = pickle.dumps(plain, protocol)
    assert read_pickle(content) == plain


@pytest.mark.parametrize("file", sorted(GLOO.glob("*pickle*")), ids=lambda file: file.name)
def test_what_torch_wrote_is_read_as_python_reads_it(file: Path) -> None:
    assert read_pickle(file.read_bytes()) == pickle.loads(file.read_bytes())


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch /tmp/mltop-was-here",)


class State:
    def __init__(self) -> None:
        self.value = 1


RUNS_SOMETHING = [
    *(pickle.dumps({"entries": Evil()}, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)),
    *(pickle.dumps(State(), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)),
    pickle.dumps(OrderedDict(a=1)),
    b"cos\nsystem\n(S'id'\ntR.",
    b"(S'id'\nios\nsystem\n.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.",
    b"\x80\x02\x82\x01.",
    b"Pid\n.",
]


@pytest.mark.parametrize("content", RUNS_SOMETHING)
def test_nothing_is_run(content: bytes) -> None:
    with pytest.raises(Malformed) as refused:
        read_pickle(content)
    assert "\n" not in str(refused.value)
    assert not isinstance(refused.value, CutOff)
    assert not Path("/tmp/mltop-was-here").exists()


def test_a_refusal_says_what_was_asked_for() -> None:
    with pytest.raises(Malformed, match=r"asks for code to be run \(GLOBAL\)"):
        read_pickle(b"cos\nsystem\n.")


REMEMBERED = b"\x80\x02]q\x00"  # an empty list that is remembered
HUGE = [
    b"\x80\x02}r\xff\xff\xff\xff.",  # a memo of 4 billion entries
    b"\x80\x02]p99999999999999999999\n.",
    b"\x80\x02X\xff\xff\xff\x7f" + b"x" * 64,  # texts that say to be longer than the file
    b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x",
    b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x",
    b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b"\xff" * 64,  # numbers of a gigabyte
    b"\x80\x02\x8a\xff" + b"\xff" * 255 + b".",
    b"\x80\x02I" + b"9" * 5000 + b"\n.",
    b"\x80\x02L" + b"9" * 40 + b"L\n.",
    b"\x80\x02F" + b"9" * 100_000 + b"\n.",
    b"\x80\x02" + b"}" * 500_010 + b".",
    b"\x80\x02" + b"(" * 20_000,
    b"\x80\x02" + b"]" * 20_000 + b"a" * 19_999 + b".",  # one list in another, twenty thousand deep
    b"\x80\x02)" + b"\x85" * 20_000 + b".",
    b"\x80\x02)" + b"\x85" * 20_000 + b"}" + b"h\x00s.",
    b"\x80\x02]q\x00" + b"h\x00h\x00\x86" * 80_000 + b".",
    REMEMBERED
    + b"".join(b"(" + b"h\x00" * 50 + b"lq\x00" for _ in range(4000))
    + b".",  # 50 to the power of 4000 leaves
    REMEMBERED + b"h\x00a.",  # a list that holds itself
    b"\x80\x02}q\x00(h\x00Nu.",  # a table that is its own key
    b"\x80\x02}()K\x01u.",
    b"\x80\x02}(]K\x01u.",
    b"\x80\x02N" * 20_000,
]


@pytest.mark.parametrize("content", HUGE, ids=range(len(HUGE)))
def test_memory_stays_small(content: bytes) -> None:
    tracemalloc.start()
    try:
        try:
            parse_flight_record(content, rank=0, at=0.0, shown="x")
        except Malformed as refused:
            assert "\n" not in str(refused)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 150e6


def test_shared_and_endless_values_are_walked_to_a_bound() -> None:
    """Entries, sizes and frames that are one list a hundred thousand times, or the list itself."""
    sizes: list[object] = []
    sizes.extend([sizes] * 1000)
    entry = {**operation(1, state="scheduled"), "input_sizes": sizes, "frames": sizes, "process_group": sizes}
    content = pickle.dumps({"version": "2.10", "entries": [entry] * 10_000}, 2)
    told = parse_flight_record(content, rank=0, at=0.0, shown="x")
    assert len(told.progress) == 1
    assert len(told.progress[0].operations) < 100


@pytest.mark.parametrize("as_bytes", [as_pickle, as_json])
def test_cut_off_at_every_byte(as_bytes: object) -> None:
    content = as_bytes(record(done_to(2, operation(3, state="scheduled")), status={0: (3, -1, 2)}))  # type: ignore[operator]
    parse_flight_record(content, rank=0, at=0.0, shown="x")
    for end in range(len(content)):
        with pytest.raises(CutOff):
            parse_flight_record(content[:end], rank=0, at=0.0, shown="x")


def test_one_wrong_byte_is_no_crash() -> None:
    content = as_pickle(record(done_to(1, operation(2, state="scheduled"))))
    codes = {position for _, _, position in pickletools.genops(content)}
    for at in range(len(content)):
        for byte in (0x00, 0xFF, content[at] ^ 0x01) if at in codes else (0x7F,):
            spoiled = content[:at] + bytes([byte]) + content[at + 1 :]
            try:
                parse_flight_record(spoiled, rank=0, at=0.0, shown="x")
            except Malformed as why:
                assert "\n" not in str(why)


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'{"a":' * 100_000, b"[" + b"1" * 5_000_000, b"[" + b"{}," * 600_000, b'{"entries": 1e999}'],
)
def test_json_of_strangers(content: bytes) -> None:
    try:
        read_json(content)
    except Malformed as why:
        assert "\n" not in str(why)
