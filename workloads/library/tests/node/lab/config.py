"""Configuration files of one machine: bus, container network, containerd, kubelet."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

IMAGE = "holdfast.test/busybox:1"
CLUSTER_DOMAIN = "cluster.local"
CNI_PLUGINS = "/usr/lib/cni"


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """Settings of the first process of a machine; written as JSON by the lab."""

    name: str
    folder: str
    cgroup: str
    kubelet: str
    image: str
    kubeconfig: str
    ca: str
    port: int
    labels: dict[str, str]
    taints: list[dict[str, str]]
    total_s: int
    critical_s: int
    address: str
    """Address of the node; a kubelet accepts no loopback address."""
    network: str
    """Configuration of the container network, JSON."""
    registry: str = ""
    """HOST:PORT that answers for every registry; "" leaves each name to its own."""

    @property
    def path(self) -> Path:
        return Path(self.folder)

    def save(self) -> Path:
        target = self.path / "machine.json"
        target.write_text(json.dumps(asdict(self)))
        return target

    @classmethod
    def load(cls, path: Path) -> "MachineConfig":
        return cls(**json.loads(path.read_text()))


def bus(socket: Path) -> str:
    return f"""<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
    <allow user="*"/>
  </policy>
</busconfig>
"""


def containerd(folder: Path, state: str = "/run/containerd") -> str:
    return f"""version = 2
root = "{folder}/containerd/root"
state = "{state}"
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs",
]
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{folder}/certs.d"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def mirror(folder: Path, registry: str) -> None:
    """Writes the mirror below certs.d, where containerd looks: images keep their rendered names."""
    place = folder / "certs.d/_default"
    place.mkdir(parents=True)
    (place / "hosts.toml").write_text(
        f'[host."http://{registry}"]\n  capabilities = ["pull", "resolve"]\n'
    )


def kubelet(machine: MachineConfig) -> dict[str, Any]:
    folder = machine.path
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": machine.address,
        "port": machine.port,
        "healthzPort": 0,
        "readOnlyPort": 0,
        # It listens on this host only and no client asks it for more than the test does.
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": machine.ca},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{machine.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "resolvConf": "",
        # For pods with an address of their own; it answers only while a test serves names.
        "clusterDNS": [machine.address],
        "clusterDomain": CLUSTER_DOMAIN,
        "podLogsDir": f"{folder}/logs",
        "volumePluginDir": f"{folder}/plugins",
        # Machines share the disk of this host, and cannot pull again what they would remove.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "10Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "nodeStatusUpdateFrequency": "2s",
        "syncFrequency": "10s",
        "registerWithTaints": machine.taints,
        "shutdownGracePeriod": f"{machine.total_s}s",
        "shutdownGracePeriodCriticalPods": f"{machine.critical_s}s",
    }
