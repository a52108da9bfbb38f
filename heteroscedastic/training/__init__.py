"""Devices, disk and clock."""
