# Versions of what is not a Python package of ours (those: constraints.txt) nor a Go module (those: hack/cluster/go.mod).
VERSION        := 0.1.0
SGLANG_VERSION := 0.5.23
# The public SGLang image that the server image builds on for GPUs.
SGLANG_IMAGE   := docker.io/lmsysorg/sglang:v$(SGLANG_VERSION)
DEBIAN_RELEASE := bookworm
CONTAINERD_VERSION   := v2.4.2
HELM_VERSION         := v3.22.0
COREDNS_VERSION      := v1.15.0
# Prometheus v3.16.0: its Go module numbers it so.
PROMETHEUS_VERSION   := v0.316.0
# A container registry for the test that treats the embedded cluster as a foreign one.
DISTRIBUTION_VERSION := v3.1.2
# For the tests of autoscaling.
KEDA_VERSION         := v2.21.0
PROMETHEUS_ADAPTER_VERSION := v0.12.0
