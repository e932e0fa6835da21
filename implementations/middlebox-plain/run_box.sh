#!/bin/bash
# Does nothing: the namespace forwards packets. Every other middlebox is compared with it.
set -eu

: > /logs/ready
# The first process of a container ignores SIGTERM unless it has a handler.
trap 'exit 0' TERM
sleep infinity &
wait
