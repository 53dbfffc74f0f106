-- Migrations of chunks, attempts to switch, and the publish.

create sequence migration_ids;
create sequence attempt_ids;

insert into transitions (machine, old, new) values
  ('migration', 'registered', 'importing'),
  ('migration', 'registered', 'aborting'),
  ('migration', 'importing', 'replicating'),
  ('migration', 'importing', 'aborting'),
  ('migration', 'replicating', 'validating'),
  ('migration', 'replicating', 'aborting'),
  ('migration', 'validating', 'switching'),
  ('migration', 'validating', 'replicating'),
  ('migration', 'validating', 'aborting'),
  ('migration', 'switching', 'burn-in'),
  ('migration', 'switching', 'replicating'),
  ('migration', 'switching', 'aborting'),
  ('migration', 'burn-in', 'completing'),
  ('migration', 'burn-in', 'aborting'),
  ('migration', 'completing', 'done'),
  ('migration', 'aborting', 'aborted'),
  ('attempt', 'preparing', 'fencing'),
  ('attempt', 'preparing', 'aborting'),
  ('attempt', 'fencing', 'closing'),
  ('attempt', 'fencing', 'aborting'),
  ('attempt', 'closing', 'published'),
  ('attempt', 'closing', 'aborting'),
  ('attempt', 'published', 'open'),
  ('attempt', 'open', 'done'),
  ('attempt', 'aborting', 'aborted');

create table migrations (
  id              bigint primary key default nextval('migration_ids'),
  chunk           text not null references chunks (id) on delete cascade,
  source          bigint not null,
  target          bigint not null constraint migrations_target unique,
  phase           text not null default 'registered' check (phase in ('registered', 'importing', 'replicating',
                    'validating', 'switching', 'burn-in', 'completing', 'done', 'aborting', 'aborted')),
  step            jsonb not null default '{}',
  progress        jsonb not null default '{}',
  workflow_id     text not null default '',
  requested_by    text not null default '',
  paused          boolean not null default false,
  needs_attention text not null default '',
  busy            bytea,
  created_at      timestamptz not null default now(),
  updated_at      timestamptz not null default now(),
  constraint migrations_two_sides check (source <> target),
  unique (id, chunk),
  foreign key (source, chunk) references placements (id, chunk),
  foreign key (target, chunk) references placements (id, chunk)
);

create unique index migrations_one_unfinished on migrations (chunk) where phase not in ('done', 'aborted');
create index migrations_chunk on migrations (chunk, id);

create table attempts (
  id             bigint primary key default nextval('attempt_ids'),
  migration      bigint not null,
  chunk          text not null,
  source         bigint not null,
  target         bigint not null,
  state          text not null default 'preparing' check (state in ('preparing', 'fencing', 'closing',
                   'published', 'open', 'done', 'aborting', 'aborted')),
  key            text not null,
  direction      bigint not null default 0, -- of the lanes that feed the target
  deadline       timestamptz not null,
  reason         text not null default '',
  source_term    bigint not null default 0,
  source_process text not null default '',
  token          bigint,
  timeline       jsonb not null default '[]',
  created_at     timestamptz not null default now(),
  changed_at     timestamptz not null default now(),
  constraint attempts_two_sides check (source <> target),
  constraint attempts_token_means_published check ((token is not null) = (state in ('published', 'open', 'done'))),
  constraint attempts_key unique (migration, key),
  foreign key (migration, chunk) references migrations (id, chunk) on delete cascade,
  foreign key (source, chunk) references placements (id, chunk),
  foreign key (target, chunk) references placements (id, chunk)
);

create unique index attempts_one_open_of_migration on attempts (migration) where state not in ('done', 'aborted');
create unique index attempts_one_open_of_chunk on attempts (chunk) where state not in ('done', 'aborted');
create index attempts_chunk on attempts (chunk, id);

