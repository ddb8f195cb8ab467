"""Composition root: names every stack. The `app` of cdktf.json.

HOLDFAST_ENV names the environment, or several with commas. HOLDFAST_STATE=local keeps state in
out/state whatever the environment says, for plans without a project. HOLDFAST_UNPROTECTED names the
environment that is about to be destroyed, on purpose. HOLDFAST_RUN labels everything with the run
of a proof. CDKTF_OUTDIR is the CDK's own variable.
"""

import argparse
import json
import os
import shutil
from pathlib import Path

from holdfast.support.errors import InputError, run_cli
from infra import cdk
from infra.environments import Environment, imports_of, load
from infra.environments import names as environment_names
from infra.rules import require_clean
from infra.specs import AREAS
from infra.specs.outputs import outputs
from infra.stacks import stack
from monitoring.stack import resources as monitoring

# Checksums of the provider on every platform, written by `python -m infra.ops.provider_lock`.
LOCK = Path(__file__).with_name("provider.lock.hcl")


def build(app: cdk.App, environment: Environment, *, local_state: bool) -> None:
    """The stacks of one environment, in the order in which they are deployed."""
    require_clean(environment)
    shown = outputs(environment)
    before = None
    for area, specs in {**AREAS, "monitoring": monitoring}.items():
        made = stack(app, area, environment, specs(environment), local_state=local_state)
        if before is not None:
            made.add_dependency(before)
        if area == "cluster" and (adopted := imports_of(environment.name)).exists():
            made.add_override("import", json.loads(adopted.read_text()))
        for name, value in shown[area].items():
            made.output(name, value)
        before = made


def main() -> None:
    chosen = [name for name in os.environ.get("HOLDFAST_ENV", "").split(",") if name]
    if not chosen:
        # Of all, `cdktf deploy '*'` would deploy the example too.
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
    for name in chosen:
        environment = load(name)
        if name == os.environ.get("HOLDFAST_UNPROTECTED"):
            environment = environment.unprotected()
        run = os.environ.get("HOLDFAST_RUN")
        if run:
            environment = environment.of_run(run)
        build(app, environment, local_state=local_state)
    app.synth()
    if LOCK.exists() and not local_state:
        for folder in Path(outdir, "stacks").iterdir():
            shutil.copy(LOCK, folder / ".terraform.lock.hcl")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    run_cli(main)
