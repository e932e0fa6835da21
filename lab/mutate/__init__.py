"""Makes recordings in which one rule is broken: captures are opened, edited, sealed again, and saved as job folders.

This package uses neither `runner.decode` nor a check of the product. It has its own parsing, keys and encryption after
RFC 9000, 9001 and 9369, so that it doesn't repeat a fault of the decoder in the recordings that test the decoder.
"""
