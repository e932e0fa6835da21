"""Sends mutated captures, key logs, qlogs and tables through the decoder, the facts and every check."""
