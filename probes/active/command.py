"""The command that runs ``main()`` of a module of ours with a Python that is not ours.

That Python has its own site-packages, where torch is, and must not get ours: of everything that this process can
import it sees the package ``mltop`` alone, as a module object with a path. That works from a source tree, from a
virtual environment, from an agent's cache folder (by its compiled modules, as in ``spawn.python_command``) and from a
bundle in memory, which is a zip below /proc.
"""

from __future__ import annotations

import os

from mltop.probes.system.spawn import from_bundle

MARK = "mltop-probe"  # the argument by which our processes are known; probe and key follow it


def probe_command(python: str, target: str, kind: str, key: str) -> list[str]:
    """``target``: a module's name, or the path of a file (NAME.py); ``python``: a path, or a name to be found on PATH.

    A shell becomes the Python: an interpreter on a file server that does not answer then hangs a process that has a
    deadline, not us. Run it in "/".
    """
    return [*python_words(python), "-W", "ignore", "-c", _code(target), MARK, kind, key]


def python_words(python: str) -> list[str]:
    return ["/bin/sh", "-c", 'exec "$0" "$@"', python]


def probe_of(argv: list[str]) -> tuple[str, str] | None:
    """Kind and key, for a process that ``probe_command`` started or that was forked from one."""
    if MARK not in argv:
        return None
    kind_and_key = argv[argv.index(MARK) + 1 :]
    return (kind_and_key[0], kind_and_key[1]) if len(kind_and_key) == 2 else None


def _code(target: str) -> str:
    """No bytecode of ours is written: a foreign Python, perhaps root's, has no business in our folders."""
    if target.endswith(".py"):
        load = f"import runpy; main = runpy.run_path({target!r})['main']"
    else:
        load = f"from {target} import main"
    return "; ".join(
        (
            "import sys, types",
            "sys.path[:] = [entry for entry in sys.path if entry]",
            *([code] if (code := from_bundle(("mltop",)).rstrip("; ")) else []),  # psutil and pynvml are not for it
            "sys.modules['mltop'] = types.ModuleType('mltop')",
            f"sys.modules['mltop'].__path__ = [{package()!r}]",
            "kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True",
            load,
            "sys.dont_write_bytecode = kept",
            "main()",
        )
    )


def package() -> str:
    """The folder (or the place in a zip) that is the package ``mltop``."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
