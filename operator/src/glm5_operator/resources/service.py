"""The Service in front of the pods."""

from typing import Any

from .context import HTTP_PORT_NAME, Context


def build_service(context: Context) -> dict[str, Any]:
    """A Service with the API's port. Metrics are scraped from the pods, so their port is not on it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": context.metadata(),
        "spec": {
            "type": context.spec.server.service_type,
            "selector": context.selector(),
            "ports": [
                {
                    "name": HTTP_PORT_NAME,
                    "port": context.spec.server.port,
                    "targetPort": HTTP_PORT_NAME,
                    "protocol": "TCP",
                    "appProtocol": "http",
                }
            ],
        },
    }
