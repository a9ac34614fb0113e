"""ssh's options against what a user's configuration may hold that is meant for a person at a terminal."""

from __future__ import annotations

import functools
import shutil
import subprocess

# One that is told to listen on a port, or to start tmux, is for one session of the user's, not for every node.
NO_FORWARDS = "ClearAllForwardings=yes"
_SINCE_7_6 = ("RemoteCommand=none",)
_SINCE_8_7 = ("SessionType=default", "StdinNull=no", "ForkAfterAuthentication=no")
_DEADLINE_S = 5.0


def plain_session() -> tuple[str, ...]:
    """The options that make every host's session a command with stdin, as far as the ssh of this machine has them."""
    program = shutil.which("ssh")
    return (NO_FORWARDS, *(_known(program) if program else ()))


@functools.cache
def _known(program: str) -> tuple[str, ...]:
    """An ssh refuses options that it does not know. IgnoreUnknown would hide the user's mistakes too."""
    for options in ((*_SINCE_7_6, *_SINCE_8_7), _SINCE_7_6):
        words = [word for option in options for word in ("-o", option)]
        try:
            done = subprocess.run(
                [program, "-G", "-F", "/dev/null", *words, "--", "localhost"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_DEADLINE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ()
        if done.returncode == 0:
            return options
    return ()
