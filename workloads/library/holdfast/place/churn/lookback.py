"""How far back a command looks. Pure."""

import re

from holdfast.contract.errors import InputError


def span_seconds(text: str) -> int:
    match = re.fullmatch(r"([1-9]\d{0,5})([dhm])", text)
    if not match:
        allowed = "a number and d, h or m, as 7d, 12h or 30m"
        raise InputError("--since is no span of time", got=text, allowed=allowed, fix="write --since 7d")
    return int(match[1]) * {"d": 86_400, "h": 3_600, "m": 60}[match[2]]
