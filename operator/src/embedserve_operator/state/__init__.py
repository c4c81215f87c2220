"""Holds the frozen values that every decision rests on."""
