"""Pure decisions: which writes bring the cluster to what the object says, and what its status says meanwhile."""
