-- Adoption: a placement may live in a database that was there before Drover, under
-- that database's own name. No two placements ever share one.

alter table placements alter column database drop expression;
create unique index placements_database on placements (shard, database) where state <> 'gone';

create function name_placement() returns trigger
language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    new.database := coalesce(new.database, replace(new.chunk, '/', '_') || '_p' || new.id::text);
  elsif new.database is distinct from old.database then
    perform refuse('invalid', 'placement.fixed', format('placement %s never changes its database', old.id));
  end if;
  return new;
end $$;

create trigger placements_name before insert or update on placements for each row execute function name_placement();
