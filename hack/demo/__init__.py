"""`make demo`: from a bare machine to GLM5Deployments with live decode figures, and back with `make demo-down`.

Only the standard library is used: this runs before anything is installed.
"""
