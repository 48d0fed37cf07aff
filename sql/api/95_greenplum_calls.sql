-- How queries may call our functions on Greenplum.  On PostgreSQL this does nothing.
--
-- A query over distributed tables calls a function on the segments, where it can do nothing, or on the coordinator while
-- the segments work on the query. Then no function can send them a statement: "query plan with multiple segworker groups
-- is not supported". PL/Python sends one before each statement of a function, for its subtransaction, where it does not
-- expect an error: the error leaves Python's frames behind, and a later function of the session crashes the coordinator.
--
-- So no query calls Python here. The functions of the schemas cerebro and cerebro_internal are in PL/pgSQL, and their
-- bodies in Python are in the schema cerebro_python. Before a body, cerebro._begin_call() sends the segments such a
-- statement, from PL/pgSQL, which bears the error. What steers a run works in any query on the coordinator: if the segments are at work,
-- cerebro_python._elsewhere() has another session of the same user call it.
--
-- What a worker session calls on its segment is not among them, nor what only our Python calls. Those functions, and the
-- bodies, look themselves whether they were called like that, and refuse it (database/entry.py). _word_pieces, which sends
-- no statement, may be called anywhere: packing and predictions call it for each row.

DO $greenplum$
DECLARE
    direct      CONSTANT name[] := ARRAY['_worker_open', '_worker_close', '_data_in', '_state_in', '_state_out', '_work',
                                         '_predict', '_gpus', '_gpu_texts', '_warm_up', '_hold', '_as_registry',
                                         '_word_pieces'];
    -- They begin with the number of a run. Their effects do not depend on the caller's transaction.
    steering    CONSTANT name[] := ARRAY['wait', 'cancel', 'resume', 'forget', 'materialize', 'stop_model', 'go_on',
                                         'clone_model', 'add_configuration', 'extend', 'set_budget'];
    -- Functions of MADlib are SQL functions that call these.
    of_madlib   CONSTANT name[] := ARRAY['_train_test_split', '_gpu_configuration', '_hyperband_schedule'];
    predict     CONSTANT text := 'Predict all rows with one query, for instance SELECT * FROM cerebro.predict(''my_models'', '
                                 '''SELECT * FROM my_rows'', key => ''id'').';
    made        record;
    granted     record;
BEGIN
    IF pg_catalog.current_setting('gp_role', true) IS NULL THEN
        RETURN;
    END IF;

    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro._begin_call(called text, instead text DEFAULT NULL) RETURNS void
        LANGUAGE plpgsql AS $f$
        DECLARE
            busy    boolean := false;
            refused boolean := true;  -- on a segment
        BEGIN
            IF pg_catalog.current_setting('gp_role') = 'dispatch' THEN
                busy := cerebro_python._is_dispatching();
                -- Open cursors keep segments busy, too, and do no harm.
                refused := busy AND NOT EXISTS (SELECT FROM pg_catalog.pg_cursors);
            END IF;
            IF refused THEN
                RAISE EXCEPTION '%: a query over a table or a view calls it, while the segments work on this query. It cannot run'
                                ' statements there.', called
                    USING ERRCODE = 'feature_not_supported',
                          HINT = COALESCE(instead, pg_catalog.format(
                              'Give it one value, as in SELECT %1$s((SELECT …)); or call it in a loop: DO $$ DECLARE r record; '
                              'BEGIN FOR r IN SELECT … LOOP PERFORM %1$s(r.…); END LOOP; END $$;', called));
            END IF;
            -- EXCEPTION begins a subtransaction on the segments. Where that is not possible, this is the error.
            BEGIN
                NULL;
            EXCEPTION
                WHEN division_by_zero THEN
                    NULL;
            END;
            IF busy THEN
                PERFORM cerebro_python._admit();
            END IF;
        END
        $f$
    $sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro._begin_call(text, text) IS
        'Refuses to call a function where it cannot run statements: in a query that the segments work on. Predictors call it, '
        'too. called: the name of the function. instead: what its caller can do instead, for the hint.'$sql$;

    FOR made IN SELECT proname AS name, pg_catalog.pg_get_function_identity_arguments(oid) AS arguments
                  FROM pg_catalog.pg_proc WHERE pronamespace = 'cerebro_python'::regnamespace LOOP
        EXECUTE pg_catalog.format('DROP FUNCTION cerebro_python.%I(%s)', made.name, made.arguments);
    END LOOP;

    EXECUTE $sql$
        CREATE FUNCTION cerebro_python._is_dispatching() RETURNS boolean LANGUAGE plpython3u AS $py$
        @cerebro@
        return api.is_dispatching(plpy)
        $py$
    $sql$;
    EXECUTE $sql$
        CREATE FUNCTION cerebro_python._admit() RETURNS void LANGUAGE plpython3u AS $py$
        @cerebro@
        return api.admit(plpy)
        $py$
    $sql$;
    EXECUTE $sql$
        CREATE FUNCTION cerebro_python._elsewhere(called text, arguments text[], caller jsonb) RETURNS text
        LANGUAGE plpython3u AS $py$
        @cerebro@
        return api.elsewhere(plpy, @by_name@)
        $py$
    $sql$;
    -- What Python would have to ask with statements, from catalogs of the coordinator.
    EXECUTE $sql$
        CREATE FUNCTION cerebro_python._caller(path text) RETURNS jsonb LANGUAGE plpgsql
        SET search_path = pg_catalog, pg_temp AS $f$
        BEGIN
            RETURN (
                SELECT jsonb_build_object(
                           'name', r.rolname, 'database', current_database(), 'search_path', path,
                           'queue', q.rsqname, 'statements', q.rsqcountlimit::integer,
                           'queued', current_setting('gp_resource_manager') = 'queue',
                           'checks', current_setting('client_connection_check_interval') <> '0')
                  FROM pg_roles r
                  LEFT JOIN pg_resqueue q
                         ON q.oid = r.rolresqueue AND NOT r.rolsuper AND q.rsqcountlimit >= 0
                            AND current_setting('gp_resource_manager') = 'queue'
                 WHERE r.rolname = current_user);
        END
        $f$
    $sql$;

    FOR made IN
        SELECT p.proname AS name, p.pronamespace::regnamespace::text AS schema, p.prosrc AS body,
               p.proretset AS returns_rows,
               pg_catalog.format_type(p.prorettype, NULL) AS result, l.lanname AS language,
               pg_catalog.pg_get_functiondef(p.oid) AS definition, p.proname = ANY (steering) AS steers,
               pg_catalog.pg_get_function_identity_arguments(p.oid) AS parameters,
               -- The name of the function that a user calls, as an expression.
               CASE p.proname
                   WHEN '_judging' THEN '$1'
                   WHEN '_explained' THEN $t$'cerebro.explain'$t$
                   WHEN '_madlib_usage' THEN $t$'madlib.' || $1$t$
                   WHEN '_madlib_object_table' THEN $t$'a function of the schema madlib', 'Call it with values.'$t$
                   WHEN '_predict_rows' THEN pg_catalog.format('%L, %L', 'cerebro.predict', predict)
                   ELSE pg_catalog.quote_literal(
                       CASE WHEN p.proname = '_madlib_fit_multiple_model' THEN 'madlib.madlib_keras_fit_multiple_model'
                            WHEN p.proname ~ '^_madlib_keras_' OR p.proname = ANY (of_madlib)
                                THEN 'madlib.' || pg_catalog.substr(p.proname, 2)
                            WHEN p.proname ~ '^_madlib_' THEN 'madlib.' || pg_catalog.substr(p.proname, 9)
                            WHEN p.proname = '_to_forget' THEN 'cerebro.forget'
                            ELSE 'cerebro.' || pg_catalog.regexp_replace(pg_catalog.ltrim(p.proname, '_'), '_rows$', '')
                       END)
               END AS called,
               (SELECT pg_catalog.string_agg('$' || n, ', ' ORDER BY n)
                  FROM pg_catalog.generate_series(1, p.pronargs) n) AS arguments,
               (SELECT pg_catalog.string_agg('$' || n || '::pg_catalog.text', ', ' ORDER BY n)
                  FROM pg_catalog.generate_series(1, p.pronargs) n) AS texts
          FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang
         WHERE p.pronamespace IN ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace)
           AND (l.lanname = 'plpython3u' AND p.proname <> ALL (direct) OR p.proname = ANY (steering))
    LOOP
        -- A cancel that meets the statement of such a body would crash the server.
        IF pg_catalog.strpos(made.body, '_code_folder()') > 0 THEN
            RAISE EXCEPTION 'this script of cerebro_db was made for PostgreSQL, and not for Greenplum'
                USING ERRCODE = 'feature_not_supported',
                      HINT = 'Run make install with PG_CONFIG=$GPHOME/bin/pg_config on every host.';
        END IF;
        EXECUTE pg_catalog.replace(made.definition, ' FUNCTION ' || made.schema || '.', ' FUNCTION cerebro_python.');
        EXECUTE pg_catalog.format('COMMENT ON FUNCTION cerebro_python.%I(%s) IS %L', made.name, made.parameters,
                                  'The body of ' || made.schema || '.' || made.name || '.');
        -- Not RETURN QUERY in PL/pgSQL, which would take another place in a resource queue.
        EXECUTE pg_catalog.replace(
            pg_catalog.replace(made.definition, ' LANGUAGE ' || made.language,
                               CASE WHEN made.returns_rows THEN ' LANGUAGE sql' ELSE ' LANGUAGE plpgsql' END),
            made.body,
            CASE WHEN made.returns_rows THEN pg_catalog.format(
                $t$
    SELECT cerebro._begin_call(%s);
    SELECT * FROM cerebro_python.%I(%s);
$t$,
                made.called, made.name, made.arguments)
            ELSE pg_catalog.concat(
                $t$
BEGIN
$t$,
                CASE WHEN made.steers THEN pg_catalog.format(
                    $t$    IF pg_catalog.current_setting('gp_role') = 'dispatch' AND cerebro_python._is_dispatching() THEN
        %s cerebro_python._elsewhere(%L, ARRAY[%s],
                                     cerebro_python._caller(pg_catalog.current_setting('search_path')))%s;
    END IF;
$t$,
                    CASE made.result WHEN 'void' THEN 'PERFORM' ELSE 'RETURN' END, made.name, made.texts,
                    CASE made.result WHEN 'void' THEN '; RETURN' ELSE '::' || made.result END)
                END,
                pg_catalog.format(
                    $t$    PERFORM cerebro._begin_call(%s);
    %s cerebro_python.%I(%s);
END
$t$,
                    made.called, CASE made.result WHEN 'void' THEN 'PERFORM' ELSE 'RETURN' END, made.name,
                    made.arguments))
            END);
    END LOOP;

    -- Whoever may call a function may also call its body.
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA cerebro_python FROM PUBLIC;
    REVOKE ALL ON FUNCTION cerebro._begin_call(text, text), cerebro_internal._on_coordinator(bigint, bigint) FROM PUBLIC;
    FOR granted IN
        SELECT p.proname AS name, pg_catalog.pg_get_function_identity_arguments(p.oid) AS parameters,
               a.grantee::regrole AS grantee
          FROM pg_catalog.pg_proc p
          JOIN pg_catalog.pg_proc body
            ON body.pronamespace = 'cerebro_python'::regnamespace AND body.proname = p.proname
               AND body.proargtypes = p.proargtypes
         CROSS JOIN LATERAL pg_catalog.aclexplode(p.proacl) a
         WHERE p.pronamespace IN ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace)
           AND a.grantee <> 0 AND a.grantee <> p.proowner
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION cerebro_python.%I(%s) TO %s',
                                  granted.name, granted.parameters, granted.grantee);
    END LOOP;
    FOR granted IN
        SELECT a.grantee::regrole AS grantee FROM pg_catalog.pg_namespace n CROSS JOIN LATERAL pg_catalog.aclexplode(n.nspacl) a
         WHERE n.nspname = 'cerebro' AND a.privilege_type = 'USAGE' AND a.grantee <> n.nspowner
    LOOP
        EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA cerebro_python TO %s', granted.grantee);
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION cerebro_python._is_dispatching(), cerebro_python._admit(),'
                                  ' cerebro_python._elsewhere(text, text[], jsonb), cerebro_python._caller(text),'
                                  ' cerebro._begin_call(text, text), cerebro_internal._on_coordinator(bigint, bigint) TO %s',
                                  granted.grantee);
    END LOOP;
END
$greenplum$;
