"""The GLM5Deployment: its fields as pydantic models, and the CustomResourceDefinition made from them."""
