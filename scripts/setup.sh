#!/usr/bin/env bash
# Installs what the development stack runs, with pinned versions, below
# ${XDG_CACHE_HOME:-~/.cache}/drover/NAME-VERSION. What is there is left alone, so a second run and a
# second clone do nothing. System packages come from apt, and only where something is missing.
#
#   scripts/setup.sh                    install everything
#   scripts/setup.sh golangci-lint      install the linter
#   scripts/setup.sh workflowcheck      install the check for determinism
#   scripts/setup.sh temporal-folder    print the cache folder of the Temporal server
#   scripts/setup.sh tool-version NAME  print the pinned version of golangci-lint or workflowcheck
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=../devstack/versions.env
. "$root/devstack/versions.env"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/drover

say() { printf '%s\n' "$*"; }
die() {
	printf 'setup: %s\n' "$*" >&2
	exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }
seconds() { printf '%d:%02d' $((SECONDS / 60)) $((SECONDS % 60)); }

# --- system packages ---------------------------------------------------------

# Every program of a missing package is looked for first: an installation by other means counts.
have_postgres() { compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || have initdb; }
have_java() { have java || [ -x "${JAVA_HOME:-/nonexistent}/bin/java" ]; }

apt_packages() {
	local missing=()
	have_postgres || missing+=(postgresql)
	have_java || missing+=(openjdk-17-jre-headless)
	if [ ! -d "$cache/kafka-$KAFKA_VERSION/libs" ]; then
		have mvn || missing+=(maven)
	fi
	if ! have mongod && [ ! -x "$cache/secantus-mdb-$SECANTUS_VERSION/bin/secantusd-rs" ]; then
		have cmake || missing+=(cmake)
		have cc && have c++ && have make || missing+=(build-essential)
	fi
	have promtool || missing+=(prometheus) # tests the alarms
	have amtool || missing+=(prometheus-alertmanager)
	if grep -qx 'ID=debian' /etc/os-release 2>/dev/null; then # others have no such package, and its tests are skipped there
		have chromium || have google-chrome || missing+=(chromium) # tests the console
	fi
	printf '%s\n' "${missing[@]-}"
}

install_packages() {
	local list
	list=$(apt_packages | xargs)
	if [ -z "$list" ]; then
		say "system packages: nothing is missing"
		return
	fi
	local as_root=()
	if [ "$(id -u)" != 0 ]; then
		if have sudo && sudo -n true 2>/dev/null; then
			as_root=(sudo -n)
		else
			die "these system packages are missing and installing them needs root. Run by hand:
    sudo apt-get install $list
then run make setup again."
		fi
	fi
	have apt-get || die "this is no Debian or Ubuntu. Install by hand what these packages hold, then run make setup again: $list"
	say "system packages: installing $list"
	# Debian's postgresql starts a server of its own; none is wanted here.
	local conf=/etc/postgresql-common/createcluster.conf
	if [[ " $list " == *" postgresql "* && ! -e $conf ]]; then
		"${as_root[@]}" mkdir -p "$(dirname "$conf")"
		echo 'create_main_cluster = false' | "${as_root[@]}" tee "$conf" >/dev/null
	fi
	"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q
	# shellcheck disable=SC2086 # a list of words
	# RUNLEVEL=1: the packages' own servers are not started.
	"${as_root[@]}" env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $list
}

# --- things that are built ---------------------------------------------------

# build NAME FOLDER FUNCTION runs FUNCTION with an empty folder, its output in a log, and renames the
# folder into the cache when all went well. While it runs, the log's growth is the progress that is shown.
build() {
	local name=$1 folder=$cache/$2 run=$3
	if [ -d "$folder" ]; then
		say "$name: installed in $folder"
		return
	fi
	local fresh=$folder.new log=$cache/logs/$2.log
	rm -rf "$fresh"
	mkdir -p "$fresh" "$cache/logs"
	say "$name: building (log: $log)"
	local began=$SECONDS
	if ! "$run" "$fresh" >"$log" 2>&1; then
		printf 'setup: %s could not be built. The log %s ends:\n' "$name" "$log" >&2
		tail -n 25 "$log" >&2
		rm -rf "$fresh"
		return 1
	fi
	rm -rf "$folder"
	mv "$fresh" "$folder"
	say "$name: ready after $((SECONDS - began)) s"
}

copy_kafka() {
	mvn -B -q -f "$root/scripts/kafka-pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
		-Dkafka.version="$KAFKA_VERSION" -Dscala.version="$KAFKA_SCALA_VERSION" -Dslf4j.version="$SLF4J_VERSION" \
		-DincludeScope=runtime -DoutputDirectory="$1/libs"
}

