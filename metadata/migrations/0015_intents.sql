-- Intents (plans of several moves that were started together), the desired state
-- of the fleet, and what the balancer decided.

create table intents (
  run          text primary key, -- Temporal's run that carries it out
  workflow_id  text not null,
  kind         text not null,
  subject      text not null,
  chunks       text[] not null,
  emptied      text[] not null, -- shards that it wants empty
  filled       text[] not null, -- shards that its moves lead to
  plan         jsonb not null,
  requested_by text not null,
  reason       text not null default '',
  figures_at   timestamptz not null,
  opened_at    timestamptz not null default clock_timestamp(),
  ended_at     timestamptz,
  outcome      jsonb
);

create index intents_opened on intents (opened_at);
create unique index intents_one_open on intents (workflow_id) where ended_at is null;

-- What each proxy sent to each placement within a minute; worth nothing after a crash.
create unlogged table proxy_loads (
  proxy     text not null,
  placement bigint not null,
  requests  bigint not null, -- within the minute before
  at        timestamptz not null default clock_timestamp(),
  primary key (proxy, placement)
);

create table desired_states (
  version    bigint generated always as identity primary key,
  content    text not null, -- the file as it was applied
  changes    jsonb not null,
  applied_by text not null,
  applied_at timestamptz not null default clock_timestamp()
);

create table balance_rounds (
  id     bigint generated always as identity primary key,
  result jsonb not null,
  at     timestamptz not null default clock_timestamp()
);

-- What the balancer refused and has said; it is said again when it changes.
create table balance_notes (
  subject text primary key,
  reason  text not null,
  since   timestamptz not null default clock_timestamp()
);
