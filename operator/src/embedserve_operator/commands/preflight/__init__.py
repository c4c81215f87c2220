"""Says what a cluster lacks for the operator or its services."""
