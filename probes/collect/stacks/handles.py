"""Whether a source line that calls ``.wait(`` waits for other ranks: told by what the handle is called."""

from __future__ import annotations

import re

# In this order: a quote inside a comment opens no string, and a # inside a string no comment.
_TEXT_OR_COMMENT = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|#.*""")
_WAIT = re.compile(r"\.wait\(")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# What people call a torch.distributed.Work, and the calls that return one.
_HANDLES = frozenset({
    "work", "handle", "req", "request", "fut", "future", "op", "w", "h", "r", "pending", "barrier", "isend", "irecv",
    "send", "recv", "reduce", "allreduce", "gather", "allgather", "scatter", "broadcast", "bcast", "alltoall",
})  # fmt: skip
_NO_HANDLES = frozenset({
    "os", "event", "evt", "cond", "condition", "proc", "process", "popen", "p", "child", "thread", "lock", "queue",
})  # fmt: skip
_CLOSING = {")": "(", "]": "["}


def code_of(line: str) -> str:
    """The line without its comment, and with its strings emptied."""
    return _TEXT_OR_COMMENT.sub(lambda found: '""' if found.group(1) else "", line)


def waits_for_work(code: str) -> bool:
    """True when some ``X.wait(`` of the code has an X that looks like a work handle, or one from the lines above."""
    return any(_is_handle(_names_before(code, found.start())) for found in _WAIT.finditer(code))


def _is_handle(names: list[str]) -> bool:
    if not any(names):  # ").wait()": the call began further up, as that of an async collective does
        return True
    words = [_last_word(name) for name in names]
    return not any(word in _NO_HANDLES for word in words) and any(word in _HANDLES for word in words)


def _last_word(name: str) -> str:
    """``pending_reqs`` → ``req``; ``all_to_all`` and other names of several words come back without "_"."""
    joined = name.lower().replace("_", "")
    if joined in _HANDLES:
        return joined
    words = _WORDS.findall(name)
    last = words[-1].lower() if words else ""
    return last[:-1] if len(last) > 1 and last.endswith("s") and last[:-1] in _HANDLES else last


def _names_before(code: str, end: int) -> list[str]:
    """The names of the dotted expression that ends there: ``self.reqs[pick(i)]`` has self and reqs."""
    open_brackets: list[str] = []
    names, name = [], ""
    for letter in reversed(code[:end]):
        if letter in _CLOSING:
            open_brackets.append(_CLOSING[letter])
        elif open_brackets:
            if letter == open_brackets[-1]:
                open_brackets.pop()
        elif letter.isalnum() or letter == "_":
            name = letter + name
        elif letter == ".":
            names.append(name)
            name = ""
        else:
            break
    return [*names, name]
