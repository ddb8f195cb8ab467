"""Lines of a stage of the demo are whole where they are written to a file."""

from io import StringIO

from rich.console import Console

from holdfast.drill.console import stage


def test_stage_lines_stay_whole_off_a_terminal() -> None:
    written = StringIO()
    line = "926 requests: 0 failed, 0 refused for load, 0 retried by the proxy, 99 of 100 in 16 ms"
    with stage(Console(file=written, width=80), "serve", "4 evictions") as report:
        report(line)
    assert f"  {line}" in written.getvalue().splitlines()
