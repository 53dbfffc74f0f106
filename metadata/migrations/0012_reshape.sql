-- Splits and merges: a migration has one leg for each pair of a source and a
-- target that have keys in common. A leg is a row of migrations; the first one
-- leads, and the others follow it through all phases. A move has one leg.

insert into transitions (machine, old, new) values
  ('chunk', 'planned', 'current'),
  ('chunk', 'planned', 'ended'),
  ('chunk', 'current', 'ended'),
  ('chunk', 'ended', 'current');

-- A chunk that is planned or has ended has no part in the key space; one that has
-- ended is kept for its history, and for the way back.
alter table databases drop constraint databases_covered;
alter table chunks drop constraint chunks_no_gap_after;
alter table chunks drop constraint chunks_no_gap_before;
alter table chunks drop constraint chunks_lo;
alter table chunks drop constraint chunks_hi;
alter table chunks drop column next_lo;
alter table chunks drop column prev_hi;
alter table chunks add column state text not null default 'current' check (state in ('planned', 'current', 'ended'));
alter table chunks add column at_lo bytea generated always as (case when state = 'current' then lo end) stored;
alter table chunks add column at_hi bytea generated always as (case when state = 'current' then hi end) stored;
alter table chunks add column next_lo bytea generated always as (case when state = 'current' then nullif(hi, '\xff'::bytea) end) stored;
alter table chunks add column prev_hi bytea generated always as (case when state = 'current' then nullif(lo, ''::bytea) end) stored;
alter table chunks add constraint chunks_lo unique (database, at_lo);
alter table chunks add constraint chunks_hi unique (database, at_hi);
alter table chunks add constraint chunks_no_gap_after foreign key (database, next_lo) references chunks (database, at_lo)
  deferrable initially deferred;
alter table chunks add constraint chunks_no_gap_before foreign key (database, prev_hi) references chunks (database, at_hi)
  deferrable initially deferred;
alter table databases add constraint databases_covered
  foreign key (name, key_min) references chunks (database, at_lo) deferrable initially deferred;

create function guard_chunk() returns trigger
language plpgsql as $$
begin
  if (new.id, new.database, new.lo, new.hi) is distinct from (old.id, old.database, old.lo, old.hi) then
    perform refuse('invalid', 'chunk.fixed', format('chunk %s never changes its range', old.id));
  end if;
  perform check_transition('chunk', old.state, new.state, 'chunk ' || old.id);
  return new;
end $$;

create trigger chunks_guard before update on chunks for each row execute function guard_chunk();

alter table migrations add column lead bigint;
alter table migrations add column target_chunk text;
alter table migrations disable trigger migrations_guard;
update migrations set lead = id, target_chunk = chunk;
alter table migrations enable trigger migrations_guard;
alter table migrations alter column lead set not null;
alter table migrations alter column target_chunk set not null;
alter table migrations add constraint migrations_lead foreign key (lead) references migrations (id) on delete cascade
  deferrable initially deferred;
alter table migrations drop constraint migrations_target;
alter table migrations add constraint migrations_pair unique (source, target);
alter table migrations drop constraint migrations_target_chunk_fkey;
alter table migrations add constraint migrations_target_of_chunk foreign key (target, target_chunk) references placements (id, chunk);
drop index migrations_one_unfinished;
create index migrations_legs on migrations (lead, id);
create index migrations_target_chunk on migrations (target_chunk);
create index migrations_target on migrations (target);

alter table attempts drop constraint attempts_source_chunk_fkey;
alter table attempts drop constraint attempts_target_chunk_fkey;
alter table attempts add constraint attempts_source foreign key (source) references placements (id);
alter table attempts add constraint attempts_target foreign key (target) references placements (id);

-- One unfinished migration a chunk, on whichever side of it the chunk is.
create table chunk_claims (
  chunk     text primary key references chunks (id) on delete cascade,
  migration bigint not null references migrations (id) on delete cascade
);
insert into chunk_claims (chunk, migration)
  select m.chunk, m.id from migrations m where m.phase not in ('done', 'aborted');

