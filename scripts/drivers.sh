#!/usr/bin/env bash
# Installs what the tests of other drivers run: PyMongo in a venv and mongosh, into ~/.cache/drover/drivers.
set -euo pipefail

pymongo=4.15.5
mongosh=2.5.10
dir=${XDG_CACHE_HOME:-$HOME/.cache}/drover/drivers

mkdir -p "$dir"
if ! "$dir/venv/bin/python" -c 'import pymongo' 2>/dev/null; then
  python3 -m venv "$dir/venv"
  "$dir/venv/bin/pip" install -q "pymongo==$pymongo"
fi
if [ ! -x "$dir/node/node_modules/.bin/mongosh" ]; then
  npm install --silent --no-audit --no-fund --prefix "$dir/node" "mongosh@$mongosh"
fi
