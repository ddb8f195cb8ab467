"""Our providers of clusters for pytest-kubernetes, behind its own interface.

They touch no cluster but the one that they made: `create` makes a new one, `delete` ends exactly
that.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pytest_kubernetes.options import ClusterOptions
from pytest_kubernetes.providers.base import AClusterManager

from tests.cluster.sim.control_plane import ControlPlane
from tests.cluster.sim.host import Host, Scale
from tests.support import ran
from tests.tools.build import TOOLS


class OwnManager(AClusterManager):
    """The common part of both providers: a folder for each cluster, kubectl of our own build, and
    no command that passes through a shell.
    """

    scale = Scale()
    host: Host | None = None
    """The processes of this host that belong to the cluster, while there is one."""
    folder: Path | None = None

    def __init__(self, cluster_name: str | None = None, *_: object) -> None:
        super().__init__(cluster_name)

    def create(
        self, cluster_options: ClusterOptions | None = None, timeout: int = 90, **_: object
    ) -> None:
        """Creates the cluster unless it exists; the options of other providers have no effect."""
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="holdfast-cluster-"))
            try:
                self._cluster_options.kubeconfig_path = self._start(self.folder)
            except BaseException:
                self.delete()
                raise

    def delete(self) -> None:
        if self.host is not None:
            self.host.stop()
            self.host = None
        if self.folder is not None:
            self._end(self.folder)
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = self._cluster_options.kubeconfig_path = None

    def _start(self, folder: Path) -> Path:
        """The administrator's kubeconfig."""
        raise NotImplementedError

    def _end(self, folder: Path) -> None:
        """Ends the parts of the cluster that are not processes of this host."""

    def kubectl(self, args: list[str], as_dict: bool = True, timeout: int = 60) -> Any:
        command = [
            str(TOOLS["kubectl"].binary),
            "--kubeconfig",
            str(self.kubeconfig),
            *args,
        ]
        command += ["-o", "json"] if as_dict else []
        done = ran(command, timeout_s=timeout)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return json.loads(done.stdout) if as_dict else done.stdout

    def _on_create(self, cluster_options: ClusterOptions, **_: object) -> None:
        raise NotImplementedError

    def _on_delete(self) -> None:
        raise NotImplementedError


class HostManager(OwnManager):
    """A control plane of host processes: no Docker, no image."""

    @classmethod
    def get_binary_name(cls) -> str:
        return str(TOOLS["kube-apiserver"].binary)

    def _start(self, folder: Path) -> Path:
        self.host = plane = ControlPlane(folder, self.scale)
        return plane.start()

    def load_image(self, image: str) -> None:
        """Simulated nodes run no image."""