-- legs_of gives the legs of a migration as they switch: forward from its sources
-- to its targets, else the other way.
create function legs_of(which bigint, forward boolean)
returns table (migration bigint, source bigint, target bigint, source_chunk text, target_chunk text)
language sql stable as $$
  select m.id, case when forward then m.source else m.target end, case when forward then m.target else m.source end,
         case when forward then m.chunk else m.target_chunk end, case when forward then m.target_chunk else m.chunk end
    from migrations m where m.lead = which order by m.id
$$;

-- is_forward tells whether an attempt goes from its migration's sources to its targets.
create function is_forward(a attempts) returns boolean
language sql stable as $$
  select a.source = m.source from migrations m where m.id = a.migration
$$;

create or replace view attempt_view as
select a.id, a.migration, a.chunk, a.state, a.key, a.direction, a.deadline, a.reason, a.source_term, a.source_process,
       coalesce(a.token, 0) as token, a.timeline, a.created_at, a.changed_at,
       s.id as source_id, s.shard as source_shard, s.database as source_database, s.state as source_state,
       t.id as target_id, t.shard as target_shard, t.database as target_database, t.state as target_state,
       a.state in ('preparing', 'fencing', 'closing', 'published', 'aborting')
         and a.deadline <= clock_timestamp() as overdue,
       extract(epoch from a.deadline - clock_timestamp()) as left_seconds,
       a.server = this_server() as same_server,
       s.chunk as source_chunk, t.chunk as target_chunk,
       (select jsonb_agg(jsonb_build_object('migration', l.migration,
                 'source', jsonb_build_object('id', ps.id, 'chunk', ps.chunk, 'shard', ps.shard, 'database', ps.database, 'state', ps.state),
                 'target', jsonb_build_object('id', pt.id, 'chunk', pt.chunk, 'shard', pt.shard, 'database', pt.database, 'state', pt.state))
                 order by l.migration)
          from legs_of(a.migration, is_forward(a)) l
          join placements ps on ps.id = l.source
          join placements pt on pt.id = l.target) as legs
  from attempts a
  join placements s on s.id = a.source
  join placements t on t.id = a.target;

create or replace function guard_placement() returns trigger
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
    select a.id, a.state into other from attempts a join migrations m on m.lead = a.migration
      where a.state not in ('done', 'aborted') and new.id in (m.source, m.target);
    if found then
      perform refuse('invalid', 'placement.attempt_open',
        format('placement %s is named by attempt %s, which is %s', old.id, other.id, other.state));
    end if;
    select m.id, m.phase into other from migrations m
      where new.id in (m.source, m.target) and m.phase not in ('completing', 'aborting', 'done', 'aborted');
    if found then
      perform refuse('invalid', 'placement.migration_open',
        format('placement %s is needed by migration %s, which is %s', old.id, other.id, other.phase));
    end if;
  end if;
  new.changed_at := clock_timestamp();
  return new;
end $$;

create or replace function guard_migration() returns trigger
language plpgsql as $$
declare
  source_state text;
  target_state text;
  other        record;
begin
  if tg_op = 'INSERT' then
    new.lead := coalesce(new.lead, new.id);
    new.target_chunk := coalesce(new.target_chunk, new.chunk);
    if new.phase <> 'registered' then
      perform refuse('invalid', 'migration.transition', format('a migration cannot be born %s', new.phase));
    end if;
    return new;
  end if;
  if (new.id, new.lead, new.chunk, new.target_chunk, new.source, new.target)
     is distinct from (old.id, old.lead, old.chunk, old.target_chunk, old.source, old.target) then
    perform refuse('invalid', 'migration.fixed', format('migration %s never changes its chunks or placements', old.id));
  end if;
  new.updated_at := clock_timestamp();
  if new.phase = old.phase then
    return new;
  end if;
  perform check_transition('migration', old.phase, new.phase, 'migration ' || old.id);
  select p.state into source_state from placements p where p.id = new.source for share;
  select p.state into target_state from placements p where p.id = new.target for share;
  if new.phase in ('completing', 'aborting') then
    select a.id, a.state into other from attempts a where a.migration = new.lead and a.state not in ('done', 'aborted');
    if found then
      perform refuse('transient', 'migration.attempt_open',
        format('attempt %s of migration %s is %s', other.id, new.lead, other.state));
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

