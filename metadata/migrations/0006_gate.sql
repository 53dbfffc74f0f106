-- What the gate asks for, and where a switch spent its time.

-- The lanes of a migration say each second how they stand.
alter table migrations add column lanes jsonb not null default '{}';
alter table migrations add column lanes_at timestamptz;

-- How long a proxy holds a request while a switch is under way.
alter table proxies add column hold interval not null default '0';

-- The steps of a switch as its coordinator measured them, kept apart from the
-- row that decides: writing them announces nothing.
create table attempt_steps (
  attempt bigint primary key references attempts (id) on delete cascade,
  steps   jsonb not null,
  at      timestamptz not null default clock_timestamp()
);
