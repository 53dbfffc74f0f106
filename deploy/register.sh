#!/bin/sh
# Registers the shards named in $SHARDS, each a set of three members, with their root user's password. A
# shard that is registered is left as it is.
set -eu

for shard in $SHARDS; do
	if drover shard list --output json | grep -q "\"$shard\""; then
		echo "$shard is registered"
		continue
	fi
	drover shard add "$shard" --uri "mongodb://root:$ROOT_PASSWORD@$shard-1:27017,$shard-2:27017,$shard-3:27017/?replicaSet=$shard&authSource=admin"
done