-- A migration that is over gives its chunks free; one that was given up takes the
-- chunks with it that it had planned.
create function release_chunks() returns trigger
language plpgsql as $$
begin
  if new.id = new.lead and new.phase in ('done', 'aborted') and old.phase <> new.phase then
    delete from chunk_claims where migration = new.id;
    update chunks c set state = 'ended' where c.state = 'planned'
      and c.id in (select m.target_chunk from migrations m where m.lead = new.id);
  end if;
  return null;
end $$;

-- A new leg claims its chunks; what another migration has it cannot.
create function claim_chunks() returns trigger
language plpgsql as $$
declare
  other record;
begin
  insert into chunk_claims (chunk, migration) values (new.chunk, new.lead), (new.target_chunk, new.lead) on conflict do nothing;
  select k.chunk, k.migration into other from chunk_claims k
    where k.chunk in (new.chunk, new.target_chunk) and k.migration <> new.lead limit 1;
  if found then
    perform refuse('invalid', 'migration.overlapping', format('chunk %s is part of migration %s', other.chunk, other.migration));
  end if;
  return null;
end $$;

create trigger migrations_claim after insert on migrations for each row execute function claim_chunks();

create trigger migrations_release after update on migrations for each row execute function release_chunks();

create or replace function check_new_attempt(a attempts) returns void
language plpgsql as $$
declare
  m record;
  g record;
  l record;
begin
  select * into m from migrations where id = a.migration for share;
  if not found or m.lead <> m.id or (m.source, m.target) not in ((a.source, a.target), (a.target, a.source)) then
    perform refuse('invalid', 'attempt.sides', format('migration %s is not between placements %s and %s', a.migration, a.source, a.target));
  end if;
  if m.phase not in ('switching', 'burn-in') then
    perform refuse('invalid', 'attempt.phase', format('migration %s is %s: only one that is switching or in burn-in can switch', m.id, m.phase));
  end if;
  for g in select x.source, x.target from legs_of(a.migration, a.source = m.source) x loop
    perform from placements where id in (g.source, g.target) order by id for share;
    select s.id, s.state, t.id as target, t.state as target_state into l
      from placements s, placements t where s.id = g.source and t.id = g.target;
    if l.state <> 'live' or l.target_state <> 'mirror' then
      perform refuse('invalid', 'attempt.placements',
        format('source placement %s is %s and target placement %s is %s', l.id, l.state, l.target, l.target_state));
    end if;
  end loop;
  perform from shards where name in (
    select p.shard from placements p join migrations x on p.id in (x.source, x.target) where x.lead = a.migration) order by name for share;
  select le.* into l from leases le where le.mode = 'exclusive' and le.granted and le.expires_at > clock_timestamp() and le.shard in (
    select p.shard from placements p join migrations x on p.id in (x.source, x.target) where x.lead = a.migration) limit 1;
  if found then
    perform refuse('transient', 'lease.held_exclusive', format('shard %s is held by %s', l.shard, l.holder));
  end if;
end $$;

