"""Commands `images build|copy`. Bodies import what they need, so that --help is quick."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from holdfast.support.command_line import new_app
from holdfast.support.examples import examples
from holdfast.support.progress import working

app = new_app("Images of the roles: build, push, pin by digest.")
Env = Annotated[
    str, typer.Argument(metavar="ENV", help="A module of infra/environments, for example example.")
]
Registry = Annotated[
    str, typer.Option(help="Prefix to push to; default: the environment's repository.")
]
PlainHttp = Annotated[
    bool, typer.Option("--plain-http", help="The registry is on this host, without TLS.")
]
ROOT = Path(__file__).parents[2]


@app.command(
    epilog=examples(
        "python -m workloads images build example",
        "python -m workloads images build example trainer --with buildah",
    )
)
def build(
    env: Env,
    roles: Annotated[list[str] | None, typer.Argument(help="Roles; none means all.")] = None,
    builder: Annotated[
        str, typer.Option("--with", help="buildx or buildah; default: the first one installed.")
    ] = "",
    base: Annotated[
        str, typer.Option(help="IMAGE@sha256:...; default: workloads/images/base.json.")
    ] = "",
    registry: Registry = "",
    plain_http: PlainHttp = False,
    pip_conf: Annotated[
        Path | None, typer.Option(help="pip.conf used only in the build.", exists=True)
    ] = None,
    ca_bundle: Annotated[
        Path | None, typer.Option(help="CA certificates used only in the build.", exists=True)
    ] = None,
) -> None:
    """Build images, push them, write their digests. Next: make render."""
    from infra.describe import load_platform
    from workloads.images import builders, pins

    platform = load_platform(env)
    role_names = pins.choose(roles or [], [*pins.ROLES], "role")
    name = builders.choose(builder)
    secrets: dict[str, Path] = {}
    if pip_conf:
        secrets["pip"] = pip_conf.resolve()
    if ca_bundle:
        secrets["ca"] = ca_bundle.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        fields = {
            "base": pins.base(base),
            "plain_http": plain_http,
            "secrets": secrets,
            "scratch": Path(scratch),
        }
        for role in role_names:
            plan = builders.make_build(role, ROOT, registry or platform.registry, **fields)
            with working(f"{name} builds {role}"):
                digest = builders.BUILDERS[name](plan)
            pins.record(env, {role: digest})
            print(f"{plan.target}@{digest}")
    typer.echo(
        "Next: make render, then commit workloads/images/digests.json and workloads/rendered",
        err=True,
    )


@app.command(epilog=examples("python -m workloads images copy example"))
def copy(
    env: Env,
    names: Annotated[
        list[str] | None, typer.Argument(help="Third-party images; none means all.")
    ] = None,
    registry: Registry = "",
    plain_http: PlainHttp = False,
) -> None:
    """Copy JobSet, Kueue, Envoy and the Cloud SQL proxy into the environment's repository, and
    write their digests.
    """
    from infra.describe import load_platform
    from workloads.images import copying, pins

    target = registry or load_platform(env).registry
    for name in pins.choose(names or [], sorted(pins.COPIED), "third-party image"):
        source = pins.COPIED[name]
        image = f"{target}/{name}:{source.rpartition(':')[2]}"
        with working(f"copy {name}"):
            digest = copying.copy(source, image, plain_http=plain_http)
        pins.record(env, {name: digest})
        print(f"{image}@{digest}")
    typer.echo(f"Next: make render, then make operators ENV={env}", err=True)
