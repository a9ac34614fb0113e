"""Flight records that a user may write to cost whoever reads them time or memory. None is larger than 32 MiB."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable

from tests.builders.flight_records import operation, record

LISTED = str([*range(65_536)])


def _of_groups(lists: list[str]) -> bytes:
    """A group for each list of members."""
    names = [str(number) for number in range(len(lists))]
    told = record([operation(1, state="scheduled", group=(name, "g"), pg_id=int(name)) for name in names])
    told["pg_config"] = {name: {"ranks": ranks} for name, ranks in zip(names, lists, strict=True)}
    return pickle.dumps(told, 2)


def _one_text(size: int) -> bytes:
    """Wherever a record may have a text or a number, the same blanks."""
    text = " " * size
    entry = {name: text if not isinstance(value, (list, tuple)) else value for name, value in operation(1).items()}
    sizes = [[text] * 8] * 16
    frames = [{"name": text, "filename": text, "line": text}] * 48
    entry |= {"input_sizes": sizes, "output_sizes": sizes, "input_dtypes": [text] * 16, "frames": frames}
    return pickle.dumps({"version": "2.10", "entries": [entry] * 100_000}, 2)


def _entries(each: Callable[[int], bytes], count: int) -> bytes:
    return b"\x80\x04}\x8c\x07entries](" + b"".join(map(each, range(count))) + b"es."


HOSTILE: dict[str, Callable[[], bytes]] = {
    "65,536 ranks in 1,024 groups": lambda: _of_groups([LISTED] * 1024),
    "65,536 other ranks in each of 40 groups": lambda: _of_groups([str([*range(n, n + 65_536)]) for n in range(40)]),
    "one text in all places": lambda: _one_text((1 << 20) - 10),
    "one text of 31 MB in all places": lambda: _one_text(31 << 20),
    "wide letters": lambda: pickle.dumps({"entries": ["\U0001f600" + "x" * (30 << 20)]}, 2),
    "a memo of millions": lambda: b"\x80\x04]" + b"\x94" * 5_500_000 + b".",
    "a memo with numbers": lambda: (
        b"\x80\x02]" + b"".join(b"r%b" % struct.pack("<I", n) for n in range(2_900_000)) + b"."
    ),
    "millions of texts": lambda: _entries(lambda n: b"\x8c\x02%c%c" % (97 + n % 26, 97 + n // 26 % 26), 1_900_000),
    "millions of numbers": lambda: _entries(lambda n: b"J%b" % struct.pack("<i", n + 1000), 2_900_000),
    "millions of tables": lambda: _entries(lambda n: b"}K\x01K\x01s", 490_000),
    "JSON with millions of numbers": lambda: b'{"entries":[%b]}' % b",".join(b"%d" % n for n in range(2_900_000)),
    "JSON with millions of texts": lambda: b'{"entries":[%b]}' % b",".join(b'"%d"' % n for n in range(2_900_000)),
    "JSON with wide letters": lambda: '{{"entries":["\U0001f600{}"]}}'.format("x" * (30 << 20)).encode(),
}
