"""JobSet and Kueue: pinned, with settings of ours, applied and waited for."""
