"""Runs the command `holdfast` as `python -m holdfast`."""

from holdfast.cli import main

if __name__ == "__main__":
    main()
