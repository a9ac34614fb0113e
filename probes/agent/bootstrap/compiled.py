"""The bundle's modules: of its folder only the files of the MANIFEST are imported, each with the hash it has there.

Nothing in the folder is looked for by its name: what was added to it (a package, a module of the same name, compiled
code of any kind) is never found, and a file is checked when it is read, not only when the agent starts. Python's own
compiled files in ``__pycache__`` are neither read nor written: a full disk or a crash of the machine leaves them cut
off or zeroed, and Python trusts them.

Instead all modules are compiled into one file, ``compiled-...`` in the bundle's folder: a line with the keyed hash
(HMAC) of all that follows, and the marshalled {name in the bundle: marshalled code}. The key is the caller's: who has
not got it cannot make such a file. Child processes are told the file's sha256 instead. What fits neither is not used.

Part of stage 1, and a file of the bundle for what starts without it: NVML's child process, probes, agents by pdsh.
"""

import hashlib
import hmac
import marshal
import os
import stat
import sys
from collections.abc import Collection
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec, SourceFileLoader
from importlib.util import MAGIC_NUMBER, spec_from_file_location
from types import CodeType

MANIFEST = "MANIFEST"
LOADER = "mltop_compiled.py"  # this file's name in the bundle
MOST_FILE_BYTES = 64 * 1024 * 1024


class Damaged(ImportError):
    """A file of the bundle is not what was installed."""


class Bundle:
    """A folder that was installed. ``hashes``: sha256 of its files by name, from the MANIFEST, whose own hash is given.

    ``codes``: of its modules, and ``compiled``: sha256 of the file that they came from, "" for none.
    """

    def __init__(self, folder: str, manifest: str) -> None:
        self.folder, self.manifest = folder, manifest
        self.hashes = listed(folder, manifest)
        self.codes = {}  # type: dict[str, bytes]
        self.compiled = ""

    def read(self, name: str) -> bytes:
        """A file that the MANIFEST lists. Raises Damaged."""
        data = read_file(os.path.join(self.folder, name))
        if sha256(data) != self.hashes[name]:
            raise Damaged(f"{self.folder}/{name} is not what was installed")
        return data

    def name_of(self, module: str) -> str:
        """The name of the file that is this module, "" for none. Packages come first, as Python has it."""
        base = module.replace(".", "/")
        names = [base + "/__init__.py", base + ".py", *(base + suffix for suffix in EXTENSION_SUFFIXES)]
        return next((name for name in names if name in self.hashes), "")


class Loader(SourceFileLoader):
    """A module from its compiled code, or from its source, which costs time only."""

    def __init__(self, module: str, bundle: Bundle, name: str) -> None:
        super().__init__(module, os.path.join(bundle.folder, name))
        self.bundle, self.name_there = bundle, name

    def get_data(self, path: str) -> bytes:
        """The content of a file, also of one beside the module: what is not listed is not there."""
        name = os.path.relpath(path, self.bundle.folder)
        if name not in self.bundle.hashes:
            raise FileNotFoundError(path)
        return self.bundle.read(name)

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - by its path
        data = self.bundle.codes.pop(self.name_there, b"")  # popped: it is needed once
        try:
            code = marshal.loads(data) if data else None
        except (EOFError, ValueError, TypeError):
            code = None
        if not isinstance(code, CodeType):
            code = compile(self.bundle.read(self.name_there), self.path, "exec", dont_inherit=True)
        return code


class Finder:
    """Finds every module of ``packages`` in the bundle or nowhere."""

    def __init__(self, bundle: Bundle, packages: "Collection[str]") -> None:
        self.bundle, self.packages = bundle, packages

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> "ModuleSpec | None":  # noqa: ARG002
        if fullname.partition(".")[0] not in self.packages:
            return None
        name = self.bundle.name_of(fullname)
        if not name:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        file = os.path.join(self.bundle.folder, name)
        if name.endswith(".py"):
            return spec_from_file_location(fullname, file, loader=Loader(fullname, self.bundle, name))
        self.bundle.read(name)
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, file))


def import_from(folder: str, manifest: str, compiled: str = "", packages: "Collection[str]" = ()) -> Bundle:
    """From now on the bundle's packages (all, or these) are its own, before any others of these names.

    ``manifest``: the MANIFEST's sha256; ``compiled``: that of the compiled modules' file, "" for none. Raises Damaged.
    """
    bundle = Bundle(folder, manifest)
    if compiled:
        data = read_file(compiled_file(folder))
        if sha256(data) == compiled:
            bundle.codes, bundle.compiled = unmarshalled(data.partition(b"\n")[2]), compiled
    tops = {name.partition("/")[0] for name in bundle.hashes}
    own = {top.partition(".")[0] for top in tops if top.endswith(".py") or f"{top}/__init__.py" in bundle.hashes}
    sys.meta_path.insert(0, Finder(bundle, packages or own))
    return bundle


def import_whole(folder: str, manifest: str, exit_code: int) -> None:
    """As ``import_from`` where nothing can be repaired: ends the process if any file is not what was installed."""
    try:
        bundle = import_from(folder, manifest)
        for name in bundle.hashes:
            bundle.read(name)
        os.utime(folder)  # it is in use: what is not for a week is removed
    except Damaged:
        sys.exit(exit_code)
    except OSError:
        return  # a read-only home, where nothing is removed either


def compiled_file(folder: str) -> str:
    """One for every version of Python's bytecode: nodes that share a home may have several."""
    return os.path.join(folder, f"compiled-{sys.implementation.cache_tag}-{MAGIC_NUMBER[:2].hex()}")


def read_compiled(bundle: Bundle, key: str) -> bool:
    """Take the compiled modules from their file, if it was made with this key; "" is none."""
    data = read_file(compiled_file(bundle.folder))
    head, _, content = data.partition(b"\n")
    if not key or not hmac.compare_digest(head, keyed(key, content)):
        return False
    bundle.codes, bundle.compiled = unmarshalled(content), sha256(data)
    return bool(bundle.codes)


def keyed(key: str, content: bytes) -> bytes:
    return hmac.new(key.encode(), content, "sha256").hexdigest().encode()


def unmarshalled(content: bytes) -> "dict[str, bytes]":
    """The code by name; {} for anything else."""
    try:
        codes = marshal.loads(content)
    except (EOFError, ValueError, TypeError):
        return {}
    is_whole = isinstance(codes, dict) and all(isinstance(entry, bytes) for entry in codes.values())
    return codes if is_whole else {}


def listed(folder: str, manifest: str) -> "dict[str, str]":
    """The MANIFEST's lines, "SHA256 NAME". Raises Damaged."""
    text = read_file(os.path.join(folder, MANIFEST))
    if sha256(text) != manifest:
        raise Damaged(f"{folder}/{MANIFEST} is not what was installed")
    return {name: digest for digest, _, name in (line.partition(" ") for line in text.decode().splitlines())}


def read_file(path: str) -> bytes:
    """b"" for what cannot be read, is no regular file, or longer than any of ours: its hash is wrong in any case."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_FILE_BYTES:
                return b""
            return file.read(MOST_FILE_BYTES)
    except OSError:
        return b""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
