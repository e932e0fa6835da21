"""Derives facts, numbers and plot series from the decoder's tables of one or both captures. All functions are pure."""
