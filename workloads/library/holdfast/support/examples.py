"""Formats the end of a help text: command lines that work unchanged."""


def examples(*commands: str) -> str:
    """Returns Typer's `epilog`; lines are not wrapped, so that they can be copied."""
    title = "Examples:" if len(commands) > 1 else "Example:"
    lines = [f"  {command}" for command in commands]
    return "\n".join(["\b", title, *lines])
