"""The commands `place` and `prices`, as their user types them."""

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.contract.capacity import Placement
from holdfast.contract.errors import InputError
from holdfast.contract.machines import MACHINE_TYPES
from holdfast.jobs.own import file_text
from holdfast.jobs.own.job_file import OwnJob
from holdfast.place import prices
from holdfast.place.cli import app
from holdfast.place.job import Job

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


def test_the_answer_holds_how_far_spot_may_move_and_the_hours_at_which_it_is_there() -> None:
    code, out = run("place", "--gpu", "h100", "--gpus", "16", "--hours", "10", "--region", REGION, "--json")
    body = json.loads(out)
    spot = next(o["usd_per_hour"] for o in body["options"] if o["placement"] == "spot")
    band = body["prices"]["spot_usd_per_hour"]
    assert code == 0 and band["low"] < spot <= band["high"] * 1.000001
    assert "regions of the table" in band["basis"]
    assert len(body["spot_by_hour_utc"]) == 24


@pytest.mark.parametrize("gpu", ["h200", "b200"])
def test_what_is_never_sold_on_demand_is_offered_as_spot_or_from_the_queue_and_only_whole(gpu: str) -> None:
    body = json.loads(run("place", "--gpu", gpu, "--gpus", "16", "--hours", "40", "--region", REGION, "--json")[1])
    priced = {option["placement"] for option in body["options"] if option.get("usd_per_hour")}
    assert priced == {"spot", "flex-start"} and body["nodes"] == 2
    with pytest.raises(InputError) as refused:
        run("place", "--gpu", gpu, "--gpus", "3", "--hours", "4", "--region", REGION)
    assert refused.value.allowed == "multiples of 8"


def test_the_answer_shows_how_far_the_price_of_spot_has_moved() -> None:
    body = json.loads(run("place", "--gpu", "h100", "--hours", "10", "--region", REGION, "--json")[1])
    drift = prices.load().spot_drift("nvidia-h100-80gb")
    assert drift and body["prices"]["spot_drift"] == {"low": drift.low, "high": drift.high, "regions": drift.regions}


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


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--hours", "10", "--seed", "-1"], "seed"),
        (["--hours", "10", "--together", "inf"], "nodes together"),
        (["--hours", "10", "--checkpoint", "30"], "did you mean 30s, 30m or 30h"),
        (["--hours", "10", "--restart", "5"], "did you mean 5s, 5m or 5h"),
        (["--hours", "10", "--deadline", "72"], "did you mean 72s, 72m or 72h"),
        (["--hours", "10", "--spot-wait", "0s"], "Spot wait"),
        ([], "how long the job works"),
        (["--hours", "10", "--gpu-hours", "80"], "how long the job works"),
        (["--hours", "nan"], "hours"),
        (["--hours", "0"], "hours"),
        (["--hours", "10", "--environment", "mars"], "environment"),
    ],
)
def test_place_names_what_is_wrong_and_how_to_write_it(arguments: list[str], what: str) -> None:
    with pytest.raises(InputError, match=what):
        run("place", "--gpu", "l4", *arguments)


@pytest.mark.parametrize("written", [["--hours", "40"], ["--hours", "40h"], ["--gpu-hours", "320"]])
def test_hours_by_the_clock_and_gpu_hours_are_two_options(written: list[str]) -> None:
    out = run("place", "--gpu", "a100", "--gpus", "8", *written, "--region", REGION, "--json")[1]
    demand = next(o for o in json.loads(out)["options"] if o["placement"] == "on-demand")
    assert demand["finish_hours"]["p50"] == pytest.approx(40 + 5 / 60)


@pytest.mark.parametrize("flag", ["--emit", "--plot"])
def test_files_that_cannot_be_written_are_named(flag: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=f"{flag} cannot be written"):
        run("place", "--gpu", "l4", "--hours", "10", "--region", REGION, flag, str(tmp_path / "file" / "below"))


def test_folders_of_files_are_made(tmp_path: Path) -> None:
    run("place", "--gpu", "l4", "--hours", "10", "--region", REGION, "--plot", str(tmp_path / "new" / "p.svg"))
    assert (tmp_path / "new" / "p.svg").read_text().startswith("<svg")


