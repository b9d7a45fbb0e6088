-- squawk-ignore-file constraint-missing-not-valid -- it holds for all that is left, and code of before has to be held to it
drop function watch_pauses;
delete from waiting_snapshots where version is null;
revoke select (edits, held_by_restore) on conversations from palimpsest_background;
revoke select (seq, created_at) on messages from palimpsest_background;
revoke select (trigger, created_at) on runs from palimpsest_background;
revoke select (version, lifetime), insert, update (lifetime, cold_at) on waiting_snapshots from palimpsest_background;
update runs set trigger = 'check' where trigger = 'pause';
alter table runs drop constraint ck_runs_trigger;
alter table runs add constraint ck_runs_trigger
    check (trigger in ('check', 'manual', 'overflow', 'budget', 'context_block', 'batch', 'pin', 'restore', 'fork', 'import'));
