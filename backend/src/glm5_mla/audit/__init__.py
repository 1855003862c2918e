"""Reads the installed SGLang's source without running it: where it casts, and whether the plugin was written for it.

`scan` finds the casts of KV pool buffers, `fingerprints` compares the functions that the plugin replaces or relies on,
`command` is `glm5-mla audit`.
"""
