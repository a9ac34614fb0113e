"""What decoding a frame raises when it is not one of ours: a broken or malicious node must not end the hub."""

from __future__ import annotations

import msgspec

# Of JSON nested too deep and of bytes that are no UTF-8, msgspec does not make errors of its own.
UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
