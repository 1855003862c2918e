"""The small process beside the server that serves the per-rank files to Prometheus and to the operator."""
