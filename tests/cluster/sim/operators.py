"""JobSet and Kueue as host processes: what `apply --operators` sends, webhooks pointed at this
host.

Installed once into the session's cluster. What runs in the cluster otherwise (Deployment, Service,
...) is left out; what decides (definitions, roles, configuration, admission) is what a real cluster
gets.
"""

import base64
import json
import os
import shutil
from pathlib import Path

import yaml

from holdfast.clients.api import Api, Object
from holdfast.manifests.render_context import RenderContext
from tests import platforms, support
from tests.cluster.sim.host import Host
from tests.cluster.sim.processes import free_ports
from tests.cluster.sim.waiting import until
from tests.tools.build import TOOLS
from workloads.operators import install as product
from workloads.operators import overlay
from workloads.operators.catalogue import CRD, JOBSET, KUEUE, WEBHOOKS, Operator

__all__ = ["JOBSET", "KUEUE", "Operator", "install"]

# PodDisruptionBudget and quota bound pods that are not there.
REPLACED_BY_THE_PROCESS = {
    "Deployment",
    "Service",
    "ConfigMap",
    "Secret",
    "PodDisruptionBudget",
    "ResourceQuota",
}

# Manifests of Trainer; there if its binary is.
TRAINER = TOOLS["trainer"].binary.parent / "manifests"
TRAINER_API = "/apis/trainer.kubeflow.org/v1alpha1"
# Folder below /etc in which a binary insists on finding its metrics certificate.
FIXED_CERTIFICATES = {"kueue": "kueue/metrics/certs"}


def install(operator: Operator, plane: Host, api: Api) -> None:
    """Applies what `apply --operators` sends, starts the operator's process, and applies its
    webhooks last: they would refuse everything before the process serves.
    """
    if operator is KUEUE:
        _define_train_jobs(api)
    plane.authority.issue(operator.name)
    health, metrics = free_ports(2)
    (webhook,) = free_ports(1, plane.address)
    address = f"https://{plane.address}:{webhook}"
    context = RenderContext(platforms.load("example"))
    objects = []
    for o in overlay.objects(operator, context):
        objects.append(redirect_webhooks(o, address, plane.authority.ca))
    list(product.apply(api, operator, [o for o in objects if is_served_by_cluster(o)]))
    _start(operator, plane, api, _configuration(operator, plane, webhook, health, metrics))
    plane.processes.wait_until(f"{operator.name} is ready", lambda: serves(health))
    list(
        product.apply(
            api, operator, [o for o in objects if o["kind"] not in REPLACED_BY_THE_PROCESS]
        )
    )
    until(
        f"the webhooks of {operator.name} answer",
        lambda: not product.find_webhook_fault(api, operator),
    )


def is_served_by_cluster(each: Object) -> bool:
    return each["kind"] not in {*REPLACED_BY_THE_PROCESS, *WEBHOOKS}


def _define_train_jobs(api: Api) -> None:
    """Defines TrainJobs before Kueue starts, which looks for them ever less often."""
    files = sorted(TRAINER.glob("base/crds/trainer.kubeflow.org_*.yaml"))
    for file in files:
        (body,) = yaml.load_all(file.read_text(), yaml.CSafeLoader)
        api.apply(api.path_of(body), body)
    if files:
        until("TrainJobs are served", lambda: api.find(f"{TRAINER_API}/trainjobs"))


def _configuration(
    operator: Operator,
    plane: Host,
    webhook: int,
    health: int,
    metrics: int,
) -> Object:
    """Returns the platform's own, but with other addresses, certificates and client rate limits."""
    config = json.loads(overlay.configuration_text(operator)) | {
        "webhook": {
            "port": webhook,
            "host": plane.address,
            "certDir": str(_certificates(operator, plane)),
        },
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": 500, "burst": 1000},
    }
    if operator.name not in FIXED_CERTIFICATES:
        config["metrics"] |= {"certDir": str(_certificates(operator, plane))}
    return config


def redirect_webhooks(each: Object, address: str, ca: Path) -> Object:
    """Changes the webhooks of an object to the address of the host process."""
    bundle = base64.b64encode(ca.read_bytes()).decode()
    if each["kind"] in WEBHOOKS:
        for webhook in each["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": f"{address}{path}", "caBundle": bundle}
    conversion = each["spec"].get("conversion", {}) if each["kind"] == CRD else {}
    if conversion.get("strategy") == "Webhook":
        url = f"{address}/convert"
        conversion["webhook"]["clientConfig"] = {"url": url, "caBundle": bundle}
    return each


def _certificates(operator: Operator, plane: Host) -> Path:
    """Writes tls.crt and tls.key into one folder, as controllers expect, and returns it. It lies in
    the folder whose files `under_etc` adds to /etc.
    """
    etc = plane.folder / operator.name / "etc"
    folder = etc / FIXED_CERTIFICATES.get(operator.name, "certs")
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in (
        ("tls.crt", plane.authority.certificate),
        ("tls.key", plane.authority.key),
    ):
        (folder / name).touch(mode=0o600)
        (folder / name).write_bytes(source(operator.name).read_bytes())
    return folder


def _start(operator: Operator, plane: Host, api: Api, config: Object) -> None:
    """Starts it with the token of its own service account, so that its shipped roles are tested."""
    accounts = f"/api/v1/namespaces/{operator.namespace}/serviceaccounts"
    account = f"{accounts}/{operator.name}-controller-manager/token"
    token = api.create(account, {"spec": {"expirationSeconds": 86_400}})["status"]["token"]
    kubeconfig = plane.write_kubeconfig(operator.name, {"token": token})
    command = [
        str(TOOLS[operator.name].binary),
        f"--config={plane.write_json(f'{operator.name}.json', config)}",
    ]
    if operator.name in FIXED_CERTIFICATES:
        command = under_etc(plane.folder / operator.name / "etc", command)
    plane.processes.start(operator.name, command, {"KUBECONFIG": str(kubeconfig)})


def under_etc(extra: Path, command: list[str]) -> list[str]:
    """Returns `command` in its own mount namespace, where /etc also has the files of `extra`.

    It serves a path that is fixed in a binary. Entering the namespace clears the parent-death
    signal, so setpriv sets it again.
    """
    lacking = []
    for name in ("mount", "setpriv", "unshare"):
        if not shutil.which(name):
            lacking.append(name)
    support.require(
        not lacking, f"an operator needs an /etc of its own: {', '.join(lacking)} not on PATH"
    )
    script = (
        'mount -t overlay overlay -o "lowerdir=$0:/etc" /etc && exec setpriv --pdeathsig KILL "$@"'
    )
    if os.geteuid() == 0:
        entry = ["unshare", "--mount"]
    else:
        entry = ["unshare", "--user", "--map-root-user", "--mount"]
    return [
        *entry,
        "sh",
        "-c",
        script,
        str(extra),
        *command,
    ]


def serves(port: int) -> bool:
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False
