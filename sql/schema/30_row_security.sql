-- Users see and write only their own rows of the runs and their log; dumps contain all rows.

DO $security$
DECLARE
    named text;
    mark text := '';
BEGIN
    -- Greenplum's pg_dump writes the policies of an extension's tables, too. In a restored database they come in addition
    -- to those that are made here. They say the same, and so they only need other names.
    IF pg_catalog.current_setting('gp_role', true) IS NOT NULL THEN
        mark := '_' || pg_catalog.substr(
            pg_catalog.md5(pg_catalog.random()::text || pg_catalog.clock_timestamp()::text), 1, 12);
    END IF;
    FOREACH named IN ARRAY ARRAY['run', 'architecture', 'configuration', 'model', 'event', 'attempt', 'hop', 'evaluation',
                                 'objective', 'decision', 'heartbeat', 'request', 'profile']
    LOOP
        EXECUTE format('ALTER TABLE cerebro.%I ENABLE ROW LEVEL SECURITY', named);
        -- A user who reads all of their runs reads no rows of others. The index has the run, too, because PostgreSQL 18
        -- prefers it to the primary key where a query asks for one run.
        EXECUTE format('CREATE INDEX %I ON cerebro.%I (owner, run)', named || '_of_owner', named);
        EXECUTE format(
            'CREATE POLICY %I ON cerebro.%I USING (owner = (SELECT quote_ident(current_user)::regrole))'
            ' WITH CHECK (owner = (SELECT quote_ident(current_user)::regrole))', 'own_rows' || mark, named);
        -- A role that was dropped has no name in a dump, and on another server its number may be that of another role.
        PERFORM pg_catalog.pg_extension_config_dump(
            format('cerebro.%I', named)::regclass, 'WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
    END LOOP;

    -- An administrator may ask the run of any user to end, and may write no other event.
    EXECUTE format($policy$
        CREATE POLICY %I ON cerebro.event FOR INSERT
            WITH CHECK (event = 'cancel requested' AND pg_has_role(current_user, 'cerebro_admin', 'USAGE'))
    $policy$, 'admin_cancels' || mark);

    -- An administrator may steer the run of any user. Whoever asks is named in the request.
    EXECUTE format($policy$
        CREATE POLICY %I ON cerebro.request FOR INSERT
            WITH CHECK (pg_has_role(current_user, 'cerebro_admin', 'USAGE'))
    $policy$, 'admin_steers' || mark);
    EXECUTE format($policy$
        CREATE POLICY %I ON cerebro.request AS RESTRICTIVE FOR INSERT WITH CHECK (by = current_user)
    $policy$, 'own_name' || mark);
END
$security$;

SELECT pg_catalog.pg_extension_config_dump('cerebro.run_id', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro.event_id', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro.decision_id', '');
SELECT pg_catalog.pg_extension_config_dump('cerebro.request_id', '');
