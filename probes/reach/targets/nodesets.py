"""Node lists: ClusterShell's NodeSet syntax and groups, checked before anything is expanded; and host files.

Syntax: https://clustershell.readthedocs.io/en/latest/tools/nodeset.html. Host files: plain, DeepSpeed's
(``host slots=8``), MPI's (``host:8``, ``host slots=8``), and pdsh's WCOLL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mltop.probes.reach import UsageProblem
from mltop.probes.system.files import BadFile, read_regular

MOST_NODES = 16_384
MOST_NAME_CHARS = 255  # of a host (RFC 1035)
EXAMPLE = "e.g. -w node[01-16,20]"
# A name as ssh and Slurm take it; the first sign keeps it from being read as an option. Colons: IPv6; %: its zone.
NAME = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]*")
_LONG = re.compile(rf"[A-Za-z0-9_.:%-]{{{MOST_NAME_CHARS + 1}}}")
# ClusterShell puts a group's name into a shell command as it is, and a host file may come from anybody.
_WITH_GROUPS = re.compile(r"[A-Za-z0-9_.:%@,\[\]/!&^*?+=-]+")
_ADDRESS = re.compile(r"\[([0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[\w.-]+)?)\]")  # [2001:db8::1]
_USER = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.$-]*)@(?=.)")
_BETWEEN_WORDS = re.compile(r"[,\s]+(?![^\[]*\])")  # not those inside of brackets
_SET_OPERATORS = frozenset("!&^")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)-(\d+)(?:/(\d+))?")
_LONGEST_RANGE = 40  # characters of "first-last/step": more digits than any node has
_SHOWN = 60  # characters of a word in an error
MOST_BYTES = 4 * 1024 * 1024
_ADDRESS_WITH_SLOTS = re.compile(r"(\[[^\]]*:[^\]]*\])(?::\d+)?")
_NAME_WITH_SLOTS = re.compile(r"([^:]+):\d+")


def shown(word: str) -> str:
    """A word that may hold anything, in one short line."""
    return repr(word if len(word) <= _SHOWN else word[:_SHOWN] + "…")


def expand(text: str, source: str = "-w") -> list[str]:
    """Names in a node list such as ``node[01-16,20],@gpu``, in the order typed and without repetition.

    UsageProblem names ``source`` and the part that is wrong.
    """
    words = words_of(text)
    at = _Source(source, text.strip())
    if not words:
        raise at.problem(text, "names no node", EXAMPLE)
    if _SET_OPERATORS.intersection(text):
        words = [",".join(words)]  # "a,b!c" is one expression: its words do not stand alone
    names: dict[str, None] = {}
    for word in words:
        names.update(dict.fromkeys(_names(word, at)))
        at.refuse_too_many(word, len(names))
    return list(names)


def split_user(text: str) -> tuple[str, str]:
    """``alice@node[1-4]`` is ("alice", "node[1-4]"); without a user ("", text). UsageProblem for two users."""
    users, rest = [], []
    for word in words_of(text):
        match = _USER.match(word)
        users.append(match.group(1) if match else "")
        rest.append(word[match.end() :] if match else word)
    user = one_user(users)
    return user, ",".join(rest) if user else text


def one_user(users: Iterable[str]) -> str:
    """The only name of these, "" for none."""
    distinct = list(dict.fromkeys(user for user in users if user))
    if len(distinct) > 1:
        fix = "one for all nodes, or `User` under `Host` in ~/.ssh/config"
        raise UsageProblem("user name", f"{' and '.join(distinct)} at once", fix)
    return distinct[0] if distinct else ""


def words_of(text: str) -> list[str]:
    """The parts of a list between commas and blanks, brackets kept whole."""
    return [word for word in _BETWEEN_WORDS.split(text.strip()) if word]


@dataclass(frozen=True)
class _Source:
    """Where a node list was typed, for what is said of its parts."""

    name: str
    text: str

    def problem(self, part: str, why: str, fix: str = EXAMPLE) -> UsageProblem:
        named = "" if part.strip() == self.text else f"{shown(part)} "
        return UsageProblem(f"{self.name} {shown(self.text)}", named + why, fix)

    def refuse_too_many(self, part: str, count: int) -> None:
        if count > MOST_NODES:
            raise self.problem(part, f"names {count:,} nodes, more than the {MOST_NODES:,} that mltop takes", "")

    def refuse_too_long(self, part: str) -> None:
        if _LONG.search(part):
            raise self.problem(part, f"has a name of more than {MOST_NAME_CHARS} characters", "")


def _names(word: str, at: _Source) -> list[str]:
    address = _ADDRESS.fullmatch(word)
    if address or NAME.fullmatch(word):  # most lists are plain names: ClusterShell is not even imported
        name = address.group(1) if address else word
        _check(name, at)
        return [name]
    if "@" in word and not _WITH_GROUPS.fullmatch(word):
        raise at.problem(word, "is not a node list: it has characters that no name and no group has")
    at.refuse_too_many(word, _size(word))
    at.refuse_too_long(word)
    names = _by_clustershell(word, at)
    if not names and "@" in word:
        raise at.problem(word, "names no node: no such group, or an empty one", "see `nodeset -l`")
    if not names:
        raise at.problem(word, "names no node")
    for name in names:
        _check(name, at)
    return names


def _check(name: str, at: _Source) -> None:
    at.refuse_too_long(name)
    if not NAME.fullmatch(name):
        raise at.problem(name, "is not a host name", "--user NAME" if "@" in name else EXAMPLE)


def _by_clustershell(word: str, at: _Source) -> list[str]:
    from ClusterShell.NodeSet import NodeSet, NodeSetException
    from ClusterShell.NodeUtils import GroupResolverError, GroupResolverSourceError, GroupSourceError

    try:
        return list(NodeSet(word))
    except GroupResolverSourceError as error:
        raise at.problem(word, f"names no group source {str(error)!r}", "see `nodeset --groupsources`") from None
    except (GroupResolverError, GroupSourceError, NodeSetException) as error:
        if isinstance(error, NodeSetException) and not isinstance(error.__context__, GroupSourceError):
            raise at.problem(word, f"is not a node list: {_one_line(error)}") from None
        raise at.problem(word, f"cannot be looked up: {_one_line(error)}", "see `nodeset -l`") from None


def _size(word: str) -> int:
    """How many names the brackets of ``word`` make at most, without making them."""
    largest = 0
    for operand in re.split(r"[!&^,](?![^\[]*\])", word):
        product = 1
        for bracket in _BRACKET.findall(operand):
            product *= max(1, sum(map(_range_size, bracket.split(","))))
        largest = max(largest, product)
    return largest


def _range_size(text: str) -> int:
    if len(text) > _LONGEST_RANGE:
        return MOST_NODES + 1
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        return 1
    first, last, step = (int(number) for number in match.groups(default="1"))
    return max(0, last - first) // max(1, step) + 1


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def read_hostfile(path: Path, source: str = "--hostfile") -> list[str]:
    """The first word of every line, node lists and groups too; ``#`` begins a comment.

    UsageProblem names the file and the line.
    """
    what = f"{source} {path}"
    names: dict[str, None] = {}
    for number, line in enumerate(_text(path, what).splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            # ``host:8`` is ``host``, ``[2001:db8::1]:8`` is ``[2001:db8::1]``; a bare IPv6 address stays whole.
            match = _ADDRESS_WITH_SLOTS.fullmatch(words[0]) or _NAME_WITH_SLOTS.fullmatch(words[0])
            try:
                names.update(dict.fromkeys(expand(match[1] if match else words[0], f"line {number}:")))
            except UsageProblem as problem:
                raise UsageProblem(what, str(problem)) from None
        if len(names) > MOST_NODES:
            raise UsageProblem(what, f"names more than the {MOST_NODES:,} nodes that mltop takes")
    if not names:
        raise UsageProblem(what, "names no host", "one host on each line")
    return list(names)


def _text(path: Path, what: str) -> str:
    try:
        data = read_regular(path, MOST_BYTES)
    except OSError as error:
        raise UsageProblem(what, error.strerror or str(error)) from None
    except (BadFile, ValueError) as error:  # a name with a NUL byte
        raise UsageProblem(what, str(error).removeprefix(f"{path}: ")) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageProblem(what, "is not text") from None
