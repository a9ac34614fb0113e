"""Every exit code of the program (`mltop help exit-codes`). A command decides which it ends with."""

EXIT_FINE = 0
EXIT_WARNINGS = 1  # check
EXIT_INCOMPLETE = 1  # doctor, capture, record
EXIT_SUSPECTS = 1  # probe
EXIT_EXPLAINED = 1  # explain
EXIT_MISTAKES = 1  # config
EXIT_USAGE = 2  # also where an installed package does not fit
EXIT_CRITICAL = 2  # check
EXIT_UNREACHABLE = 3
EXIT_UNKNOWN = 3  # check
EXIT_CANNOT_TELL = 3  # explain
# Above 63 are those of sysexits.h, above 128 those of signals: no command means something with them.
EXIT_BUG = 70
EXIT_LIMIT = 71
EXIT_OUTPUT = 74
EXIT_INTERRUPTED = 130
EXIT_OUTPUT_ENDED = 141  # as a shell says it of a program that SIGPIPE ended


def interrupted_by(interrupt: KeyboardInterrupt) -> int:
    """Its argument is the signal that raised it; Ctrl-C has none."""
    return 128 + interrupt.args[0] if interrupt.args else EXIT_INTERRUPTED
