-- A server's process makes custom plans for the first five times that it meets a
-- statement of a function, and a connection sees so few switches that the window paid for
-- planning each time. Nothing of these functions gains by knowing its parameters: what is
-- planned in the rehearsal is used in the window.
alter function publish_attempt(bigint, text[], bigint[], bigint) set plan_cache_mode = force_generic_plan;
alter function advance_attempt(bigint, text, text, interval, text, bigint, text) set plan_cache_mode = force_generic_plan;
alter function settle_attempt(bigint, text) set plan_cache_mode = force_generic_plan;
