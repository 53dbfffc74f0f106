-- Overrides by people: each has an owner, a reason and an end.

create table overrides (
  id         bigint generated always as identity primary key,
  kind       text not null check (kind in ('pause', 'pin', 'waiver', 'quota')),
  subject    text not null,            -- a chunk, or of a quota a logical database; '' for the fleet
  detail     text not null default '', -- of a waiver the check
  value      jsonb not null default '{}', -- of a quota what stands in place of its policy
  owner      text not null check (owner <> ''),
  reason     text not null check (reason <> ''),
  set_at     timestamptz not null default clock_timestamp(),
  expires_at timestamptz not null,
  ended_at   timestamptz,
  ended_by   text not null default ''
);

create unique index overrides_one on overrides (kind, subject, detail) where ended_at is null;
