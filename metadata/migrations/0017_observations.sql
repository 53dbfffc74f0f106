-- Since when a shard's members are as they are: patience with one that does not
-- move must outlive the process that looks. The shape belongs to package remediation.

create table shard_observations (
  shard text primary key references shards (name) on delete cascade,
  moved jsonb not null,
  at    timestamptz not null default clock_timestamp()
);
