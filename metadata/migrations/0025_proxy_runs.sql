-- A proxy that died and is back under its name may have left requests behind: the
-- word of its new run says nothing about them.
alter table proxies add column run text not null default '';       -- tells one run of a proxy from another
alter table proxies add column broke_at timestamptz;               -- when a new run took the place of one that had not said goodbye
