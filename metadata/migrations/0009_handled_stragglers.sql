-- A straggler stays for ever; what became of it is written beside it.

alter table stragglers add column handled_at timestamptz;
alter table stragglers add column handled_by text not null default '';
alter table stragglers add column note text not null default '';

create index stragglers_unhandled on stragglers (placement) where handled_at is null;
