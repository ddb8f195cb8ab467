"""A small service: watches the cluster and the event files, and publishes what alerts and
dashboards ask for.

cluster.py and jobs.py are pure; watch.py, lease.py, cloud.py and
prometheus.py are the edges; main.py joins them.
"""