def test_a_machine_that_is_not_sold_on_demand_is_neither_priced_nor_emitted_so(tmp_path: Path) -> None:
    arguments = ["--gpu", "h100", "--hours", "10", "--deadline", "30h", "--region", REGION]
    _, out = run("place", *arguments, "--json", "--emit", str(tmp_path))
    body = json.loads(out)
    refused = {o["how"]: o["refused"] for o in body["options"] if o["placement"] in ("on-demand", "hybrid")}
    assert refused.keys() >= {"on-demand only", "Spot, on-demand in time", "Spot, on-demand in time, any zone"}
    assert all("a3-highgpu-1g is not sold on demand" in str(why) for why in refused.values())
    assert body["chosen"] in ("spot", "flex-start")
    assert "spot: false" not in (tmp_path / "computeclass.yaml").read_text()


def test_a_batch_takes_the_machine_of_the_environments_pool_not_the_largest() -> None:
    arguments = ["--gpu", "l4", "--gpus", "8", "--hours", "50", "--batch", "--region", REGION, "--json"]
    body = json.loads(run("place", *arguments)[1])
    assert (body["machine"], body["nodes"]) == ("g2-standard-8", 8)
    pooled = json.loads(run("place", *arguments, "--environment", "example")[1])
    assert pooled["machine"] == "g2-standard-8"


def test_a_batch_takes_of_the_offered_machines_the_one_with_the_least_host_for_a_gpu() -> None:
    offered = frozenset({"g2-standard-32", "g2-standard-24"})
    asked = Job(accelerator="nvidia-l4", gpus=8, hours=50, batch=True, offered=offered)
    assert asked.machine.name == "g2-standard-24", "32 cores for one GPU cost more than 12"
    table = prices.load()
    for capacity in prices.CAPACITIES:
        quotes = [table.quote(MACHINE_TYPES[name], REGION, capacity) for name in sorted(offered)]
        two, one = (quote.usd if quote else math.nan for quote in quotes)
        assert two / 2 < one


def test_a_batch_is_answered_in_dollars_for_1000_items() -> None:
    arguments = ["--gpu", "l4", "--gpus", "8", "--hours", "50", "--region", REGION, "--items", "2000000"]
    body = json.loads(run("place", *arguments, "--batch", "--json")[1])
    for option in body["options"]:
        assert option["usd_per_1000_items"] == pytest.approx(option["usd"]["mean"] / 2_000)
    assert "1,000 items: on-demand (on-demand only) $0." in run("place", *arguments, "--batch")[1]
    with pytest.raises(InputError, match="--items"):
        run("place", *arguments)


def test_another_seed_shows_other_numbers_and_the_same_choice() -> None:
    arguments = ["--gpu", "a100", "--gpus", "8", "--hours", "40", "--deadline", "72h", "--json"]
    bodies = [json.loads(run("place", *arguments, "--seed", str(seed))[1]) for seed in range(6)]
    how = {o["how"] for body in bodies for o in body["options"] if o["placement"] == body["chosen"]}
    assert len({body["chosen"] for body in bodies}) == 1, how
    assert len({o["usd"]["mean"] for body in bodies for o in body["options"] if o["placement"] == "spot"}) == 6


def test_a_tie_is_printed_with_its_difference() -> None:
    # On L4 flex-start has no discount, so it costs what on-demand costs.
    _, out = run("place", "--gpu", "l4", "--hours", "10", "--churn", "50", "--region", REGION)
    assert "tie: " in out
    assert "-0%" not in out


def test_small_sums_are_not_rounded_to_nothing() -> None:
    result = CliRunner().invoke(app, ["place", "--gpu", "l4", "--hours", "0.5"])
    assert "$0," not in result.output
    assert "$0." in result.output


def test_lateness_states_its_assumption_and_what_happens_without_it() -> None:
    arguments = ["--gpu", "a100", "--gpus", "8", "--hours", "40", "--deadline", "72h", "--region", "europe-west4"]
    _, out = run("place", *arguments)
    assert "if on-demand is granted when asked for" in out
    assert "if on-demand is never granted" in out
    body = json.loads(run("place", *arguments, "--json")[1])
    assert body["late_assumes"] == "on-demand is granted when asked for"


