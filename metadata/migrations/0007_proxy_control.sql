-- Who may use the proxies, and how much.

create table proxy_users (
  name       text primary key check (name <> ''),
  salt       bytea not null,
  iterations integer not null check (iterations > 0),
  stored_key bytea not null,
  server_key bytea not null,
  created_at timestamptz not null default clock_timestamp(),
  changed_at timestamptz not null default clock_timestamp()
);

-- A grant may name a database that does not exist yet; '*' is all of them.
create table proxy_grants (
  user_name text not null references proxy_users (name) on delete cascade,
  database  text not null check (database <> ''),
  action    text not null check (action in ('read', 'write', 'ddl', 'admin')),
  primary key (user_name, database, action)
);

create table database_policies (
  database   text primary key references databases (name) on delete cascade,
  policy     jsonb not null,
  changed_at timestamptz not null default clock_timestamp()
);

-- What each proxy has learned about callers: one row for a user and application.
create table proxy_clients (
  proxy     text not null,
  user_name text not null,
  app       text not null,
  envelope  jsonb not null,
  seen_at   timestamptz not null default clock_timestamp(),
  primary key (proxy, user_name, app)
);

-- The notification of a route carries the placement, so that a proxy need not
-- read what it was just told.
create or replace function guard_route() returns trigger
language plpgsql as $$
declare
  at placements;
begin
  if tg_op = 'UPDATE' and (new.token <= old.token or new.chunk <> old.chunk) then
    perform refuse('lost', 'route.token', format('route of %s has token %s, not below %s', old.chunk, old.token, new.token));
  end if;
  new.since := clock_timestamp();
  select * into at from placements p where p.id = new.placement;
  insert into route_history (token, chunk, placement, shard, attempt)
    values (new.token, new.chunk, new.placement, at.shard, new.attempt);
  perform pg_notify('drover_routes', json_build_object(
    'database', split_part(new.chunk, '/', 1), 'chunk', new.chunk, 'token', new.token,
    'placement', at.id, 'shard', at.shard, 'physical', at.database)::text);
  return new;
end $$;
