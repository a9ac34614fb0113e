"""The steps of stage 1, and its frames, which are those of ``protocol.py``."""

import binascii
import json
import os
import signal
import sys
import zlib
from typing import Any

from mltop.probes.agent.bootstrap.cache import Refused, Roots, compiled, keep_in_use, remember_python
from mltop.probes.agent.bootstrap.zipped import BUNDLE, import_from
from mltop.probes.system.blobs import MOST_FILE_BYTES, sha256
from mltop.probes.system.writable import writer_of

FAILED_EXIT = 98
MARK = b"\x00MLT1 "
TEXT_MARK = b"@MLT1 "
SILENCE_S = 60.0  # how long the caller may send nothing while the bundle is awaited
MOST_BOOT_BYTES = 700  # srun cuts lines at 1,024 bytes
LONGEST_NOTE = 160
DEADLINE_S = 60  # for what follows, but for the wait for files, which has its own: looking at folders may hang
TELL_EVERY_BYTES = 16384  # a caller cannot see what is still on its way
MOST_LINE_BYTES = 64 * 1024 * 1024


def main(table: "dict[str, str]", key: str = "") -> None:
    """``table``: machine (platform.machine(), "" for any other) to the bundle's sha256; ``key``: the caller's, for
    compiled modules.
    """
    options = Options(sys.argv[1:])
    signal.alarm(DEADLINE_S)
    os.umask(0o077)
    try:
        check_python()
        received = prepare(table, options, key)
    except Refused as refusal:
        send({"kind": "error", "error": str(refusal), "fix": refusal.fix}, options)
        os._exit(FAILED_EXIT)
    signal.alarm(0)  # from here on the agent watches over itself
    from mltop.probes.agent.__main__ import main as agent

    agent(options.argv, received=received)


def check_python() -> None:
    # Stage 0 looked at the interpreter before it was started; its own modules may lie anywhere.
    writer = os.geteuid() == 0 and (writer_of(sys.executable) or writer_of(os.__file__))
    if writer:
        fix = "name one that only root can change: --python PATH"
        raise Refused(f"root does not run {sys.executable}: {writer}", fix)


def prepare(table: "dict[str, str]", options: "Options", key: str) -> bytes:
    """Make the bundle importable; returns what was read from stdin and is for the agent."""
    machine = os.uname().machine
    digest = table.get(machine) or table[""]
    roots = Roots(digest, options.read_only)
    root, content = roots.find()
    boot = {"machine": machine, "root": root, "cached": bool(content), "notes": roots.notes}
    send_boot(boot, options)
    received = b""
    if not content:
        content, received = receive(digest, options)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends an installation that hangs in the kernel
        root = roots.install(root, content)
    if root != boot["root"]:  # that one is full, or gone meanwhile
        send_boot(dict(boot, root=root, cached=True), options)
    os.environ["MLTOP_CACHE"] = root
    try:
        import_from(compiled(root, digest, content, key), root and os.path.join(root, digest, BUNDLE))
    except OSError as error:
        raise Refused(f"no file in memory can be made: {error.strerror or error}") from error
    if root and not options.read_only:
        keep_in_use(os.path.join(root, digest))
        remember_python(os.path.join(root, digest))
    return received


def receive(digest: str, options: "Options") -> "tuple[bytes, bytes]":
    """The bundle's bytes from stdin, and what else came that is for the agent. Ends the process at end-of-file."""
    signal.signal(signal.SIGALRM, silent)
    buffer, for_agent = b"", b""
    untold_bytes = 0
    while True:
        signal.alarm(int(options.silence_s) + 1)
        data = os.read(0, 262144)
        if not data:
            raise SystemExit(FAILED_EXIT)
        buffer += data
        untold_bytes += len(data)
        if untold_bytes >= TELL_EVERY_BYTES:
            untold_bytes = 0
            send({"kind": "progress"}, options)
        if len(buffer) > MOST_LINE_BYTES:
            raise Refused("a frame arrived that is longer than any should be")
        if b"\n" not in data:
            continue
        *lines, buffer = buffer.split(b"\n")
        for at, line in enumerate(lines):
            frame = decode(line)
            if frame.get("node", "") not in ("", options.node):
                continue
            if frame.get("kind") == "file" and frame.get("op") == "bundle":
                args = frame.get("args") or {}
                if args.get("sha256", digest) != digest:
                    continue  # for a node of another machine type, on a carrier that gives all nodes everything
                rest = b"".join(later + b"\n" for later in lines[at + 1 :]) + buffer
                return unpacked(args, digest), for_agent + rest
            if frame.get("kind") in ("request", "cancel"):
                for_agent += line + b"\n"


def silent(*_: "Any") -> None:
    raise Refused("the agent's files did not arrive: the caller sent nothing for too long")


def unpacked(args: "dict[str, Any]", digest: str) -> bytes:
    """The bundle in a file frame's ``args``; its hash must be the one that came with this source."""
    if args.get("error"):
        raise Refused(str(args["error"]), str(args.get("fix", "")))
    try:
        # wbits 31: gzip. Bounded, for nothing is known yet of what these bytes become.
        content = zlib.decompressobj(31).decompress(binascii.a2b_base64(args["data"]), MOST_FILE_BYTES)
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise Refused(f"the agent's files arrived damaged: {error}") from error
    sha = sha256(content)
    if sha != digest:
        raise Refused(f"the agent's files arrived damaged: sha256 {sha[:12]}, not {digest[:12]}")
    return content


class Options:
    """What stage 1 needs of the agent's arguments."""

    def __init__(self, argv: "list[str]") -> None:
        self.argv = argv
        self.node = self.value("--node", os.environ.get("SLURMD_NODENAME") or os.uname().nodename)
        self.silence_s = float(self.value("--silence", "0")) or SILENCE_S
        self.read_only = "--read-only" in argv
        self.mark = TEXT_MARK if "--text" in argv else MARK

    def value(self, name: str, default: str) -> str:
        return self.argv[self.argv.index(name) + 1] if name in self.argv[:-1] else default


def send_boot(boot: "dict[str, Any]", options: "Options") -> None:
    """The boot frame, with as many of its notes as a line of every carrier holds."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    notes = [note[:LONGEST_NOTE] for note in boot["notes"]]
    boot = dict(boot, python=f"{version} at {sys.executable}", notes=notes)
    while notes and len(json.dumps(boot)) > MOST_BOOT_BYTES:
        del notes[-1]
    send({"kind": "boot", "boot": boot}, options)


def send(message: "dict[str, Any]", options: "Options") -> None:
    payload = json.dumps(dict(message, node=options.node)).encode()
    data = b"%s%d %s\n" % (options.mark, len(payload), payload)
    while data:
        data = data[os.write(1, data) :]


def decode(line: bytes) -> "dict[str, Any]":
    """A frame, {} for noise. A damaged frame is refused: the caller would not send it again."""
    mark = MARK if MARK in line else TEXT_MARK
    if mark not in line:
        return {}
    size, _, payload = line[line.index(mark) + len(mark) :].partition(b" ")
    try:
        frame = json.loads(payload.decode())
    except ValueError:
        frame = None
    if size != b"%d" % len(payload) or not isinstance(frame, dict):
        raise Refused(f"a frame arrived damaged: {len(payload)} bytes of {size[:20].decode('ascii', 'relocation')}")
    return frame
