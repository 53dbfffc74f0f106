#!/usr/bin/env bash
# Initiates the replica set $SHARD of three members and makes its root user with $ROOT_PASSWORD. It runs in
# the first member's network and may run again: what is there stays.
set -euo pipefail

mongosh --quiet "mongodb://127.0.0.1:27017/admin?directConnection=true" --eval '
const shard = process.env.SHARD, password = process.env.ROOT_PASSWORD;

// Nothing can be asked any more once the root user is there, except as that user.
function asRoot() {
  try { return db.auth("root", password).ok === 1; } catch (e) { return false; }
}

if (!asRoot()) {
  try {
    rs.initiate({ _id: shard, members: [1, 2, 3].map(n => ({ _id: n - 1, host: `${shard}-${n}:27017`, priority: n === 1 ? 2 : 1 })) });
  } catch (e) {
    if (e.codeName !== "AlreadyInitialized") throw e;
  }
  for (let i = 0; !db.hello().isWritablePrimary; i++) {
    if (i === 120) throw new Error(`${shard}-1 is no primary after a minute`);
    sleep(500);
  }
  db.createUser({ user: "root", pwd: password, roles: ["root"] });
  if (!asRoot()) throw new Error("the root user cannot log in");
}
print(`${shard} is ready: ` + rs.status().members.map(m => `${m.name} ${m.stateStr}`).join(", "));
'
