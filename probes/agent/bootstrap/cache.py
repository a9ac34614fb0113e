"""The cache on the node: which folder is safe and works, and what is kept there of the bundle.

``<root>/<sha256>/`` has the bundle, one ``compiled-...`` for each version of Python, and the path of the interpreter.
Every file is written beside and renamed.
"""

import contextlib
import hmac
import io
import marshal
import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import MAGIC_NUMBER

from mltop.probes.agent.bootstrap.zipped import BUNDLE, read_bundle
from mltop.probes.system.blobs import read_file
from mltop.probes.system.writable import Writer, in_time, writer_of

ROOT_ANSWERS_S = 5.0  # a file server that is slower is as good as dead
VERSIONS_KEPT_S = 7 * 86400.0
REMAINS_KEPT_S = 86400.0
COMPILED_NEEDS_BYTES = 8_000_000  # it takes half; the last of a full home is not for what only saves time
TOUCH_EVERY_S = 6 * 3600.0  # an agent that runs for weeks keeps its version
UNCHECKED_PYC = MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)  # PEP 552


class Refused(Exception):
    """Why the agent cannot start; ``fix`` is what to do."""

    def __init__(self, error: str, fix: str = "") -> None:
        super().__init__(error)
        self.fix = fix


class Roots:
    """The cache folders, best first; ``notes`` say what is wrong with those that were passed over.

    ``read_only``: what is installed already is used, nothing is written.
    """

    def __init__(self, digest: str, read_only: bool = False) -> None:
        self.digest, self.read_only = digest, read_only
        self.notes = []  # type: list[str]
        self.left = candidates()

    def find(self) -> "tuple[str, bytes]":
        """The first folder that works, "" for none, and the bundle if it is there."""
        while self.left:
            base, root = self.left.pop(0)
            answer = in_time(lambda base=base, root=root: self.look(base, root), ROOT_ANSWERS_S)  # type: ignore[misc]
            if isinstance(answer, bytes):
                return root, answer
            self.notes.append(f"{root}: {answer or f'did not answer within {ROOT_ANSWERS_S:g} s'}")
        return "", b""

    def look(self, base: str, root: str) -> "bytes | str":
        """The bundle, b"" where it can be written, or why it cannot."""
        try:
            own_directory(base, root, make=not self.read_only)
            content = read_bundle(root, self.digest)
            if not content:
                if self.read_only:
                    return "nothing is written: --read-only"
                trial = os.path.join(root, ".tmp." + os.urandom(8).hex())
                os.mkdir(trial)
                os.rmdir(trial)
            return content
        except OSError as error:
            return error.strerror or str(error)

    def install(self, root: str, content: bytes) -> str:
        """Keep the bundle in ``root``, or in the next folder that takes it, which is returned; "" for none."""
        while root:
            folder = os.path.join(root, self.digest)
            try:
                clear(folder, stat.S_ISDIR)
                os.makedirs(folder, 0o700, exist_ok=True)
                store(os.path.join(folder, BUNDLE), content)
                remove_old(root, self.digest)
                return root
            except OSError as error:
                self.notes.append(f"{root}: {error.strerror or error}")
                with contextlib.suppress(OSError):
                    os.rmdir(folder)  # unless there is something in it
            root, there = self.find()
            if there:
                return root
        return ""


def candidates() -> "list[tuple[str, str]]":
    """Each folder of ours with the one above it that must be there already."""
    uid, home = os.geteuid(), os.path.expanduser("~")
    cache, runtime = os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("XDG_RUNTIME_DIR", "")
    folders = [(cache, cache + "/mltop")] if os.path.isabs(cache) else [(home, home + "/.cache/mltop")]
    if os.path.isabs(runtime):
        folders.append((runtime, runtime + "/mltop"))
    return folders + [(base, f"{base}/mltop-{uid}") for base in ("/tmp", "/var/tmp", "/dev/shm")]


def own_directory(base: str, root: str, make: bool = True) -> None:
    """Make ``root`` a directory that only this user can enter, and that nobody else can put another in place of;
    OSError where it is not one, or not ours. ``make``: else it has to be there already.
    """
    if not os.path.isdir(base):
        raise OSError(f"{base} is not there")
    refuse(writer_of(base, shared=True))
    for folder in (os.path.dirname(root), root) if make else ():
        try:
            os.mkdir(folder, 0o700)
        except OSError:
            if not os.path.isdir(folder):
                raise
    status = os.lstat(root)
    if not stat.S_ISDIR(status.st_mode):
        raise OSError("is a link, not a directory")
    if status.st_uid != os.geteuid():
        raise OSError(f"belongs to uid {status.st_uid}")
    refuse(writer_of(os.path.dirname(root), shared=True))
    if stat.S_IMODE(status.st_mode) != 0o700:
        if not make:
            raise OSError("others can enter it")
        os.chmod(root, 0o700)


