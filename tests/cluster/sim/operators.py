"""JobSet and Kueue as host processes: their own manifests and RBAC, webhooks pointed at this host.

Installed once into the session's cluster. What runs in the cluster otherwise (Deployment, Service, ...) is
left out; what decides (CRDs, roles, admission) is theirs, unchanged.
"""

import base64
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.sim.host import Host
from tests.cluster.sim.processes import free_ports
from tests.cluster.sim.waiting import until
from tests.tools.build import TOOLS
from workloads.jobs.api import Api, Object

REPLACED_BY_THE_PROCESS = {"Deployment", "Service", "ConfigMap", "Secret", "APIService"}
WEBHOOKS = {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
# The API paths of what the manifests contain.
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
}


@dataclass(frozen=True, kw_only=True)
class Operator:
    name: str
    config: Object
    kinds: tuple[str, ...] = ()
    """Keep only the webhooks of these plurals; empty keeps all."""
    fixed_certificates: str = ""
    """Where the binary insists on its metrics certificate, below /etc."""

    @property
    def namespace(self) -> str:
        return f"{self.name}-system"


JOBSET = Operator(name="jobset", config={"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration"})
KUEUE = Operator(
    name="kueue",
    config={
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "featureGates": {"VisibilityOnDemand": False},
        "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset"]},
    },
    kinds=("clusterqueues", "cohorts", "jobs", "jobsets", "resourceflavors", "workloads"),
    fixed_certificates="kueue/metrics/certs",
)


def install(operator: Operator, plane: Host, api: Api) -> None:
    """Its objects, its process, and last its webhooks, which would refuse everything before it serves."""
    plane.authority.issue(operator.name)
    health, metrics = free_ports(2)
    (webhook,) = free_ports(1, plane.address)
    address = f"https://{plane.address}:{webhook}"
    objects = [aimed(o, operator, address, plane.authority.ca) for o in manifests(operator)]
    for each in (o for o in objects if o["kind"] not in WEBHOOKS):
        apply(api, each)
    until("the CRDs are served", lambda: all(established(api, o) for o in objects))
    config = operator.config | {
        "webhook": {"port": webhook, "host": plane.address, "certDir": str(_certificates(operator, plane))},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": 500, "burst": 1000},
    }
    if not operator.fixed_certificates:
        config["metrics"] |= {"certDir": str(_certificates(operator, plane))}
    _start(operator, plane, api, config)
    plane.processes.wait_until(f"{operator.name} is ready", lambda: _serves(health))
    for each in (o for o in objects if o["kind"] in WEBHOOKS):
        apply(api, each)


def manifests(operator: Operator) -> list[Object]:
    folder = TOOLS[operator.name].binary.parent / "config" / "default"
    command = [str(TOOLS["kubectl"].binary), "kustomize", str(folder)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return [each for each in found if each["kind"] not in REPLACED_BY_THE_PROCESS]


def aimed(each: Object, operator: Operator, address: str, ca: Path) -> Object:
    """The object with its webhooks at the host process."""
    bundle = base64.b64encode(ca.read_bytes()).decode()
    if each["kind"] in WEBHOOKS:
        each["webhooks"] = [w for w in each["webhooks"] if _wanted(w, operator)]
        for webhook in each["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": f"{address}{path}", "caBundle": bundle}
    conversion = each["spec"].get("conversion", {}) if each["kind"] == "CustomResourceDefinition" else {}
    if conversion.get("strategy") == "Webhook":
        url = f"{address}/convert"
        conversion["webhook"]["clientConfig"] = {"url": url, "caBundle": bundle}
    return each


def _wanted(webhook: dict[str, Any], operator: Operator) -> bool:
    named = {resource.split("/")[0] for rule in webhook["rules"] for resource in rule["resources"]}
    return not operator.kinds or bool(named & set(operator.kinds))


def apply(api: Api, each: Object) -> None:
    meta = each["metadata"]
    path = PATHS[each["kind"]].format(namespace=meta.get("namespace", ""))
    api.apply(f"{path}/{meta['name']}", each)


def established(api: Api, each: Object) -> bool:
    if each["kind"] != "CustomResourceDefinition":
        return True
    found = api.get(f"{PATHS[each['kind']]}/{each['metadata']['name']}")
    return any(c["type"] == "Established" and c["status"] == "True" for c in found["status"].get("conditions") or ())


def _certificates(operator: Operator, plane: Host) -> Path:
    """The layout that controllers expect: tls.crt and tls.key in a folder; below it what /etc should hold."""
    etc = plane.folder / operator.name / "etc"
    folder = etc / (operator.fixed_certificates or "certs")
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in (("tls.crt", plane.authority.certificate), ("tls.key", plane.authority.key)):
        (folder / name).touch(mode=0o600)
        (folder / name).write_bytes(source(operator.name).read_bytes())
    return folder


def _start(operator: Operator, plane: Host, api: Api, config: Object) -> None:
    """Under the token of its own service account, so that its shipped roles are what is tested."""
    account = f"/api/v1/namespaces/{operator.namespace}/serviceaccounts/{operator.name}-controller-manager/token"
    token = api.create(account, {"spec": {"expirationSeconds": 86_400}})["status"]["token"]
    kubeconfig = plane.write_kubeconfig(operator.name, {"token": token})
    command = [str(TOOLS[operator.name].binary), f"--config={plane.write_json(f'{operator.name}.json', config)}"]
    if operator.fixed_certificates:
        command = under_etc(plane.folder / operator.name / "etc", command)
    plane.processes.start(operator.name, command, {"KUBECONFIG": str(kubeconfig)})


def under_etc(extra: Path, command: list[str]) -> list[str]:
    """`command` in a mount namespace of its own, where /etc also holds what `extra` holds.

    For a path that is fixed in a binary. Entering the namespace forgets the signal of a parent's death.
    """
    script = 'mount -t overlay overlay -o "lowerdir=$0:/etc" /etc && exec setpriv --pdeathsig KILL "$@"'
    entry = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    return [*entry, "sh", "-c", script, str(extra), *command]


def _serves(port: int) -> bool:
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False
