-- How attempts end: the way back needs the row alone while the metadata's server is
-- the one that the attempt began on; an open attempt in the way is waited for; what
-- goes back has a short deadline of its own; members that are owed a barrier.

-- this_server tells one life of a Postgres server from another. A server that was
-- restored, promoted or only restarted has another: it may have forgotten a publish.
create function this_server() returns text
language sql stable as $$ select extract(epoch from pg_postmaster_start_time())::text $$;

alter table attempts add column server text not null default '';

create or replace view attempt_view as
select a.id, a.migration, a.chunk, a.state, a.key, a.direction, a.deadline, a.reason, a.source_term, a.source_process,
       coalesce(a.token, 0) as token, a.timeline, a.created_at, a.changed_at,
       s.id as source_id, s.shard as source_shard, s.database as source_database, s.state as source_state,
       t.id as target_id, t.shard as target_shard, t.database as target_database, t.state as target_state,
       a.state in ('preparing', 'fencing', 'closing', 'published', 'aborting')
         and a.deadline <= clock_timestamp() as overdue,
       extract(epoch from a.deadline - clock_timestamp()) as left_seconds,
       a.server = this_server() as same_server
  from attempts a
  join placements s on s.id = a.source
  join placements t on t.id = a.target;

-- Every change of an attempt's state is checked, kept in its timeline and announced.
create or replace function guard_attempt() returns trigger
language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    if new.state <> 'preparing' then
      perform refuse('invalid', 'attempt.transition', format('an attempt cannot be born %s', new.state));
    end if;
    perform check_new_attempt(new);
    -- The newest switch of this migration started the lanes that this one follows.
    select coalesce(max(a.id), 0) into new.direction from attempts a where a.migration = new.migration and a.token is not null;
    new.server := this_server();
  else
    if (new.id, new.migration, new.chunk, new.source, new.target, new.key, new.direction, new.server)
       is distinct from (old.id, old.migration, old.chunk, old.source, old.target, old.key, old.direction, old.server) then
      perform refuse('invalid', 'attempt.fixed', format('attempt %s never changes what it switches', old.id));
    end if;
    if new.state = old.state then
      return new;
    end if;
    perform check_transition('attempt', old.state, new.state, 'attempt ' || old.id);
  end if;
  new.changed_at := clock_timestamp();
  new.timeline := new.timeline || jsonb_build_object('state', new.state, 'at', new.changed_at, 'reason', new.reason);
  perform pg_notify('drover_attempts', json_build_object(
    'attempt', new.id, 'migration', new.migration, 'state', new.state, 'source', new.source, 'target', new.target,
    'chunks', json_build_array(new.chunk),
    'deadline_unix_ms', floor(extract(epoch from new.deadline) * 1000)::bigint)::text);
  return new;
end $$;

-- settle_attempt ends the doubt of a publish whose answer was lost: it waits for
-- one under way, and where none came through no later one can.
create or replace function settle_attempt(which bigint, why text) returns setof attempt_view
language plpgsql as $$
declare
  a record;
begin
  select * into a from attempts where id = which for no key update;
  if not found then
    perform refuse('invalid', 'attempt.unknown', format('there is no attempt %s', which));
  end if;
  if a.state in ('preparing', 'fencing', 'closing') then
    update attempts set state = 'aborting', reason = why,
      deadline = least(deadline, clock_timestamp() + interval '300 milliseconds') where id = which;
  end if;
  return query select * from attempt_view v where v.id = which;
end $$;

-- A member that was down when a placement was closed is owed the barrier: it may
-- come back with old grants in its cache.
create table owed_barriers (
  placement bigint not null references placements (id) on delete cascade,
  access    text not null check (access in ('writes', 'reads')),
  host      text not null,
  attempt   bigint not null,
  since     timestamptz not null default clock_timestamp(),
  primary key (placement, access, host)
);

-- A migration goes on only if what its next phase says is true already.
create or replace function guard_migration() returns trigger
language plpgsql as $$
declare
  source_state text;
  target_state text;
  other        record;
begin
  if tg_op = 'INSERT' then
    if new.phase <> 'registered' then
      perform refuse('invalid', 'migration.transition', format('a migration cannot be born %s', new.phase));
    end if;
    return new;
  end if;
  if (new.id, new.chunk, new.source, new.target) is distinct from (old.id, old.chunk, old.source, old.target) then
    perform refuse('invalid', 'migration.fixed', format('migration %s never changes its chunk or placements', old.id));
  end if;
  new.updated_at := clock_timestamp();
  if new.phase = old.phase then
    return new;
  end if;
  perform check_transition('migration', old.phase, new.phase, 'migration ' || old.id);
  select p.state into source_state from placements p where p.id = new.source for share;
  select p.state into target_state from placements p where p.id = new.target for share;
  if new.phase in ('completing', 'aborting') then
    select a.id, a.state into other from attempts a where a.migration = new.id and a.state not in ('done', 'aborted');
    if found then
      perform refuse('transient', 'migration.attempt_open',
        format('attempt %s of migration %s is %s', other.id, new.id, other.state));
    end if;
  end if;
  if new.phase in ('burn-in', 'completing') and target_state <> 'live' then
    perform refuse('invalid', 'migration.target_not_live',
      format('migration %s cannot be %s: its target placement %s is %s', new.id, new.phase, new.target, target_state));
  end if;
  if new.phase in ('replicating', 'aborting') and source_state <> 'live' then
    perform refuse('invalid', 'migration.source_not_live',
      format('migration %s cannot be %s: its source placement %s is %s', new.id, new.phase, new.source, source_state));
  end if;
  if new.phase = 'done' and source_state <> 'gone' or new.phase = 'aborted' and target_state <> 'gone' then
    perform refuse('invalid', 'migration.not_dropped',
      format('migration %s cannot be %s: source is %s, target is %s', new.id, new.phase, source_state, target_state));
  end if;
  return new;
end $$;

-- begin_attempt opens an attempt from the placement that serves to the other.
-- The same key asking again is given the attempt that it has, whatever became of it.
create or replace function begin_attempt(which bigint, by_key text, within interval) returns setof attempt_view
language plpgsql as $$
declare
  m    record;
  r    record;
  had  record;
  made bigint;
begin
  select * into m from migrations where id = which for no key update;
  if not found then
    perform refuse('invalid', 'migration.unknown', format('there is no migration %s', which));
  end if;
  select a.id into made from attempts a where a.migration = which and a.key = by_key;
  if not found then
    select a.id, a.state, a.migration into had from attempts a where a.chunk = m.chunk and a.state not in ('done', 'aborted');
    if found then
      perform refuse('transient', 'attempt.open', format('attempt %s of migration %s is still %s', had.id, had.migration, had.state));
    end if;
    select rt.placement into r from routes rt where rt.chunk = m.chunk;
    insert into attempts (migration, chunk, source, target, key, deadline)
      values (which, m.chunk, r.placement, case when r.placement = m.source then m.target else m.source end,
              by_key, clock_timestamp() + within)
      returning id into made;
  end if;
  return query select * from attempt_view v where v.id = made;
end $$;
