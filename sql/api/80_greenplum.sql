-- Functions, views and settings that Greenplum needs besides, or in another form.  On PostgreSQL this does nothing.

DO $greenplum$
DECLARE
    judging record;
    shown   record;
BEGIN
    IF pg_catalog.current_setting('gp_role', true) IS NULL THEN
        RETURN;
    END IF;

    EXECUTE 'GRANT SELECT ON cerebro.place TO cerebro_user';

    -- The sessions to list are the coordinator's. On a segment the same query would list the sessions of that segment.
    EXECUTE 'ALTER FUNCTION cerebro_internal._sessions() EXECUTE ON COORDINATOR';
    EXECUTE 'ALTER FUNCTION cerebro_internal._driven_runs() EXECUTE ON COORDINATOR';
    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro_internal._hosts() RETURNS integer
        LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $f$
        SELECT count(DISTINCT hostname)::integer FROM gp_segment_configuration WHERE role = 'p' AND content >= 0
        $f$
    $sql$;

    -- It runs queries of its own. In a query that joins its rows with a table, Greenplum would run it in a process that
    -- cannot; as an initial plan it runs before the query, in the caller's session. Greenplum 7.0.0 takes the columns of
    -- an initial plan for one another, or crashes, if the query does not use all of them in their order. So the function
    -- that has the body of predict has one column, and OFFSET keeps the planner from computing in its place.
    EXECUTE pg_catalog.format($sql$
        CREATE OR REPLACE FUNCTION cerebro_internal._predictions(
            model_table text, query text, key text, configuration integer, top integer, coverage double precision,
            calibrated boolean, thresholds boolean, probability_of text, related text)
        RETURNS SETOF text EXECUTE ON INITPLAN
        LANGUAGE sql
        SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $f$
        SELECT pg_catalog.row_to_json(p)::text
          FROM (%s) p (key_value, target, value, class, probability, rank, lower, upper, forecast_for, quantiles)
        $f$
    $sql$, (SELECT prosrc FROM pg_catalog.pg_proc
             WHERE oid = 'cerebro.predict(text, text, text, integer, integer, double precision, boolean, boolean, text, text)'::regprocedure));
    EXECUTE $sql$COMMENT ON FUNCTION cerebro_internal._predictions(text, text, text, integer, integer, double precision, boolean, boolean, text, text) IS
        'The predictions for the rows of a query, as JSON.'$sql$;
    -- STABLE and without settings, it becomes a part of the query that calls it.
    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro.predict(
            model_table text, query text, key text DEFAULT NULL, configuration integer DEFAULT NULL,
            top integer DEFAULT 1, coverage double precision DEFAULT NULL, calibrated boolean DEFAULT NULL,
            thresholds boolean DEFAULT false, probability_of text DEFAULT NULL,
            related text DEFAULT NULL
        ) RETURNS TABLE (key_value text, target text, value double precision, class text, probability double precision,
                         rank integer, lower double precision, upper double precision, forecast_for text,
                         quantiles double precision[])
        LANGUAGE sql STABLE AS $f$
        SELECT j ->> 'key_value', j ->> 'target', (j ->> 'value')::double precision, j ->> 'class',
               (j ->> 'probability')::double precision, (j ->> 'rank')::integer,
               (j ->> 'lower')::double precision, (j ->> 'upper')::double precision, j ->> 'forecast_for',
               pg_catalog.translate(j ->> 'quantiles', '[]', '{}')::double precision[]
          FROM (SELECT line::json AS j
                  FROM (SELECT p AS line FROM cerebro_internal._predictions($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) p OFFSET 0) l) r
        $f$
    $sql$;

    -- What judges a model has the same needs, and embed. The body goes to a function of its own, whose rows another one returns as JSON.
    FOR judging IN
        SELECT p.proname AS name, pg_catalog.pg_get_functiondef(p.oid) AS definition,
               pg_catalog.pg_get_function_arguments(p.oid) AS declared,
               pg_catalog.pg_get_function_identity_arguments(p.oid) AS arguments,
               pg_catalog.pg_get_function_result(p.oid) AS result,
               (SELECT pg_catalog.string_agg('$' || n, ', ' ORDER BY n)
                  FROM pg_catalog.generate_series(1, p.pronargs) n) AS given,
               (SELECT pg_catalog.string_agg(pg_catalog.format(
                           CASE WHEN c.type::regtype::text LIKE '%[]' THEN 'pg_catalog.translate(j ->> %L, ''[]'', ''{}'')::%s'
                                ELSE '(j ->> %L)::%s' END, c.name, c.type::regtype), ', ' ORDER BY place)
                  FROM ROWS FROM (unnest(p.proargnames), unnest(p.proargmodes), unnest(p.proallargtypes))
                       WITH ORDINALITY AS c (name, mode, type, place)
                 WHERE c.mode = 't') AS columns
          FROM pg_catalog.pg_proc p
         WHERE p.pronamespace = 'cerebro'::regnamespace
           AND p.proname IN ('evaluate', 'confusion_matrix', 'class_metrics', 'roc_curve', 'precision_recall', 'calibration', 'residuals',
                             'mistakes', 'importance', 'explain', 'drift', 'prepared_columns',
                             'bouts', 'transitions', 'backtest', 'embed')
    LOOP
        EXECUTE pg_catalog.replace(judging.definition, ' FUNCTION cerebro.' || judging.name || '(',
                                   ' FUNCTION cerebro_internal._' || judging.name || '_rows(');
        EXECUTE pg_catalog.format($sql$
            CREATE OR REPLACE FUNCTION cerebro_internal._%1$s_lines(%2$s) RETURNS SETOF text EXECUTE ON INITPLAN
            LANGUAGE sql SET extra_float_digits = 1 AS
            'SELECT pg_catalog.row_to_json(r)::text FROM cerebro_internal._%1$s_rows(%3$s) r'
        $sql$, judging.name, judging.arguments, judging.given);
        EXECUTE pg_catalog.format($sql$
            CREATE OR REPLACE FUNCTION cerebro.%1$s(%2$s) RETURNS %3$s LANGUAGE sql STABLE AS $f$
            SELECT %4$s
              FROM (SELECT line::json AS j
                      FROM (SELECT p AS line FROM cerebro_internal._%1$s_lines(%5$s) p OFFSET 0) l) r
            $f$
        $sql$, judging.name, judging.declared, judging.result, judging.columns, judging.given);
        EXECUTE pg_catalog.format('COMMENT ON FUNCTION cerebro_internal._%s_rows(%s) IS %L', judging.name, judging.arguments,
                                  'The body of cerebro.' || judging.name || '.');
        EXECUTE pg_catalog.format('COMMENT ON FUNCTION cerebro_internal._%s_lines(%s) IS %L', judging.name, judging.arguments,
                                  'The rows of cerebro.' || judging.name || ', as JSON.');
    END LOOP;

    -- It reads tables, too, as predict does.
    EXECUTE 'ALTER FUNCTION cerebro_internal._models() EXECUTE ON INITPLAN';

    -- Every segment reports the size of its own tables. On the coordinator, pg_total_relation_size() sends queries to the
    -- segments, which it cannot do within another query. Tables that somebody has locked exclusively count as in
    -- 60_limits.sql. It is a function, which runs before the query, as an initial plan: joined with other tables, Greenplum
    -- 7.0.0 would read pg_class in processes that take what a subtransaction has written for aborted, and any user's new
    -- tables could be lost (docs/operate.md#in-the-callers-own-session).
    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro_internal._state_bytes(whose name) RETURNS SETOF bigint EXECUTE ON INITPLAN
        LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
        BEGIN
            RETURN QUERY
            SELECT COALESCE(sum(CASE WHEN c.oid = ANY (ARRAY(
                                          SELECT relation FROM pg_lock_status()
                                           WHERE locktype = 'relation' AND mode = 'AccessExclusiveLock'))
                                     THEN c.relpages::bigint * current_setting('block_size')::bigint
                                     ELSE pg_total_relation_size(c.oid)
                                END), 0)::bigint
              FROM gp_dist_random('pg_catalog.pg_class') c
             WHERE c.relkind = 'r' AND c.relnamespace = 'cerebro_state'::regnamespace
               AND pg_get_userbyid(c.relowner) = whose;
        END
        $f$
    $sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro_internal._state_bytes(name) IS
        'The disk space of the state tables of all runs of a user, on all segments.'$sql$;
    EXECUTE $sql$
        CREATE OR REPLACE VIEW cerebro_internal._state_size AS
        SELECT current_user AS owner, b AS bytes FROM cerebro_internal._state_bytes(current_user) b
    $sql$;

    -- PL/Python functions block the cancel signal here. These functions run a statement that may take long, with the
    -- signal let through, and block it again at their end. plpy/cerebro_plpy/database/cancellation.py says why.
    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro_internal._hold() RETURNS void LANGUAGE plpython3u AS $py$
        @cerebro@
        return api.hold(plpy)
        $py$
    $sql$;
    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro_internal._scan(query text, labels text[]) RETURNS SETOF text LANGUAGE plpgsql AS $f$
        DECLARE
            found record;
        BEGIN
            FOR found IN EXECUTE query USING labels LOOP
                RETURN NEXT pg_catalog.row_to_json(found)::text;
            END LOOP;
            PERFORM cerebro_internal._hold();
        END
        $f$
    $sql$;
    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro_internal._await(command text, labels text[]) RETURNS text LANGUAGE plpgsql AS $f$
        BEGIN
            EXECUTE command USING labels;
            PERFORM cerebro_internal._hold();
            RETURN 'true';
        END
        $f$
    $sql$;
    -- Not a loop over the rows, which Greenplum would compute in other processes of the segments, without the trainers.
    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro_internal._perform(commands text, answers boolean) RETURNS SETOF text
        LANGUAGE plpgsql SET optimizer = off AS $f$
        DECLARE
            found record;
            rows bigint := 0;
        BEGIN
            IF answers THEN
                EXECUTE commands INTO found;
                GET DIAGNOSTICS rows = ROW_COUNT;
            ELSE
                EXECUTE commands;
            END IF;
            IF rows > 0 THEN
                RETURN NEXT pg_catalog.row_to_json(found)::text;
            END IF;
            PERFORM cerebro_internal._hold();
        END
        $f$
    $sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro_internal._hold() IS
        'Blocks the cancel signal again after a statement that may take long.'$sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro_internal._scan(text, text[]) IS
        'Runs a query that may take long, and returns its rows as JSON. A cancel interrupts it.'$sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro_internal._await(text, text[]) IS
        'Runs a command that may take long. A cancel interrupts it.'$sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro_internal._perform(text, boolean) IS
        'Runs commands that may take long, and returns the first row of the last one as JSON if it answers. A cancel '
        'interrupts them.'$sql$;

    -- A query may call our functions with runs and models that it reads from a view: SELECT cerebro.cancel(run) FROM
    -- cerebro.runs. On a segment they could do nothing. A function that runs on the coordinator, once for each row, keeps
    -- what follows there, and the conditions of the query still reach the tables.
    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro_internal._on_coordinator(bigint, bigint) RETURNS SETOF bigint EXECUTE ON COORDINATOR
        LANGUAGE internal IMMUTABLE STRICT ROWS 1 AS 'generate_series_int8'
    $sql$;
    EXECUTE $sql$COMMENT ON FUNCTION cerebro_internal._on_coordinator(bigint, bigint) IS
        'The numbers between two numbers. The views on runs join it, so that their rows are on the coordinator.'$sql$;
    FOR shown IN
        SELECT c.oid, c.relname AS name, pg_catalog.rtrim(pg_catalog.pg_get_viewdef(c.oid), ';') AS query
          FROM pg_catalog.pg_class c
         WHERE c.relnamespace = 'cerebro'::regnamespace AND c.relkind = 'v'
           AND EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'run')
    LOOP
        EXECUTE pg_catalog.format(
            'CREATE OR REPLACE VIEW cerebro.%I WITH (security_barrier) AS SELECT v.* FROM (%s) v'
            ' CROSS JOIN LATERAL cerebro_internal._on_coordinator(COALESCE(v.run, 0), COALESCE(v.run, 0)) here',
            shown.name, shown.query);
    END LOOP;
END
$greenplum$;
