#!/usr/bin/env bash
# Puts each bug of this folder into a copy of the tree, builds the lab there, and expects fault simulation to find it.
#   crates/lab/tests/chaos/bugs/run.sh [NAME]...     all without a name; needs git, patch, cargo
# SEEDS (0..200) is what is run for each.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(git -C "$here" rev-parse --show-toplevel)
seeds=${SEEDS:-0..200}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}/bugs

names=("$@")
if [ ${#names[@]} = 0 ]; then
    for file in "$here"/*.patch; do names+=("$(basename "$file" .patch)"); done
fi
missed=0
for name in "${names[@]}"; do
    rm -rf "${copy:?}"/tree
    mkdir "$copy/tree"
    git -C "$root" archive HEAD | tar -x -C "$copy/tree"
    patch --quiet --directory "$copy/tree" -p1 <"$here/$name.patch"
    cargo build --quiet --locked --profile checked --manifest-path "$copy/tree/Cargo.toml" -p anabranch-lab
    code=0
    "$CARGO_TARGET_DIR/checked/anabranch-lab" chaos --seeds "$seeds" --quiet --shrink 0 --out "$copy/plans" \
        >"$copy/said" || code=$?
    if [ "$code" = 1 ] && first=$(grep -m 1 '^seed [0-9]*: ' "$copy/said"); then
        echo "$name: $(grep -c '^shrunk' "$copy/said") kinds of failure, first $first" | cut -c1-200
    else
        echo "$name: NOT FOUND in seeds $seeds (exit code $code)"
        missed=$((missed + 1))
    fi
done
[ "$missed" = 0 ]
