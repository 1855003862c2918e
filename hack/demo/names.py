"""What the demo and the tests call things in the cluster."""

from pathlib import Path

from cluster.layout import REPOSITORY

HERE = Path(__file__).resolve().parent
CHART = REPOSITORY / "charts" / "glm5-operator"
SAMPLE = REPOSITORY / "manifests" / "samples" / "tiny.yaml"
LOAD = HERE / "load.py"

DEMO_NAMESPACE = "glm5-demo"
OPERATOR_NAMESPACE = "glm5-system"
MONITORING_NAMESPACE = "monitoring"
NAMESPACES = (DEMO_NAMESPACE, OPERATOR_NAMESPACE, MONITORING_NAMESPACE)
# The label by which demo-down knows the namespaces that the demo has made.
OWNER_LABEL, OWNER = "app.kubernetes.io/managed-by", "glm5-demo"
RELEASE = "glm5-operator"
DEPLOYMENT = "tiny"  # the name in SAMPLE
CLAIM = "tiny-model"  # the claim that SAMPLE names
MODES = ("WholePool", "ActiveRows", "Never")
