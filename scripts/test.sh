#!/usr/bin/env bash
# Runs every test of both modules on a stack that this script starts and stops. It has a folder of its
# own, so it leaves a running development stack alone. Arguments go to `go test`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export DROVER_STACK=$PWD/.drover/test/stack.json
export REQUIRE_STACK=1
drover=$PWD/bin/drover

finish() {
	local status=$?
	trap - EXIT INT TERM
	if [ "$status" = 0 ]; then
		"$drover" dev reset 2>/dev/null || true
	else
		"$drover" dev down || true
		echo "test: failed; the servers' logs are in .drover/test/*/log" >&2
	fi
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

"$drover" dev reset # what an interrupted run may have left
"$drover" dev up
go test ./... -count=1 -timeout 40m "$@"
go test -C devstack/temporal -count=1 -timeout 10m ./...
