"""What torch's exceptions say, in plain sentences; pure."""

from __future__ import annotations

_BROKEN = "mltop check; the kernel log has the Xid"
_NO_MEMORY = ("not enough free memory", "end what uses the device")
# (words of the message in lower case, what they mean or "" where the message is clear, what would help)
_KNOWN = (
    ("not yet initialized", "", "systemctl status nvidia-fabricmanager"),  # CUDA error 802
    ("out of memory", *_NO_MEMORY),
    ("can't allocate memory", *_NO_MEMORY),  # of a machine's own
    ("no kernel image", "this torch is built for other GPUs", "--torch-python with a torch for this GPU"),
    ("built without cuda", "", "--torch-python with a CUDA build of torch"),
    ("no gpu it can use", "", "nvidia-smi; a driver too old for this torch looks like that"),
    ("ecc error", "the GPU's memory failed", _BROKEN),
    ("launch failure", "a kernel was aborted on the GPU", _BROKEN),
    ("illegal memory access", "a kernel was aborted on the GPU", _BROKEN),
    ("illegal instruction", "a kernel was aborted on the GPU", _BROKEN),
    ("busy or unavailable", "the GPU is in exclusive mode or in use", "nvidia-smi -q -d COMPUTE"),
)


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def in_words(error: BaseException) -> tuple[str, str]:
    """(why, fix) of an exception of torch: its first line, and what is known about such."""
    text = first_line(error)
    for words, why, fix in _KNOWN:
        if words in str(error).lower():
            return (f"{why} ({text})" if why else text), fix
    return (f"{_NO_MEMORY[0]} ({text})", _NO_MEMORY[1]) if isinstance(error, MemoryError) else (text, "")