-- attempt_view is an attempt as Go reads it: with its placements, and judged by
-- this server's clock.
create view attempt_view as
select a.id, a.migration, a.chunk, a.state, a.key, a.direction, a.deadline, a.reason, a.source_term, a.source_process,
       coalesce(a.token, 0) as token, a.timeline, a.created_at, a.changed_at,
       s.id as source_id, s.shard as source_shard, s.database as source_database, s.state as source_state,
       t.id as target_id, t.shard as target_shard, t.database as target_database, t.state as target_state,
       a.state in ('preparing', 'fencing', 'closing', 'published', 'aborting')
         and a.deadline <= clock_timestamp() as overdue,
       extract(epoch from a.deadline - clock_timestamp()) as left_seconds
  from attempts a
  join placements s on s.id = a.source
  join placements t on t.id = a.target;

-- A placement is born loading, or live with its database. It is never dropped
-- while someone may still come back to it.
create function guard_placement() returns trigger
language plpgsql as $$
declare
  other record;
begin
  if tg_op = 'INSERT' then
    if new.state not in ('loading', 'live') then
      perform refuse('invalid', 'placement.transition', format('a placement cannot be born %s', new.state));
    end if;
    return new;
  end if;
  if (new.id, new.chunk, new.shard) is distinct from (old.id, old.chunk, old.shard) then
    perform refuse('invalid', 'placement.fixed', format('placement %s never changes its chunk or shard', old.id));
  end if;
  perform check_transition('placement', old.state, new.state, 'placement ' || old.id);
  if old.state <> 'dropping' and new.state = 'dropping' then
    select a.id, a.state into other from attempts a
      where a.state not in ('done', 'aborted') and a.chunk = new.chunk and new.id in (a.source, a.target);
    if found then
      perform refuse('invalid', 'placement.attempt_open',
        format('placement %s is named by attempt %s, which is %s', old.id, other.id, other.state));
    end if;
    select m.id, m.phase into other from migrations m
      where m.chunk = new.chunk and new.id in (m.source, m.target)
        and m.phase not in ('completing', 'aborting', 'done', 'aborted');
    if found then
      perform refuse('invalid', 'placement.migration_open',
        format('placement %s is needed by migration %s, which is %s', old.id, other.id, other.phase));
    end if;
  end if;
  new.changed_at := clock_timestamp();
  return new;
end $$;

create trigger placements_guard before insert or update on placements for each row execute function guard_placement();

