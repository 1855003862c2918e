"""etcd, API server, controller manager and scheduler: how they are called. Pure but for `start`."""

from collections.abc import Iterable
from pathlib import Path

from . import sandbox
from .layout import NODE_ADDRESS, POD_RANGE, SERVICE_RANGE, Layout

ETCD_CLIENTS = "http://127.0.0.1:2379"
ETCD_PEERS = "http://127.0.0.1:2380"


def commands(layout: Layout, binaries: Path) -> dict[str, list[str]]:
    """Each program's command line, by its name, in the order of starting."""
    pki = layout.pki
    return {
        "etcd": [
            f"{binaries}/etcd",
            f"--data-dir={layout.state}/etcd",
            f"--listen-client-urls={ETCD_CLIENTS}",
            f"--advertise-client-urls={ETCD_CLIENTS}",
            f"--listen-peer-urls={ETCD_PEERS}",
            "--unsafe-no-fsync",  # the data never outlives the sandbox
        ],
        "kube-apiserver": [
            f"{binaries}/kube-apiserver",
            f"--etcd-servers={ETCD_CLIENTS}",
            "--bind-address=0.0.0.0",
            f"--advertise-address={NODE_ADDRESS}",
            f"--secure-port={layout.api_port}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            f"--client-ca-file={pki}/ca.crt",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={pki}/admin.crt",
            f"--kubelet-client-key={pki}/admin.key",
            f"--kubelet-certificate-authority={pki}/ca.crt",
            # The aggregation layer, for APIs such as external metrics.
            f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
            f"--proxy-client-key-file={pki}/front-proxy-client.key",
            "--enable-aggregator-routing=true",
        ],
        "kube-controller-manager": [
            f"{binaries}/kube-controller-manager",
            f"--kubeconfig={layout.state}/controller-manager.kubeconfig",
            f"--authentication-kubeconfig={layout.state}/controller-manager.kubeconfig",
            f"--authorization-kubeconfig={layout.state}/controller-manager.kubeconfig",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={pki}/sa.key",
            f"--root-ca-file={pki}/ca.crt",
            f"--cluster-cidr={POD_RANGE}",
            f"--cluster-signing-cert-file={pki}/ca.crt",
            f"--cluster-signing-key-file={pki}/ca.key",
            "--leader-elect=false",
        ],
        "kube-scheduler": [
            f"{binaries}/kube-scheduler",
            f"--kubeconfig={layout.state}/scheduler.kubeconfig",
            f"--authentication-kubeconfig={layout.state}/scheduler.kubeconfig",
            f"--authorization-kubeconfig={layout.state}/scheduler.kubeconfig",
            "--leader-elect=false",
        ],
    }


def start(layout: Layout, binaries: Path, names: Iterable[str]) -> None:
    """Start those of `commands` that are named."""
    for name in names:
        sandbox.start(layout, name, commands(layout, binaries)[name])
