"""Rules that are gone, and what judges the same now. Their ids are never used again; an ignore of one has no effect."""

_ADMISSION = "Pod Security `restricted`, which the platform's namespaces enforce"
_SERVER = "the API server: `kubectl apply --dry-run=server`"
_SCHEMA = "`kubeconform -strict`, or the API server: `kubectl apply --dry-run=server --validate=strict`"
RETIRED = {
    "HF032": "GKE, which adds the toleration to each pod that asks for GPUs",
    "HF034": _SERVER,
    "HF120": _SERVER,
    "HF130": "kube-linter: pdb-max-unavailable, pdb-min-available",
    "HF131": "kube-score: deployment-has-poddisruptionbudget",
    "HF132": "kube-linter: pdb-unhealthy-pod-eviction-policy",
    "HF135": _SERVER,
    "HF136": "kube-linter: dangling-horizontalpodautoscaler; kube-score: horizontalpodautoscaler-has-target",
    "HF205": "kube-score: container-ephemeral-storage-request-and-limit",
    "HF208": _SERVER,
    "HF321": _SERVER,
    "HF322": _SERVER,
    "HF401": "kube-linter: latest-tag; kube-score: container-image-tag; Checkov: CKV_K8S_14",
    "HF402": "Checkov: CKV_K8S_43",
    "HF403": "kube-score: container-resources; Checkov: CKV_K8S_10 to CKV_K8S_13",
    "HF404": "kube-score: container-ephemeral-storage-request-and-limit",
    "HF405": _ADMISSION,
    "HF406": "kube-score: container-security-context-readonlyrootfilesystem",
    "HF407": _ADMISSION,
    "HF408": _ADMISSION,
    "HF409": f"{_ADMISSION}; Checkov: CKV_K8S_16 to CKV_K8S_19, CKV_K8S_25, CKV_K8S_26",
    "HF410": "Checkov: CKV_K8S_38",
    "HF411": "kube-linter: default-service-account",
    "HF412": "an admission policy of the cluster; no tool over files",
    "HF413": "kube-linter: use-namespace; Checkov: CKV_K8S_21",
    "HF414": "an admission policy of the cluster; no tool over files",
    "HF419": "kube-linter: dangling-service, non-existent-service-account",
    "HF501": _SCHEMA,
    "HF502": _SCHEMA,
    "HF504": f"{_SCHEMA}; kube-linter: no-extensions-v1beta",
    "HF505": _SCHEMA,
    "HF507": "kube-linter: mismatching-selector",
}
