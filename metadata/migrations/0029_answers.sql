-- What the proxies say of the shards that an import reads or loads: how many requests
-- took how long since they began. The shape belongs to package proxy.

create table proxy_answers (
  proxy text not null,
  shard text not null,
  word  jsonb not null,
  at    timestamptz not null default clock_timestamp(),
  primary key (proxy, shard)
);
