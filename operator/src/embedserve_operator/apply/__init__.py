"""Carries out a plan in the cluster."""