build_versitygw() {
	GOBIN="$1/bin" GOFLAGS=-v nice go install "github.com/versity/versitygw/cmd/versitygw@$VERSITYGW_VERSION"
}

# The crate asks for a newer compiler than it needs.
build_secantus() {
	nice cargo install secantus-mdb --version "$SECANTUS_VERSION" --ignore-rust-version --root "$1"
}

build_temporal() {
	(cd "$root/devstack/temporal" && nice go build -v -ldflags='-s -w' -o "$1/bin/temporal" .)
}

build_golangci() {
	(cd "$root/tools" && nice go build -v -ldflags='-s -w' -o "$1/bin/golangci-lint" github.com/golangci/golangci-lint/v2/cmd/golangci-lint)
}

build_workflowcheck() {
	(cd "$root/tools" && nice go build -v -o "$1/bin/workflowcheck" go.temporal.io/sdk/contrib/tools/workflowcheck)
}

# temporal_folder must agree with package devstack, which looks for it.
temporal_folder() {
	local hash
	hash=$(
		cd "$root/devstack/temporal"
		{
			cat go.mod go.sum
			find . -maxdepth 1 -name '*.go' ! -name '*_test.go' | LC_ALL=C sort | xargs cat
		} | sha256sum | cut -c1-16
	)
	printf 'temporal-%s\n' "$hash"
}

# tool_version NAME is pinned by the tools' module.
tool_version() { awk -v m="/$1(/v2)?$" '$1 ~ m && $2 ~ /^v/ { print $2 }' "$root/tools/go.mod"; }

# watch shows how far the logs of running builds are, every 20 seconds.
watch_builds() {
	while sleep 20 >/dev/null 2>&1; do # a sleeper that is left over must not keep the output open
		local line="setup [$(seconds)]:" log
		for log in "$@"; do
			[ -f "$log" ] && [ -d "$cache/$(basename "$log" .log).new" ] || continue
			line+=" $(basename "$log" .log | cut -d- -f1) $(grep -cE '^ *Compiling|^[a-z0-9.-]+(/|$)' "$log" || true) packages built;"
		done
		say "$line"
	done
}

check_tools() {
	have go || die "Go is not installed. Install Go 1.26 or newer from https://go.dev/dl and run make setup again."
	if ! have mongod && [ ! -x "$cache/secantus-mdb-$SECANTUS_VERSION/bin/secantusd-rs" ] && ! have cargo; then
		die "there is no mongod on PATH, and no Rust to build a stand-in. Install one of them by hand:
    MongoDB 6.0 or newer: https://www.mongodb.com/docs/manual/administration/install-on-linux/
    Rust 1.95 or newer:   https://rustup.rs
then run make setup again."
	fi
}

all() {
	mkdir -p "$cache/logs"
	if have flock; then # two clones at once
		exec 9>"$cache/lock"
		flock -n 9 || {
			say "another set-up is running; waiting for it"
			flock 9
		}
	fi
	check_tools
	install_packages

	local temporal pids=() names=() failed=() i
	temporal=$(temporal_folder)
	build Kafka "kafka-$KAFKA_VERSION" copy_kafka || failed+=(Kafka)

	# The Rust build has long stretches on one core, so it runs beside the Go builds.
	watch_builds "$cache/logs/secantus-mdb-$SECANTUS_VERSION.log" "$cache/logs/$temporal.log" "$cache/logs/versitygw-$VERSITYGW_VERSION.log" 9>&- &
	local watcher=$!
	if have mongod; then
		say "shards: $(command -v mongod) will be used"
	else
		build secantusd-rs "secantus-mdb-$SECANTUS_VERSION" build_secantus &
		pids+=($!) names+=(secantusd-rs)
	fi
	{
		build versitygw "versitygw-$VERSITYGW_VERSION" build_versitygw && build Temporal "$temporal" build_temporal
	} &
	pids+=($!) names+=("versitygw or Temporal")
	for i in "${!pids[@]}"; do
		wait "${pids[$i]}" || failed+=("${names[$i]}")
	done
	kill "$watcher" 2>/dev/null || true
	wait "$watcher" 2>/dev/null || true
	[ ${#failed[@]} = 0 ] || die "not installed: ${failed[*]}"
	say "setup: done after $(seconds); everything is in $cache"
}

# tool NAME FUNCTION installs one of the tools that check the code.
tool() {
	mkdir -p "$cache/logs"
	build "$1" "$1-$(tool_version "$1")" "$2"
}

case ${1-} in
'') all ;;
golangci-lint) tool golangci-lint build_golangci ;;
workflowcheck) tool workflowcheck build_workflowcheck ;;
temporal-folder) temporal_folder ;;
tool-version) tool_version "${2-}" ;;
*) die "unknown argument $1" ;;
esac
