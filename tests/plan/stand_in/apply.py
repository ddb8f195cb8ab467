"""Terraform with the real provider against the stand-in."""

import json
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.ops import engine
from infra.ops.deploy import bootstrap
from infra.ops.plan import take_over
from tests.plan.stand_in.app import NUMBER, fill_placeholders
from tests.plan.stand_in.server import CLOCK, endpoints
from tests.plan.stand_in.world import World
from tests.support import program

# The provider waits for seconds after some calls; many of them at once make a whole apply short.
AT_ONCE = "-parallelism=40"
# This program lets the stand-in's time pass, without waiting.
SLEEP = """#!{python} -IS
import http.client, sys
# Not by urllib, which would go through the proxy that refuses everything.
connection = http.client.HTTPConnection("{host}")
connection.request("GET", "/{world}/{clock}/" + sys.argv[1])
sys.exit(connection.getresponse().status != 200)
"""


def fresh_project(environment: str) -> World:
    """Return a project after `make bootstrap`, but without its APIs."""
    settings = fill_placeholders(environment)
    world = World(
        project=settings.project,
        number=NUMBER,
        keys={settings.security.kms_key},
    )
    if settings.delivery:
        world.callers = {role: settings.member(role) for role in ("planner", "deployer")}
    for command in bootstrap(settings, dry_run=True):
        world.run(command)
    return world


@dataclass(frozen=True, kw_only=True)
class Project:
    """The working folder of one environment's stacks, and the address of its world."""

    folder: Path
    """Its name is that of the world on the server."""
    address: str
    world: World
    caller: str = ""
    """The role whose account calls, such as planner; empty: an owner."""

    def stack(self, synthesized: Path, name: str) -> Path:
        """Prepare a stack's folder for an apply. With another synthesis, it keeps its state."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(synthesized / "stacks" / name / "cdk.tf.json", folder)
        backend = {"terraform": {"backend": {"local": {"path": "here.tfstate"}}}}
        (folder / "backend_override.tf.json").write_text(json.dumps(backend))
        if not (folder / ".terraform").exists():
            _initialize(folder, self.folder.parent)
        return folder

    def run(self, stack: Path, *arguments: str) -> str:
        """Return standard output. Raises EngineFailed with Terraform's output."""
        return self.engine().run(stack, *arguments)

    def apply(self, stack: Path, *options: str) -> str:
        return self.run(stack, "apply", "-no-color", "-auto-approve", AT_ONCE, *options)

    def destroy(self, stack: Path) -> str:
        """Destroy a stack whose state equals the stand-in, since it was compared before."""
        return self.run(stack, "destroy", "-no-color", "-auto-approve", "-refresh=false", AT_ONCE)

    def changes(self, stack: Path) -> dict[str, Any]:
        """Return address -> change of a plan against the stand-in; empty if nothing differs."""
        events = self.run(stack, "plan", "-json", AT_ONCE, "-out=again").splitlines()
        # Showing a plan starts the provider again, which takes as long as the plan itself.
        if not any(json.loads(event)["type"] == "planned_change" for event in events):
            return {}
        plan = json.loads(self.run(stack, "show", "-json", "again"))
        changes = {}
        for resource in plan["resource_changes"]:
            if resource["change"]["actions"] != ["no-op"]:
                changes[resource["address"]] = resource["change"]
        return changes

    def engine(self) -> engine.Engine:
        """Return Terraform with variables that let it reach the stand-in and nothing else."""
        run = engine.isolate(engine.offline())
        path = f"{self._sleep().parent}:{run.environment['PATH']}"
        variables = {
            **run.environment,
            **endpoints(self.address, self.folder.name),
            "PATH": path,
        }
        if self.caller:
            variables["GOOGLE_OAUTH_ACCESS_TOKEN"] = self.caller
        return engine.Engine(command=run.command, environment=variables)

    def _sleep(self) -> Path:
        script = self.folder / "bin" / "sleep"
        if not script.exists():
            host = self.address.removeprefix("http://")
            program(
                script,
                SLEEP.format(
                    python=sys.executable,
                    host=host,
                    world=self.folder.name,
                    clock=CLOCK,
                ),
            )
        return script


_ONE_AT_A_TIME = threading.Lock()


def _initialize(folder: Path, shared: Path) -> None:
    """Initialize a stack. All stacks have one provider, which is looked for once."""
    with _ONE_AT_A_TIME:
        if not (shared / ".terraform").exists():
            engine.offline().run(folder, "init", "-no-color", "-reconfigure")
            take_over(folder, shared)
        else:
            take_over(shared, folder)


def synthesize(out: Path) -> Path:
    """Synthesize the variants of tests.plan.stand_in.app, and return their folder."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.plan.stand_in.app",
            str(out),
        ],
        check=True,
    )
    return out
