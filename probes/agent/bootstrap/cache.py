"""The bundle on the node: which cache folder is safe and works, whether what lies in it is whole, and its installation.

A bundle is written beside where it will be and renamed, file by file where one is damaged, or into memory.
"""

import contextlib
import io
import marshal
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Iterator

from mltop.probes.agent.bootstrap.compiled import Bundle, Damaged, compiled_file, keyed, listed, read_file, sha256
from mltop.probes.system.writable import Writer, in_time, writer_of

ROOT_ANSWERS_S = 5.0  # a file server that is slower is as good as dead


class Refused(Exception):
    """Why the agent cannot start; ``fix`` is what to do."""

    def __init__(self, error: str, fix: str = "") -> None:
        super().__init__(error)
        self.fix = fix


class Location:
    """Where the bundle is or will be: below ``root``, or in memory ("").

    ``beside``: a folder made for the installation; that it could be made shows that one can write here.
    """

    def __init__(self, root: str = "", path: str = "", cached: bool = False, beside: str = "") -> None:
        self.root, self.path, self.cached, self.beside = root, path, cached, beside


class Roots:
    """The cache folders, best first; ``notes`` say what is wrong with those that were passed over.

    ``read_only``: what is installed already is used, nothing is written.
    """

    def __init__(self, digest: str, manifest: str, read_only: bool = False) -> None:
        self.digest, self.manifest, self.read_only = digest, manifest, read_only
        self.notes = []  # type: list[str]
        self.left = candidates()

    def find(self) -> "Location":
        """The first folder that works."""
        while self.left:
            base, root = self.left.pop(0)
            answer = in_time(lambda base=base, root=root: self.look(base, root), ROOT_ANSWERS_S)  # type: ignore[misc]
            if isinstance(answer, Location):
                return answer
            self.notes.append(f"{root}: {answer or f'did not answer within {ROOT_ANSWERS_S:g} s'}")
        return Location()

    def look(self, base: str, root: str) -> "Location | str":
        """A location, or why there is none."""
        try:
            own_directory(base, root, make=not self.read_only)
            path = os.path.join(root, self.digest)
            if damaged(path, self.manifest) == []:
                return Location(root, path, cached=True)
            if self.read_only:
                return "nothing is written: --read-only"
            beside = os.path.join(root, ".tmp." + os.urandom(8).hex())
            os.mkdir(beside, 0o700)
            return Location(root, path, beside=beside)
        except OSError as error:
            return error.strerror or str(error)


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


def damaged(path: str, manifest: str) -> "list[str] | None":
    """Names of the files that are not as in the MANIFEST; None when there is no whole MANIFEST.

    A link is no file of ours, whatever it leads to, nor is anything below a folder that is one.
    """
    try:
        hashes = listed(path, manifest)
    except Damaged:
        return None
    real = {}  # type: dict[str, bool]
    return [
        name
        for name, digest in hashes.items()
        if not is_real(path, os.path.dirname(name), real) or sha256(read_file(os.path.join(path, name))) != digest
    ]


def is_real(bundle: str, folder: str, answers: "dict[str, bool]") -> bool:
    """Whether a folder of the bundle is one, and all between them are: no links. ``answers``: those so far."""
    if folder not in answers:
        try:
            is_folder = stat.S_ISDIR(os.lstat(os.path.join(bundle, folder).rstrip("/")).st_mode)
        except OSError:
            is_folder = False
        answers[folder] = is_folder and (not folder or is_real(bundle, os.path.dirname(folder), answers))
    return answers[folder]


VERSIONS_KEPT_S = 7 * 86400.0
REMAINS_KEPT_S = 86400.0
COMPILED_NEEDS_BYTES = 8_000_000  # it takes 1 MB; the last of a full home is not for what only saves time
TOUCH_EVERY_S = 6 * 3600.0  # an agent that runs for weeks keeps its version
# memfd_create(2) by number, for Pythons that were built against a C library older than it.
MEMFD_CREATE = {"x86_64": 319, "aarch64": 279, "ppc64le": 360}
MFD_CLOEXEC = 1


def install(roots: "Roots", location: "Location", content: bytes) -> "Location":
    """Write the bundle to ``location``, or to the next folder that takes it, or to memory."""
    while location.root:
        try:
            write_bundle(location, content, roots.manifest)
            remove_old(location.root, roots.digest)
            return location
        except OSError as error:
            roots.notes.append(f"{location.root}: {error.strerror or error}")
        finally:
            discard(location)
        location = roots.find()
        if location.cached:
            return location
    return Location(path=in_memory(content))


