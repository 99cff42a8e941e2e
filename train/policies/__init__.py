"""Policies that act in environments."""
