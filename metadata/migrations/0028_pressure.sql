-- What the balancer weighs beside size and operations: how long operations take, by
-- chunk and by shard, and how busy the CPUs of shards are.

alter table proxy_loads add column spent_us bigint not null default 0; -- that the answers took together

-- The newest reading of what a shard's primary counts, and what it says together with
-- the ones before it. The shapes belong to packages chunk and fleet.
create table shard_pressures (
  shard    text primary key references shards (name) on delete cascade,
  counters jsonb not null,
  pressure jsonb not null,
  at       timestamptz not null default clock_timestamp()
);

-- The heat of chunks, with what is remembered of the last day; of package balancer.
create table chunk_heats (
  chunk text primary key,
  heat  jsonb not null,
  at    timestamptz not null default clock_timestamp()
);
