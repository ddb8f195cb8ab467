"""A CDK app without cloud resources, for the command line's deploy: `--app "python -m tests.plan.trial_app"`."""

import os

import cdktf

app = cdktf.App(outdir=os.environ["CDKTF_OUTDIR"])
stack = cdktf.TerraformStack(app, "trial")
cdktf.LocalBackend(stack, path=os.environ["TRIAL_STATE"])
cdktf.DataResource(stack, "nothing", input={"says": "deployed"})
app.synth()
