"""Decodes captures with key logs to columnar tables: bentpipe's own QUIC decoder, and its cache."""