-- A migration goes on only if what its next phase says is true already.
create function guard_migration() returns trigger
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
      perform refuse('invalid', 'migration.attempt_open',
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

create trigger migrations_guard before insert or update on migrations for each row execute function guard_migration();

-- An attempt is born between a live source and its mirror, of one migration,
-- while nobody repairs either shard.
create function check_new_attempt(a attempts) returns void
language plpgsql as $$
declare
  m record;
  s record;
  t record;
  l record;
begin
  select * into m from migrations where id = a.migration for share;
  if not found or (m.source, m.target) not in ((a.source, a.target), (a.target, a.source)) then
    perform refuse('invalid', 'attempt.sides', format('migration %s is not between placements %s and %s', a.migration, a.source, a.target));
  end if;
  if m.phase not in ('switching', 'burn-in') then
    perform refuse('invalid', 'attempt.phase', format('migration %s is %s: only one that is switching or in burn-in can switch', m.id, m.phase));
  end if;
  select * into s from placements where id = a.source for share;
  select * into t from placements where id = a.target for share;
  if s.state <> 'live' or t.state <> 'mirror' then
    perform refuse('invalid', 'attempt.placements',
      format('source placement %s is %s and target placement %s is %s', s.id, s.state, t.id, t.state));
  end if;
  perform from shards where name in (s.shard, t.shard) order by name for share;
  select * into l from leases where shard in (s.shard, t.shard) and mode = 'exclusive' and granted
    and expires_at > clock_timestamp() limit 1;
  if found then
    perform refuse('transient', 'lease.held_exclusive', format('shard %s is held by %s', l.shard, l.holder));
  end if;
end $$;

-- Every change of an attempt's state is checked, kept in its timeline and announced.
create function guard_attempt() returns trigger
language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    if new.state <> 'preparing' then
      perform refuse('invalid', 'attempt.transition', format('an attempt cannot be born %s', new.state));
    end if;
    perform check_new_attempt(new);
    -- The newest switch of this migration started the lanes that this one follows.
    select coalesce(max(a.id), 0) into new.direction from attempts a where a.migration = new.migration and a.token is not null;
  else
    if (new.id, new.migration, new.chunk, new.source, new.target, new.key, new.direction)
       is distinct from (old.id, old.migration, old.chunk, old.source, old.target, old.key, old.direction) then
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

create trigger attempts_guard before insert or update on attempts for each row execute function guard_attempt();

-- register_migration claims a chunk and gives the target placement its id. The
-- same workflow asking again is given what it has.
create function register_migration(which text, onto text, workflow text, by_whom text) returns bigint
language plpgsql as $$
declare
  c       record;
  r       record;
  other   record;
  made_placement bigint;
  made    bigint;
begin
  select ch.id, d.active into c from chunks ch join databases d on d.name = ch.database where ch.id = which
    for no key update of ch;
  if not found then
    perform refuse('invalid', 'migration.chunk_unknown', format('there is no chunk %s', which), 'drover chunk list shows every chunk');
  end if;
  if not c.active then
    perform refuse('invalid', 'migration.database_inactive', format('the database of chunk %s is still being created', which));
  end if;
  perform from shards where name = onto;
  if not found then
    perform refuse('invalid', 'migration.shard_unknown', format('there is no shard %s', onto), 'drover shard list shows every shard');
  end if;
  select m.id, m.phase, m.workflow_id, m.requested_by, p.shard into other
    from migrations m join placements p on p.id = m.target
    where m.chunk = which and m.phase not in ('done', 'aborted');
  if found then
    if other.workflow_id = workflow and other.shard = onto then
      return other.id;
    end if;
    perform refuse('invalid', 'migration.overlapping',
      format('chunk %s is being moved to %s by migration %s (%s, workflow %s)', which, other.shard, other.id, other.phase, other.workflow_id),
      format('wait for migration %s or abort it', other.id));
  end if;
  select rt.placement, p.shard into r from routes rt join placements p on p.id = rt.placement where rt.chunk = which;
  if r.shard = onto then
    perform refuse('invalid', 'migration.same_shard', format('chunk %s is on shard %s already', which, onto));
  end if;
  insert into placements (chunk, shard, state) values (which, onto, 'loading') returning id into made_placement;
  insert into migrations (chunk, source, target, workflow_id, requested_by)
    values (which, r.placement, made_placement, workflow, by_whom) returning id into made;
  return made;
end $$;

-- begin_attempt opens an attempt from the placement that serves to the other.
-- The same key asking again is given the attempt that it has, whatever became of it.
create function begin_attempt(which bigint, by_key text, within interval) returns setof attempt_view
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
      perform refuse('invalid', 'attempt.open', format('attempt %s of migration %s is still %s', had.id, had.migration, had.state));
    end if;
    select rt.placement into r from routes rt where rt.chunk = m.chunk;
    insert into attempts (migration, chunk, source, target, key, deadline)
      values (which, m.chunk, r.placement, case when r.placement = m.source then m.target else m.source end,
              by_key, clock_timestamp() + within)
      returning id into made;
  end if;
  return query select * from attempt_view v where v.id = made;
end $$;

-- advance_attempt is the compare-and-set of an attempt's state.
create function advance_attempt(which bigint, was text, becomes text, within interval, why text, term bigint, process text)
returns setof attempt_view
language plpgsql as $$
declare
  a record;
begin
  if becomes = 'published' then
    perform refuse('invalid', 'attempt.transition', format('attempt %s is published only with its route', which));
  end if;
  if becomes = 'closing' and within is not null then
    perform refuse('invalid', 'attempt.deadline_fixed', format('the deadline of attempt %s was set when it began to fence', which));
  end if;
  update attempts x set
      state = becomes,
      deadline = coalesce(clock_timestamp() + within, x.deadline),
      reason = case when why = '' then x.reason else why end,
      source_term = case when term = 0 then x.source_term else term end,
      source_process = case when process = '' then x.source_process else process end
    where x.id = which and x.state = was
      and (becomes not in ('fencing', 'closing') or x.deadline > clock_timestamp());
  if not found then
    perform check_transition('attempt', was, becomes, 'attempt ' || which);
    select x.state, x.reason into a from attempts x where x.id = which;
    if not found then
      perform refuse('invalid', 'attempt.unknown', format('there is no attempt %s', which));
    end if;
    if a.state = was then
      perform refuse('invalid', 'attempt.deadline_passed', format('attempt %s is %s past its deadline', which, was));
    end if;
    perform refuse('lost', 'attempt.is_' || a.state,
      format('attempt %s is %s, not %s: %s', which, a.state, was, coalesce(nullif(a.reason, ''), 'no reason given')));
  end if;
  return query select * from attempt_view v where v.id = which;
end $$;

-- check_lease refuses an epoch that is not the newest of a granted, living lease.
create function check_lease(on_shard text, shard_names text[], epochs bigint[]) returns void
language plpgsql as $$
declare
  wanted bigint;
begin
  select e.epoch into wanted from unnest(shard_names, epochs) as e(name, epoch) where e.name = on_shard;
  if not found then
    perform refuse('invalid', 'publish.lease_missing', format('no lease of shard %s was given', on_shard));
  end if;
  perform from leases l where l.shard = on_shard and l.epoch = wanted and l.granted
    and l.expires_at > clock_timestamp() for share;
  if not found then
    perform refuse('lost', 'publish.lease_lost', format('lease epoch %s of shard %s is not current', wanted, on_shard));
  end if;
end $$;

-- publish_attempt is the linearization point of a switch: the route, the states
-- of both placements and of the attempt change together, or nothing does. Asked
-- again about an attempt that did publish, it gives the same token.
create function publish_attempt(which bigint, shard_names text[], epochs bigint[], catalog bigint) returns bigint
language plpgsql as $$
declare
  a   record;
  s   record;
  t   record;
  now_catalog bigint;
  new_token   bigint;
begin
  select * into a from attempts where id = which for no key update;
  if not found then
    perform refuse('invalid', 'attempt.unknown', format('there is no attempt %s', which));
  end if;
  if a.token is not null then
    return a.token;
  end if;
  if a.state <> 'closing' then
    perform refuse('lost', 'attempt.is_' || a.state, format('attempt %s is %s, not closing: %s', which, a.state, a.reason));
  end if;
  select * into s from placements where id = a.source for no key update;
  select * into t from placements where id = a.target for no key update;
  if t.state <> 'mirror' or s.state <> 'live' then
    perform refuse('lost', 'publish.placements',
      format('target placement %s is %s and source placement %s is %s', t.id, t.state, s.id, s.state));
  end if;
  perform check_lease(s.shard, shard_names, epochs);
  perform check_lease(t.shard, shard_names, epochs);
  select d.catalog_version into now_catalog from databases d join chunks c on c.database = d.name
    where c.id = a.chunk for share of d;
  if now_catalog <> catalog then
    perform refuse('invalid', 'publish.catalog_changed',
      format('catalog version is %s, version %s was validated', now_catalog, catalog));
  end if;
  update placements set state = 'mirror' where id = a.source;
  update placements set state = 'live' where id = a.target;
  new_token := next_token();
  update routes set placement = a.target, token = new_token, attempt = which
    where chunk = a.chunk and placement = a.source;
  if not found then
    perform refuse('lost', 'publish.route_moved', format('placement %s no longer serves chunk %s', a.source, a.chunk));
  end if;
  update attempts set state = 'published', token = new_token where id = which and deadline > clock_timestamp();
  if not found then
    perform refuse('invalid', 'attempt.deadline_passed', format('attempt %s is closing past its deadline', which));
  end if;
  return new_token;
end $$;

-- settle_attempt ends the doubt of a publish whose answer was lost: it waits for
-- one under way, and where none came through no later one can.
create function settle_attempt(which bigint, why text) returns setof attempt_view
language plpgsql as $$
declare
  a record;
begin
  select * into a from attempts where id = which for no key update;
  if not found then
    perform refuse('invalid', 'attempt.unknown', format('there is no attempt %s', which));
  end if;
  if a.state in ('preparing', 'fencing', 'closing') then
    update attempts set state = 'aborting', reason = why where id = which;
  end if;
  return query select * from attempt_view v where v.id = which;
end $$;
