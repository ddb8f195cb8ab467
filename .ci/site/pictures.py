"""The pictures of the README, from the example environment and the contract: light and dark, as SVG.

`python .ci/site/pictures.py` writes them; a test holds that what is committed is what this writes.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "workloads" / "library")]

from holdfast.contract.capacity import Capacity  # noqa: E402
from holdfast.contract.lifecycle import DEFAULT_WINDOW, EXTENDED_WINDOW, WINDOW_MARGIN_S  # noqa: E402
from holdfast.contract.pools import FLEX_TAINT, SPOT_TAINT, Role  # noqa: E402
from infra.environments.example import ENVIRONMENT  # noqa: E402
from infra.environments.schema import NodeGroup  # noqa: E402

FOLDER = ROOT / ".github" / "pictures"
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', sans-serif"
WIDTH = 840
RUNS = {
    Role.SYSTEM: "queues, operators, exporter",
    Role.SERVING: "base of online serving",
    Role.BATCH: "batch, overflow of serving",
    Role.TRAINING: "training",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Theme:
    ink: str
    faint: str
    line: str
    safe: str
    spot: str
    flex: str
    lost: str
    on_colour: str


THEMES = {
    "light": Theme(
        ink="#1f2430", faint="#4b5563", line="#c9ced6", safe="#0f766e", spot="#b45309", flex="#3b5bdb",
        lost="#a8afb9", on_colour="#ffffff",
    ),
    "dark": Theme(
        ink="#e6e8ec", faint="#a3abb8", line="#434a57", safe="#2dd4bf", spot="#f0a94a", flex="#91a7f2",
        lost="#5b6372", on_colour="#0d1117",
    ),
}  # fmt: skip


def text(x: float, y: float, words: str, colour: str, *, size: int = 13, bold: bool = False, at: str = "start") -> str:
    weight = ' font-weight="600"' if bold else ""
    shown = escape(words)
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" font-size="{size}" text-anchor="{at}"{weight}>{shown}</text>'


def box(x: float, y: float, width: float, height: float, *, stroke: str, fill: str = "none", dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {size} rx="6" fill="{fill}" stroke="{stroke}" stroke-width="1.5"{dashed}/>'


def svg(height: int, title: str, marks: Iterator[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="{FONT}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", *marks, "</svg>", ""])


def cluster(theme: Theme) -> str:
    """One column for each kind of capacity, one box for each pool."""
    pools = ENVIRONMENT.groups
    columns = (
        ("On-demand", "never taken away", theme.safe, [p for p in pools if p.capacity is Capacity.ON_DEMAND]),
        ("Spot", f"taint {SPOT_TAINT.key}={SPOT_TAINT.value}", theme.spot, [p for p in pools if p.capacity is Capacity.SPOT]),
        ("Flex-start", "waits for its nodes, then undisturbed", theme.flex, [
            p for p in pools if p.capacity is Capacity.FLEX_START
        ]),
    )  # fmt: skip
    state = 104 + 66 * max(2, *(len(groups) for *_, groups in columns))  # below the longest column

    def marks() -> Iterator[str]:
        yield text(0, 18, f"GKE cluster in {ENVIRONMENT.region}", theme.ink, size=15, bold=True)
        yield text(WIDTH, 18, f"{len(ENVIRONMENT.zones)} zones, private nodes", theme.faint, at="end")
        for column, (name, under, colour, groups) in enumerate(columns):
            x = column * 284
            yield box(x + 1, 32, 270, state - 48, stroke=theme.line)
            yield text(x + 14, 56, name, colour, size=15, bold=True)
            yield text(x + 14, 75, under, theme.faint, size=12)
            for row, group in enumerate(groups):
                yield from _pool(theme, colour, x + 14, 88 + row * 66, group)
            if name == "Flex-start":
                yield from _provisioned(theme, colour, x + 14, 88 + len(groups) * 66)
        for column, (name, what) in enumerate(
            (
                ("Cloud Storage", "checkpoints, committed create-only"),
                ("Cloud SQL", "results of batch, each item once"),
                ("Cloud Monitoring", "preemptions, waits, lost work"),
            )
        ):
            x = column * 284
            yield box(x + 1, state, 270, 52, stroke=theme.line, dash="4 3")
            yield text(x + 14, state + 22, name, theme.ink, bold=True)
            yield text(x + 14, state + 40, what, theme.faint, size=12)

    return svg(
        state + 58, "The hybrid cluster of the example environment: pools by capacity, and what keeps state", marks()
    )


def _pool(theme: Theme, colour: str, x: float, y: float, group: NodeGroup) -> Iterator[str]:
    yield box(x, y, 243, 58, stroke=colour)
    gpus = f", {group.gpus_per_node} {short(group.accelerator)}" if group.accelerator else ""
    yield text(x + 10, y + 19, group.name, theme.ink, bold=True)
    first, *others = group.machine_types  # each is a pool of its own
    nodes = f"{group.min_nodes * len(group.machine_types)} to {group.max_nodes * len(group.machine_types)} nodes"
    yield text(x + 233, y + 19, nodes, theme.faint, size=12, at="end")
    machines = first + "".join(f", -{other.rsplit('-', 1)[1]}" for other in others)
    yield text(x + 10, y + 36, f"{machines}{gpus}", theme.faint, size=12)
    yield text(x + 10, y + 51, RUNS[group.role], theme.faint, size=12)


def _provisioned(theme: Theme, colour: str, x: float, y: float) -> Iterator[str]:
    caps = ENVIRONMENT.auto_provisioning
    assert caps is not None
    yield box(x, y, 243, 58, stroke=colour, dash="4 3")
    yield text(x + 10, y + 19, "auto-provisioned", theme.ink, bold=True)
    gpus = ", ".join(f"{cap.max_gpus} {short(cap.accelerator)}" for cap in caps.accelerators)
    yield text(x + 10, y + 36, f"capped at {gpus}", theme.faint, size=12)
    yield text(x + 10, y + 51, f"taint {FLEX_TAINT.key}", theme.faint, size=12)


def short(accelerator: str) -> str:
    return accelerator.removeprefix("nvidia-").removeprefix("tesla-").upper()


def eviction(theme: Theme) -> str:
    """Seconds after the notice, for an ordinary pod; what follows has no scale."""
    window, ends = DEFAULT_WINDOW.pod_s, DEFAULT_WINDOW.pod_s - WINDOW_MARGIN_S
    left, right = 10.0, 560.0

    def at(second: float) -> float:
        return left + (right - left) * second / window

    stages = (
        (0.0, 1.2, "agree on a step", theme.flex),
        (1.2, 5.5, "save, upload, commit", theme.safe),
        (5.5, 6.5, "exit 143", theme.ink),
    )

    def marks() -> Iterator[str]:
        yield text(left, 18, "One eviction of a training pod on Spot", theme.ink, size=15, bold=True)
        for begin, end, name, colour in stages:
            fill = f'fill="{colour}"'
            yield f'<rect x="{at(begin):g}" y="70" width="{at(end) - at(begin) - 2:g}" height="26" rx="3" {fill}/>'
            middle = at((begin + end) / 2)
            inside = end - begin > 2
            colour = theme.on_colour if inside else theme.ink
            yield text(middle if inside else at(begin) + 5, 88 if inside else 112, name, colour, size=12,
                       at="middle" if inside else "start")  # fmt: skip
        yield from _marker(theme, at(0), "notice: SIGTERM", theme.spot, anchor="start")
        yield from _marker(theme, at(ends), f"{ends:g} s: leaves in any case", theme.faint, anchor="end")
        yield from _marker(theme, at(window), f"{window} s: SIGKILL", theme.spot, anchor="start")
        yield f'<path d="M{left} 126H{right}" stroke="{theme.line}" stroke-width="1.5"/>'
        for second in range(0, window + 1, 3):
            yield text(at(second), 144, f"{second} s", theme.faint, size=11, at="middle" if second else "start")
        x = right + 86
        yield f'<rect x="{right + 12:g}" y="70" width="70" height="26" rx="3" fill="{theme.lost}"/>'
        yield text(right + 47, 88, "no node", theme.on_colour, size=12, at="middle")
        yield f'<rect x="{x:g}" y="70" width="58" height="26" rx="3" fill="{theme.flex}"/>'
        yield text(x + 29, 88, "restore", theme.on_colour, size=12, at="middle")
        yield f'<rect x="{x + 60:g}" y="70" width="124" height="26" rx="3" fill="{theme.safe}"/>'
        yield text(x + 122, 88, "the next step", theme.on_colour, size=12, at="middle")
        yield text(x, 112, "verified, to the last bit", theme.ink, size=12)
        yield text(left, 172, f"The node gets {DEFAULT_WINDOW.total_s} s and keeps the last "
                   f"{DEFAULT_WINDOW.critical_s} s for system pods; with the extended window a pod has "
                   f"{EXTENDED_WINDOW.pod_s} s.", theme.faint, size=12)  # fmt: skip
        yield text(left, 190, "Widths inside the window are an example; a power loss skips it and costs what was "
                   "done since the last commit.", theme.faint, size=12)  # fmt: skip

    return svg(198, "An eviction: notice, save, exit 143, and the next step on another node", marks())


def _marker(theme: Theme, x: float, words: str, colour: str, *, anchor: str) -> Iterator[str]:
    yield f'<path d="M{x:g} 56V126" stroke="{colour}" stroke-width="1.5" stroke-dasharray="3 3"/>'
    yield text(x, 50, words, theme.ink, size=12, at=anchor)


def pictures() -> dict[str, str]:
    """File name -> SVG."""
    return {
        f"{name}-{mode}.svg": draw(theme)
        for name, draw in (("cluster", cluster), ("eviction", eviction))
        for mode, theme in THEMES.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, drawn in pictures().items():
        (FOLDER / file).write_text(drawn, encoding="utf-8")
