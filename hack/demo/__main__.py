"""Command line: `PYTHONPATH=hack python3 -m demo up|down`; `make demo` and `make demo-down` call it."""

import os
import sys
import time

from cluster import lifecycle
from cluster.kubectl import Kubectl
from cluster.layout import layout
from cluster.progress import Failure, say, wait_until, warn

from . import install, jobs
from .deployment import RESOURCE, set_kv_cast, wait_ready
from .figures import Figures, table
from .measure import load_job, measure
from .names import (
    DEMO_NAMESPACE,
    DEPLOYMENT,
    MODES,
    MONITORING_NAMESPACE,
    OPERATOR_NAMESPACE,
    RELEASE,
    SAMPLE,
)
from .prometheus import Prometheus
from .stages import Stages, machine
from .target import IMAGES, Current, Embedded, Target, choose, helm

GIB = 1 << 30
# The server's pod takes 3 GiB while it starts, Prometheus and the operator 0.4, an image build's compressor some more.
MEMORY = 5 * GIB
DISK = 8 * GIB
REQUESTS, TOKENS = 4, 16
CAVEAT = """A CPU stands in for the GPU, and a tiny model with random weights for GLM-5: these figures compare the modes
and nothing else, and the text that the model writes is noise. SGLang, Kubernetes, operator and Prometheus are real."""
READY_SECONDS = 300
FIGURES_WINDOW_SECONDS = 15  # the exporter's window of 10 s is then full of the load, and the operator has read it


def up() -> None:
    """From whatever is there to the table. Raises Failure with a sentence that says what to do."""
    stages = Stages()
    with stages.stage("Kubernetes"):
        target = choose(memory=MEMORY, disk=DISK)
        install.own_namespaces(target.kubectl)
    kubectl = target.kubectl
    prometheus = Prometheus(kubectl)
    with stages.stage("images, into the cluster"):
        images = target.provide(IMAGES)
    with stages.stage("Prometheus"):
        install.prometheus(kubectl, images["prometheus"])
    with stages.stage("operator, by helm install"):
        install.operator(target, images)
    with stages.stage("the tiny model, on a volume"):
        install.namespace(kubectl, DEMO_NAMESPACE)
        install.model(kubectl, DEMO_NAMESPACE, images["server-cpu"])
    rows: dict[str, Figures] = {}
    outputs: dict[str, list[list[int]]] = {}
    for mode in MODES:
        with stages.stage(f"kvCast {mode}: GLM5Deployment Ready"):
            if mode == MODES[0]:
                kubectl.run("apply", "-n", DEMO_NAMESPACE, "-f", str(SAMPLE))
            set_kv_cast(kubectl, DEMO_NAMESPACE, DEPLOYMENT, mode)
            wait_ready(kubectl, DEMO_NAMESPACE, DEPLOYMENT, timeout=READY_SECONDS)
        if mode == MODES[0]:
            say(f"   it answers {time.monotonic() - stages.begin:.0f} s after the start of the demo")
        with stages.stage(f"kvCast {mode}: load from a pod, figures from Prometheus"):
            measured = measure(
                kubectl,
                prometheus,
                namespace=DEMO_NAMESPACE,
                deployment=DEPLOYMENT,
                image=images["server-cpu"],
                requests=REQUESTS,
                tokens=TOKENS,
            )
            rows[mode], outputs[mode] = measured.figures, measured.outputs
            if measured.spent.tokens != measured.client_decode_tokens:
                raise Failure(
                    f"Prometheus counted {measured.spent.tokens:.0f} decode tokens, "
                    f"the client {measured.client_decode_tokens}: the exporter lost or doubled some."
                )
    print(f"\n{table(rows)}\n")
    print(f"Read from Prometheus over {REQUESTS} requests of {TOKENS} tokens in each mode, measured on {machine()}.")
    print(CAVEAT)
    same = all(output == outputs[MODES[0]] for output in outputs.values())
    if not same:
        raise Failure(f"The modes do not give the same tokens: {outputs}")
    print(f"All three modes gave the same {sum(map(len, outputs[MODES[0]]))} tokens.\n")
    with stages.stage("kubectl get glm5, under load"):
        show_live(kubectl, images["server-cpu"])
    print(f"\n{stages.table()}\n")
    print(what_next(target))


