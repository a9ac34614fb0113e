"""`python -m mltop`: installed as mltop/__main__.py."""

from mltop.tui.cli import main

if __name__ == "__main__":
    main()