def test_the_manifests_state_what_they_do_instead_of_the_priced_policy(tmp_path: Path) -> None:
    from ruamel.yaml import YAML

    arguments = ["--gpu", "a100", "--gpus", "8", "--hours", "40", "--deadline", "72h", "--region", "europe-west4"]
    _, out = run("place", *arguments, "--emit", str(tmp_path))
    assert "Spot, on-demand in time needs" in out
    pod = YAML(typ="safe").load((tmp_path / "placement.yaml").read_text())
    policy = pod["holdfast"]["policy"]
    assert policy["priced"] == "Spot, on-demand in time"
    assert policy["byTheClassAlone"] == "Spot, else on-demand at once"
    assert policy["classMeanUsd"] > policy["meanUsd"]
    spec = YAML(typ="safe").load((tmp_path / "computeclass.yaml").read_text())["spec"]
    assert spec["activeMigration"] == {"optimizeRulePriority": True}
    assert [rule["spot"] for rule in spec["priorities"]] == [True, False]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("A100", "nvidia-tesla-a100"), ("a100-40gb", "nvidia-tesla-a100"), ("NVIDIA A100-SXM4-40GB", "nvidia-tesla-a100"),
        ("A100 80GB", A100_80), ("nvidia-a100-80gb", A100_80), ("NVIDIA A100-SXM4-80GB", A100_80), ("a100_80", A100_80),
        ("H200", "nvidia-h200-141gb"), ("NVIDIA H200 141GB HBM3e", "nvidia-h200-141gb"), ("NVIDIA B200", "nvidia-b200"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb"), ("h100", "nvidia-h100-80gb"), ("NVIDIA L4", "nvidia-l4"),
    ],
)  # fmt: skip
def test_gpus_are_known_by_what_people_type(typed: str, meant: str) -> None:
    from holdfast.place.job import accelerator

    assert accelerator(typed) == meant


@pytest.mark.parametrize("typed", ["GB200", "NVIDIA GB200", "a4x"])
def test_gpus_of_which_no_price_is_known_are_refused_with_what_is_missing(typed: str) -> None:
    with pytest.raises(InputError, match="unpriced GPU") as refused:
        run("place", "--gpu", typed, "--hours", "10")
    assert "prices refresh" in refused.value.fix


def test_an_elastic_gang_of_a_job_file_is_asked_about_with_all_of_its_nodes(tmp_path: Path) -> None:
    from holdfast.jobs.own import file_text
    from holdfast.jobs.own.job_file import OwnJob
    from holdfast.place import job_file

    file = tmp_path / "mine.yaml"
    given = OwnJob(name="mine", environment="example", image="trainer", command=("a",), gpus="1xa100", nodes="4..8", hours=40.0)  # fmt: skip
    file.write_text(file_text.dump(given))
    assert (job_file.read(file).gpus, job_file.read(file).nodes) == (8, "4..8")
    asked = json.loads(CliRunner().invoke(app, ["place", "--job", str(file), "--json"]).stdout)
    assert asked["nodes"] == 8
    assert "elastic 4..8, wait for Spot" in {option["how"] for option in asked["options"]}
    text = file.read_text()
    for wrong in ("4-8", "8..4"):
        file.write_text(text.replace("4..8", wrong))
        with pytest.raises(InputError, match="nodes"):
            job_file.read(file)


def test_a_job_file_as_new_job_writes_it_is_the_whole_question(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    job = OwnJob(
        name="mine", environment="example", image="trainer", command=("python", "train.py"), gpus="1xa100", nodes=2,
        hours=40.0, deadline_hours=72.0,
    )  # fmt: skip
    file.write_text(file_text.dump(job))
    answer = json.loads(run("place", "--job", str(file), "--json")[1])
    assert (answer["region"], answer["machine"], answer["nodes"]) == ("us-central1", "a2-highgpu-1g", 2)
    assert {"Spot, on-demand in time"} <= {option["how"] for option in answer["options"]}
    file.write_text("schema: holdfast.job/1\ngpus: [1]\nhours: 4\n")
    with pytest.raises(InputError, match="gpus of the job"):
        run("place", "--job", str(file))
    for text in ("", "[", "schema: holdfast.job/2\n", "schema: holdfast.job/1\ngpus: 1xa100\nhours: .nan\n"):
        file.write_text(text)
        with pytest.raises(InputError, match="job"):
            run("place", "--job", str(file))
