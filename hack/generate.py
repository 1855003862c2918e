"""Writes what is generated from the code: CRD, install file, and the reference of the object.

`--check` writes nothing and fails where a file is not what it would be.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from glm5_operator.api.reference import reference_markdown
from glm5_operator.api.render import crd_yaml

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "glm5-operator"
NAMESPACE = "glm5-system"
KUBERNETES = "1.35.0"

_INSTALL_HEAD = f"""\
# The operator without Helm: kubectl apply --server-side -f manifests/install.yaml
# Generated from charts/glm5-operator by `make generate`.
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
"""


def chart_crd() -> str:
    """The CRD as a chart template: in templates/, so that `helm upgrade` upgrades it, and kept on uninstall."""
    text = crd_yaml()
    if "{{" in text:
        raise ValueError("the CRD holds '{{', which Helm would read as a template")
    keep = "  {{- if .Values.crds.keep }}\n  annotations: {helm.sh/resource-policy: keep}\n  {{- end }}\n"
    head, metadata, rest = text.partition("metadata:\n")
    return "{{- if .Values.crds.install }}\n" + head + metadata + keep + rest + "{{- end }}\n"


def install_manifest(helm: str) -> str:
    """Everything that the chart installs with its default values, without the traces of Helm."""
    command = [helm, "template", "glm5-operator", str(CHART), "--namespace", NAMESPACE, "--skip-tests"]
    # A helm without a cluster takes the version that it was built for, which may be older than the chart allows.
    command += ["--kube-version", KUBERNETES]
    command += ["--set", "crds.keep=false"]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [line for line in made.splitlines() if "helm.sh/chart:" not in line and not line.startswith("# Source:")]
    text = "\n".join(lines).replace("app.kubernetes.io/managed-by: Helm", "app.kubernetes.io/managed-by: kubectl")
    return _INSTALL_HEAD + text.rstrip() + "\n"


def main() -> int:
    """Writes or checks the files. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--helm", default=shutil.which("helm") or "", help="the helm program (default: on the PATH)")
    arguments = parser.parse_args()
    files = {
        CHART / "templates" / "crd.yaml": chart_crd(),
        ROOT / "manifests" / "crd.yaml": crd_yaml(),
        ROOT / "docs" / "api.md": reference_markdown(),
    }
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    if not arguments.check:
        for path, text in files.items():
            path.write_text(text)
    if arguments.helm:
        path, text = ROOT / "manifests" / "install.yaml", install_manifest(arguments.helm)
        if not path.exists() or path.read_text() != text:
            stale.append(path)
            if not arguments.check:
                path.write_text(text)
    else:
        print("helm is not on the PATH: manifests/install.yaml is left as it is", file=sys.stderr)
    for path in stale:
        print(f"{'out of date' if arguments.check else 'written'}: {path.relative_to(ROOT)}")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
