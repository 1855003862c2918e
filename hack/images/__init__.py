"""Builds the project's container images with buildah, without a registry, and keeps them as archives."""
