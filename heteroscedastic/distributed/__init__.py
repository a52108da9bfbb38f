"""Runs on several hosts and devices."""
