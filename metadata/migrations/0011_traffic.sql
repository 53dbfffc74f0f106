-- What each proxy sent to each placement of an unfinished move within the last
-- minute. It is written every second and worth nothing after a crash.
create unlogged table proxy_traffic (
  proxy     text not null,
  placement bigint not null,
  word      jsonb not null,
  at        timestamptz not null default clock_timestamp(),
  primary key (proxy, placement)
);
