"""Composition root: builds every stack. It is the `app` of cdktf.json.

HOLDFAST_ENV names the environment, or several with commas. HOLDFAST_STATE=local keeps state in
out/state whatever the environment says, for plans without a project. HOLDFAST_UNPROTECTED names the
environment whose protections are left out before a destroy. HOLDFAST_RUN labels everything with the
run of a proof. CDKTF_OUTDIR is the CDK's own variable.
"""

import argparse
import json
import os
import shutil
from pathlib import Path

from holdfast.support.errors import InputError, run_cli
from infra import cdk
from infra.environments import Environment, imports_path, load
from infra.environments import names as environment_names
from infra.ops import provider_lock
from infra.rules import require_clean
from infra.specs import AREAS
from infra.specs.outputs import outputs
from infra.stacks import stack
from monitoring.stack import resources as monitoring


def build(app: cdk.App, environment: Environment, *, local_state: bool) -> None:
    """Build the stacks of one environment, in the order in which they are deployed."""
    require_clean(environment)
    values = outputs(environment)
    imports = imports_path(environment.name)
    previous = None
    for area, specs in {**AREAS, "monitoring": monitoring}.items():
        current = stack(app, area, environment, specs(environment), local_state=local_state)
        if previous is not None:
            current.add_dependency(previous)
        if area == "cluster" and imports.exists():
            current.add_override("import", json.loads(imports.read_text()))
        for name, value in values[area].items():
            current.output(name, value)
        previous = current


def main() -> None:
    selected = [name for name in os.environ.get("HOLDFAST_ENV", "").split(",") if name]
    if not selected:
        # With all of them, `cdktf deploy '*'` would deploy the example too.
        raise InputError(
            "no environment is chosen",
            got="no HOLDFAST_ENV",
            allowed=", ".join(environment_names()),
            fix="HOLDFAST_ENV=NAME before the command",
        )
    local_state = os.environ.get("HOLDFAST_STATE") == "local"
    outdir = os.environ.get("CDKTF_OUTDIR", "cdktf.out")
    Path(outdir).mkdir(parents=True, exist_ok=True)
    app = cdk.App(outdir=outdir)
    for name in selected:
        environment = load(name)
        if name == os.environ.get("HOLDFAST_UNPROTECTED"):
            environment = environment.without_protection()
        run = os.environ.get("HOLDFAST_RUN")
        if run:
            environment = environment.with_run_label(run)
        build(app, environment, local_state=local_state)
    app.synth()
    lock = provider_lock.find()
    if lock:
        for folder in Path(outdir, "stacks").iterdir():
            shutil.copy(lock, folder / ".terraform.lock.hcl")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    run_cli(main)
