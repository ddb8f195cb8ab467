"""Cost against finish time as one SVG file.

Written by hand: the infra group has no plotting library, and 90 lines weigh less than 84 MB for five marks.
Each option is a cross of its two 5th-to-95th percentile spans with its medians in the middle.
"""

# Why it is so: infra/decisions/0054.

import math
from collections.abc import Callable, Sequence
from html import escape

from holdfast.place.belief import Option

WIDTH, HEIGHT = 760, 520
LEFT, RIGHT, TOP, BOTTOM = 80, 30, 140, 60
COLOURS = ("#0b6e99", "#b3541e", "#3f7d20", "#7a3e9d")
LEGEND_STEP = 18
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222}.axis{stroke:#888}.grid{stroke:#ddd}"
    "@media(prefers-color-scheme:dark){svg{background:#161616}text{fill:#ddd}.grid{stroke:#333}}"
)


def svg(options: Sequence[Option], chosen: Option, title: str, deadline_h: float) -> str:
    shown = [o for o in options if not o.refused]
    latest = max(o.finish_at(95) for o in shown)
    hours = _axis(max(latest, deadline_h if math.isfinite(deadline_h) else 0.0))
    usd = _axis(max(o.usd_at(95) for o in shown))
    x = _scale(hours[-1], LEFT, WIDTH - RIGHT)
    y = _scale(usd[-1], HEIGHT - BOTTOM, TOP)
    # Screen readers get the numbers, not the marks.
    described = "; ".join(f"{_name(o)}: {_numbers(o)}" for o in shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><desc>{escape(described)}</desc><style>{STYLE}</style>",
        _text(LEFT, 24, title, "font-weight:600"),
        *(_tick_x(x(h), f"{h:g}") for h in hours),
        *(_tick_y(y(u), f"{u:,g}") for u in usd),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "finished after (h), 5 % to 95 %", "text-anchor:middle"),
        _text(LEFT - 60, TOP - 14, "cost (USD)"),
    ]
    if math.isfinite(deadline_h):
        parts.append(_line(x(deadline_h), TOP, x(deadline_h), HEIGHT - BOTTOM, "stroke:#c00;stroke-dasharray:5 4"))
        parts.append(_text(x(deadline_h) - 6, TOP + 12, "deadline", "text-anchor:end;fill:#c00"))
    for row, (option, colour) in enumerate(zip(shown, COLOURS, strict=False)):
        parts += _mark(option, colour, x, y, option is chosen)
        parts += _legend(row, f"{_name(option)}: {_numbers(option)}", colour, option is chosen)
    return "\n".join([*parts, "</svg>\n"])


def _mark(
    option: Option, colour: str, x: Callable[[float], float], y: Callable[[float], float], best: bool
) -> list[str]:
    cx, cy = x(option.finish_at(50)), y(option.usd_at(50))
    stroke = f"stroke:{colour};stroke-width:3"
    return [
        _line(x(option.finish_at(5)), cy, x(option.finish_at(95)), cy, stroke),
        _line(cx, y(option.usd_at(5)), cx, y(option.usd_at(95)), stroke),
        _dot(cx, cy, colour, best),
    ]


def _legend(row: int, text: str, colour: str, best: bool) -> list[str]:
    at = 46 + row * LEGEND_STEP
    style = "font-weight:600" if best else ""
    return [_dot(LEFT + 5, at - 4, colour, best), _text(LEFT + 18, at, text + (", chosen" if best else ""), style)]


def _dot(x: float, y: float, colour: str, best: bool) -> str:
    """The chosen one is a square, so that it can be recognised without colour too."""
    if best:
        return f'<rect x="{x - 6:.1f}" y="{y - 6:.1f}" width="12" height="12" fill="{colour}"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>'


def _axis(largest: float) -> list[float]:
    """0 and four to eight round steps up to at least `largest`."""
    # Round steps: labels with decimals are read wrongly.
    rough = largest / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 5, 10) if power * f >= rough)
    return [round(step * i, 10) for i in range(math.ceil(largest / step) + 1)]


def _scale(largest: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (end - start) * value / largest


def _name(option: Option) -> str:
    return f"{option.placement.value} ({option.policy})"


def _numbers(option: Option) -> str:
    return (
        f"{option.usd_at(50):,.0f} USD (95 %: {option.usd_at(95):,.0f}), "
        f"{option.finish_at(50):.1f} h (95 %: {option.finish_at(95):.1f})"
    )


def _tick_x(at: float, text: str) -> str:
    return _line(at, TOP, at, HEIGHT - BOTTOM, "", "grid") + _text(at, HEIGHT - BOTTOM + 18, text, "text-anchor:middle")


def _tick_y(at: float, text: str) -> str:
    return _line(LEFT, at, WIDTH - RIGHT, at, "", "grid") + _text(LEFT - 8, at + 4, text, "text-anchor:end")


def _line(x1: float, y1: float, x2: float, y2: float, style: str, kind: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}" style="{style}"/>'


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" style="{style}">{escape(text)}</text>'
