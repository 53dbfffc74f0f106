-- What the parts that do the work must remember, and what they find.

insert into transitions (machine, old, new) values
  ('slice', 'planned', 'stored'),
  ('slice', 'stored', 'loaded'),
  ('slice', 'stored', 'planned'),
  ('slice', 'loaded', 'planned');

create table slices (
  migration  bigint not null references migrations (id) on delete cascade,
  collection text not null,
  no         integer not null check (no >= 0),
  lo         bytea,
  hi         bytea,
  state      text not null default 'planned' check (state in ('planned', 'stored', 'loaded')),
  t_lo_sec   bigint not null default 0,
  t_lo_inc   bigint not null default 0,
  t_hi_sec   bigint not null default 0,
  t_hi_inc   bigint not null default 0,
  docs       bigint not null default 0 check (docs >= 0),
  bytes      bigint not null default 0 check (bytes >= 0),
  hash       bytea,
  object_key text not null default '',
  manifest   jsonb not null default '{}',
  changed_at timestamptz not null default now(),
  primary key (migration, collection, no),
  constraint slices_window check ((t_lo_sec, t_lo_inc) <= (t_hi_sec, t_hi_inc)),
  constraint slices_stored_has_object check (state = 'planned' or object_key <> '' and t_lo_sec > 0)
);

create function guard_slice() returns trigger
language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    if new.state <> 'planned' then
      perform refuse('invalid', 'slice.transition', format('a slice cannot be born %s', new.state));
    end if;
  else
    perform check_transition('slice', old.state, new.state, format('slice %s/%s of migration %s', old.collection, old.no, old.migration));
  end if;
  new.changed_at := clock_timestamp();
  return new;
end $$;

create trigger slices_guard before insert or update on slices for each row execute function guard_slice();

-- One row a shard: how far its log is captured, by whom.
create table capture_positions (
  shard        text primary key references shards (name) on delete cascade,
  owner        text not null,
  epoch        bigint not null check (epoch > 0),
  seq          bigint not null default 0 check (seq >= 0),
  resume_token bytea,
  state        bytea,
  saved_at     timestamptz not null default now()
);

create table archive_positions (
  topic       text not null,
  "partition" integer not null check ("partition" >= 0),
  "offset"    bigint not null check ("offset" >= 0),
  manifest    text not null default '',
  saved_at    timestamptz not null default now(),
  primary key (topic, "partition")
);

create table stragglers (
  id        bigint generated always as identity primary key,
  shard     text not null,
  placement bigint not null,
  seq       bigint not null,
  kind      text not null,
  event     bytea not null,
  seen_at   timestamptz not null default clock_timestamp(),
  unique (shard, seq)
);

create table quarantines (
  id          bigint generated always as identity primary key,
  migration   bigint not null references migrations (id) on delete cascade,
  direction   bigint not null,
  "partition" integer not null,
  seq         bigint not null,
  event       bytea not null,
  reason      text not null,
  at          timestamptz not null default clock_timestamp(),
  released_at timestamptz,
  unique (migration, direction, "partition", seq)
);

-- digest stands for (id, path, kind), which may be longer than an index entry.
create table mismatches (
  migration   bigint not null references migrations (id) on delete cascade,
  collection  text not null,
  digest      bytea not null,
  doc_id      bytea,
  path        text not null,
  kind        text not null,
  first_seen  timestamptz not null default clock_timestamp(),
  last_seen   timestamptz not null default clock_timestamp(),
  resolved_at timestamptz,
  primary key (migration, collection, digest)
);

create index mismatches_open on mismatches (migration) where resolved_at is null;

create table proxies (
  id         text primary key,
  address    text not null,
  started_at timestamptz not null default clock_timestamp(),
  seen_at    timestamptz not null default clock_timestamp()
);
