"""Makes the dashboards, the metrics reference and the manifests of both. `python -m hack.monitoring` writes them."""
