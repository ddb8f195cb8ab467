"""The commands `place` and `prices`, as their user types them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.contract.errors import InputError
from infra.contract.capacity import Placement
from infra.placement import prices
from infra.placement.cli import app

A100_80, REGION = "nvidia-a100-80gb", "us-central1"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=True)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_place_prints_one_json_object_with_every_option_and_writes_its_files(tmp_path: Path) -> None:
    code, out = run(
        "place", "--gpu", "a100", "--gpus", "8", "--hours", "40", "--deadline", "72h", "--checkpoint", "30s",
        "--restart", "5m", "--region", REGION, "--json", "--emit", str(tmp_path / "e"), "--plot", str(tmp_path / "p.svg"),
    )  # fmt: skip
    body = json.loads(out)
    assert code == 0
    assert body["schema"] == "holdfast.place/1"
    assert {o["placement"] for o in body["options"]} == {p.value for p in Placement}
    assert all({"p5", "p50", "p95", "mean"} <= set(o["usd"]) for o in body["options"])
    assert body["flip"]["against"] == "flex-start"
    assert body["flip"]["churn_per_hour"] == pytest.approx(0.0725, abs=0.002)
    assert sorted(Path(p).name for p in body["written"]) == ["computeclass.yaml", "p.svg", "placement.yaml"]


def test_place_prints_a_row_an_option_and_the_reason_with_the_flip() -> None:
    code, out = run("place", "--gpu", "l4", "--hours", "10", "--region", REGION)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:5]] == ["on-demand", "flex-start", "spot", "hybrid"]
    assert "Spot stops paying against on-demand above 7." in out


def test_place_takes_the_cheapest_region_and_names_the_others() -> None:
    _, out = run("place", "--gpu", "a100-80", "--hours", "10", "--json")
    body = json.loads(out)
    assert body["region"] == "us-east5"
    assert {row["region"] for row in body["elsewhere"]} == set(prices.load().regions(A100_80)) - {"us-east5"}


def test_place_replays_recorded_traces(tmp_path: Path) -> None:
    gap = {"metadata": {"gap_seconds": 3600}}
    (tmp_path / "half.json").write_text(json.dumps(gap | {"data": [1, 1, 0, 0] * 50}))
    arguments = ["--gpu", "l4", "--hours", "20", "--batch", "--region", REGION, "--traces", str(tmp_path), "--json"]
    body = json.loads(run("place", *arguments)[1])
    spot = next(o for o in body["options"] if o["placement"] == "spot")
    # Two hours up, two down; each time up gives two hours less a restart of five minutes.
    assert spot["finish_hours"]["p50"] == pytest.approx(20 / (2 - 1 / 12) * 4, rel=0.05)
    assert body["churn"]["per_hour"] == pytest.approx(0.5)


def test_place_takes_the_wait_in_the_queue_that_is_known_here() -> None:
    out = run("place", "--gpu", "h100", "--hours", "10", "--flex-wait", "2h", "--region", REGION, "--json")[1]
    flex = next(o for o in json.loads(out)["options"] if o["placement"] == "flex-start")
    waits = [flex["finish_hours"][p] - 10 - 5 / 60 for p in ("p50", "p95")]
    assert waits == pytest.approx([2.0, 23.0], rel=0.15)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--gpu", "tpu", "--hours", "1"], "unknown GPU"),
        (["--gpu", "l4", "--hours", "1", "--churn", "0"], "churn"),
        (["--gpu", "l4", "--hours", "1", "--churn", "1", "--measured", "x.json"], "one of them"),
        (["--gpu", "l4", "--hours", "1", "--measured", "missing.json"], "measured churn"),
        (["--gpu", "l4", "--hours", "1", "--traces", "missing"], "no traces"),
        (["--gpu", "l4", "--hours", "1", "--encoding", "up"], "encoding"),
        (["--gpu", "l4", "--hours", "1", "--flex-wait", "0s"], "flex wait"),
        (["--gpu", "l4", "--hours", "10", "--deadline", "9h"], "impossible deadline"),
    ],
)
def test_place_refuses_bad_input(arguments: list[str], what: str) -> None:
    with pytest.raises(InputError, match=what):
        run("place", *arguments)


def test_prices_are_listed_with_marks_and_as_json() -> None:
    assert "2.0614*" in run("prices", "show")[1]
    body = json.loads(run("prices", "show", "--json")[1])
    assert body["fetched_at"] == prices.load().fetched_at.isoformat()
    assert len(body["usd_per_hour"]) == sum(len(prices.load().regions(a)) for a in prices.ACCELERATORS)
