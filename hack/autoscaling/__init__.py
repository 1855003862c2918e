"""KEDA and prometheus-adapter, built from their Go modules and installed into the embedded cluster.

Only `make test-autoscaling` needs them.
"""
