"""A destroy of a protected environment is refused in its first stack, before an alert is gone."""

from pathlib import Path

import pytest

from infra import cdk
from infra.environments import Environment
from infra.main import build
from infra.ops import engine
from tests import support
from tests.plan.conftest import lacks_provider
from tests.plan.stand_in.app import fill_placeholders

pytestmark = [pytest.mark.plan, pytest.mark.timeout(600)]
GUARD = "terraform_data.protected-run-make-destroy"


def prepare(environment: Environment, out: Path) -> tuple[engine.Engine, Path]:
    """Synthesize the stack of alerts, and apply its guard alone, which needs no project."""
    app = cdk.App(outdir=str(out))
    build(app, environment, local_state=True)
    app.synth()
    folder = out / "stacks" / f"monitoring-{environment.name}"
    (folder / "backend_override.tf.json").write_text(
        '{"terraform": {"backend": {"local": {"path": "guard.tfstate"}}}}'
    )
    run = engine.offline()
    try:
        run.run(folder, "init", "-no-color", "-reconfigure")
    except engine.EngineFailed as error:
        support.require(
            not lacks_provider(str(error)),
            "neither a provider mirror nor the registry is reachable",
        )
        raise
    isolated = engine.isolate(run)
    isolated.run(folder, "apply", "-no-color", "-auto-approve", f"-target={GUARD}")
    return isolated, folder


def test_protected_environment_refuses_first_and_names_the_way(tmp_path: Path) -> None:
    run, folder = prepare(fill_placeholders("prod"), tmp_path)
    with pytest.raises(engine.EngineFailed) as caught:
        run.run(folder, "destroy", "-no-color", "-auto-approve")
    assert "protected-run-make-destroy" in str(caught.value)
    assert "prevent_destroy" in caught.value.output.replace("\n", " ")
    assert "guard" not in run.run(folder, "state", "list").replace(GUARD, "")
    assert GUARD in run.run(folder, "state", "list")


def test_unprotected_environment_is_destroyed(tmp_path: Path) -> None:
    run, folder = prepare(fill_placeholders("prod").without_protection(), tmp_path)
    run.run(folder, "destroy", "-no-color", "-auto-approve")
    assert GUARD not in run.run(folder, "state", "list")
