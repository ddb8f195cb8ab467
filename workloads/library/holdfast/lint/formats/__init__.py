"""A report as text, JSON, SARIF, GitHub annotations or Markdown: one pure function each, report -> string."""

from collections.abc import Callable

from holdfast.lint.engine import Report
from holdfast.lint.formats import github, json, markdown, sarif, text

FORMATS: dict[str, Callable[[Report], str]] = {
    "text": text.render,
    "json": json.render,
    "sarif": sarif.render,
    "github": github.render,
    "markdown": markdown.render,
}
