"""`preflight`: what a cluster has and lacks for the operator and its services, before and after it is installed."""
