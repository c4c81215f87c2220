"""Runs the long-lived processes of the operator image."""
