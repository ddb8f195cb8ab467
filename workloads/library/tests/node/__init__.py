"""The node tier: real kubelets that lose their machine as a Spot VM does. Root on Linux with
containerd.
"""
