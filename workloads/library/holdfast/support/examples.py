"""The end of a help text: command lines that work unchanged."""


def examples(*commands: str) -> str:
    """For Typer's `epilog`; lines are not wrapped, so that they can be copied."""
    return "\n".join(
        [
            "\b",
            "Examples:" if len(commands) > 1 else "Example:",
            *(f"  {each}" for each in commands),
        ]
    )
