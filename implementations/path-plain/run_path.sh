#!/bin/bash
# Nothing: the namespace forwards packets. The measure of every other path.
set -eu

: > /logs/ready
# A first process ignores SIGTERM unless it has a handler.
trap 'exit 0' TERM
sleep infinity &
wait
