-- What requests to a shard took while nothing was imported from or to it: the last word on
-- that before an import began, kept until the import has been over for a minute.

alter table proxy_answers
  add column before  jsonb,        -- requests of a minute by bucket; null: not known
  add column busy_at timestamptz;  -- when an import was seen to be at work last