def discard(location: "Location") -> None:
    """The folder of an installation that did not come to its end, or was not needed."""
    if location.beside:
        shutil.rmtree(location.beside, ignore_errors=True)


def write_bundle(location: "Location", content: bytes, manifest: str) -> None:
    """Install, or repair what is there already."""
    if is_ours(location.path, content):
        repair(location.path, content, manifest)
        return
    for name, data in members(content):
        write(os.path.join(location.beside, name), data)
    sync(location.beside)
    if os.path.lexists(location.path) and not is_ours(location.path, content):
        put_aside(location)
    try:
        os.rename(location.beside, location.path)
    except OSError:
        if not os.path.isdir(location.path):
            raise
        repair(location.path, content, manifest)  # another node was faster
    sync(location.root)


def is_ours(path: str, content: bytes) -> bool:
    """Whether files can be replaced in there one by one: not where a link is in a folder's place, or something else
    than a file in a file's. They would be written to where that leads.
    """
    real = {}  # type: dict[str, bool]
    if not is_real(path, "", real):
        return False
    for name, _ in members(content):
        folder, file = os.path.join(path, os.path.dirname(name)), os.path.join(path, name)
        if os.path.lexists(folder) and not is_real(path, os.path.dirname(name), real):
            return False
        if os.path.lexists(file) and not stat.S_ISREG(os.lstat(file).st_mode):
            return False
    return True


def put_aside(location: "Location") -> None:
    """What is in the bundle's place although it is none; removed where it can be."""
    aside = location.beside + ".old"
    os.rename(location.path, aside)
    with contextlib.suppress(OSError):  # a later version removes it
        delete(aside, os.lstat(aside))


def delete(path: str, status: "os.stat_result") -> None:
    if stat.S_ISDIR(status.st_mode):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def members(content: bytes) -> "Iterator[tuple[str, bytes]]":
    """Name and bytes of each file in the zip."""
    import zipfile

    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in archive.namelist():
            if name.startswith("/") or ".." in name.split("/") or name.endswith("/"):
                raise Refused(f"the agent's files have a bad name among them: {name!r}")
            yield name, archive.read(name)


def write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    # Not synced one by one, which takes seconds beside a training job's checkpoint: what a crash of the machine
    # leaves empty is found by its hash and replaced at the next start.
    with open(path, "xb") as file:
        file.write(data)


def sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def repair(path: str, content: bytes, manifest: str) -> None:
    """Replace files that are missing or damaged; others may be running from this directory."""
    bad = damaged(path, manifest)
    if bad == []:
        return
    for name, data in members(content):
        if bad is None or name in bad:
            replace(os.path.join(path, name), data)
    if damaged(path, manifest) != []:
        raise OSError(f"damaged files in {path} cannot be replaced")


def replace(path: str, data: bytes) -> None:
    beside = path + ".tmp." + os.urandom(8).hex()
    try:
        write(beside, data)
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):  # it was not made, or what failed before fails again
            os.unlink(beside)
        raise


def compile_all(bundle: "Bundle", key: str) -> None:
    """The code of every module, kept for ``read_compiled``. Nothing is done where it cannot be kept, and without a key:
    then what is used is compiled when it is.
    """
    folder = bundle.folder
    space = os.statvfs(folder)
    if not key or space.f_bavail * space.f_frsize < COMPILED_NEEDS_BYTES or not os.access(folder, os.W_OK):
        return
    codes = {}
    for name in bundle.hashes:
        if name.endswith(".py"):
            path = os.path.join(folder, name)
            codes[name] = marshal.dumps(compile(bundle.read(name), path, "exec", dont_inherit=True))
    content = marshal.dumps(codes)
    data = keyed(key, content) + b"\n" + content
    bundle.codes = codes
    try:
        replace(compiled_file(folder), data)
        bundle.compiled = sha256(data)
    except OSError:
        return  # full after all: this start has them, the next one tries again


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
            replace(note, line)
        except OSError:
            return  # a read-only home: another Python is looked for there


def in_memory(content: bytes) -> str:
    """Path of a zip in memory. By our pid, so that child processes find it, too."""
    fd = memory_file("mltop-bundle")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    return f"/proc/{os.getpid()}/fd/{fd}"


def memory_file(name: str) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.syscall(MEMFD_CREATE.get(os.uname().machine, -1), name.encode(), MFD_CLOEXEC))
    if fd < 0:
        why = os.strerror(ctypes.get_errno())
        raise Refused(f"no cache folder can be written, and no file in memory can be made: {why}")
    return fd
