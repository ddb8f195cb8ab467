"""JobSet and Kueue: pinned, with the platform's settings, applied and waited for."""