def show_live(kubectl: Kubectl, image: str) -> None:
    """Print `kubectl get glm5` while a load runs, once the operator has figures to show."""
    name = "load-live"
    jobs.start(kubectl, load_job(name, DEMO_NAMESPACE, DEPLOYMENT, image=image, requests=40, tokens=100))

    time.sleep(FIGURES_WINDOW_SECONDS)

    def has_figures() -> bool:
        value = kubectl.get(RESOURCE, DEPLOYMENT, "-n", DEMO_NAMESPACE)
        return bool(value["status"].get("decode", {}).get("tokensPerSecond"))

    hint = f"Look at the operator's log: kubectl logs -n {OPERATOR_NAMESPACE} deployment/{RELEASE}"
    wait_until("decode figures in the object's status", has_figures, timeout=60, hint=hint, every=1)
    print(kubectl.run("get", "glm5", "-n", DEMO_NAMESPACE), end="")


def what_next(target: Target) -> str:
    """Say what a person can do with what now runs."""
    env = 'eval "$(make -s cluster-env)"\n  ' if isinstance(target, Embedded) else ""
    return f"""What to try next:
  {env}kubectl get glm5 -n {DEMO_NAMESPACE} -o wide
  kubectl describe glm5 {DEPLOYMENT} -n {DEMO_NAMESPACE}
  kubectl patch glm5 {DEPLOYMENT} -n {DEMO_NAMESPACE} --type=merge \\
    -p '{{"spec":{{"attention":{{"kvCast":"WholePool"}}}}}}'
  kubectl port-forward -n {DEMO_NAMESPACE} svc/{DEPLOYMENT} 30000 &
  curl -s 127.0.0.1:30000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{DEPLOYMENT}", "max_tokens": 16, "messages": [{{"role": "user", "content": "Hello"}}]}}'
  kubectl port-forward -n {MONITORING_NAMESPACE} svc/prometheus 9090 &
  curl -s 127.0.0.1:9090/api/v1/query --data-urlencode 'query=glm5_decode_tokens_total'
  make demo-down"""


def down() -> None:
    """Remove what `up` made: of the embedded cluster all, of the reader's own what the demo put there."""
    if os.environ.get("CLUSTER", "embedded") != "current":
        cluster = layout("full")
        lifecycle.down(cluster)
        say(f"the embedded cluster is gone; what was built, and its images, stay for the next one: {cluster.cache}")
        return
    target = Current.find()
    kubectl = target.kubectl
    if not install.own_namespaces(kubectl):
        say("the demo is not in this cluster")
        return
    if kubectl.find("crd", RESOURCE):
        kubectl.run("delete", RESOURCE, "--all", "-n", DEMO_NAMESPACE, "--wait=true", timeout=120)
    if RELEASE in helm(target, "list", "-n", OPERATOR_NAMESPACE, "-q").split():
        helm(target, "uninstall", RELEASE, "-n", OPERATOR_NAMESPACE, "--wait")
    for kind in ("clusterrolebinding", "clusterrole"):
        kubectl.run("delete", kind, "glm5-demo-prometheus", "--ignore-not-found")
    if kubectl.find("crd", RESOURCE):
        others = kubectl.get(RESOURCE, "-A")["items"]
        if others:
            say(f"the CRD stays: {len(others)} GLM5Deployments of yours use it")
        else:
            kubectl.run("delete", "crd", RESOURCE)
    # Last: while one of them is there, a run that was cut off is done again.
    kubectl.run("delete", "namespace", *install.own_namespaces(kubectl), "--wait=true", timeout=180)
    say("the demo is gone from this cluster")


def main(arguments: list[str]) -> int:
    """Run `up` or `down`; 0 when it did what was asked, 1 with a sentence on standard error when not."""
    commands = {"up": up, "down": down}
    if len(arguments) != 1 or arguments[0] not in commands:
        warn("usage: python3 -m demo up|down")
        return 2
    try:
        commands[arguments[0]]()
    except (Failure, ValueError) as failure:
        warn(f"\n{failure}")
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        warn("Interrupted. Run it again to go on, or make demo-down to remove what was started.")
        sys.exit(130)
