-- Users see and write only their own rows of the runs and their log; dumps contain all rows.

DO $security$
DECLARE
    named text;
BEGIN
    FOREACH named IN ARRAY ARRAY['run', 'architecture', 'configuration', 'model', 'event', 'attempt', 'hop', 'evaluation',
                                 'decision', 'heartbeat']
    LOOP
        EXECUTE format('ALTER TABLE cerebro.%I ENABLE ROW LEVEL SECURITY', named);
        EXECUTE format(
            'CREATE POLICY own_rows ON cerebro.%I USING (owner = (SELECT quote_ident(current_user)::regrole))'
            ' WITH CHECK (owner = (SELECT quote_ident(current_user)::regrole))', named);
        -- A role that was dropped has no name in a dump, and on another server its number may be that of another role.
        PERFORM pg_catalog.pg_extension_config_dump(
            format('cerebro.%I', named)::regclass, 'WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
    END LOOP;
END
$security$;

-- An administrator may ask the run of any user to end, and may write no other event.
CREATE POLICY admin_cancels ON cerebro.event FOR INSERT
    WITH CHECK (event = 'cancel requested' AND pg_has_role(current_user, 'cerebro_admin', 'USAGE'));

SELECT pg_catalog.pg_extension_config_dump('cerebro.run_id', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro.event_id', '');
