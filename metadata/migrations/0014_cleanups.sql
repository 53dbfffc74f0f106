-- What is left to clean up after a placement went: written before anything is
-- dropped, and crossed off step by step.

create table cleanups (
  placement bigint primary key references placements (id) on delete cascade,
  migration bigint not null,
  direction bigint not null, -- of the lanes that fed it
  done      text[] not null default '{}',
  began_at  timestamptz not null default clock_timestamp(),
  ended_at  timestamptz
);
