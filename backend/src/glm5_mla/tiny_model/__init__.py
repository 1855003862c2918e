"""A model small enough for a laptop, with GLM-5's attention: dense MLA over rows of 512 + 64 values.

Its weights are random, so its text is noise; it is for trying and testing the line from request to metric, and needs no
download. Standard library only: made in a second, the same bytes everywhere.
"""
