-- Leases say why they are held, and refusals say who holds them, until when and why.

alter table leases add column reason text not null default '';
alter table leases add column since timestamptz not null default clock_timestamp();

-- lease_blocker says what keeps a lease from being granted: code and words, or nothing.
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
    select 'lease.attempt_open', format('attempt %s of chunk %s is %s', v.id, v.chunk, v.state) into code, detail
      from attempt_view v
      where v.state in ('preparing', 'fencing', 'closing', 'published', 'aborting')
        and on_shard in (v.source_shard, v.target_shard) limit 1;
  end if;
end $$;

-- take_lease is acquire_lease that notes why. since stays while one holder goes on.
create function take_lease(on_shard text, by_holder text, as_mode text, lasting interval, why text)
returns table (is_granted boolean, new_epoch bigint, until timestamptz, code text, detail text)
language plpgsql as $$
begin
  return query select * from acquire_lease(on_shard, by_holder, as_mode, lasting);
  update leases l set reason = why where l.shard = on_shard and l.holder = by_holder;
end $$;

-- break_lease takes a lease from its holder: everything that is conditional on its
-- epoch is refused from now on. It waits for a publish that has checked it already.
create function break_lease(on_shard text, by_holder text, of_epoch bigint) returns boolean
language plpgsql as $$
begin
  delete from leases l where l.shard = on_shard and l.holder = by_holder and l.epoch = of_epoch;
  return found;
end $$;
