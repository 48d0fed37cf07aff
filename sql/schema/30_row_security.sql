-- Users see and write only their own rows of the runs and their log; dumps contain all rows.

DO $security$
DECLARE
    named text;
BEGIN
    FOREACH named IN ARRAY ARRAY['run', 'architecture', 'configuration', 'model', 'event', 'attempt', 'hop', 'evaluation',
                                 'decision', 'heartbeat']
    LOOP
        EXECUTE format('ALTER TABLE cerebro.%I ENABLE ROW LEVEL SECURITY', named);
        EXECUTE format('CREATE POLICY own_rows ON cerebro.%I USING (owner = current_user) WITH CHECK (owner = current_user)', named);
        PERFORM pg_catalog.pg_extension_config_dump(format('cerebro.%I', named)::regclass, '');
    END LOOP;
END
$security$;

-- An administrator may ask the run of any user to end, and may write no other event.
CREATE POLICY admin_cancels ON cerebro.event FOR INSERT
    WITH CHECK (event = 'cancel requested' AND pg_has_role(current_user, 'cerebro_admin', 'USAGE'));

SELECT pg_catalog.pg_extension_config_dump('cerebro.run_id', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro.event_id', '');
