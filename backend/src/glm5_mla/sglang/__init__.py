"""What knows SGLang: the plugin, the attention backends, the hooks for timing, and the checks on all of it."""
