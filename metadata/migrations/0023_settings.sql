-- Settings of proxies and balancer that are kept for the whole fleet: each version
-- with what became of it, and which one each proxy runs.

create table settings (
  version    bigint generated always as identity primary key,
  content    text not null, -- the file as it was applied
  state      text not null check (state in ('trying', 'live', 'refused')),
  canary     text not null default '', -- the proxy that tries it
  try_until  timestamptz,              -- a trial that nobody has ended by then counts for nothing
  reason     text not null default '', -- of whoever applied it
  outcome    text not null default '', -- of its trial
  applied_by text not null,
  applied_at timestamptz not null default clock_timestamp(),
  decided_at timestamptz,
  constraint settings_trial check ((state = 'trying') <= (canary <> '' and try_until is not null))
);

create unique index settings_one_trial on settings (state) where state = 'trying';

alter table proxies add column settings bigint not null default 0; -- the version that it runs
alter table proxies add column health jsonb not null default '{}'; -- of its requests within the last minute
