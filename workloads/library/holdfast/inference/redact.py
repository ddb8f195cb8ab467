"""Takes out of an error's text what must not be seen in logs and dead letters: content and secrets."""

import os
import re

MAX_CHARS = 300
_MIN_WORD = 5
# key=value pairs of usual secrets, bearer tokens, passwords in URIs.
_SECRET = re.compile(
    r"(?i)(\bauthorization\b\s*[=:]\s*)[^\r\n]+"
    r"|(\b(?:password|passwd|secret|token|api[_-]?key)\b\s*[=:]\s*)\S+"
    r"|(\bbearer\s+)\S+|(://[^/\s:@]+:)[^@\s]+(?=@)"
)
_SECRET_NAME = re.compile(r"(?i)passw|secret|token|api_?key|credential|database_url")


def redacted(text: str, *, content: bytes = b"") -> str:
    """At most MAX_CHARS; words that stand in `content` and values of secret variables are left out."""
    for name, value in os.environ.items():
        if len(value) >= _MIN_WORD and _SECRET_NAME.search(name):
            text = text.replace(value, "***")
    text = _SECRET.sub(lambda m: f"{next(filter(None, m.groups()))}***", text)
    known = content.decode("utf-8", "replace")
    words = (("***" if len(word) >= _MIN_WORD and word in known else word) for word in re.split(r"(\W+)", text))
    return "".join(c if c.isprintable() else " " for c in "".join(words))[:MAX_CHARS]
