"""`python -m holdfast.inference.router`: the command `holdfast serve router`."""

from holdfast.inference.router.cli import app

if __name__ == "__main__":
    app(prog_name="python -m holdfast.inference.router")
