"""The resource: its types, its rules and the CustomResourceDefinition made from them."""
