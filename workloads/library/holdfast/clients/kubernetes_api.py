"""The way to a cluster's API."""

from kubernetes import client, config

from holdfast.contract.errors import Unjudged


def connect(kubeconfig: str) -> client.ApiClient:
    """By the file, or without one by the service account of the pod that this runs in."""
    try:
        if kubeconfig:
            return config.new_client_from_config(kubeconfig)
        config.load_incluster_config()
        return client.ApiClient()
    except config.ConfigException as error:
        raise Unjudged(f"no cluster to watch: {error}; give --kubeconfig, or run in a pod") from error