create or replace function guard_attempt() returns trigger
language plpgsql as $$
declare
  forward boolean;
  notice  jsonb;
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
  forward := is_forward(new);
  select jsonb_build_object(
      'attempt', new.id, 'migration', new.migration, 'state', new.state, 'source', new.source, 'target', new.target,
      'chunks', jsonb_agg(distinct l.source_chunk),
      'deadline_unix_ms', floor(extract(epoch from new.deadline) * 1000)::bigint)
    || case when count(*) > 1
       then jsonb_build_object('sources', jsonb_agg(distinct l.source), 'targets', jsonb_agg(distinct l.target))
       else '{}' end
    into notice from legs_of(new.migration, forward) l;
  perform pg_notify('drover_attempts', notice::text);
  return new;
end $$;

create or replace function register_migration(which text, onto text, workflow text, by_whom text) returns bigint
language plpgsql as $$
declare
  c       record;
  r       record;
  other   record;
  made_placement bigint;
  made    bigint;
begin
  select ch.id, ch.state, d.active into c from chunks ch join databases d on d.name = ch.database where ch.id = which
    for no key update of ch;
  if not found or c.state <> 'current' then
    perform refuse('invalid', 'migration.chunk_unknown', format('there is no chunk %s', which), 'drover chunk list shows every chunk');
  end if;
  if not c.active then
    perform refuse('invalid', 'migration.database_inactive', format('the database of chunk %s is still being created', which));
  end if;
  perform from shards where name = onto;
  if not found then
    perform refuse('invalid', 'migration.shard_unknown', format('there is no shard %s', onto), 'drover shard list shows every shard');
  end if;
  select m.id, m.phase, m.workflow_id, m.requested_by, p.shard, m.target_chunk into other
    from chunk_claims k join migrations m on m.id = k.migration join placements p on p.id = m.target
    where k.chunk = which;
  if found then
    if other.workflow_id = workflow and other.shard = onto and other.target_chunk = which then
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

-- register_reshape claims chunks that lie side by side and plans the ones that
-- come in their place: their ranges and shards are given in the order of the key
-- space. The same workflow asking for the same again is given what it has.
create function register_reshape(sources text[], los bytea[], his bytea[], onto text[], workflow text, by_whom text) returns bigint
language plpgsql as $$
declare
  db      text;
  c       record;
  other   record;
  at      bytea;
  n       int := 0;
  number  int;
  placed  bigint;
  leader  bigint;
  made    bigint;
  name    text;
