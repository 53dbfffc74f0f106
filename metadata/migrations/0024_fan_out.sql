-- By how many chunks the requests to a placement concerned: what a split would widen.

alter table proxy_loads add column fan_out jsonb not null default '{}';
