"""The platform in the cluster: its manifests, images and operators, and the library."""
