-- Reads of a chunk that is being moved are answered by the other side too, for
-- comparison: which share, what came of it, and what waits to be compared.

create table mirrors (
  migration bigint primary key references migrations (id) on delete cascade,
  percent   real not null check (percent >= 0 and percent <= 100),
  required  bigint not null default 0 check (required >= 0), -- compared reads that the gate asks for
  report    jsonb not null default '{}'
);

create table mirrored_reads (
  id        bigint generated always as identity primary key,
  placement bigint not null,
  command   bytea not null,
  at        timestamptz not null default clock_timestamp()
);

create index mirrored_reads_placement on mirrored_reads (placement, id);
