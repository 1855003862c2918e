"""The embedded Kubernetes: a real one-node cluster on a bare Linux machine, for the demo and the tests.

Everything runs inside one sandbox of Linux namespaces (network, mounts, process ids) that `sandbox.py` makes, so that
the host's iptables, interfaces and mounts are never touched and stopping is ending one process. Only the standard
library is used: this runs before anything is installed.
"""
