-- Whether a proxy hears announcements. One that does must give its word at a fence
-- where the server cannot list its operations; one that does not is not waited for.
alter table proxies add column hears boolean not null default true;

-- A write that landed on the old placement behind its final marker is not on the new
-- one: an attempt that is known to have one goes back, and the lanes apply it.
create function refuse_straggling() returns trigger
language plpgsql as $$
declare
  n bigint;
begin
  select count(*) into n from stragglers g
    where g.handled_at is null and g.seen_at >= new.created_at
      and g.placement in (select l.source from legs_of(new.migration, is_forward(new)) l);
  if n > 0 then
    perform refuse('transient', 'publish.straggler',
      format('%s writes landed on the source of attempt %s behind its final marker', n, new.id));
  end if;
  return new;
end $$;

create trigger attempts_straggling before update on attempts for each row
  when (old.state = 'closing' and new.state = 'published') execute function refuse_straggling();
