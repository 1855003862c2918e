"""Names that the API gives: group, version, kind, and the labels that every child carries."""

GROUP = "glm5.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "GLM5Deployment"
PLURAL = "glm5deployments"
SINGULAR = "glm5deployment"
SHORT_NAME = "glm5"

MANAGED_BY = "glm5-operator"
DEPLOYMENT_LABEL = f"{GROUP}/deployment"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
COMPONENT_LABEL = "app.kubernetes.io/component"
SPEC_HASH_ANNOTATION = f"{GROUP}/spec-hash"

# Objects become Services (at most 63 characters, a DNS label) and pods (name plus two hashes of up to 17 characters).
MAX_NAME_LENGTH = 45
