-- Leases on shards, and the lock for changing the roles of a shard's data user.

create sequence lease_epochs;

-- A row that is not granted is a waiting exclusive lease.
create table leases (
  shard      text not null references shards (name) on delete cascade,
  holder     text not null check (holder <> ''),
  mode       text not null check (mode in ('shared', 'exclusive')),
  granted    boolean not null,
  epoch      bigint not null,
  expires_at timestamptz not null,
  constraint leases_only_exclusive_waits check (granted or mode = 'exclusive'),
  primary key (shard, holder)
);

create unique index leases_epoch on leases (epoch);
create unique index leases_one_exclusive on leases (shard) where mode = 'exclusive' and granted;

-- lease_blocker says what keeps a lease from being granted: code and words, or nothing.
create function lease_blocker(on_shard text, by_holder text, as_mode text, out code text, out detail text)
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
    detail := format('shard %s: %s', on_shard, l.holder);
    return;
  end loop;
  if as_mode = 'exclusive' then
    select 'lease.attempt_open', format('shard %s: attempt %s is %s', on_shard, v.id, v.state) into code, detail
      from attempt_view v
      where v.state in ('preparing', 'fencing', 'closing', 'published', 'aborting')
        and on_shard in (v.source_shard, v.target_shard) limit 1;
  end if;
end $$;

-- acquire_lease grants a lease with a new epoch, or says what is in the way. An
-- exclusive one that is refused stays as a waiting row, which blocks new shared
-- ones until it expires; it must be asked for again within its time.
create function acquire_lease(on_shard text, by_holder text, as_mode text, lasting interval)
returns table (is_granted boolean, new_epoch bigint, until timestamptz, code text, detail text)
language plpgsql as $$
declare
  had leases;
  b   record;
begin
  perform from shards where name = on_shard for no key update;
  if not found then
    perform refuse('invalid', 'shard.unknown', format('there is no shard %s', on_shard));
  end if;
  delete from leases l where l.shard = on_shard and l.expires_at <= clock_timestamp();
  select * into had from leases l where l.shard = on_shard and l.holder = by_holder;
  if had.mode <> as_mode then
    perform refuse('invalid', 'lease.mode', format('%s holds shard %s %s already', by_holder, on_shard, had.mode));
  end if;
  if not coalesce(had.granted, false) then
    select * into b from lease_blocker(on_shard, by_holder, as_mode);
  else
    select null::text as code, null::text as detail into b;
  end if;
  if b.code is not null and as_mode = 'shared' then
    return query select false, 0::bigint, clock_timestamp(), b.code, b.detail;
    return;
  end if;
  return query
    insert into leases as l (shard, holder, mode, granted, epoch, expires_at)
      values (on_shard, by_holder, as_mode, b.code is null, nextval('lease_epochs'), clock_timestamp() + lasting)
      on conflict (shard, holder) do update
        set granted = excluded.granted, epoch = excluded.epoch, expires_at = excluded.expires_at
      returning l.granted, l.epoch, l.expires_at, coalesce(b.code, ''), coalesce(b.detail, '');
end $$;

-- A grant lock serialises the changes of the list of roles that a shard's data
-- user holds. It expires, so that nobody waits for the dead.
create table grant_locks (
  shard      text primary key references shards (name) on delete cascade,
  holder     text not null,
  epoch      bigint not null,
  expires_at timestamptz not null
);
