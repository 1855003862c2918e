"""`glm5-mla top`: the decode loop of running deployments in a terminal."""
