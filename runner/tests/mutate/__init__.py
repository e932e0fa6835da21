"""Recordings with one rule broken: captures are opened, edited, sealed again, and saved as job folders.

Nothing here uses `runner.decode` or a check of the product: parsing, keys and encryption are written anew from
RFC 9000, 9001 and 9369, so that a fault of the decoder is not repeated in the sets that test it.
"""
