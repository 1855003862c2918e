"""Kubernetes operator for GLM-5 on SGLang: one GLM5Deployment in, one healthy server out."""

__version__ = "0.1.0"