begin
  for c in select ch.*, d.active from chunks ch join databases d on d.name = ch.database
    where ch.id = any (sources) order by ch.lo for no key update of ch loop
    if c.state <> 'current' then
      perform refuse('invalid', 'migration.chunk_unknown', format('chunk %s has no part in the key space any more', c.id), 'drover chunk list shows every chunk');
    end if;
    if not c.active then
      perform refuse('invalid', 'migration.database_inactive', format('the database of chunk %s is still being created', c.id));
    end if;
    if n > 0 and (c.database <> db or c.lo <> at) then
      perform refuse('invalid', 'migration.not_contiguous', format('chunk %s does not follow the one before it', c.id),
        'only chunks of one database that lie side by side can be merged');
    end if;
    if n = 0 and c.lo <> los[1] then
      perform refuse('invalid', 'migration.not_covered', 'the new ranges do not begin where the chunks do');
    end if;
    db := c.database;
    at := c.hi;
    n := n + 1;
  end loop;
  if n = 0 or n <> cardinality(sources) then
    perform refuse('invalid', 'migration.chunk_unknown', format('of the chunks %s only %s exist', sources, n), 'drover chunk list shows every chunk');
  end if;
  if his[cardinality(his)] <> at then
    perform refuse('invalid', 'migration.not_covered', 'the new ranges do not end where the chunks do');
  end if;
  for i in 1 .. cardinality(los) loop
    if los[i] >= his[i] or i > 1 and los[i] <> his[i - 1] then
      perform refuse('invalid', 'migration.not_contiguous', format('new range %s is empty, overlaps or leaves a gap', i));
    end if;
    perform from shards where shards.name = onto[i];
    if not found then
      perform refuse('invalid', 'migration.shard_unknown', format('there is no shard %s', onto[i]), 'drover shard list shows every shard');
    end if;
  end loop;
  select k.chunk, m.id, m.phase, m.workflow_id into other from chunk_claims k join migrations m on m.id = k.migration
    where k.chunk = any (sources) limit 1;
  if found then
    if other.workflow_id = workflow and (
         select array_agg(distinct m.chunk order by m.chunk) from migrations m where m.lead = other.id
       ) = (select array_agg(s order by s) from unnest(sources) s) and (
         select array_agg((x.lo, x.hi, p.shard)::text order by x.lo) from (select distinct m.target from migrations m where m.lead = other.id) t
           join placements p on p.id = t.target join chunks x on x.id = p.chunk
       ) = (select array_agg((lo, hi, shard)::text order by lo) from unnest(los, his, onto) as u(lo, hi, shard)) then
      return other.id;
    end if;
    perform refuse('invalid', 'migration.overlapping',
      format('chunk %s is being moved by migration %s (%s, workflow %s)', other.chunk, other.id, other.phase, other.workflow_id),
      format('wait for migration %s or abort it', other.id));
  end if;
  perform from databases where databases.name = db for no key update; -- the numbers of chunks are given one at a time
  select max(split_part(id, '/', 2)::int) into number from chunks where database = db;
  for i in 1 .. cardinality(los) loop
    name := db || '/' || lpad((number + i)::text, greatest(4, length((number + i)::text)), '0');
    insert into chunks (id, database, lo, hi, state) values (name, db, los[i], his[i], 'planned');
    insert into placements (chunk, shard, state) values (name, onto[i], 'loading') returning id into placed;
    for c in select ch.id, rt.placement from chunks ch join routes rt on rt.chunk = ch.id
      where ch.id = any (sources) and ch.lo < his[i] and los[i] < ch.hi order by ch.lo loop
      insert into migrations (lead, chunk, target_chunk, source, target, workflow_id, requested_by)
        values (leader, c.id, name, c.placement, placed, workflow, by_whom) returning id into made;
      leader := coalesce(leader, made);
    end loop;
  end loop;
  return leader;
end $$;

create or replace function begin_attempt(which bigint, by_key text, within interval) returns setof attempt_view
language plpgsql as $$
declare
  m       record;
  forward boolean;
  had     record;
  made    bigint;
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
    select p.state = 'live' into forward from placements p where p.id = m.source;
    insert into attempts (migration, chunk, source, target, key, deadline)
      values (which, m.chunk, case when forward then m.source else m.target end, case when forward then m.target else m.source end,
              by_key, clock_timestamp() + within)
      returning id into made;
  end if;
  return query select * from attempt_view v where v.id = made;
end $$;

