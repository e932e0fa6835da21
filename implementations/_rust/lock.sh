#!/bin/bash
# Updates Cargo.lock for the manifests of all Rust stacks. Versions that it already has stay the same.
# Usage: lock.sh [ARGUMENTS OF cargo update]. Example: lock.sh -p tokio takes the newest tokio that the manifests allow.
# Needs cargo; without one on the host:
#   docker run --rm -v "$PWD/implementations:/implementations" bentpipe/rust /implementations/_rust/lock.sh
set -eu

here=$(cd "$(dirname "$0")" && pwd)
workspace=$(mktemp -d)
trap 'rm -rf "$workspace"' EXIT

cp -r "$here/Cargo.toml" "$here/Cargo.lock" "$here/endpoint" "$workspace"
mkdir "$workspace/stacks"
cp -r "$here/prebuilt" "$workspace/stacks"
for manifest in "$here"/../*/source/Cargo.toml; do
    source=${manifest%/Cargo.toml}
    name=$(basename "${source%/source}")
    cp -r "$source" "$workspace/stacks/$name"
done

cd "$workspace"
if (($#)); then cargo update "$@"; fi
cargo metadata --format-version 1 > metadata.json
cp Cargo.lock "$here/Cargo.lock"
echo "Cargo.lock: $(grep -c '^\[\[package\]\]' Cargo.lock) packages of: $(ls stacks | tr '\n' ' ')"
