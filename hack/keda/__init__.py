"""KEDA, built from its Go module and installed into the embedded cluster: only `make test-keda` needs it."""
