"""Certificates and kubeconfigs of one cluster, made anew with each cluster by openssl."""

import base64
import json
import subprocess
from pathlib import Path

from .layout import API_SERVICE_ADDRESS, NODE_ADDRESS, NODE_NAME, Layout
from .progress import Failure

DAYS = "365"

# name: (common name, organisation)
CLIENTS = {
    "admin": ("kubernetes-admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", "system:kube-controller-manager"),
    "scheduler": ("system:kube-scheduler", "system:kube-scheduler"),
    "kubelet": (f"system:node:{NODE_NAME}", "system:nodes"),
    "proxy": ("system:kube-proxy", "system:node-proxier"),
}
API_SERVER_NAMES = (
    f"IP:127.0.0.1,IP:{NODE_ADDRESS},IP:{API_SERVICE_ADDRESS},DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,"
    "DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
)


def make(layout: Layout) -> None:
    """Write all keys, certificates and kubeconfigs below the state folder. Raises Failure with openssl's words."""
    layout.pki.mkdir(parents=True, exist_ok=True, mode=0o700)
    _authority(layout, "ca", "glm5-cluster")
    # The aggregation layer has an authority of its own: whoever it vouches for may speak for any user.
    _authority(layout, "front-proxy-ca", "glm5-cluster-front-proxy")
    _certificate(layout, "front-proxy-client", "front-proxy-client", "", authority="front-proxy-ca")
    _certificate(layout, "apiserver", "kube-apiserver", "kubernetes", names=API_SERVER_NAMES)
    for name, (common_name, organisation) in CLIENTS.items():
        names = f"IP:{NODE_ADDRESS},DNS:{NODE_NAME}" if name == "kubelet" else ""
        _certificate(layout, name, common_name, organisation, names=names)
        _kubeconfig(layout, name)
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", layout.pki / "sa.key")
    _openssl("ec", "-in", layout.pki / "sa.key", "-pubout", "-out", layout.pki / "sa.pub")


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"openssl {arguments[0]} failed: {done.stderr.strip()}")


def _authority(layout: Layout, name: str, common_name: str) -> None:
    files = layout.pki / f"{name}.key", layout.pki / f"{name}.crt"
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", files[0])
    _openssl("req", "-x509", *new_key, "-out", files[1], "-days", DAYS, "-subj", f"/CN={common_name}")


def _certificate(
    layout: Layout, name: str, common_name: str, organisation: str, *, names: str = "", authority: str = "ca"
) -> None:
    key, request, certificate, extensions = (layout.pki / f"{name}.{end}" for end in ("key", "csr", "crt", "ext"))
    extensions.write_text("extendedKeyUsage=clientAuth,serverAuth\n" + (f"subjectAltName={names}\n" if names else ""))
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key)
    subject = (f"/O={organisation}" if organisation else "") + f"/CN={common_name}"
    _openssl("req", "-new", *new_key, "-out", request, "-subj", subject)
    signer = ("-CA", layout.pki / f"{authority}.crt", "-CAkey", layout.pki / f"{authority}.key", "-CAcreateserial")
    _openssl("x509", "-req", "-in", request, *signer, "-days", DAYS, "-out", certificate, "-extfile", extensions)


def _kubeconfig(layout: Layout, name: str) -> None:
    def data(file: str) -> str:
        return base64.b64encode((layout.pki / file).read_bytes()).decode()

    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "glm5", "cluster": {"server": layout.server, "certificate-authority-data": data("ca.crt")}}
        ],
        "users": [
            {
                "name": name,
                "user": {"client-certificate-data": data(f"{name}.crt"), "client-key-data": data(f"{name}.key")},
            }
        ],
        "contexts": [{"name": "glm5", "context": {"cluster": "glm5", "user": name}}],
        "current-context": "glm5",
    }
    file = layout.state / f"{name}.kubeconfig"
    file.touch(mode=0o600)
    file.write_text(json.dumps(config, indent=1))
