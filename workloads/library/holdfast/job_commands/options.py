"""The options that all commands for a cluster share: one name, one letter and one help each."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Form(StrEnum):
    """The forms in which a command prints its data."""

    TEXT = "text"
    JSON = "json"


Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Output = Annotated[Form, typer.Option("--output", "-o", help="json is the same as --json.")]
Kubeconfig = Annotated[
    Path | None, typer.Option(help="Default: KUBECONFIG or ~/.kube/config, as for kubectl.")
]
Context = Annotated[str, typer.Option(help="Context of the kubeconfig; default: the current one.")]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="Default: every namespace that you may read.")
]
Events = Annotated[
    Path | None, typer.Option(help="Folder of event lines: step, last save, useful share.")
]
PlatformFile = Annotated[
    Path | None, typer.Option("--platform", help="platform.json; default: that of the cluster.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
JobName = Annotated[str, typer.Argument(help="Name of a job or of its run.", show_default=False)]
