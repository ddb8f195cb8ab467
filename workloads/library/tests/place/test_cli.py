"""The commands `place` and `prices`, as their user types them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes.config import kube_config
from typer.main import get_command
from typer.testing import CliRunner

from holdfast.commands import app
from holdfast.cost import billing_catalog, prices
from holdfast.jobs.file import file_text
from holdfast.jobs.file.job_file import JobSpec
from holdfast.place import output
from holdfast.place.job import parse_accelerator
from holdfast.support.errors import InputError, Stopped, Unjudged
from holdfast.vocabulary.capacity import Placement
from tests import platforms
from workloads.library.tests.jobs.api_server import serving
from workloads.library.tests.place.worlds import A100_80, REGION

MIDDLE = "as in the record"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=True)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def place_json(*arguments: str) -> dict[str, Any]:
    sources = {"--job", "--platform", "--anywhere"} & set(arguments)
    source_options = () if sources else ("--anywhere", "all")
    return json.loads(run("place", *source_options, *arguments, "--json")[1])


def find_option(body: dict[str, Any], placement: Placement) -> dict[str, Any]:
    """Returns the first option with this placement."""
    for option in body["options"]:
        if option["placement"] == placement.value:
            return option
    raise LookupError(f"no option {placement}")


def list_names(scenarios: list[dict[str, Any]]) -> list[str]:
    return [scenario["name"] for scenario in scenarios]


def list_ways(body: dict[str, Any]) -> list[str]:
    """Returns the way of each option, as the table names it."""
    return [option["how"] for option in body["options"]]


DATED = ("--gpu", "a100", "--gpus", "8", "--hours", "40", "--deadline", "72h")


def test_place_prints_one_json_object_with_every_option_in_every_scenario() -> None:
    body = place_json(*DATED, "--checkpoint", "30s", "--anywhere", REGION)
    assert body["schema"] == "holdfast.place/3"
    names = list_names(body["scenarios"])
    assert names == ["Spot comes back at once", MIDDLE, "as in the record's worst week"]
    placements = set()
    for option in body["options"]:
        placements.add(Placement(option["placement"]))
        assert list(option["scenarios"]) == names
        usd = []
        for name in names:
            usd.append(option["scenarios"][name]["usd"]["mean"])
        assert usd == sorted(usd) or option["how"] == "wait for Spot"
    assert placements == set(Placement)
    demand = find_option(body, Placement.ON_DEMAND)
    assert demand["scenarios"][MIDDLE]["finish_hours"]["p50"] == pytest.approx(40 + 5 / 60), (
        "hours are by the clock"
    )
    assert body["break_even"]["against"] == "flex-start"
    assert body["break_even"]["churn_per_hour"] == pytest.approx(0.0725, abs=0.002)


def test_answer_has_table_choice_and_basis_in_25_lines() -> None:
    place = get_command(app).commands["place"]  # pyright: ignore[reportAttributeAccessIssue]
    shared = {"platform", "context", "as_json", "form"}
    questions = {parameter.name for parameter in place.params} - shared
    assert 0 < len(questions) <= 10
    for arguments in (
        (*DATED, "--nodes", "4..8", "--anywhere", REGION),
        ("--gpu", "a100-80", "--hours", "9", "--anywhere", "all"),
    ):
        code, out = run("place", *arguments)
        lines = out.splitlines()
        assert code == 0, out
        assert len(lines) <= 25, out
        for name in ("Spot comes back at once", MIDDLE, "worst week"):
            assert name in lines[0]
        assert out.count("<- chosen") == 1
        assert "assumed: restart 5 min" in out
    code, out = run("place", "--gpu", "l4", "--hours", "10", "--anywhere", REGION)
    lines = out.splitlines()[1:5]
    placements = ("on-demand", "flex-start", "spot", "hybrid")
    for placement, line in zip(placements, lines, strict=True):
        assert line.split()[0] == placement
    assert "Spot stops paying against on-demand above 7." in out
    out = run("place", "--anywhere", "all", "--gpu", "l4", "--hours", "0.5")[1]
    assert "$0." in out, "small sums are not rounded to nothing"
    assert "$0," not in out, "small sums are not rounded to nothing"


def test_gpus_without_on_demand_are_offered_as_whole_machines() -> None:
    for gpu in ("h200", "b200"):
        body = place_json("--gpu", gpu, "--gpus", "16", "--hours", "40", "--anywhere", REGION)
        priced = set()
        for option in body["options"]:
            if option.get("usd_per_hour"):
                priced.add(option["placement"])
        assert priced == {"spot", "flex-start"}
        assert body["nodes"] == 2
        with pytest.raises(InputError) as refused:
            run(
                "place",
                "--gpu",
                gpu,
                "--gpus",
                "3",
                "--hours",
                "4",
                "--anywhere",
                REGION,
            )
        assert refused.value.allowed == "multiples of 8"
    body = place_json("--gpu", "h100", "--hours", "10", "--deadline", "60h", "--anywhere", REGION)
    reasons = {}
    for o in body["options"]:
        if o["placement"] in ("on-demand", "hybrid"):
            reasons[o["how"]] = o["refused"]
    assert reasons.keys() >= {"on-demand only", "Spot, on-demand in time"}
    for reason in reasons.values():
        assert "a3-highgpu-1g is not sold on demand" in str(reason)


def test_what_the_user_knows_replaces_what_is_assumed(tmp_path: Path) -> None:
    job = ("--gpu", "l4", "--hours", "40", "--anywhere", REGION)
    answer = place_json(*job, "--churn", "0.25", "--spot-wait", "2h")
    assert answer["churn"] == {
        "per_hour": pytest.approx(0.25),
        "basis": "as given",
    }
    assert list_names(answer["scenarios"]) == ["Spot comes back at once", "as stated"]
    spot = find_option(answer, Placement.SPOT)["scenarios"]
    waited = (
        spot["as stated"]["finish_hours"]["p50"]
        - spot["Spot comes back at once"]["finish_hours"]["p50"]
    )
    assert waited > 20, "ten starts, each after two hours or more"
    path = tmp_path / "churn.json"
    group = {
        "machine_type": "g2-standard-8",
        "events": 50,
        "node_hours": 500,
    }
    path.write_text(
        json.dumps(
            {
                "groups": [group],
                "ages": [],
            }
        )
    )
    measured = place_json(*job, "--churn", str(path))["churn"]
    assert measured["per_hour"] == pytest.approx(52 / 540)
    assert measured["basis"].startswith("50 evictions in 500 h measured here")


def test_prices_are_listed_with_marks_and_as_json() -> None:
    assert "2.0614*" in run("place", "prices")[1]
    body = json.loads(run("place", "prices", "--json")[1])
    assert body["fetched_at"] == prices.load().fetched_at.isoformat()
    for row in body["usd_per_hour"]:
        for name in ("spot", "on-demand"):
            assert row[name] is None or row[name] > 0
        assert {*row["inferred"]} <= {*row}
    rows = 0
    for accelerator in prices.ACCELERATORS:
        rows += len(prices.load().regions(accelerator))
    assert len(body["usd_per_hour"]) == rows


def test_a_refresh_that_fails_keeps_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = prices.load()
    path = tmp_path / "prices.json"
    path.write_text(prices.dump(table))
    path.chmod(0o644)
    monkeypatch.setattr(prices, "TABLE", path)
    monkeypatch.setattr(billing_catalog, "refresh", lambda *_: table)
    output.refresh_prices()
    assert path.stat().st_mode & 0o777 == 0o644
    monkeypatch.setattr(prices, "dump", lambda _: "half of it, as on a full disk: \ud800")
    with pytest.raises(UnicodeEncodeError):
        output.refresh_prices()
    assert prices.load(path) == table and list(tmp_path.iterdir()) == [path]


WRONG = {
    "--hours 10 --checkpoint 30": "did you mean 30s, 30m or 30h",
    "--hours 10 --deadline 72": "did you mean 72s, 72m or 72h",
    "--hours 10 --deadline 1h30m": "a number with s, m, h or d",
    "--hours 10 --spot-wait 0s": "Spot wait",
    "": "how long the job works",
    "--hours 10 --platform mars": "no platform document",
    "--gpu tpu --hours 1": "unknown GPU",
    "--gpu h10 --hours 1": "did you mean h100",
    "--hours 1 --churn 0": "churn",
    "--hours 1 --churn missing.json": "measured churn",
    "--hours 10 --deadline 9h": "impossible deadline",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_place_names_what_is_wrong_and_how_to_write_it(arguments: str) -> None:
    with pytest.raises(InputError, match=WRONG[arguments]):
        source_options = () if "--platform" in arguments else ("--anywhere", "all")
        run("place", *source_options, "--gpu", "l4", *arguments.split())


def test_batch_takes_the_pool_machine_and_not_the_largest() -> None:
    arguments = (
        "--gpu",
        "l4",
        "--gpus",
        "8",
        "--hours",
        "50",
        "--checkpoint",
        "queue",
        "--anywhere",
        REGION,
    )
    body = place_json(*arguments)
    assert body["machine"] == "g2-standard-8"
    assert body["nodes"] == 8
    assert body["checkpoint_seconds"] is None
    local_answer = place_json(*arguments[:-2], "--platform", str(platforms.file("example")))
    assert local_answer["machine"] == "g2-standard-8", "the pool of the platform is taken as it is"
    assert local_answer["region"] == REGION


def test_only_a_policy_that_leaves_spot_in_time_needs_the_mover() -> None:
    arguments = (*DATED, "--anywhere", "europe-west4")
    out = run("place", *arguments)[1]
    assert "the mover carries this out" in out
    assert "on time if on-demand is granted" in out
    body = place_json(*arguments)
    assert body["chosen"] == {
        "placement": "hybrid",
        "how": "Spot, on-demand in time",
        "needs_mover": True,
    }
    assert not place_json("--gpu", "l4", "--hours", "10", "--anywhere", REGION)["chosen"][
        "needs_mover"
    ]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("A100", "nvidia-tesla-a100"),
        ("a100-40gb", "nvidia-tesla-a100"),
        ("NVIDIA A100-SXM4-40GB", "nvidia-tesla-a100"),
        ("A100 80GB", A100_80),
        ("nvidia-a100-80gb", A100_80),
        ("NVIDIA A100-SXM4-80GB", A100_80),
        ("a100_80", A100_80),
        ("H200", "nvidia-h200-141gb"),
        ("NVIDIA H200 141GB HBM3e", "nvidia-h200-141gb"),
        ("NVIDIA B200", "nvidia-b200"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb"),
        ("h100", "nvidia-h100-80gb"),
        ("NVIDIA L4", "nvidia-l4"),
    ],
)
def test_gpus_are_known_by_what_people_type(typed: str, meant: str) -> None:
    assert parse_accelerator(typed) == meant


JOB = JobSpec(
    name="mine",
    environment="example",
    image="trainer",
    command=("a",),
    gpus="8xa100",
    nodes=8,
    hours=40.0,
)


def write_question(folder: Path, *words: str, **changes: Any) -> tuple[str, ...]:
    """Writes a job file as new-job does, and returns the options of `place`."""
    file = folder / "mine.yaml"
    file.write_text(file_text.dump(replace(JOB, **changes)))
    return ("--job", str(file), *words)


def test_a_job_file_is_the_whole_question(tmp_path: Path) -> None:
    platforms.write_document(platforms.load("example"), tmp_path)
    rigid = place_json(
        *write_question(
            tmp_path,
            gpus="1xa100",
            nodes=2,
            deadline_hours=72.0,
        )
    )
    assert rigid["region"] == "us-central1"
    assert rigid["machine"] == "a2-highgpu-1g"
    assert rigid["nodes"] == 2
    assert "Spot, on-demand in time" in list_ways(rigid)
    elastic = place_json(*write_question(tmp_path, gpus="1xa100", nodes="4..8"))
    assert elastic["nodes"] == 8
    assert "elastic 4..8, wait for Spot" in list_ways(elastic)


def test_sharded_gang_loses_only_the_steps_since_a_copy(tmp_path: Path) -> None:
    at_once: dict[str, float] = {}
    for name, changes in (
        ("rigid", {}),
        ("sharded", {"sharded": True}),
        ("uncopied", {"sharded": True, "copies": 0}),
    ):
        question = write_question(tmp_path, "--churn", "0.5", **changes)
        body = place_json("--anywhere", "all", *question)
        waits = find_option(body, Placement.SPOT)
        at_once[name] = next(iter(waits["scenarios"].values()))["usd"]["mean"]
    assert at_once["sharded"] < at_once["rigid"] == at_once["uncopied"]
    shown = run("place", "--anywhere", "all", *write_question(tmp_path, sharded=True))[1]
    shown = shown.replace("\n", " ")
    assert (
        "copies in memory every 50 s, which is what a loss costs, apart from the 29% that take two"
        in shown
    )


def test_sharded_gang_that_shrinks_prints_its_share_without_notice(
    tmp_path: Path,
) -> None:
    question = write_question(tmp_path, gpus="1xa100", nodes="4..8", sharded=True)
    shown = run("place", "--anywhere", REGION, *question)[1].replace("\n", " ")
    assert "which is what a loss without a notice (assumed: 10% of them) costs" in shown


@pytest.mark.parametrize("gpus", ["1xa100", "8xh100"])
def test_sharded_gang_that_shrinks_costs_what_an_elastic_one_does(
    tmp_path: Path, gpus: str
) -> None:
    means: dict[str, float] = {}
    for name, nodes, sharded in (
        ("elastic", "4..8", False),
        ("shrinking", "4..8", True),
        ("fixed", 8, True),
    ):
        body = place_json(
            *write_question(
                tmp_path,
                gpus=gpus,
                hours=100.0,
                nodes=nodes,
                sharded=sharded,
            ),
            "--anywhere",
            REGION,
        )
        if name == "shrinking":
            assert body["chosen"]["how"] == "elastic 4..8, wait for Spot"
        options = {}
        for option in body["options"]:
            if "scenarios" in option:
                options[option["how"]] = option["scenarios"]
        scenarios = options.get("elastic 4..8, wait for Spot") or options["wait for Spot"]
        means[name] = scenarios["as in the record"]["usd"]["mean"]
    # Copies to neighbors take 2 percent of the time.
    assert means["elastic"] <= means["shrinking"] <= 1.05 * means["elastic"]
    assert means["shrinking"] < means["fixed"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("schema: holdfast.job/1", "schema: holdfast.job/2", "schema"),
        ("schema: holdfast.job/1", "kind: Job", "no job file"),
        ("gpus: 1xl4", "gpus: [1]", "gpus"),
        ("gpus: 1xl4", "gpus: none", "gpus of the job"),
        ("hours: 40.0", "hours: .nan", "hours"),
        ("hours: 40.0", "hours: 0", "hours of the job"),
        ("environment: example", "environment: mars", "another platform"),
        ("name: mine", "name: [", "line "),
    ],
)
def test_a_job_file_that_is_no_question_is_refused_by_its_field(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    platforms.write_document(platforms.load("example"), tmp_path)
    words = write_question(tmp_path, gpus="1xl4", nodes=1)
    file = Path(words[1])
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=problem):
        run("place", *words)


@pytest.mark.usefixtures("no_cluster")
def test_place_without_a_cluster_names_both_ways_out() -> None:
    with pytest.raises(Unjudged) as refused:
        run("place", "--gpu", "l4", "--hours", "3")
    assert "--platform FILE" in refused.value.fix
    assert "--anywhere all" in refused.value.fix


@pytest.fixture
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


def test_prices_say_how_many_gpus_a_machine_has() -> None:
    rows = json.loads(run("place", "prices", "--json")[1])["usd_per_hour"]
    gpus: dict[str, int] = {}
    for row in rows:
        gpus[row["machine"]] = row["gpus"]
    assert gpus["a4-highgpu-8g"] == 8
    assert gpus["g2-standard-8"] == 1


def test_place_says_that_a_region_is_not_yours() -> None:
    out = run("place", "--gpu", "l4", "--hours", "3", "--anywhere", "all")[1]
    assert "not that of your platform" in out
    assert "It likely ends after" in out


def test_place_answers_for_the_named_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document that is given too must be the one of that cluster."""
    words = [
        "place",
        "--gpu",
        "l4",
        "--hours",
        "5",
        "--context",
        "c",
        "-o",
        "json",
    ]
    other = platforms.write_document(platforms.load("dev"), tmp_path / "dev")
    with serving({"/api/v1/nodes": []}, tmp_path) as kubeconfig:
        # The client reads KUBECONFIG once, when it is imported.
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert json.loads(result.stdout)["chosen"]["gpus"] == "1xl4"
        with pytest.raises(Stopped, match="another platform"):
            CliRunner().invoke(app, [*words, "--platform", str(other)], catch_exceptions=False)
        with pytest.raises(InputError, match="no such context"):
            CliRunner().invoke(app, [*words, "--context", "d"], catch_exceptions=False)
