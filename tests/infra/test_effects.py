"""Losses by an edit of an environment are named before anything is applied."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.platform import codec
from infra import effects
from infra.__main__ import app
from infra.describe import platform
from infra.environments import Environment
from infra.environments.schema import AcceleratorCap, Quota
from infra.environments.teams import Team
from tests.infra.samples import EXAMPLE, make_hardened, two_teams

Change = Callable[[Environment], Environment]


def change_group(name: str, **fields: object) -> Change:
    def edit(environment: Environment) -> Environment:
        groups = []
        for group in environment.groups:
            groups.append(replace(group, **fields) if group.name == name else group)
        return replace(environment, groups=tuple(groups))

    return edit


def drop_group(name: str) -> Change:
    def edit(environment: Environment) -> Environment:
        groups = [group for group in environment.groups if group.name != name]
        return replace(environment, groups=tuple(groups))

    return edit


def set_fields(**fields: object) -> Change:
    return lambda environment: replace(environment, **fields)


def cap(accelerator: str, gpus: int) -> Change:
    def edit(environment: Environment) -> Environment:
        caps = []
        for item in environment.auto_provisioning.accelerators:
            caps.append(
                AcceleratorCap(accelerator=item.accelerator, max_gpus=gpus)
                if item.accelerator == accelerator
                else item
            )
        return replace(
            environment,
            auto_provisioning=replace(environment.auto_provisioning, accelerators=tuple(caps)),
        )

    return edit


# An edit, the environment that it edits, and words of what it takes.
EDITS: dict[str, tuple[Change, Environment, tuple[str, ...]]] = {
    "more Spot nodes than the cap has room for": (
        change_group("spot-l4", max_nodes=12),
        EXAMPLE,
        (
            "flex-start of nvidia-l4: 12 to 0 GPUs",
            "quota flex-nvidia-l4 goes: its running jobs are evicted",
            "quota queued-nvidia-l4 goes",
        ),
    ),
    "a group less": (
        drop_group("spot-a100"),
        EXAMPLE,
        (
            "spot of nvidia-tesla-a100: 20 to 16 GPUs",
            "node pool spot-a100 goes: its nodes are drained and deleted",
            "quota spot-spot-a100 goes",
        ),
    ),
    "a machine type less": (
        change_group("spot-l4", machine_types=("g2-standard-8", "g2-standard-12")),
        EXAMPLE,
        ("node pool spot-l4-g2-standard-16 goes", "spot of nvidia-l4: 24 to 16 GPUs"),
    ),
    "other disks": (
        change_group("spot-a100", disk_gib=200),
        EXAMPLE,
        ("node pool spot-a100 is replaced: its nodes are drained and deleted",),
    ),
    "a local SSD": (
        change_group("spot-a100", local_ssds=1),
        EXAMPLE,
        ("node pool spot-a100 is replaced: its nodes are drained and deleted",),
    ),
    "a lower cap": (
        cap("nvidia-tesla-a100", 9),
        EXAMPLE,
        ("flex-start of nvidia-tesla-a100: 20 to 4 GPUs",),
    ),
    "a lower quota": (
        set_fields(quotas=(Quota(source="spot-l4", gpus=8),)),
        EXAMPLE,
        ("spot-l4: 24 to 8 GPUs that jobs may use",),
    ),
    "a zone less": (
        set_fields(zones=EXAMPLE.zones[:2]),
        EXAMPLE,
        ("zone us-central1-c goes: its nodes end",),
    ),
    "the short notice": (
        set_fields(spot_grace_s=30),
        make_hardened(),
        ("notice on Spot pool spot-a100: 105 to 15 s for a pod",),
    ),
    "a run less": (
        lambda environment: replace(
            environment, storage=replace(environment.storage, runs=environment.storage.runs[:1])
        ),
        make_hardened(),
        ("run gang-2 goes: it can no longer write its checkpoints", "run sweep goes"),
    ),
    "a team less": (
        lambda environment: replace(environment, teams=environment.teams[1:]),
        two_teams(),
        ("team vision goes: members lose their rights",),
    ),
    "fewer GPUs for a team": (
        lambda environment: replace(
            environment,
            teams=(
                replace(environment.teams[0], quotas=(Quota(source="nvidia-l4", gpus=1),)),
                *environment.teams[1:],
            ),
        ),
        two_teams(),
        ("team vision, nvidia-l4: 4 to 1 GPUs guaranteed",),
    ),
    "fewer GPUs for services of a team": (
        lambda environment: replace(
            environment, teams=(replace(environment.teams[0], service_gpus=2),)
        ),
        replace(two_teams(), teams=(Team(name="vision", service_gpus=8),)),
        ("team vision: 8 to 2 GPUs of services",),
    ),
    "no database": (
        set_fields(database=None),
        EXAMPLE,
        ("database acme-ai-platform:us-central1:holdfast-example-results goes",),
    ),
    "a lane less": (
        lambda environment: replace(environment, queue=replace(environment.queue, lanes=1)),
        EXAMPLE,
        ("topic holdfast-example-work-2 goes: with its backlog",),
    ),
    "no online inference": (set_fields(serving=None), EXAMPLE, ("online inference goes",)),
    "no secrets": (
        lambda environment: replace(
            environment, security=replace(environment.security, secret_manager=False)
        ),
        EXAMPLE,
        ("jobs can mount secrets",),
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_an_edit_takes_is_named(name: str) -> None:
    edit, environment, words = EDITS[name]
    differences = effects.compare(platform(environment, {}), platform(edit(environment), {}))
    losses = [effect.text for effect in differences if effect.takes]
    for expected in words:
        assert any(expected in loss for loss in losses), (expected, losses)
    takes = [effect.takes for effect in differences]
    assert takes == sorted(takes, reverse=True)


@pytest.mark.parametrize("name", EDITS)
def test_the_way_back_gives_it(name: str) -> None:
    edit, environment, _ = EDITS[name]
    back = effects.compare(platform(edit(environment), {}), platform(environment, {}))
    assert any(not effect.takes for effect in back) or name in ("other disks", "a local SSD")


def test_the_same_environment_takes_nothing() -> None:
    document = platform(EXAMPLE, {})
    assert effects.compare(document, document) == []
    assert effects.compare(None, document) == []


def test_check_compares_with_what_was_rendered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shipped environment is what was rendered; a document with more is missed."""
    assert "takes:" not in CliRunner().invoke(app, ["check", "example"]).stdout
    document = platform(change_group("spot-l4", max_nodes=9)(EXAMPLE), {})
    (tmp_path / "example").mkdir()
    (tmp_path / "example" / codec.FILE).write_text(codec.text(document))
    monkeypatch.setattr(effects, "RENDERED", tmp_path)
    printed = CliRunner().invoke(app, ["check", "example"]).stdout
    assert "takes: spot of nvidia-l4: 27 to 24 GPUs" in printed
    assert "gives: flex-start of nvidia-l4: 9 to 12 GPUs" in printed


def test_another_schema_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "example").mkdir()
    (tmp_path / "example" / codec.FILE).write_text('{"schema": "holdfast.platform/9"}')
    assert effects.read_rendered("example", tmp_path) is None
    assert effects.read_rendered("other", tmp_path) is None
