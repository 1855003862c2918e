"""Clocks of a decode step, and the file by which each rank hands their readings to the exporter."""
