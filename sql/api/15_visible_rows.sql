-- The rows of the log that the current user may see.  The views on runs read these views and no table of the log, so the
-- rule of who sees what stands here and nowhere else.
--
-- A user reads its own rows through an index, however many rows others have. BETWEEN and not =: the planner expects few
-- rows in a range whose bounds it does not know, but as many as the average owner has for an unknown owner, and then it
-- would read the rows of all users. Whoever may see the runs of all reads the whole table: the second part, whose
-- condition is asked once and before any row is read.

DO $visible$
DECLARE
    named text;
BEGIN
    FOREACH named IN ARRAY ARRAY['run', 'architecture', 'configuration', 'model', 'event', 'attempt', 'hop', 'evaluation',
                                 'objective', 'decision', 'heartbeat', 'request', 'profile']
    LOOP
        EXECUTE format(
            $sql$
            CREATE OR REPLACE VIEW cerebro_internal.%1$I AS
            SELECT *
              FROM cerebro.%2$I
             WHERE NOT (SELECT pg_has_role(current_user, 'cerebro_monitor', 'USAGE'))
               AND owner::oid BETWEEN (SELECT quote_ident(current_user)::regrole::oid)
                                  AND (SELECT quote_ident(current_user)::regrole::oid)
             UNION ALL
            SELECT *
              FROM cerebro.%2$I
             WHERE (SELECT pg_has_role(current_user, 'cerebro_monitor', 'USAGE'))
            $sql$, '_visible_' || named, named);
        EXECUTE format('COMMENT ON VIEW cerebro_internal.%I IS %L', '_visible_' || named,
                       format('The rows of cerebro.%s that the current user may see: its own, or for members of '
                              'cerebro_monitor all. The views on runs read it; users cannot.', named));
    END LOOP;
END
$visible$;
