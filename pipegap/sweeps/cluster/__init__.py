"""Where trials run: Ray Tune on this machine or a cluster, ranks as actors, jobs, a clean stop."""
