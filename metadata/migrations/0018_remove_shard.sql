-- Shards can be removed: their rows go, what is written of moves from and to them
-- stays. A placement needs a shard when it is made, and a shard that is being
-- removed takes none.

alter table shards add column removing_at timestamptz;
alter table placements drop constraint placements_shard_fkey;

create function place_on_shard() returns trigger
language plpgsql as $$
declare
  s record;
begin
  select removing_at into s from shards where name = new.shard for key share;
  if not found then
    perform refuse('invalid', 'shard.unknown', format('there is no shard %s', new.shard), 'drover shard list shows every shard');
  end if;
  if s.removing_at is not null then
    perform refuse('invalid', 'shard.removing', format('shard %s is being removed', new.shard), 'choose another one; drover shard add takes it back');
  end if;
  return new;
end $$;

create trigger placements_on_shard before insert on placements for each row execute function place_on_shard();
