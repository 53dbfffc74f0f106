#!/usr/bin/env bash
# mixed.sh COMMIT: build drover as it was at COMMIT, and replace it by what is here in the middle of a
# move (test/scenario, TestUpgradeInFlight). The development stack must run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
commit=$(git rev-parse --verify --short "${1:?name a commit, as make mixed OLD=v0.1}^{commit}")
dir=$(mktemp -d)
trap 'git worktree remove --force "$dir/tree" 2>/dev/null || true; rm -rf "$dir"' EXIT

git worktree add --detach --quiet "$dir/tree" "$commit"
go -C "$dir/tree" build -ldflags "-X drover/cli.Version=$commit" -o "$dir/drover" ./cmd/drover
DROVER_OLD_BINARY=$dir/drover REQUIRE_STACK=1 go test ./test/scenario -run '^TestUpgradeInFlight$' -count=1 -v
