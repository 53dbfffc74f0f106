-- How far the continuous verification of each direction of a migration has come.

create table verifications (
  migration bigint not null references migrations (id) on delete cascade,
  direction bigint not null,
  state     bytea not null,
  report    jsonb not null default '{}',
  at        timestamptz not null default clock_timestamp(),
  primary key (migration, direction)
);
