"""Pure builders: (name, namespace, spec, settings) to the objects that make up a server. No I/O."""
