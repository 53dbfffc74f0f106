-- What shards were seen to take, and which moves were admitted by it.

create table shard_rates (
  shard      text not null references shards (name) on delete cascade,
  kind       text not null, -- apply: changes; load: documents; load-bytes
  per_second double precision not null,
  at         timestamptz not null default clock_timestamp(),
  primary key (shard, kind)
);

alter table migrations add column admitted_at timestamptz;
alter table migrations add column demand double precision not null default 0; -- changes per second when it was admitted
