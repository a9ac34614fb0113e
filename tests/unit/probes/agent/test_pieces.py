"""Frames in pieces: together again from any order and mixture, and never a wrong one."""

from __future__ import annotations

import random

import pytest

from mltop.probes.agent.protocol import MARK, Assembler, Message, Wire, encode, payload_of, split
from mltop.probes.model import RankStacks, StackDigest

PAYLOAD = bytes(range(32, 127)) * 50


@pytest.mark.parametrize("limit", [80, 900, 5000])
def test_no_line_is_longer_than_the_limit_and_all_come_together(limit: int) -> None:
    lines = split(PAYLOAD, "n1:1:0", limit)
    assert max(map(len, lines)) <= limit
    assembler = Assembler()
    assert [assembler.take(line[:-1]) for line in lines] == [None] * (len(lines) - 1) + [PAYLOAD]


def test_a_limit_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        split(PAYLOAD, "n1:1:0", 40)


def test_pieces_of_several_senders_in_any_order() -> None:
    payloads = {f"n{number}:7:0": bytes([65 + number]) * 4000 for number in range(8)}
    lines = [line for key, payload in payloads.items() for line in split(payload, key, 300)]
    random.Random(1).shuffle(lines)
    assembler = Assembler()
    whole = [payload for line in lines if (payload := assembler.take(b"3: " + line[:-1])) is not None]
    assert sorted(whole) == sorted(payloads.values())


def test_whole_frames_pass_between_pieces_also_with_our_mark_inside() -> None:
    inside = encode(Message("error", error="@MLT1+ a 0 1 1 x"))[:-1]
    assembler = Assembler()
    first, *rest = split(PAYLOAD, "k", 900)
    assert assembler.take(first[:-1]) is None
    assert assembler.take(inside) == payload_of(inside)
    assert [assembler.take(line[:-1]) for line in rest][-1] == PAYLOAD


@pytest.mark.parametrize(
    "line",
    [
        b"@MLT1+ k 0 2 3 ab",  # cut off
        b"@MLT1+ k 0 2",
        b"@MLT1+ k x 2 2 ab",
        b"@MLT1+ k 2 2 2 ab",  # beyond its count
        b"@MLT1+ k 0 0 2 ab",
        b"@MLT1+ k 0 " + b"9" * 5000 + b" 2 ab",
    ],
)
def test_a_damaged_piece_is_nothing(line: bytes) -> None:
    assert Assembler().take(line) is None


def test_a_lost_piece_costs_its_frame_only() -> None:
    assembler = Assembler()
    lines = split(PAYLOAD, "k:0", 900)
    assert all(assembler.take(line[:-1]) is None for line in lines[1:])
    again = [assembler.take(line[:-1]) for line in split(PAYLOAD, "k:1", 900)]
    assert again[-1] == PAYLOAD


def test_another_frame_under_the_same_key_replaces_the_unfinished_one() -> None:
    assembler = Assembler()
    assert assembler.take(split(b"a" * 4000, "k", 900)[0][:-1]) is None
    assert [assembler.take(line[:-1]) for line in split(PAYLOAD, "k", 500)][-1] == PAYLOAD


def test_what_never_ends_is_forgotten() -> None:
    assembler = Assembler()
    for number in range(3 * Assembler.MOST_OPEN):
        assembler.take(b"@MLT1+ k%d 0 2 1 x" % number)
    assert len(assembler._open) <= Assembler.MOST_OPEN + 1
    huge = b"y" * 1_000_000
    for number in range(200):
        assembler.take(b"@MLT1+ h%d 0 2 %d %s" % (number, len(huge), huge))
    assert assembler._bytes <= Assembler.MOST_OPEN_BYTES


def test_a_wire_with_short_lines_carries_long_messages() -> None:
    wire = Wire("n1", text=True, frame_bytes=900)
    message = Message("part", id=3, stacks=RankStacks(1, 0, digests=[StackDigest(n, n) for n in range(40)]))
    lines = wire.encode(message).splitlines()
    assert len(lines) > 3 and max(map(len, lines)) < 900 and not any(b"\0" in line for line in lines)
    assembler = Assembler()
    assert [assembler.take(line) for line in lines][-1] == payload_of(encode(message)[:-1])
    short = wire.encode(Message("pong", node="n1"))
    assert short.startswith(b"@MLT1 ") and MARK not in short