-- publish_attempt is the linearization point of a switch: the routes, the states
-- of all placements, of the chunks and of the attempt change together, or nothing
-- does. Where chunks are split or merged the key space changes with them: the old
-- chunks end and the new ones begin. Asked again about an attempt that did
-- publish, it gives the same token.
create or replace function publish_attempt(which bigint, shard_names text[], epochs bigint[], catalog bigint) returns bigint
language plpgsql as $$
declare
  a       record;
  p       record;
  db      text;
  forward boolean;
  now_catalog bigint;
  new_token   bigint;
  moved       int;
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
  select m.source = a.source into forward from migrations m where m.id = a.migration;
  perform from placements x where x.id in (
    select m.source from migrations m where m.lead = a.migration union select m.target from migrations m where m.lead = a.migration
  ) order by x.id for no key update;
  for p in select s.id, s.state, s.shard, t.id as target, t.state as target_state, t.shard as target_shard
    from legs_of(a.migration, forward) l join placements s on s.id = l.source join placements t on t.id = l.target loop
    if p.target_state <> 'mirror' or p.state <> 'live' then
      perform refuse('lost', 'publish.placements',
        format('target placement %s is %s and source placement %s is %s', p.target, p.target_state, p.id, p.state));
    end if;
    perform check_lease(p.shard, shard_names, epochs);
    perform check_lease(p.target_shard, shard_names, epochs);
  end loop;
  select d.catalog_version, d.name into now_catalog, db from databases d join chunks c on c.database = d.name
    where c.id = a.chunk for share of d;
  if now_catalog <> catalog then
    perform refuse('invalid', 'publish.catalog_changed',
      format('catalog version is %s, version %s was validated', now_catalog, catalog));
  end if;
  update placements set state = 'mirror' where id in (select l.source from legs_of(a.migration, forward) l);
  update placements set state = 'live' where id in (select l.target from legs_of(a.migration, forward) l);
  new_token := next_token();
  select count(*) into moved from legs_of(a.migration, forward) l where l.source_chunk <> l.target_chunk;
  if moved = 0 then
    update routes set placement = a.target, token = new_token, attempt = which
      where chunk = a.chunk and placement = a.source;
    if not found then
      perform refuse('lost', 'publish.route_moved', format('placement %s no longer serves chunk %s', a.source, a.chunk));
    end if;
  else
    select count(*) into moved from (select distinct l.source from legs_of(a.migration, forward) l) x
      where not exists (select from routes r where r.placement = x.source);
    if moved > 0 then
      perform refuse('lost', 'publish.route_moved', format('%s placements of attempt %s no longer serve', moved, which));
    end if;
    delete from routes r where r.placement in (select l.source from legs_of(a.migration, forward) l);
    update chunks set state = 'ended' where id in (select l.source_chunk from legs_of(a.migration, forward) l);
    update chunks set state = 'current' where id in (select l.target_chunk from legs_of(a.migration, forward) l);
    for p in select distinct l.target_chunk, l.target from legs_of(a.migration, forward) l order by 1 loop
      new_token := next_token();
      insert into routes (chunk, placement, token, attempt) values (p.target_chunk, p.target, new_token, which);
    end loop;
    for p in select distinct l.source_chunk from legs_of(a.migration, forward) l loop
      perform pg_notify('drover_routes', json_build_object('database', db, 'chunk', p.source_chunk, 'token', new_token)::text);
    end loop;
  end if;
  update attempts set state = 'published', token = new_token where id = which and deadline > clock_timestamp();
  if not found then
    perform refuse('invalid', 'attempt.deadline_passed', format('attempt %s is closing past its deadline', which));
  end if;
  return new_token;
end $$;

-- lease_blocker as before, but that an attempt is on every shard of its legs.
create or replace function lease_blocker(on_shard text, by_holder text, as_mode text, out code text, out detail text)
language plpgsql as $$
declare
  l record;
begin
  for l in select * from leases where shard = on_shard and holder <> by_holder order by granted desc, epoch loop
    if l.granted and l.mode = 'exclusive' then
      code := 'lease.held_exclusive';
    elsif l.granted and as_mode = 'exclusive' then
      code := 'lease.held_shared';
    elsif not l.granted and as_mode = 'shared' then
      code := 'lease.exclusive_waiting';
    else
      continue;
    end if;
    detail := format('%s %s it %s, until %s%s', l.holder, case when l.granted then 'holds' else 'waits for' end, l.mode,
      to_char(l.expires_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'), coalesce(': ' || nullif(l.reason, ''), ''));
    return;
  end loop;
  if as_mode = 'exclusive' then
    select 'lease.attempt_open', format('attempt %s of chunk %s is %s', a.id, a.chunk, a.state) into code, detail
      from attempts a join migrations m on m.lead = a.migration join placements p on p.id in (m.source, m.target)
      where a.state in ('preparing', 'fencing', 'closing', 'published', 'aborting') and p.shard = on_shard limit 1;
  end if;
end $$;
