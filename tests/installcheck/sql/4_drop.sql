-- The states of runs and their packed rows are dropped with CASCADE only. Tables of users stay, and so do two empty schemas.
DROP EXTENSION cerebro_db_madlib;
DROP EXTENSION cerebro_db;
DROP EXTENSION cerebro_db CASCADE;
SELECT count(*) AS left_over FROM pg_namespace n
 WHERE nspname ~ '^(cerebro|madlib)' AND (EXISTS (SELECT FROM pg_class WHERE relnamespace = n.oid)
    OR EXISTS (SELECT FROM pg_proc WHERE pronamespace = n.oid) OR EXISTS (SELECT FROM pg_type WHERE typnamespace = n.oid));
SELECT count(*) AS models FROM fitted;
CREATE EXTENSION cerebro_db;
SELECT count(*) AS runs FROM cerebro.runs;
