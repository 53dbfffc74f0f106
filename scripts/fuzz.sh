#!/usr/bin/env bash
# Runs each fuzz test for the given time: `go test` takes only one at a time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

duration=${1:-10s}
for package in $(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...); do
	for name in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		echo "== $package $name"
		go test "$package" -run '^$' -fuzz "^$name\$" -fuzztime "$duration"
	done
done
