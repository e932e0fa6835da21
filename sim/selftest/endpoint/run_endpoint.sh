#!/bin/sh
exec python3 -B /measure.py "$ROLE"