def refuse(writer: "Writer | None") -> None:
    if writer is not None:
        raise OSError(str(writer))


def store(path: str, data: bytes) -> None:
    """Write a file of a bundle's folder, which appears whole. It is not synced: what a crash leaves empty is found by
    its hash. What a kill leaves beside that folder is removed later.
    """
    clear(path, stat.S_ISREG)
    beside = os.path.join(os.path.dirname(os.path.dirname(path)), ".tmp." + os.urandom(8).hex())
    try:
        with open(beside, "xb") as file:
            file.write(data)
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):  # it was not made, or what failed before fails again
            os.unlink(beside)
        raise


def clear(path: str, is_right: "Callable[[int], bool]") -> None:
    """Remove what is in the place of a file or folder of ours: a link would lead elsewhere."""
    if os.path.lexists(path):
        status = os.lstat(path)
        if not is_right(status.st_mode):
            delete(path, status)


def delete(path: str, status: "os.stat_result") -> None:
    if stat.S_ISDIR(status.st_mode):
        import shutil  # takes 5 ms, and is seldom needed

        shutil.rmtree(path)
    else:
        os.unlink(path)


def compiled(root: str, digest: str, content: bytes, key: str) -> bytes:
    """The bundle with the code of its modules in it, kept with its keyed hash (HMAC): only who has the caller's key can
    make one that is taken. As it is without a key, or where nothing can be kept.
    """
    path = os.path.join(root, digest, f"compiled-{sys.implementation.cache_tag}-{MAGIC_NUMBER[:2].hex()}")
    if not root or not key:
        return content
    head, _, kept = read_file(path).partition(b"\n")
    if hmac.compare_digest(head, keyed(key, digest, kept)):
        return kept
    with contextlib.suppress(OSError):  # the home does not answer, or is full: the next start tries again
        space = os.statvfs(root)
        if space.f_bavail * space.f_frsize >= COMPILED_NEEDS_BYTES and os.access(os.path.dirname(path), os.W_OK):
            content = with_code(content)
            store(path, keyed(key, digest, content) + b"\n" + content)
    return content


def with_code(content: bytes) -> bytes:
    """A zip whose modules need not be compiled by this version of Python; others take the sources."""
    import zipfile

    buffer = io.BytesIO(content)
    with zipfile.ZipFile(buffer, "a") as archive:
        for name in archive.namelist():
            if name.endswith(".py"):
                code = compile(archive.read(name), name, "exec", dont_inherit=True)
                # With the earliest date: a clock may stand before what a zip can tell.
                archive.writestr(zipfile.ZipInfo(name + "c"), UNCHECKED_PYC + marshal.dumps(code))
    return buffer.getvalue()


def keyed(key: str, digest: str, content: bytes) -> bytes:
    """``digest``: of the bundle, so that none passes for another version."""
    made = hmac.new(key.encode(), digest.encode(), "sha256")
    made.update(content)
    return made.hexdigest().encode()


def remove_old(root: str, current: str) -> None:
    """Bundles and files that nobody used for a week, and remains of installations that were cut off."""
    now_s = time.time()
    for name in os.listdir(root):
        path = os.path.join(root, name)
        is_version = len(name) == len(current) or name.startswith("py-spy-")
        kept_s = VERSIONS_KEPT_S if is_version else REMAINS_KEPT_S
        if name == current or not (is_version or name.startswith(".tmp.")):
            continue
        try:
            status = os.lstat(path)
            if now_s - status.st_mtime >= kept_s:
                delete(path, status)
        except OSError:
            continue  # another node was faster; or it cannot be removed, and the next version will try again


def keep_in_use(path: str) -> None:
    """Touch the bundle now and then: ``remove_old`` of a newer version goes by that time."""

    def touch() -> None:
        while True:
            try:
                os.utime(path)
            except OSError:
                return  # a read-only home, where nothing is removed either
            time.sleep(TOUCH_EVERY_S)

    threading.Thread(target=touch, name="mltop-in-use", daemon=True).start()


def remember_python(path: str) -> None:
    """Note the interpreter for agents that start without a bootstrap (``reach/launchers/installed_agent.py``)."""
    note, line = os.path.join(path, "python"), os.fsencode(sys.executable + "\n")
    if read_file(note) != line:
        try:
            store(note, line)
        except OSError:
            return  # a read-only home: another Python is looked for there
