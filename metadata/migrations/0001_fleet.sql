-- Shards, logical databases, chunks, placements and routes.
--
-- What must never be true is refused here and not only in Go: an operator with
-- psql, an older binary and a late process meet the same rules.

create sequence tokens;
create sequence placement_ids;

-- refuse ends the statement with a failure of Drover's: message is its code.
-- Class DR is read by the Go side: 1 invalid, 2 lost, 3 transient.
create function refuse(kind text, code text, detail text, hint text default '') returns void
language plpgsql as $$
begin
  raise exception using
    errcode = case kind when 'invalid' then 'DR001' when 'lost' then 'DR002' when 'transient' then 'DR003' end,
    message = code, detail = detail, hint = hint;
end $$;

-- transitions is every state machine; a test compares it with package chunk.
create table transitions (
  machine text not null,
  old     text not null,
  new     text not null,
  primary key (machine, old, new)
);

insert into transitions (machine, old, new) values
  ('placement', 'loading', 'mirror'),
  ('placement', 'loading', 'dropping'),
  ('placement', 'mirror', 'live'),
  ('placement', 'mirror', 'dropping'),
  ('placement', 'live', 'mirror'),
  ('placement', 'dropping', 'gone');

-- check_transition refuses a step that the machine does not have.
create function check_transition(which text, was text, becomes text, what text) returns void
language plpgsql as $$
begin
  if was <> becomes and not exists (
    select from transitions t where t.machine = which and t.old = was and t.new = becomes
  ) then
    perform refuse('invalid', which || '.transition', format('%s cannot go from %s to %s', what, was, becomes));
  end if;
end $$;

-- next_token gives a route token above every one that was given or raised over.
create function next_token() returns bigint
language plpgsql as $$
begin
  perform pg_advisory_xact_lock_shared(7305817, 1);
  return nextval('tokens');
end $$;

-- raise_sequence makes the next value of a sequence greater than seen. The lock
-- keeps it from setting back what a concurrent next_token has moved on.
create function raise_sequence(which regclass, seen bigint) returns void
language plpgsql as $$
declare
  at bigint;
begin
  if seen <= 0 then
    return;
  end if;
  perform pg_advisory_xact_lock(7305817, 1);
  at := nextval(which);
  if seen - at > 100000 then
    perform setval(which, seen);
  end if;
  -- Others may take values meanwhile, so that a short gap is walked, not jumped.
  while at < seen loop
    at := nextval(which);
  end loop;
end $$;

create table shards (
  name         text primary key check (name <> ''),
  uri          text not null check (uri <> ''),
  capabilities jsonb not null default '{}',
  added_at     timestamptz not null default now()
);

-- A database without chunks cannot be committed: its least point must be in one.
create table databases (
  name            text primary key check (name <> ''),
  key_space       text not null check (key_space in ('hashed', 'range')),
  catalog_version bigint not null default 1 check (catalog_version > 0),
  active          boolean not null default false,
  created_at      timestamptz not null default now(),
  key_min         bytea not null default ''::bytea check (key_min = ''::bytea)
);

create table collections (
  database  text not null references databases (name) on delete cascade,
  name      text not null check (name <> ''),
  shard_key text not null check (shard_key <> ''),
  options   bytea,
  indexes   bytea[] not null default '{}',
  primary key (database, name)
);

-- Every end is the start of the next chunk and every start the end of the one
-- before; only the ends of the key space stand alone. As starts and ends are
-- unique and grow along the chain, the chunks of a database are one chain from
-- the least to the greatest point: no gap, no overlap.
create table chunks (
  id       text primary key,
  database text not null references databases (name) on delete cascade,
  lo       bytea not null,
  hi       bytea not null,
  next_lo  bytea generated always as (nullif(hi, '\xff'::bytea)) stored,
  prev_hi  bytea generated always as (nullif(lo, ''::bytea)) stored,
  constraint chunks_named_after_database check (starts_with(id, database || '/')),
  constraint chunks_not_empty check (lo < hi and hi <= '\xff'::bytea),
  constraint chunks_lo unique (database, lo),
  constraint chunks_hi unique (database, hi),
  constraint chunks_no_gap_after foreign key (database, next_lo) references chunks (database, lo)
    deferrable initially deferred,
  constraint chunks_no_gap_before foreign key (database, prev_hi) references chunks (database, hi)
    deferrable initially deferred
);

alter table databases add constraint databases_covered
  foreign key (name, key_min) references chunks (database, lo) deferrable initially deferred;

-- A live placement is one that a route points to, and the reverse: each side
-- refers to the other, so that neither can be committed alone.
create table placements (
  id       bigint primary key default nextval('placement_ids'),
  chunk    text not null references chunks (id) on delete cascade,
  shard    text not null references shards (name),
  database text not null generated always as (replace(chunk, '/', '_') || '_p' || id::text) stored,
  state    text not null check (state in ('loading', 'mirror', 'live', 'dropping', 'gone')),
  live_id  bigint generated always as (case when state = 'live' then id end) stored,
  created_at timestamptz not null default now(),
  changed_at timestamptz not null default now(),
  unique (id, chunk),
  unique (id, chunk, state)
);

create unique index placements_one_live on placements (chunk) where state = 'live';
create index placements_shard on placements (shard) where state <> 'gone';

create table routes (
  chunk     text primary key references chunks (id) on delete cascade,
  placement bigint not null constraint routes_placement unique,
  token     bigint not null constraint routes_token unique,
  attempt   bigint not null default 0, -- the switch that made it; 0 for the first
  since     timestamptz not null default clock_timestamp(),
  placement_state text not null default 'live' check (placement_state = 'live'),
  constraint routes_to_live foreign key (placement, chunk, placement_state)
    references placements (id, chunk, state) on delete cascade deferrable initially deferred
);

alter table placements add constraint placements_live_is_routed
  foreign key (live_id) references routes (placement) deferrable initially deferred;

create table route_history (
  token     bigint primary key,
  chunk     text not null,
  placement bigint not null,
  shard     text not null,
  attempt   bigint not null,
  at        timestamptz not null default clock_timestamp()
);

create index route_history_chunk on route_history (chunk, token);

-- A route only ever takes a greater token, keeps its history and is announced.
create function guard_route() returns trigger
language plpgsql as $$
begin
  if tg_op = 'UPDATE' and (new.token <= old.token or new.chunk <> old.chunk) then
    perform refuse('lost', 'route.token', format('route of %s has token %s, not below %s', old.chunk, old.token, new.token));
  end if;
  new.since := clock_timestamp();
  insert into route_history (token, chunk, placement, shard, attempt)
    select new.token, new.chunk, new.placement, p.shard, new.attempt from placements p where p.id = new.placement;
  perform pg_notify('drover_routes', json_build_object(
    'database', split_part(new.chunk, '/', 1), 'chunk', new.chunk, 'token', new.token)::text);
  return new;
end $$;

create trigger routes_guard before insert or update on routes for each row execute function guard_route();
