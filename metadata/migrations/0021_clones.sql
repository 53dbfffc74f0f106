-- Clones of chunks as they were at some time. A clone's number is one of those of
-- migrations, so that its lanes' checkpoints are nobody else's. What an open one
-- still reads of the archive stays.

create table clones (
  id           bigint primary key default nextval('migration_ids'),
  workflow_id  text not null unique,
  chunk        text not null,
  at           timestamptz not null, -- as it was then
  base         bigint not null,      -- the migration whose import it begins with
  keep_from    timestamptz not null, -- the archive must stay from here on while it is open
  shard        text not null,
  database     text not null default '',
  state        text not null default 'loading' check (state in ('loading', 'replaying', 'indexing', 'done', 'failed', 'dropped')),
  requested_by text not null default '',
  created_at   timestamptz not null default clock_timestamp(),
  ended_at     timestamptz
);
