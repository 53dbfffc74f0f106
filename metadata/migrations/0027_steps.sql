-- Since when a move is in its phase, and how long that was expected to take.

alter table migrations add column phase_at timestamptz not null default clock_timestamp();
alter table migrations add column expected interval not null default '0';

create function note_phase() returns trigger
language plpgsql as $$
begin
  if new.phase <> old.phase then
    new.phase_at := clock_timestamp();
    new.expected := '0';
  end if;
  return new;
end $$;

create trigger migrations_phase before update on migrations for each row execute function note_phase();
