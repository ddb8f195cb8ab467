"""Watches the cluster and the event lines, and publishes what alerts and dashboards read.

jobs.py is pure; backlog.py, cloud.py and prometheus.py talk to the outside; main.py joins them.
"""
