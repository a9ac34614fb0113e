"""`python -m mltop`: installed as mltop/__main__.py."""

from mltop.tui import starting

if __name__ == "__main__":
    starting.end_quietly_on_interrupt()

    from mltop.tui.cli import main

    main()
