#!/usr/bin/env bash
# Puts each bug of this folder into a copy of the tree, builds the lab there, and expects fault simulation to find it, to
# shrink the plan of the first seed that shows it, and the small plan to fail in the same way.
# A patch of another system than the tunnel says so on its first line, "System: NAME".
#   crates/lab/tests/chaos/bugs/run.sh [NAME]...     all without a name; needs git, patch, cargo
# SEEDS (0..400) is what is run for each, SHRINK (200) how many runs shrinking may take. It ends with 1 if a bug is not found.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(git -C "$here" rev-parse --show-toplevel)
seeds=${SEEDS:-0..400}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target/bugs}

names=("$@")
if [ ${#names[@]} = 0 ]; then
    for file in "$here"/*.patch; do names+=("$(basename "$file" .patch)"); done
fi
mkdir "$copy/tree"
git -C "$root" archive HEAD | tar -x -C "$copy/tree"
missed=0
for name in "${names[@]}"; do
    patch --quiet --directory "$copy/tree" -p1 <"$here/$name.patch"
    built=0
    cargo build --quiet --locked --profile checked --manifest-path "$copy/tree/Cargo.toml" -p anabranch-lab || built=$?
    # What is put back is newer than what was built of it.
    patch --quiet --directory "$copy/tree" -p1 --reverse <"$here/$name.patch"
    if [ "$built" != 0 ]; then
        echo "$name: DOES NOT BUILD"
        missed=$((missed + 1))
        continue
    fi
    lab=$CARGO_TARGET_DIR/checked/anabranch-lab
    rm -rf "$copy/plans"
    code=0
    system=$(sed -n '1s/^System: //p' "$here/$name.patch")
    plans=$copy/plans/${system:+$system-}
    "$lab" chaos --system "${system:-tunnel}" --seeds "$seeds" --quiet --shrink "${SHRINK:-200}" --out "$copy/plans" >"$copy/said" || code=$?
    if [ "$code" = 1 ] && first=$(grep -m 1 '^seed [0-9]*: ' "$copy/said"); then
        # seed N: INVARIANT at step S: …
        read -r _ seed invariant _ <<<"$first"
        seed=${seed%:}
        failed=$(grep -o '[0-9]* fail; digest' "$copy/said" | cut -d' ' -f1)
        small=$(grep -m 1 '^shrunk in' "$copy/said" | sed 's/^shrunk in \([0-9]*\) runs from \(.*\): .*/\2 (\1 runs)/; s/: .*(/ (/')
        again=0
        "$lab" chaos --replay "${plans}seed-$seed-$invariant.toml" >"$copy/again" || again=$?
        if [ "$again" = 1 ] && grep -q "toml: $invariant at step" "$copy/again"; then
            echo "$name: $invariant, first by seed $seed, by $failed seeds of $seeds; $small"
        else
            echo "$name: $invariant, first by seed $seed, but the small plan does not fail again"
            missed=$((missed + 1))
        fi
    else
        echo "$name: NOT FOUND in seeds $seeds (exit code $code)"
        missed=$((missed + 1))
    fi
done
[ "$missed" = 0 ]
