"""The cache folder: which one is safe and works, and whether the bundle in it is whole."""

# Importing pathlib takes longer than all that is done here with paths.
# ruff: noqa: PTH101, PTH102, PTH111, PTH112, PTH117, PTH118, PTH120

import os
import stat

from mltop.probes.agent.bootstrap.compiled import Damaged, listed, read_file, sha256
from mltop.probes.writable import Writer, in_time, writer_of

ROOT_ANSWERS_S = 5.0  # a file server that is slower is as good as dead


class Place:
    """Where the bundle is or will be: below ``root``, or in memory ("").

    ``folder``: made for the installation; that it could be made shows that one can write here.
    """

    def __init__(self, root: str = "", path: str = "", cached: bool = False, folder: str = "") -> None:
        self.root, self.path, self.cached, self.folder = root, path, cached, folder


class Roots:
    """The cache folders, best first; ``notes`` say what is wrong with those that were passed over."""

    def __init__(self, digest: str, manifest: str) -> None:
        self.digest, self.manifest = digest, manifest
        self.notes = []  # type: list[str]
        self.left = candidates()

    def find(self) -> "Place":
        """The first folder that works."""
        while self.left:
            base, root = self.left.pop(0)
            answer = in_time(lambda base=base, root=root: self.look(base, root), ROOT_ANSWERS_S)  # type: ignore[misc]
            if isinstance(answer, Place):
                return answer
            self.notes.append(f"{root}: {answer or f'did not answer within {ROOT_ANSWERS_S:g} s'}")
        return Place()

    def look(self, base: str, root: str) -> "Place | str":
        """A place, or why there is none."""
        try:
            own_directory(base, root)
            path = os.path.join(root, self.digest)
            if damaged(path, self.manifest) == []:
                return Place(root, path, cached=True)
            folder = os.path.join(root, ".tmp." + os.urandom(8).hex())
            os.mkdir(folder, 0o700)
            return Place(root, path, folder=folder)
        except OSError as error:
            return error.strerror or str(error)


def candidates() -> "list[tuple[str, str]]":
    """Each folder of ours with the one above it that must be there already."""
    uid, home = os.geteuid(), os.path.expanduser("~")
    cache, runtime = os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("XDG_RUNTIME_DIR", "")
    found = [(cache, cache + "/mltop")] if os.path.isabs(cache) else [(home, home + "/.cache/mltop")]
    if os.path.isabs(runtime):
        found.append((runtime, runtime + "/mltop"))
    return found + [(base, f"{base}/mltop-{uid}") for base in ("/tmp", "/var/tmp", "/dev/shm")]


def own_directory(base: str, root: str) -> None:
    """Make ``root`` a directory that only this user can enter, and that nobody else can put another in place of;
    OSError where it is not one, or not ours.
    """
    if not os.path.isdir(base):
        raise OSError(f"{base} is not there")
    refuse(writer_of(base, shared=True))
    for folder in (os.path.dirname(root), root):
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


def is_real(bundle: str, folder: str, known: "dict[str, bool]") -> bool:
    """Whether a folder of the bundle is one, and all between them are: no links. ``known``: the answers so far."""
    if folder not in known:
        try:
            is_folder = stat.S_ISDIR(os.lstat(os.path.join(bundle, folder).rstrip("/")).st_mode)
        except OSError:
            is_folder = False
        known[folder] = is_folder and (not folder or is_real(bundle, os.path.dirname(folder), known))
    return known[folder]
