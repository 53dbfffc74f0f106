#!/usr/bin/env bash
# release.sh VERSION DIR: build static binaries for Linux into DIR, with checksums.
# ARCHS names the architectures. The same commit gives the same bytes.
set -euo pipefail
version=$1 dir=$2
mkdir -p "$dir"
for arch in ${ARCHS:-amd64 arm64}; do
	CGO_ENABLED=0 GOOS=linux GOARCH=$arch GOFLAGS=-trimpath go build -ldflags "-s -w -X drover/cli.Version=$version" \
		-o "$dir/drover-$version-linux-$arch" ./cmd/drover
	echo "$dir/drover-$version-linux-$arch"
done
(cd "$dir" && sha256sum "drover-$version"-linux-* >"SHA256SUMS")
