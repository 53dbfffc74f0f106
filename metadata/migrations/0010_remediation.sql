-- Layouts that shards are wanted to have, what the watch over the fleet has seen,
-- and remediations. The shapes of layouts and machines belong to package remediation.

create table shard_layouts (
  shard    text primary key references shards (name) on delete cascade,
  domain   text not null default '',
  layout   jsonb not null,
  machines jsonb not null,
  set_by   text not null,
  set_at   timestamptz not null default clock_timestamp()
);

-- A row lives as long as a layout: unhealthy_since is null while all is well, and
-- seen_at is when the shard was last read in full.
create table shard_health (
  shard           text primary key references shard_layouts (shard) on delete cascade,
  seen_at         timestamptz,
  unhealthy_since timestamptz,
  cost            int not null default 0,
  grown           int not null default 0,
  health          text not null default '',
  why             text not null default ''
);

create table remediations (
  workflow_id  text not null,
  run          bigint generated always as identity primary key,
  shard        text not null,
  requested_by text not null,
  cost         int not null,
  steps        int not null default 0,
  waiting      boolean not null default false,
  verdict      text not null default '',
  attention    text not null default '',
  started_at   timestamptz not null default clock_timestamp(),
  ended_at     timestamptz
);

create unique index remediations_one_running on remediations (workflow_id) where ended_at is null;

-- The stop switch: a row means stop.
create table remediation_stop (
  one    boolean primary key default true check (one),
  by_who text not null,
  reason text not null,
  at     timestamptz not null default clock_timestamp()
);
