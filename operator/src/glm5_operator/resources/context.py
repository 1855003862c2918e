"""What every builder is given."""

from dataclasses import dataclass
from typing import Any

from glm5_operator.api import names
from glm5_operator.api.spec import GLM5DeploymentSpec
from glm5_operator.settings import Settings

HTTP_PORT_NAME = "http"
METRICS_PORT_NAME = "metrics"
EXPORTER_PORT = 9408


@dataclass(frozen=True)
class Context:
    """One GLM5Deployment, with what its children refer to."""

    name: str
    namespace: str
    uid: str
    spec: GLM5DeploymentSpec
    settings: Settings

    @property
    def image(self) -> str:
        """The server image in use."""
        return self.spec.server.image or self.settings.server_image

    @property
    def tensor_parallel_size(self) -> int:
        """Ranks of a pod."""
        return self.spec.gpus.tensor_parallel_size or self.spec.gpus.count

    @property
    def url(self) -> str:
        """Address of the OpenAI-compatible API inside the cluster."""
        return f"http://{self.name}.{self.namespace}.svc:{self.spec.server.port}"

    def labels(self, component: str = "server") -> dict[str, str]:
        """Labels of every child."""
        return {
            "app.kubernetes.io/name": "glm5",
            "app.kubernetes.io/instance": self.name,
            names.COMPONENT_LABEL: component,
            names.MANAGED_BY_LABEL: names.MANAGED_BY,
            names.DEPLOYMENT_LABEL: self.name,
        }

    def selector(self, component: str = "server") -> dict[str, str]:
        """Labels that select the pods. A Deployment's selector can't be changed later: keep it small."""
        return {names.COMPONENT_LABEL: component, names.DEPLOYMENT_LABEL: self.name}

    def metadata(self, name: str | None = None) -> dict[str, Any]:
        """Metadata of a child: it is deleted with its owner."""
        return {
            "name": name or self.name,
            "namespace": self.namespace,
            "labels": self.labels(),
            "ownerReferences": [
                {
                    "apiVersion": names.API_VERSION,
                    "kind": names.KIND,
                    "name": self.name,
                    "uid": self.uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        }
