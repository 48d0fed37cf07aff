-- What only the product calls has a schema of its own.
-- The schema of what only the product calls. The schema cerebro has what people and their own functions call.

CREATE SCHEMA cerebro_internal;
COMMENT ON SCHEMA cerebro_internal IS
'cerebro_db: functions, views and types that only cerebro_db itself uses. They change from version to version.';
REVOKE ALL ON SCHEMA cerebro_internal FROM PUBLIC;
GRANT USAGE ON SCHEMA cerebro_internal TO cerebro_user, cerebro_monitor, cerebro_enrol;


-- The schema of the packed rows that a verb makes if the user gives no name. Each table belongs to the caller.

CREATE SCHEMA cerebro_data;
COMMENT ON SCHEMA cerebro_data IS
'cerebro_db: packed rows that cerebro.train, search and fit have made without packed_table. They belong to the caller, '
'and are dropped with the last model or run that needs them.';
REVOKE ALL ON SCHEMA cerebro_data FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA cerebro_data TO cerebro_user;


ALTER TYPE cerebro._chunk SET SCHEMA cerebro_internal;
ALTER TYPE cerebro._prediction SET SCHEMA cerebro_internal;

DO $$
DECLARE
    old text;
BEGIN
    FOR old IN
        SELECT COALESCE('ROUTINE ' || p.oid::regprocedure, 'VIEW ' || c.oid::regclass)
          FROM pg_catalog.pg_depend d
          JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid AND e.extname = 'cerebro_db'
          LEFT JOIN pg_catalog.pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
          LEFT JOIN pg_catalog.pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid AND c.relkind = 'v'
         WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
           AND COALESCE(p.pronamespace, c.relnamespace) = 'cerebro'::regnamespace
           AND COALESCE(p.proname, c.relname) ~ '^_'
           -- Functions of users call these.
           AND COALESCE(p.proname, c.relname) NOT IN ('_require_window', '_begin_call')
    LOOP
        EXECUTE pg_catalog.format('ALTER %s SET SCHEMA cerebro_internal', old);
    END LOOP;
    IF EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname = 'cerebro_db_madlib') THEN
        RAISE WARNING 'the functions of the schema madlib need an update, too: ALTER EXTENSION cerebro_db_madlib UPDATE;';
    END IF;
END
$$;

-- Functions whose arguments or results change. A function that a view of a user's calls cannot be dropped: it gets another
-- name, which the view follows, and calls the new one. It leaves the extension, so that a dump of the database has it.
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN
        SELECT p.oid, p.oid::regprocedure AS signature, p.pronamespace::regnamespace AS schema, p.proname AS name,
               pg_catalog.pg_get_function_arguments(p.oid) AS arguments,
               pg_catalog.pg_get_function_identity_arguments(p.oid) AS identity,
               pg_catalog.pg_get_function_result(p.oid) AS result,
               (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(c.name), ', ' ORDER BY c.place)
                  FROM ROWS FROM (unnest(p.proargnames), unnest(p.proargmodes)) WITH ORDINALITY AS c (name, mode, place)
                 WHERE c.mode = 't') AS columns,
               -- The arguments of the three verbs are in another order now, and have their names.
               (SELECT pg_catalog.string_agg(CASE WHEN p.proname IN ('fit', 'search', 'train')
                                                  THEN pg_catalog.quote_ident(p.proargnames[n]) || ' => ' ELSE '' END
                                             || '$' || n, ', ' ORDER BY n)
                  FROM pg_catalog.generate_series(1, p.pronargs) n) AS given
          FROM pg_catalog.pg_proc p
         WHERE p.pronamespace IN ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace)
           AND p.proname IN ('predict', 'evaluate', 'confusion_matrix', 'calibration', 'predict_into', 'create_predictor',
                             '_predict_rows', '_predictions', '_judging', '_scored', '_evaluate_rows', '_evaluate_lines',
                             '_confusion_matrix_rows', '_confusion_matrix_lines', '_calibration_rows',
                             '_calibration_lines', 'set_limits', 'pack', '_packed_rows',
                             'fit', 'search', 'train', 'materialize', 'ensemble', '_begin_call')
         ORDER BY p.proname ~ '^_'
    LOOP
        BEGIN
            EXECUTE pg_catalog.format('DROP FUNCTION %s', old.signature);
        EXCEPTION WHEN dependent_objects_still_exist THEN
            EXECUTE pg_catalog.format('CREATE OR REPLACE FUNCTION %s.%I(%s) RETURNS %s LANGUAGE sql AS %L',
                                      old.schema, old.name, old.arguments, old.result,
                                      pg_catalog.format('SELECT %s FROM %s.%I(%s)', COALESCE(old.columns, '*'),
                                                        old.schema, old.name, old.given));
            EXECUTE pg_catalog.format('ALTER FUNCTION %s.%I(%s) RENAME TO %I', old.schema, old.name, old.identity,
                                      '_' || old.name || '_0_1');
            EXECUTE pg_catalog.format('ALTER EXTENSION cerebro_db DROP FUNCTION %s.%I(%s)',
                                      old.schema, '_' || old.name || '_0_1', old.identity);
        END;
    END LOOP;
END
$$;

ALTER TABLE cerebro.model
    ADD COLUMN group_number integer,
    ADD COLUMN group_value text,
    ADD COLUMN group_rows bigint,
    ADD COLUMN validation_rows bigint,
    ADD CONSTRAINT group_has_rows CHECK (
        (group_number IS NULL) = (group_rows IS NULL)
        AND (group_number IS NOT NULL OR num_nonnulls(group_value, validation_rows) = 0)
        AND group_number > 0 AND group_rows BETWEEN 0 AND 1e12::bigint
        AND octet_length(group_value) <= 5000),
    ADD CONSTRAINT validation_rows_are_possible CHECK (validation_rows BETWEEN 0 AND 1e12::bigint);

ALTER TABLE cerebro.hop
    ALTER COLUMN state_sha256 DROP NOT NULL,
    ADD COLUMN frozen jsonb,
    ADD CONSTRAINT frozen_is_a_part CHECK (jsonb_typeof(frozen) = 'object' AND octet_length(frozen::text) <= 300);
COMMENT ON TABLE cerebro.attempt IS
'Every attempt at a visit, committed before the visit starts. If an order has several visits of a model, only the first.';

ALTER TABLE cerebro.evaluation
    ADD COLUMN of_groups jsonb,
    ADD CONSTRAINT groups_are_arrays_of_numbers CHECK (
        jsonb_typeof(of_groups) = 'array' AND octet_length(of_groups::text) <= 2e7
        AND NOT jsonb_path_exists(of_groups, 'strict $[*] ? (@.type() != "array" || @.size() != 6)')
        AND NOT jsonb_path_exists(of_groups, 'strict $[*][0 to 1] ? (@.type() != "number" || @ < 0 || @ > 2147483647)')
        AND NOT jsonb_path_exists(of_groups, 'strict $[*][2 to 5] ? (@.type() != "null" && (@.type() != "number"
                                                 || @ > 1e100 || @ < -1e100 || (@ != 0 && @ > -1e-100 && @ < 1e-100)))'));

ALTER TABLE cerebro.event
    DROP CONSTRAINT event_is_known,
    ADD CONSTRAINT event_is_known CHECK (event IN (
        'created', 'submitted', 'started', 'extended', 'cancel requested', 'finished', 'failed', 'cancelled',
        'materialized', 'not materialized', 'followed', 'built', 'fused', 'not fused', 'unit failed', 'model failed',
        'model revived', 'forgotten'));

ALTER TABLE cerebro.role_limit ADD COLUMN max_predictors integer CHECK (max_predictors BETWEEN 0 AND 1000);

-- The weights that training of an added architecture starts from, in pieces: a value has 1 GB at most.

CREATE TABLE cerebro.added_weights (
    owner   regrole NOT NULL DEFAULT quote_ident(current_user)::regrole,
    name    text    NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),  -- of the architecture
    start   bigint  NOT NULL CHECK (start >= 0),  -- the position of the first byte
    payload bytea   NOT NULL CHECK (octet_length(payload) BETWEEN 1 AND 16777216),
    PRIMARY KEY (owner, name, start)
);
ALTER TABLE cerebro.added_weights ALTER COLUMN payload SET STORAGE EXTERNAL;
COMMENT ON TABLE cerebro.added_weights IS
'The weights of the architectures of cerebro.add_architecture(). Users insert and read their own rows, as in added_architecture.';

DO $security$
DECLARE
    mark text := '';
BEGIN
    -- As in 30_row_security.sql: Greenplum restores a policy in addition to this one.
    IF pg_catalog.current_setting('gp_role', true) IS NOT NULL THEN
        mark := '_' || pg_catalog.substr(
            pg_catalog.md5(pg_catalog.random()::text || pg_catalog.clock_timestamp()::text), 1, 12);
    END IF;
    ALTER TABLE cerebro.added_weights ENABLE ROW LEVEL SECURITY;
    EXECUTE format(
        'CREATE POLICY %I ON cerebro.added_weights USING (owner = (SELECT quote_ident(current_user)::regrole))'
        ' WITH CHECK (owner = (SELECT quote_ident(current_user)::regrole))', 'own_rows' || mark);
    PERFORM pg_catalog.pg_extension_config_dump(
        'cerebro.added_weights', 'WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
END
$security$;


-- The registry: versions of models by a name that users share, and the history of who did what with them.

-- The role that owns the tables of registered models and the function that writes them. It may do nothing else.
DO $role$
DECLARE
    known record;
BEGIN
    SELECT rolcanlogin OR rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls
           OR EXISTS (SELECT FROM pg_catalog.pg_auth_members m WHERE r.oid IN (m.roleid, m.member)) AS more
      INTO known
      FROM pg_catalog.pg_roles r
     WHERE rolname = 'cerebro_registry';
    IF NOT FOUND THEN
        CREATE ROLE cerebro_registry NOLOGIN;
    ELSIF known.more THEN
        RAISE EXCEPTION 'the role "cerebro_registry" exists already, and it has more rights than cerebro_db would give it,'
                        ' or members'
            USING ERRCODE = 'duplicate_object',
                  HINT = 'ALTER ROLE cerebro_registry RENAME TO another_name; makes room for it. Then try again.';
    END IF;
END
$role$;
COMMENT ON ROLE cerebro_registry IS
'cerebro_db: owns the tables of registered models. Nobody is a member of it, and it cannot log in.';

-- Greenplum's segments refuse AUTHORIZATION with a role that may not create schemas itself.
CREATE SCHEMA cerebro_registry;
ALTER SCHEMA cerebro_registry OWNER TO cerebro_registry;
COMMENT ON SCHEMA cerebro_registry IS
'cerebro_db: the tables of registered models, MODEL@VERSION and those beside it. cerebro.register() makes them, and who may read '
'which of them follows from cerebro.share().';
REVOKE ALL ON SCHEMA cerebro_registry FROM PUBLIC;
GRANT USAGE ON SCHEMA cerebro_registry TO cerebro_user;

CREATE TABLE cerebro.registered_model (
    name          text        PRIMARY KEY CHECK (name ~ '^[a-z_][a-z0-9_]{0,39}$'),
    owner         regrole     NOT NULL,
    description   text        CHECK (octet_length(description) <= 1e5),
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE cerebro.registered_model IS
'The names of registered models. Only cerebro_registry inserts, and nobody updates or deletes.';

CREATE SEQUENCE cerebro.registry_event_id;
CREATE TABLE cerebro.registry_event (
    model   text        NOT NULL,
    id      bigint      NOT NULL DEFAULT nextval('cerebro.registry_event_id'),
    event   text        NOT NULL CHECK (event IN ('registered', 'unregistered', 'alias', 'shared', 'unshared')),
    version integer     CHECK (version > 0),
    alias   text        CHECK (alias ~ '^[a-z_][a-z0-9_]{0,39}$'),
    role    regrole,
    "right" text        CHECK ("right" IN ('use', 'read', 'alias')),
    by      text        NOT NULL,  -- the name that the user had then
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason  text        CHECK (octet_length(reason) <= 1e5),
    details json        CHECK (octet_length(details::text) <= 1e6),
    CHECK (event NOT IN ('registered', 'unregistered') OR version IS NOT NULL),
    CHECK ((event = 'alias') = (alias IS NOT NULL)),
    CHECK ((event IN ('shared', 'unshared')) = (role IS NOT NULL)),
    CHECK ((role IS NULL) = ("right" IS NULL))
);
-- Two calls that register a version of one model get different numbers: the second waits for the first.
CREATE UNIQUE INDEX registry_event_version ON cerebro.registry_event (model, version) WHERE event = 'registered';
CREATE INDEX registry_event_model ON cerebro.registry_event (model, id);
COMMENT ON TABLE cerebro.registry_event IS
'The history of the registry, from which its state follows: which versions there are, where each alias points, and who has '
'which right. Only cerebro_registry inserts, and nobody updates or deletes.';

-- As in 30_row_security.sql: on another server, the number of a role that was dropped may be that of another role.
SELECT pg_catalog.pg_extension_config_dump(
    'cerebro.registered_model', 'WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump(
    'cerebro.registry_event',
    'WHERE model IN (SELECT name FROM cerebro.registered_model WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles))'
    ' AND (role IS NULL OR role::oid IN (SELECT oid FROM pg_catalog.pg_roles))');
SELECT pg_catalog.pg_extension_config_dump('cerebro.registry_event_id', '');


-- The schema that BI tools are pointed at.  sql/api/92_bi.sql makes its views.

CREATE SCHEMA cerebro_bi;
COMMENT ON SCHEMA cerebro_bi IS
'cerebro_db: the views of the schema cerebro for BI tools. Each column is a number, a text, a boolean or a moment.';
REVOKE ALL ON SCHEMA cerebro_bi FROM PUBLIC;
GRANT USAGE ON SCHEMA cerebro_bi TO cerebro_user, cerebro_monitor;


-- The schema that optuna-dashboard is pointed at.  sql/api/58_optuna.sql makes its views.

CREATE SCHEMA cerebro_optuna;
COMMENT ON SCHEMA cerebro_optuna IS
'cerebro_db: runs in the shape of Optuna''s storage, to read, for optuna-dashboard. A run is a study, a model on all rows a trial.';
REVOKE ALL ON SCHEMA cerebro_optuna FROM PUBLIC;
GRANT USAGE ON SCHEMA cerebro_optuna TO cerebro_user, cerebro_monitor;


-- sql/api/05_code.sql
-- Where the Python code of the functions lies.

CREATE OR REPLACE FUNCTION cerebro_internal._code_folder() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    folder text := @code@;
BEGIN
    IF (pg_stat_file(folder || '/cerebro_plpy', true)).isdir IS NOT TRUE THEN
        RAISE EXCEPTION 'the code of cerebro_db is not there: this server has no folder %', folder
            USING ERRCODE = 'undefined_file',
                  HINT = 'Install cerebro_db for PostgreSQL ' || current_setting('server_version') || ': its package, or make '
                         || 'install with the pg_config of this server. pg_upgrade does not do it.';
    END IF;
    RETURN folder;
END
$$;
COMMENT ON FUNCTION cerebro_internal._code_folder() IS
'The folder of the Python code, of which every function in Python asks when a session calls the first one. It is found '
'in the share folder of the server that runs, because pg_upgrade takes the functions to another server.';

-- sql/api/10_sessions.sql
-- Worker sessions: how the server logs in to itself as one of its users, and what such a session calls on its segment.
-- docs/security.md describes the rights of each login.

CREATE OR REPLACE FUNCTION cerebro_internal._drop_worker_roles() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms' AS $$
DECLARE
    ended record;
BEGIN
    FOR ended IN
        SELECT w.rolname AS name,
               EXISTS (SELECT FROM pg_shdepend d WHERE d.refclassid = 'pg_authid'::regclass AND d.refobjid = w.oid)
                   AS has_dependents,
               (SELECT string_agg(DISTINCT quote_ident(g.rolname), ', ')
                  FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid WHERE m.member = w.oid) AS groups
          FROM pg_roles w
         WHERE w.rolname ~ '^cerebro_w_[0-9]+_[0-9a-f]+$' AND w.rolvaliduntil < clock_timestamp()
               AND NOT EXISTS (SELECT FROM pg_stat_get_activity(NULL) a WHERE a.usesysid = w.oid)
         ORDER BY random()  -- a role that cannot be dropped must not always be the first
    LOOP
        BEGIN
            IF NOT ended.has_dependents THEN
                EXECUTE format('DROP ROLE %I', ended.name);
            ELSIF ended.groups IS NOT NULL THEN
                -- The role owns objects or has privileges in some database. It keeps those, and nothing else.
                EXECUTE format('REVOKE %s FROM %I', ended.groups, ended.name);
            END IF;
        EXCEPTION
            WHEN lock_not_available THEN
                EXIT;  -- Another login drops the role, or somebody grants something to it. The next login tries again.
            WHEN OTHERS THEN
                NULL;  -- Another login has just dropped the role.
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION cerebro_internal._drop_worker_roles() IS
'Drops the worker roles whose sessions have ended. A worker role that owns objects, or has privileges of its own, '
'loses its memberships instead.';

CREATE OR REPLACE FUNCTION cerebro_internal._enrol(owner oid, verifier text) RETURNS name
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known  record;
    worker name;
BEGIN
    IF COALESCE(verifier !~ '^SCRAM-SHA-256[$]', true) THEN
        RAISE EXCEPTION 'this is no SCRAM verifier' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM cerebro_internal._drop_worker_roles();
    SELECT rolname, rolcanlogin AND COALESCE(rolvaliduntil > clock_timestamp(), true) AS may_log_in
      INTO known FROM pg_roles WHERE oid = owner;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no role with the OID %', owner USING ERRCODE = 'undefined_object';
    ELSIF NOT known.may_log_in THEN
        RETURN NULL;
    END IF;
    -- A role that exists already is never used: somebody may act as it, or own something of it. The verifier contains
    -- random bytes.
    worker := format('cerebro_w_%s_%s', owner, left(encode(sha256(verifier::bytea), 'hex'), 12));
    EXECUTE format('CREATE ROLE %I LOGIN PASSWORD %L VALID UNTIL %L IN ROLE %I, cerebro_worker',
                   worker, verifier, clock_timestamp() + interval '30 seconds', known.rolname);
    -- The user may have been renamed meanwhile, and another role may have the name.
    IF NOT EXISTS (SELECT FROM pg_auth_members WHERE roleid = owner AND member = worker::regrole) THEN
        RAISE EXCEPTION 'the role "%" has been renamed', known.rolname USING ERRCODE = 'undefined_object';
    END IF;
    RETURN worker;
END
$$;
COMMENT ON FUNCTION cerebro_internal._enrol(oid, text) IS
'Creates the worker role of one session of a user, with a password that is valid for 30 seconds, and drops the worker '
'roles of sessions that have ended. Returns the name of the role. NULL: the user may not log in. The server calls this '
'through the login cerebro_enrol.';

CREATE OR REPLACE FUNCTION cerebro_internal._close_login(worker name) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF COALESCE(worker !~ '^cerebro_w_[0-9]+_[0-9a-f]+$', true) THEN
        RAISE EXCEPTION '"%" is no worker role', worker USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Not NOLOGIN: then the session could start no parallel workers, nor processes on the segments of Greenplum.
    EXECUTE format('ALTER ROLE %I PASSWORD NULL VALID UNTIL %L', worker, 'epoch');
END
$$;
COMMENT ON FUNCTION cerebro_internal._close_login(name) IS
'Ends the validity of the password of a worker role for good. The session of the role goes on.';

-- Whatever is in the log, users can write. So a limit counts the sessions that drive runs, and the comment of a session's
-- role, which the role itself and its user cannot change, says that it is one.
CREATE OR REPLACE FUNCTION cerebro_internal._note_run(worker name, run bigint, segments integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF COALESCE(worker !~ '^cerebro_w_[0-9]+_[0-9a-f]+$', true) THEN
        RAISE EXCEPTION '"%" is no worker role', worker USING ERRCODE = 'invalid_parameter_value';
    END IF;
    EXECUTE format('COMMENT ON ROLE %I IS %L', worker, format('drives run %s on %s segments since %s', run, segments,
                   to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US+00')));
END
$$;
COMMENT ON FUNCTION cerebro_internal._note_run(name, bigint, integer) IS
'Says in the comment of a worker role that its session drives a run. The server calls this through the login cerebro_enrol.';

CREATE OR REPLACE FUNCTION cerebro_internal._driven_runs()
RETURNS TABLE (owner oid, run bigint, segments integer, since timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    -- Without this a transaction would go on seeing the sessions that there were when it looked first.
    SELECT pg_catalog.pg_stat_clear_snapshot();
    SELECT substring(w.rolname FROM '^cerebro_w_([0-9]+)_[0-9a-f]+$')::oid, said.word[1]::bigint, said.word[2]::integer,
           said.word[3]::timestamptz
      FROM pg_stat_get_activity(NULL) a
      JOIN pg_roles w ON w.oid = a.usesysid
     CROSS JOIN LATERAL regexp_match(shobj_description(w.oid, 'pg_authid'),
                                     '^drives run ([0-9]+) on ([0-9]+) segments since (.+)$') AS said (word)
     WHERE w.rolname ~ '^cerebro_w_[0-9]+_[0-9a-f]+$' AND said.word IS NOT NULL
           AND a.datid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
$$;
COMMENT ON FUNCTION cerebro_internal._driven_runs() IS
'The runs that sessions drive now, as the server itself has noted it, with the numbers of their owners.';

CREATE OR REPLACE FUNCTION cerebro_internal._setup_logins() RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.setup_logins(plpy)
$py$;
COMMENT ON FUNCTION cerebro_internal._setup_logins() IS
'Sets the password of the login cerebro_enrol. CREATE EXTENSION calls it. A superuser calls it again after a '
'restore on another server.';

CREATE OR REPLACE FUNCTION cerebro_internal._sessions() RETURNS TABLE (pid integer, backend_start timestamptz, transaction text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    -- Without this a transaction would go on seeing the sessions that there were when it looked first.
    SELECT pg_catalog.pg_stat_clear_snapshot();
    SELECT a.pid, a.backend_start, to_char(a.xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')
      FROM pg_catalog.pg_stat_activity a WHERE a.backend_start IS NOT NULL;
$$;
COMMENT ON FUNCTION cerebro_internal._sessions() IS
'The sessions that are open now. A process id can be reused, so a session is identified by its process id and its '
'start time. transaction: when its transaction began, which identifies the transaction; NULL: it is in none.';

CREATE OR REPLACE FUNCTION cerebro_internal._dismiss_waiting() RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*) FILTER (WHERE pg_terminate_backend(a.pid))
      FROM pg_stat_activity a
     WHERE a.usename ~ '^cerebro_w_[0-9]+_[0-9a-f]+$' AND a.application_name = 'cerebro_db waiting' AND a.state = 'idle'
$$;
COMMENT ON FUNCTION cerebro_internal._dismiss_waiting() IS
'Ends the idle worker sessions that all users keep for their next call, and returns their number. Called when '
'connections or memory are short.';

-- A statement of its own could not be run in a function that REFRESH MATERIALIZED VIEW, CREATE INDEX or ANALYZE calls.
CREATE OR REPLACE FUNCTION cerebro_internal._close_cursor(name text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    opened CONSTANT refcursor := name;
BEGIN
    IF (name OPERATOR(pg_catalog.~) '^cerebro_[0-9a-f]+$') IS NOT TRUE THEN
        RAISE EXCEPTION '% is no cursor of cerebro_db', pg_catalog.quote_nullable(name)
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    CLOSE opened;
END
$$;
COMMENT ON FUNCTION cerebro_internal._close_cursor(text) IS
'Closes a cursor that our functions have opened in this session.';

-- What a worker session calls on its segment.  Each function acts for its caller, and can use only what belongs to the
-- session that calls it: no argument is a path or a credential.

CREATE OR REPLACE FUNCTION cerebro_internal._warm_up(engine text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.warm_up_here(plpy, engine=engine)
$py$;
COMMENT ON FUNCTION cerebro_internal._warm_up(text) IS
'Has the server of this segment import an engine, and does not wait for that.';

CREATE OR REPLACE FUNCTION cerebro_internal._worker_open(settings jsonb) RETURNS jsonb
LANGUAGE plpython3u AS $py$
@cerebro@
return api.worker_open(plpy, settings=settings)
$py$;
COMMENT ON FUNCTION cerebro_internal._worker_open(jsonb) IS
'Starts the trainer of this session, or describes the one that is running.';

CREATE OR REPLACE FUNCTION cerebro_internal._data_in(handle text, variable text, payload bytea) RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.data_in(plpy, handle=handle, variable=variable, payload=payload)
$py$;
COMMENT ON FUNCTION cerebro_internal._data_in(text, text, bytea) IS
'Adds one variable of one packed buffer to the row cache of this session.';

CREATE OR REPLACE FUNCTION cerebro_internal._state_in(state text, start bigint, payload bytea) RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.state_in(plpy, state=state, start=start, payload=payload)
$py$;
COMMENT ON FUNCTION cerebro_internal._state_in(text, bigint, bytea) IS
'Adds one chunk to a model state that this session is receiving.';

CREATE OR REPLACE FUNCTION cerebro_internal._work(work text) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.work(plpy, work=work)
$py$;
COMMENT ON FUNCTION cerebro_internal._work(text) IS
'Carries out one order of the driver, with the trainer of this session where the order is for it, and listens for a '
'cancel meanwhile.';

CREATE OR REPLACE FUNCTION cerebro_internal._state_out(visit integer, index integer) RETURNS SETOF cerebro_internal._chunk
LANGUAGE plpython3u AS $py$
@cerebro@
return api.state_out(plpy, visit=visit, index=index)
$py$;
COMMENT ON FUNCTION cerebro_internal._state_out(integer, integer) IS
'The model state that a visit in this session has left, in chunks, without its frozen part. index: place of the model '
'in the order, from 0, counted over all groups. The frozen part of state i has the index -1 - i.';

CREATE OR REPLACE FUNCTION cerebro_internal._worker_close() RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.worker_close(plpy)
$py$;
COMMENT ON FUNCTION cerebro_internal._worker_close() IS
'Ends the trainer of this session and removes its files.';

CREATE OR REPLACE FUNCTION cerebro_internal._gpus() RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.gpus_here(plpy)
$py$;
COMMENT ON FUNCTION cerebro_internal._gpus() IS
'The number of GPUs of the machine on which the function runs: on Greenplum, the machine of a segment.';

-- sql/api/15_visible_rows.sql
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
                                 'objective', 'decision', 'heartbeat', 'request']
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

-- sql/api/20_runs.sql
-- The views on runs.  People and BI tools read them: columns are plain scalars where possible, and each has a comment.
--
-- For all views of runs: users see their own runs, members of cerebro_monitor see all runs, but no values of rows
-- (tests/sql/rights/monitor_columns.txt says of each column why it has none). A view reads its tables with the rights of the
-- extension's owner, so row-level security does not apply; all rows come from the views of 15_visible_rows.sql.
-- security_barrier makes their filter run before the conditions of a query, whose functions could otherwise see rows of
-- other users.
-- A view over all runs must not take time in proportion to the square of their number. The planner knows little of joins
-- by several columns: where it expects few rows, it reads one table again for each row of another. So no view may depend
-- on what it expects:
-- * Rows of several tables are gathered by UNION ALL, and aggregated once. What each row needs of other rows (the name of
--   its architecture, the plan of its run) it gets from a window over the gathered rows.
-- * Where two sets of rows are joined, it is by FULL JOIN ... USING, which is never a loop over the rows of both sides, and
--   which no condition of a query turns into another join. num_nonnulls(), which says nothing to the planner, then leaves
--   out what one of the sides lacks. Joins are by the number of the owner: of names the planner knows nothing.
-- * A condition on the run reaches every table, but not through GROUPING SETS, nor through a FULL JOIN of a FULL JOIN: there
--   is one in each level of a query, and grouping, windows or UNION ALL are between the levels.
-- * LEFT JOIN is for the sessions of the server only. They are few.
-- tests/sql/runs/test_many_runs.py counts the rows that each view reads.
-- The tables have the number of the owner (10_runs.sql), and the views show the name, which a query can compare with a text.
-- CREATE OR REPLACE VIEW can add columns only at the end.

CREATE OR REPLACE VIEW cerebro.run_plan WITH (security_barrier) AS
SELECT run, pg_get_userbyid(owner) AS owner, r.name AS run_name, r.description, r.created_at, r.source_table, r.packed_table,
       r.validation_table, r.model_table,
       -- cerebro.resume(run, epochs => N) extends a run; cerebro.run keeps the number that was asked for first.
       COALESCE(extended.epochs, r.epochs) AS epochs,
       r.evaluate_every, r.seed, r.segments, r.dist_keys, r.configurations, r.rows_per_epoch, r.storage,
       -- These contain what rows contain, or may: a monitor does not see them.
       CASE WHEN own.is THEN r.options END AS options,
       CASE WHEN own.is THEN r.layout END AS layout,
       CASE WHEN own.is THEN r.validation_layout END AS validation_layout,
       CASE WHEN own.is THEN r.packed_summary END AS packed_summary,
       r.version AS cerebro_version
  FROM cerebro_internal._visible_run r
  FULL JOIN (SELECT run, owner, max((detail ->> 'epochs')::integer) AS epochs
               FROM cerebro_internal._visible_event
              WHERE event = 'extended'
              GROUP BY run, owner) extended USING (run, owner)
 CROSS JOIN LATERAL (SELECT owner = (SELECT quote_ident(current_user)::regrole) AS is) own
 WHERE num_nonnulls(r.seed) = 1;
COMMENT ON VIEW cerebro.run_plan IS
'What each run was asked to do, including later extensions.';
COMMENT ON COLUMN cerebro.run_plan.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.run_plan.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.run_plan.run_name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.run_plan.description IS 'Description that the user gave the run.';
COMMENT ON COLUMN cerebro.run_plan.created_at IS 'When the run was created.';
COMMENT ON COLUMN cerebro.run_plan.source_table IS 'Table or view whose rows were packed.';
COMMENT ON COLUMN cerebro.run_plan.packed_table IS 'Packed table that the run trains on.';
COMMENT ON COLUMN cerebro.run_plan.validation_table IS
'Packed table that the run evaluates on; NULL: none. If the rows have folds, the table that it trains on.';
COMMENT ON COLUMN cerebro.run_plan.model_table IS 'Table that receives the trained models.';
COMMENT ON COLUMN cerebro.run_plan.epochs IS
'Planned number of epochs per model. cerebro.resume(run, epochs => N) raises it.';
COMMENT ON COLUMN cerebro.run_plan.evaluate_every IS
'Number of epochs between two evaluations of a model; each model is also evaluated after its last epoch. 0: after '
'the last epoch only.';
COMMENT ON COLUMN cerebro.run_plan.seed IS
'Seed of the run: initial weights, order of visits and shuffling follow from it.';
COMMENT ON COLUMN cerebro.run_plan.segments IS 'Number of segments that hold the packed rows.';
COMMENT ON COLUMN cerebro.run_plan.dist_keys IS 'Value of __dist_key__ of each segment, in the order of the segments.';
COMMENT ON COLUMN cerebro.run_plan.configurations IS
'Number of configurations when the run was created; 0: a search proposes them.';
COMMENT ON COLUMN cerebro.run_plan.rows_per_epoch IS 'Number of rows of the packed table, which is one epoch.';
COMMENT ON COLUMN cerebro.run_plan.storage IS
'Prefix of the names of the run''s state tables in the schema cerebro_state.';
COMMENT ON COLUMN cerebro.run_plan.options IS
'Options of the run after defaults were filled in (JSON). Visible to the owner only, because the query of stop_when may '
'contain values.';
COMMENT ON COLUMN cerebro.run_plan.layout IS
'Columns and partitions of the packed table when the run was created (JSON). Visible to the owner only, because it '
'contains class labels, categories, means and deviations.';
COMMENT ON COLUMN cerebro.run_plan.validation_layout IS
'The same for the validation table (JSON), visible to the owner only; NULL: no validation table.';
COMMENT ON COLUMN cerebro.run_plan.packed_summary IS
'Row of the packed table''s summary (JSON). Visible to the owner only, because it contains labels.';
COMMENT ON COLUMN cerebro.run_plan.cerebro_version IS 'Version of cerebro_db that created the run.';

CREATE OR REPLACE VIEW cerebro_internal._plan AS
SELECT run, owner, max(seed) AS seed, max(name) AS name, max(source_table) AS source_table,
       max(validation_table) AS validation_table, max(model_table) AS model_table, max(segments) AS segments,
       COALESCE(max(extended), max(epochs)) AS epochs, max(objective) AS objective, max(direction) AS direction,
       max(keep) AS keep, max(validation_rows) AS validation_rows
  FROM (SELECT run, owner, seed, name, source_table, validation_table, model_table, segments, epochs,
               options ->> 'objective' AS objective, options ->> 'direction' AS direction, options ->> 'keep' AS keep,
               validation_rows, NULL::integer AS extended
          FROM cerebro_internal._visible_run
         UNION ALL
        SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, (detail ->> 'epochs')::integer
          FROM cerebro_internal._visible_event
         WHERE event = 'extended') fact
 GROUP BY run, owner
HAVING max(seed) IS NOT NULL;  -- users can write rows about runs that do not exist
COMMENT ON VIEW cerebro_internal._plan IS
'What the other views need to know of the runs that the current user may see, with the numbers of the owners. Users cannot '
'read it.';

CREATE OR REPLACE VIEW cerebro_internal._runs AS
WITH told AS (
    -- Of the latest event of each sort its words, in an array: the greatest array is that of the latest event, because the
    -- number comes first in it.
    SELECT run, owner, max(name) AS name, max(description) AS description, max(source_table) AS source_table,
           max(packed_table) AS packed_table, max(model_table) AS model_table,
           -- Those that the run began with, and those that were added. A search adds all of its own.
           GREATEST(max(configurations), count(configuration))::integer AS configurations, max(segments) AS segments,
           COALESCE(max(extended), max(epochs)) AS epochs, max(created_at) AS created_at,
           max(words) FILTER (WHERE event IN ('created', 'started', 'finished', 'failed', 'cancelled')) AS last,
           max(words) FILTER (WHERE event = 'started') AS started,
           max(words) FILTER (WHERE event IN ('materialized', 'not materialized')) AS made,
           min(at) FILTER (WHERE event = 'started') AS started_at,
           max(at) FILTER (WHERE event IN ('finished', 'failed', 'cancelled')) AS ended_at,
           max(words) FILTER (WHERE event = 'cancel requested') AS request,
           max(words) FILTER (WHERE event = 'followed' AND words[11] IS NOT NULL) AS judged,
           bool_or(follows) AS follows,
           max(at) FILTER (WHERE event = 'cancel requested') AS requested_at
      FROM (SELECT run, owner, name, description, source_table, packed_table, model_table, configurations, segments, epochs,
                   created_at, NULL::text AS event, NULL::timestamptz AS at, NULL::integer AS extended, NULL::text[] AS words,
                   NULL::integer AS configuration, options ? 'follows' AS follows
              FROM cerebro_internal._visible_run
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                   event, at, CASE event WHEN 'extended' THEN (detail ->> 'epochs')::integer END,
                   ARRAY[lpad(event_id::text, 20, '0'), event, detail ->> 'pid', detail ->> 'backend_start',
                         detail ->> 'message', detail ->> 'sqlstate', detail ->> 'reason',
                         left(detail ->> 'transaction', 40), detail ->> 'configuration', left(detail ->> 'made_of', 1000),
                         left(detail #>> '{quality,says}', 4000)] COLLATE "C", NULL, NULL
              FROM cerebro_internal._visible_event
             WHERE model IS NULL
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, configuration, NULL
              FROM cerebro_internal._visible_configuration) fact
     GROUP BY run, owner
    HAVING max(epochs) IS NOT NULL AND count(event) > 0  -- users can write rows about runs that do not exist
), known AS (
    SELECT t.*,
           -- The session that is to begin a run finds the request and does not begin it.
           CASE WHEN t.last[2] = 'created' AND t.request[1] > t.last[1] THEN 'cancelled' ELSE t.last[2] END AS word,
           COALESCE(t.request[1] > t.last[1], false) AS is_unwanted,
           COALESCE(t.made[1], '') > t.last[1] AS was_made_last,
           -- Before a session drives a run, the one that created it.
           COALESCE(t.started, t.last) AS driver,
           t.owner = (SELECT quote_ident(current_user)::regrole) AS own
      FROM told t
     WHERE t.last IS NOT NULL
)
SELECT k.run,
       k.owner,
       k.name AS run_name,
       CASE WHEN k.word = 'finished' AND holder.is_making THEN 'finishing'
            WHEN k.word NOT IN ('created', 'started') THEN k.word
            WHEN driver.pid IS NULL AND k.is_unwanted THEN 'cancelled'
            WHEN driver.pid IS NULL THEN 'interrupted'
            WHEN k.word = 'created' THEN 'created'
            ELSE 'running'
       END AS status,
       k.source_table,
       k.packed_table,
       k.model_table,
       k.configurations,
       k.segments,
       k.epochs,
       k.created_at,
       k.started_at,
       CASE WHEN k.word <> 'started' THEN COALESCE(k.ended_at, CASE k.word WHEN 'cancelled' THEN k.requested_at END)
            WHEN driver.pid IS NULL AND k.is_unwanted THEN k.requested_at
       END AS ended_at,
       -- The texts of errors may contain what rows contain: a monitor sees no more than the class of the error.
       CASE WHEN k.made[2] = 'not materialized' AND k.was_made_last
            THEN 'its model tables were not made' || COALESCE(CASE WHEN k.own THEN ': ' || k.made[5] END, '')
                 || '; SELECT cerebro.materialize(' || k.run || ', ''another_name'') makes them'
                 || CASE WHEN k.follows THEN ', and SELECT cerebro.resume(' || k.run || ') does all that follows' ELSE '' END
            -- The event 'materialized' is committed together with the tables, so it is missing if they are: the session
            -- ended before it had made them, or its caller has rolled back.
            WHEN k.word = 'finished' AND NOT k.was_made_last AND NOT holder.is_making
            THEN 'its models are in no table; SELECT cerebro.' || CASE WHEN k.follows THEN 'resume(' || k.run
                 ELSE 'materialize(' || k.run || ', ' || quote_literal(k.model_table) END || ') makes it'
            WHEN k.word = 'cancelled' AND k.last[2] = 'created' THEN 'the run was cancelled before it began'
            WHEN k.word = 'started' AND driver.pid IS NULL AND k.is_unwanted
            THEN 'the run was cancelled, and the session that drove it is gone'
            WHEN k.own THEN k.last[5]
            WHEN k.last[5] IS NOT NULL
            THEN concat('only its owner sees the message', ' (SQLSTATE ' || k.last[6] || ')')
       END AS message,
       (CASE WHEN k.word = 'finished' AND holder.is_making THEN k.driver ELSE k.last END)[3]::integer AS driver_pid,
       k.description,
       -- Whether a run has ended is decided here and nowhere else. A run that has finished still makes its model tables, in
       -- the session that drove it; if that session is gone, nobody will make them.
       CASE k.word
            WHEN 'created' THEN driver.pid IS NULL
            WHEN 'started' THEN driver.pid IS NULL
            WHEN 'finished' THEN NOT holder.is_making
            ELSE true
       END AS ended,
       CASE k.word WHEN 'finished' THEN k.last[7] END AS reason,
       -- What was found before the run went on is not said of the new models. Labels are what rows contain.
       CASE WHEN k.own AND k.judged[1] > k.started[1] THEN substring(k.judged[9] FROM '^[0-9]{1,9}$')::integer
       END AS chosen_configuration,
       CASE WHEN k.own AND k.judged[1] > k.started[1] THEN k.judged[10] END AS made_of,
       CASE WHEN k.own AND k.judged[1] > k.started[1] THEN k.judged[11] END AS quality
  FROM known k
  LEFT JOIN cerebro_internal._sessions() driver
         ON driver.pid = k.driver[3]::integer AND driver.backend_start = k.driver[4]::timestamptz
 -- Whether the driver is still in the transaction that trains the run and then makes the model tables. Not by a lock: on
 -- Greenplum pg_locks asks the segments, and a query that has a subquery over this view could not do that.
 CROSS JOIN LATERAL (
    -- The session itself knows whether it has made them.
    -- What follows is done in the transaction of the driver, also if another session has made the tables.
    SELECT COALESCE(driver.transaction = k.driver[8] AND driver.pid <> pg_backend_pid(), false)
           AND (COALESCE(k.started[1], '') > COALESCE(k.made[1], '')
                OR COALESCE(k.follows AND k.made[2] = 'materialized', false)) AS is_making
 ) holder;
COMMENT ON VIEW cerebro_internal._runs IS
'The runs that the current user may see and their status, with the numbers of the owners. The other views read it; users '
'cannot.';

CREATE OR REPLACE VIEW cerebro.runs WITH (security_barrier) AS
SELECT run, pg_get_userbyid(owner) AS owner, run_name, status, source_table, packed_table, model_table, configurations, segments,
       epochs, created_at, started_at, ended_at, message, driver_pid, description, ended, reason, chosen_configuration,
       made_of, quality, COALESCE(replace(substring(model_table FROM '"((?:[^"]|"")*)"$'), '""', '"'), substring(model_table FROM '[^.]*$')) AS model_name
  FROM cerebro_internal._runs;
COMMENT ON VIEW cerebro.runs IS
'The runs and their status.';
COMMENT ON COLUMN cerebro.runs.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.runs.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.runs.run_name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.runs.status IS
'created, running, finishing, finished, failed, cancelled or interrupted. finishing: the models are trained, and the '
'session that drives the run makes its model tables and does what follows. interrupted: the session that drove the run, '
'or was to begin it, is gone. SELECT cerebro.resume(run) continues a run that failed, was cancelled or was interrupted.';
COMMENT ON COLUMN cerebro.runs.source_table IS 'Table or view whose rows were packed.';
COMMENT ON COLUMN cerebro.runs.packed_table IS 'Packed table that the run trains on.';
COMMENT ON COLUMN cerebro.runs.model_table IS 'Table that receives the trained models.';
COMMENT ON COLUMN cerebro.runs.configurations IS
'Number of configurations of the run so far: a search and users add some while it trains.';
COMMENT ON COLUMN cerebro.runs.segments IS 'Number of segments that the run trains on.';
COMMENT ON COLUMN cerebro.runs.epochs IS 'Planned number of epochs per model.';
COMMENT ON COLUMN cerebro.runs.created_at IS 'When the run was created.';
COMMENT ON COLUMN cerebro.runs.started_at IS 'When a session first began to drive the run.';
COMMENT ON COLUMN cerebro.runs.ended_at IS
'When the training finished, failed or was cancelled; NULL while it runs and when it was interrupted.';
COMMENT ON COLUMN cerebro.runs.message IS
'Why the run failed or was cancelled; others than the owner see the SQLSTATE only, because the message may contain values. '
'Of a finished run: that its models are in no table, why (for the owner), and what makes it.';
COMMENT ON COLUMN cerebro.runs.driver_pid IS
'Process id of the session that drives the run; when interrupted, of the session that drove it last.';
COMMENT ON COLUMN cerebro.runs.description IS 'Description that the user gave the run.';
COMMENT ON COLUMN cerebro.runs.ended IS
'True if no session works on the run any more: it is neither created nor running nor finishing.';
COMMENT ON COLUMN cerebro.runs.reason IS
'budget, if the run has finished because its budget was spent; else NULL.';
COMMENT ON COLUMN cerebro.runs.chosen_configuration IS
'Of a run of cerebro.train, for its owner: the configuration that cerebro.predict takes, usually an ensemble. NULL: its models '
'were not judged.';
COMMENT ON COLUMN cerebro.runs.made_of IS
'Of an ensemble: the configurations whose predictions it is the mean of. NULL: it is no ensemble.';
COMMENT ON COLUMN cerebro.runs.quality IS
'How good chosen_configuration was on the rows for validation, beside an answer that is the same for every row. Visible to the '
'owner only, because it may contain a class.';
COMMENT ON COLUMN cerebro.runs.model_name IS
'The name of the model table without its schema and without quotes, as most people write it.';

-- sql/api/22_results.sql
-- The views on what models have learned.  The head of 20_runs.sql says which rules hold for views.

CREATE OR REPLACE VIEW cerebro_internal._epochs AS
WITH unit AS (
    -- Sums of bigint are numeric, which takes longer.
    SELECT h.run, h.owner, h.model, h.epoch,
           h.rows::double precision AS trained, h.loss * h.rows AS training_loss,
           -- The metrics of a visit are those of the epoch so far: metrics such as a recall are no means of the visits.
           ARRAY[h.hop, h.metric] AS training_metric, h.metric_name,
           (h.seconds ->> 'train')::double precision AS seconds, h.finished_at,
           NULL::double precision AS validated, NULL::double precision AS validation_loss,
           NULL::double precision AS validation_metric
      FROM cerebro_internal._visible_hop h
     UNION ALL
    -- The metric of all parts is recorded with the part that was evaluated last.
    SELECT e.run, e.owner, e.model, e.epoch, NULL, NULL, NULL, NULL, NULL, NULL, e.rows, e.loss * e.rows, e.metric
      FROM cerebro_internal._visible_evaluation e
     WHERE e.dataset = 'validation'
)
SELECT run, owner, model, epoch,
       sum(trained) AS trained, sum(training_loss) / sum(trained) AS training_loss,
       (max(training_metric))[2] AS training_metric, max(metric_name) AS metric_name,
       sum(seconds) AS seconds, max(finished_at) AS finished_at,
       sum(validated) AS validated, sum(validation_loss) / NULLIF(sum(validated), 0) AS validation_loss,
       max(validation_metric) AS validation_metric, count(trained) AS visits
  FROM unit
 GROUP BY run, owner, model, epoch
HAVING sum(trained) > 0;
COMMENT ON VIEW cerebro_internal._epochs IS
'What the log has of each epoch of each model that the current user may see, with the numbers of the owners. The other '
'views read it; users cannot.';

CREATE OR REPLACE VIEW cerebro_internal._learning_curve AS
WITH model AS (
    SELECT run, owner, model, configuration, visits, fold, own_rows, group_number, group_value,
           max(validation_rows) OVER of_run AS validation_rows, max(segments) OVER of_run AS segments
      FROM (SELECT run, owner, model, configuration, cardinality(visits) AS visits, fold,
                   COALESCE(fold_rows, validation_rows) AS own_rows, group_number, group_value,
                   NULL::bigint AS validation_rows, NULL::integer AS segments
              FROM cerebro_internal._visible_model
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, validation_rows, segments
              FROM cerebro_internal._visible_run) u
    WINDOW of_run AS (PARTITION BY run, owner)
)
SELECT run, owner, m.configuration, t.epoch,
       t.training_loss, t.training_metric,
       -- Validation rows keep the order of their table, so some parts are no sample of the whole: there is no figure until
       -- all parts are evaluated.
       CASE WHEN t.validated >= COALESCE(m.own_rows, m.validation_rows) THEN t.validation_loss END AS validation_loss,
       CASE WHEN t.validated >= COALESCE(m.own_rows, m.validation_rows) THEN t.validation_metric END AS validation_metric,
       t.metric_name,
       LEAST(t.trained, 1e18)::bigint AS rows, t.seconds AS training_seconds, t.finished_at AS trained_at,
       model, t.visits >= COALESCE(m.visits, m.segments) AS complete, m.fold, m.group_number,
       -- A group's values are those of rows: a monitor does not see them.
       CASE WHEN owner = (SELECT quote_ident(current_user)::regrole) THEN m.group_value END AS group_value
  FROM cerebro_internal._epochs t
  FULL JOIN model m USING (run, owner, model)
 WHERE num_nonnulls(t.epoch, m.configuration, m.segments) = 3;
COMMENT ON VIEW cerebro_internal._learning_curve IS
'The learning curves that the current user may see, with the numbers of the owners. The other views read it; users cannot.';

CREATE OR REPLACE VIEW cerebro.learning_curve WITH (security_barrier) AS
SELECT run, pg_get_userbyid(owner) AS owner, configuration, epoch, training_loss, training_metric, validation_loss,
       validation_metric, metric_name, rows, training_seconds, trained_at, model, fold, group_number, group_value
  FROM cerebro_internal._learning_curve;
COMMENT ON VIEW cerebro.learning_curve IS
'Loss and metric of each model after each epoch.';
COMMENT ON COLUMN cerebro.learning_curve.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.learning_curve.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.learning_curve.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.learning_curve.epoch IS 'Number of the epoch, from 1.';
COMMENT ON COLUMN cerebro.learning_curve.training_loss IS
'Mean loss over the epoch''s rows, measured while training, as Keras prints it.';
COMMENT ON COLUMN cerebro.learning_curve.training_metric IS
'First metric over the epoch''s rows, measured while training; NULL: no metric is configured. cerebro.metrics has all '
'metrics.';
COMMENT ON COLUMN cerebro.learning_curve.validation_loss IS
'Loss on the validation table after the epoch; NULL until all of its parts are evaluated, and for epochs without '
'evaluation.';
COMMENT ON COLUMN cerebro.learning_curve.validation_metric IS
'First metric on the validation table after the epoch; NULL as validation_loss.';
COMMENT ON COLUMN cerebro.learning_curve.metric_name IS 'Name of the first metric, as Keras reports it.';
COMMENT ON COLUMN cerebro.learning_curve.rows IS
'Number of rows trained in the epoch. Below the size of the table while the epoch is under way.';
COMMENT ON COLUMN cerebro.learning_curve.training_seconds IS
'Seconds of computation in the epoch, summed over its visits; without reading rows and moving states.';
COMMENT ON COLUMN cerebro.learning_curve.trained_at IS 'When the last committed visit of the epoch ended.';
COMMENT ON COLUMN cerebro.learning_curve.model IS 'Number of the model within the run, from 1.';
COMMENT ON COLUMN cerebro.learning_curve.fold IS
'Fold on which the model is evaluated; it is trained on all other folds. NULL: the model is trained on all rows.';
COMMENT ON COLUMN cerebro.learning_curve.group_number IS
'Number of the group on whose rows the model is trained and evaluated; NULL: all rows.';
COMMENT ON COLUMN cerebro.learning_curve.group_value IS
'Values of that group; of several columns, a JSON array. Only the owner of the run sees them.';

CREATE OR REPLACE VIEW cerebro_internal._leaderboard AS
WITH fact AS (
    SELECT run, owner, model, configuration, cardinality(visits) AS visits, parent,
           COALESCE(fold_rows, validation_rows) AS own_rows, NULL::integer AS hops,
           NULL::double precision[] AS trained, NULL::double precision[] AS validated,
           NULL::double precision[] AS least_trained, NULL::double precision[] AS least_validated,
           NULL::double precision[] AS latest, NULL::double precision[] AS least, NULL::double precision[] AS most,
           NULL::double precision[] AS kept,
           NULL::text[] AS trouble, NULL::text[] AS stop, NULL::bigint AS weights, NULL::text AS engine,
           NULL::text AS metric_name, NULL::integer AS rung, fold,
           group_number, group_value
      FROM cerebro_internal._visible_model
     UNION ALL
    SELECT run, owner, model, NULL, NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL, NULL
      FROM cerebro_internal._visible_hop
     UNION ALL
    -- As in _learning_curve, an epoch has figures when all of its rows are trained or evaluated. How many these are is known
    -- of the model, and no epoch has more: so the arrays begin with the number, and one of all rows is the greatest, or least.
    SELECT run, owner, model, NULL, NULL, NULL, NULL, NULL, ARRAY[epoch, training_loss, training_metric],
           CASE WHEN validated > 0 THEN ARRAY[validated, epoch, validation_loss, validation_metric] END,
           -- NaN is larger than all other numbers.
           CASE WHEN training_loss > '-Infinity' AND training_loss < 'Infinity'
                THEN ARRAY[-visits, training_loss, epoch] END,
           CASE WHEN validation_loss > '-Infinity' AND validation_loss < 'Infinity'
                THEN ARRAY[-validated, validation_loss, epoch] END,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, metric_name, NULL, NULL, NULL, NULL
      FROM cerebro_internal._epochs
     UNION ALL
    SELECT run, owner, model, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           ARRAY[epoch, value], ARRAY[value, epoch], ARRAY[value, -epoch], CASE WHEN kept THEN ARRAY[epoch, value] END,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
      FROM cerebro_internal._visible_objective
     UNION ALL
    SELECT run, owner, model, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           CASE WHEN event <> 'built'
                THEN ARRAY[lpad(event_id::text, 20, '0'), event, detail ->> 'reason'] COLLATE "C" END,
           NULL,
           CASE WHEN event = 'built' THEN (detail ->> 'parameters')::bigint END,
           -- A model that went on with another engine has a second event.
           CASE WHEN event = 'built' THEN lpad(event_id::text, 20, '0') || (detail ->> 'engine') END,
           NULL, NULL, NULL, NULL, NULL
      FROM cerebro_internal._visible_event
     WHERE model IS NOT NULL AND event IN ('built', 'model failed', 'model revived')
     UNION ALL
    SELECT run, owner, model, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           CASE WHEN decision <> 'continue'
                THEN ARRAY[lpad(decision_id::text, 20, '0'), decision, reason, policy] COLLATE "C" END,
           NULL, NULL, NULL,
           -- Policies with rungs give such reasons.
           CASE WHEN decision <> 'go on'
                THEN substring(reason FROM '^(?:waits at|passes) rung ([0-9]{1,9})')::integer END, NULL, NULL, NULL
      FROM cerebro_internal._visible_decision
     WHERE model IS NOT NULL
       AND (decision IN ('stop', 'go on') OR decision = 'continue' AND reason LIKE 'passes rung %')
), model AS (
    -- The greatest array is that of the latest epoch, event or decision: the number comes first in it. Of equal values of the
    -- objective the one of the earlier epoch is best.
    SELECT run, owner, model, max(configuration) AS configuration, max(visits) AS visits, max(parent) AS parent,
           max(own_rows) AS own_rows, COALESCE(sum(hops), 0) AS hops,
           max(trained) AS trained, max(validated) AS validated,
           min(least_trained) AS least_trained, min(least_validated) AS least_validated,
           max(latest) AS latest, min(least) AS least, max(most) AS most, max(kept) AS kept,
           max(trouble) AS trouble, CASE WHEN (max(stop))[2] = 'stop' THEN max(stop) END AS stop,
           max(weights) AS weights, substr(max(engine), 21) AS engine, max(metric_name) AS metric_name,
           max(rung) AS rung, max(fold) AS fold, max(group_number) AS group_number, max(group_value) AS group_value,
           COALESCE((max(trouble))[2] = 'model failed', false) AS has_failed
      FROM fact
     GROUP BY run, owner, model
    HAVING max(configuration) IS NOT NULL  -- users can write rows about models that do not exist
), configured AS (
    -- The configurations, each with its architecture's name and what its run was asked to do.
    SELECT run, owner, configuration, model_id, parameters, chosen,
           COALESCE(max(architecture) OVER (PARTITION BY run, owner, model_id), 'architecture ' || model_id) AS architecture,
           max(epochs) OVER of_run AS epochs, max(segments) OVER of_run AS segments,
           max(source_table) OVER of_run AS source_table, max(validation_table) OVER of_run AS validation_table,
           max(model_table) OVER of_run AS model_table, max(run_name) OVER of_run AS run_name,
           max(objective) OVER of_run AS objective, max(direction) OVER of_run AS direction, max(keep) OVER of_run AS keep,
           max(validation_rows) OVER of_run AS validation_rows
      FROM (SELECT run, owner, configuration, model_id, parameters, chosen,
                   NULL::text AS architecture, NULL::integer AS epochs, NULL::integer AS segments,
                   NULL::text AS source_table, NULL::text AS validation_table, NULL::text AS model_table,
                   NULL::text AS run_name, NULL::text AS objective, NULL::text AS direction, NULL::text AS keep,
                   NULL::bigint AS validation_rows
              FROM cerebro_internal._visible_configuration
             UNION ALL
            SELECT run, owner, NULL, model_id, NULL, NULL, name, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
              FROM cerebro_internal._visible_architecture
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, epochs, segments, source_table, validation_table,
                   model_table, name, objective, direction, keep, validation_rows
              FROM cerebro_internal._plan) u
    WINDOW of_run AS (PARTITION BY run, owner)
), joined AS (
    SELECT run, owner, m.model, configuration, m.visits, m.parent, m.hops, m.trained, m.trouble, m.stop,
           m.weights, m.engine, m.metric_name, m.rung, m.fold, m.group_number, m.group_value, m.has_failed,
           m.latest, m.least, m.most, m.kept,
           CASE WHEN m.validated[1] >= COALESCE(m.own_rows, c.validation_rows) THEN m.validated[2:4] END AS validated,
           CASE WHEN -m.least_validated[1] >= COALESCE(m.own_rows, c.validation_rows) THEN m.least_validated[2:3]
           END AS least_validated,
           CASE WHEN -m.least_trained[1] >= COALESCE(m.visits, c.segments) THEN m.least_trained[2:3] END AS least_trained,
           c.architecture, c.parameters, c.chosen, c.epochs, c.segments, c.source_table, c.validation_table,
           c.model_table, c.run_name, c.objective AS asked, c.direction, c.keep
      FROM model m
      FULL JOIN configured c USING (run, owner, configuration)
     WHERE num_nonnulls(m.model, c.model_id, c.segments) = 3
), told AS (
    SELECT run, owner, model, configuration, visits, parent, hops, trained, validated, trouble, stop,
           weights, engine, metric_name, rung, fold, group_number, group_value, has_failed,
           architecture, parameters, chosen, epochs, segments, source_table, model_table, run_name,
           owner = (SELECT quote_ident(current_user)::regrole) AS own,
           asked,
           COALESCE(asked, CASE WHEN validation_table IS NULL THEN 'loss' ELSE 'val_loss' END) AS objective,
           CASE WHEN direction = 'max' THEN -1 ELSE 1 END AS sign,
           CASE WHEN asked IS NULL THEN CASE WHEN validation_table IS NULL THEN trained[2] ELSE validated[2] END
                WHEN keep = 'best' THEN kept[2]
                ELSE latest[2]
           END AS objective_value,
           keep,
           -- With folds that say which epoch is best: that epoch, so far, of the model on all rows.
           (max(CASE WHEN keep = 'best' AND fold IS NULL AND parent IS NULL THEN kept END)
                OVER (PARTITION BY run, owner, configuration, group_number))[1] AS common_epoch,
           CASE WHEN asked IS NULL THEN CASE WHEN validation_table IS NULL THEN least_trained ELSE least_validated END
                WHEN direction = 'max' THEN ARRAY[most[1], -most[2]]
                ELSE least
           END AS best
      FROM joined
), aligned AS (
    -- The models of folds are compared after the same epoch.
    SELECT run, owner, model, configuration, visits, parent, hops, trained, validated, trouble, stop,
           weights, engine, metric_name, rung, fold, group_number, group_value, has_failed,
           architecture, parameters, chosen, epochs, segments, source_table, model_table, run_name,
           own, asked, objective, sign, best, keep,
           CASE WHEN fold > 0 AND parent IS NULL AND common_epoch IS NOT NULL
                THEN (SELECT max(o.value)
                        FROM cerebro_internal._visible_objective o
                       WHERE o.run = told.run AND o.owner = told.owner AND o.model = told.model
                         AND o.epoch = told.common_epoch)
                ELSE objective_value
           END AS objective_value
      FROM told
), folded AS (
    -- Of each configuration and group, the figures of the folds. A copy of a model is none of them: it goes on from a state.
    SELECT told.*,
           bool_or(fold IS NOT NULL) OVER (PARTITION BY run, owner) AS has_folds,
           fold IS NULL AND parent IS NULL AS on_all_rows,
           count(fold) FILTER (WHERE parent IS NULL) OVER configuration AS folds,
           count(objective_value) FILTER (WHERE fold > 0 AND parent IS NULL AND NOT has_failed) OVER configuration
               AS valued,
           avg(objective_value) FILTER (WHERE fold > 0 AND parent IS NULL) OVER configuration AS mean,
           stddev_samp(objective_value) FILTER (WHERE fold > 0 AND parent IS NULL) OVER configuration AS spread,
           count(validated[2]) FILTER (WHERE fold > 0 AND parent IS NULL AND NOT has_failed) OVER configuration
               AS evaluated,
           avg(validated[2]) FILTER (WHERE fold > 0 AND parent IS NULL) OVER configuration AS loss,
           avg(validated[3]) FILTER (WHERE fold > 0 AND parent IS NULL) OVER configuration AS metric
      FROM aligned told
    WINDOW configuration AS (PARTITION BY run, owner, configuration, group_number)
), figured AS (
    SELECT f.*,
           CASE WHEN NOT (has_folds AND on_all_rows) OR keep = 'best' THEN objective_value
                WHEN valued = folds THEN mean
           END AS value,
           CASE WHEN has_folds AND on_all_rows AND valued = folds AND (keep IS DISTINCT FROM 'best'
                                                                       OR objective_value IS NOT NULL)
                THEN spread
           END AS spread_of_folds,
           CASE WHEN NOT (has_folds AND on_all_rows) THEN validated[2] WHEN evaluated = folds THEN loss END
               AS validation_loss,
           CASE WHEN NOT (has_folds AND on_all_rows) THEN validated[3] WHEN evaluated = folds THEN metric END
               AS validation_metric
      FROM folded f
)
SELECT t.run,
       (row_number() OVER (PARTITION BY t.run, t.owner, t.group_number
                           ORDER BY t.fold IS NOT NULL,
                                    t.has_failed,
                                    CASE WHEN t.asked IS NULL AND NOT t.has_folds
                                         THEN COALESCE(t.validated[2], t.trained[2])
                                         ELSE t.sign * t.value
                                    END NULLS LAST,
                                    t.configuration, t.model))::integer AS rank,
       t.configuration,
       t.architecture,
       t.parameters,
       CASE WHEN t.has_failed THEN 'failed'
            WHEN t.stop IS NOT NULL THEN 'stopped'
            WHEN t.hops >= t.epochs::bigint * COALESCE(t.visits, t.segments) THEN 'finished'
            WHEN t.hops > 0 THEN 'training'
            ELSE 'waiting'
       END AS status,
       t.hops / COALESCE(t.visits, t.segments) AS epochs_done,
       t.trained[2] AS training_loss,
       t.trained[3] AS training_metric,
       t.validation_loss,
       t.validation_metric,
       t.metric_name,
       t.weights,
       -- Texts of errors, and of the query stop_when, may contain what rows contain: a monitor does not see them.
       CASE WHEN t.has_failed THEN CASE WHEN t.own THEN t.trouble[3] END
            WHEN t.own OR t.stop[4] <> 'rule' THEN t.stop[3]
       END AS reason,
       t.source_table,
       t.model_table,
       t.run_name,
       t.owner,
       t.engine,
       t.model,
       t.objective,
       t.value AS objective_value,
       t.best[2]::integer AS best_epoch,
       t.best[1] AS best_value,
       t.parent,
       t.stop[4] AS stopped_by,
       t.rung,
       t.chosen,
       t.fold,
       t.spread_of_folds AS spread,
       t.group_number,
       CASE WHEN t.own THEN t.group_value END AS group_value
  FROM figured t;
COMMENT ON VIEW cerebro_internal._leaderboard IS
'The models that the current user may see, with the numbers of the owners. The other views read it; users cannot.';

CREATE OR REPLACE VIEW cerebro.leaderboard WITH (security_barrier) AS
SELECT run, rank, configuration, architecture, parameters, status, epochs_done, training_loss, training_metric,
       validation_loss, validation_metric, metric_name, weights, reason, source_table, model_table,
       run_name, pg_get_userbyid(owner) AS owner, engine, model, objective, objective_value, best_epoch, best_value, parent,
       stopped_by, rung, chosen, fold, spread, group_number, group_value,
       CASE WHEN parameters ->> 'loss' IN ('mse', 'mean_squared_error')
            THEN sqrt(abs(CASE objective WHEN 'val_loss' THEN objective_value ELSE validation_loss END))
       END AS validation_rmse,
       COALESCE(replace(substring(model_table FROM '"((?:[^"]|"")*)"$'), '""', '"'), substring(model_table FROM '[^.]*$')) AS model_name
  FROM cerebro_internal._leaderboard;
COMMENT ON VIEW cerebro.leaderboard IS
'The models of each run with their latest losses and metrics. Rank 1 is the best model that the run trained; an ensemble is '
'made of several, and cerebro.runs and cerebro.models name it. In runs with groups, the models of '
'each group have ranks of their own, and so have the models on all rows.';
COMMENT ON COLUMN cerebro.leaderboard.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.leaderboard.rank IS
'Rank within the run, or within the group, by objective_value, the best first. In runs without the option objective by the latest loss: the '
'validation loss if there is one, else the training loss. Of equal models the one with the smaller number comes first, so '
'no rank occurs twice within a run or a group. Failed models come last. In runs with folds, the models on all '
'rows (of the group) come first, by the mean over the folds of their configuration; then come the models of single folds.';
COMMENT ON COLUMN cerebro.leaderboard.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.leaderboard.architecture IS
'Name of the architecture: its kind or the name that it was added by. An architecture without a name has its number.';
COMMENT ON COLUMN cerebro.leaderboard.parameters IS
'All other parameters of the configuration with the keys of cerebro.fit (JSON): those of the architecture that were given, '
'and those of training, with the defaults that were filled in.';
COMMENT ON COLUMN cerebro.leaderboard.status IS
'waiting (no visit committed yet), training, finished (all epochs done), stopped (a decision ended it early; it may go on)'
' or failed.';
COMMENT ON COLUMN cerebro.leaderboard.epochs_done IS 'Number of completed epochs.';
COMMENT ON COLUMN cerebro.leaderboard.training_loss IS 'Training loss of the latest epoch, measured while training.';
COMMENT ON COLUMN cerebro.leaderboard.training_metric IS
'Training metric of the latest epoch, measured while training.';
COMMENT ON COLUMN cerebro.leaderboard.validation_loss IS
'Latest validation loss; of a model of a fold or group, the loss on its rows for validation. In a run with folds, of a model '
'on all rows (of the group), the mean over the folds.';
COMMENT ON COLUMN cerebro.leaderboard.validation_metric IS 'Validation metric of the same epoch as validation_loss.';
COMMENT ON COLUMN cerebro.leaderboard.metric_name IS
'Name of the first metric, as Keras reports it; NULL before the first committed visit. cerebro.metrics has all metrics.';
COMMENT ON COLUMN cerebro.leaderboard.weights IS
'Number of weights of the model; NULL until it is built.';
COMMENT ON COLUMN cerebro.leaderboard.reason IS 'Why the model failed or was stopped.';
COMMENT ON COLUMN cerebro.leaderboard.source_table IS 'Table or view whose rows were packed.';
COMMENT ON COLUMN cerebro.leaderboard.model_table IS 'Table that receives the trained models.';
COMMENT ON COLUMN cerebro.leaderboard.run_name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.leaderboard.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.leaderboard.engine IS
'Engine that trains the model: tensorflow, jax or torch; NULL until the model is built.';
COMMENT ON COLUMN cerebro.leaderboard.model IS 'Number of the model within the run, from 1.';
COMMENT ON COLUMN cerebro.leaderboard.objective IS
'Name of the metric that says which model is best: the option objective, else val_loss (with a validation table) or loss.';
COMMENT ON COLUMN cerebro.leaderboard.objective_value IS
'Value of the objective in the epoch whose state the model tables get: the latest one, or with the option keep => best the '
'best one. NULL: no epoch has a value yet. In a run with folds, of a model on all rows (of the group), the mean over the '
'folds; NULL: not every fold has a value. With folds and keep => best, all models of a configuration have their values after '
'one epoch: that with the best mean.';
COMMENT ON COLUMN cerebro.leaderboard.best_epoch IS
'Epoch with the best value of the objective so far; of equal values the earlier epoch. In a run with folds and keep => best, '
'of a model on all rows, that with the best mean over the folds; of a model of a fold, its own.';
COMMENT ON COLUMN cerebro.leaderboard.best_value IS 'Value of the objective in best_epoch.';
COMMENT ON COLUMN cerebro.leaderboard.parent IS
'Number of the model from whose state the model began; NULL: it began from a state of its own.';
COMMENT ON COLUMN cerebro.leaderboard.rung IS
'Last rung that the model has reached, from 1, in a search with rungs (asha, halving, hyperband); NULL: none.';
COMMENT ON COLUMN cerebro.leaderboard.chosen IS
'Point of the search space that the configuration was made from (JSON); NULL: the configuration was listed.';
COMMENT ON COLUMN cerebro.leaderboard.fold IS
'Fold on which the model is evaluated; it is trained on all other folds. NULL: the model is trained on all rows.';
COMMENT ON COLUMN cerebro.leaderboard.spread IS
'In a run with folds, of a model on all rows (of the group): the standard deviation (of a sample) of objective_value over the '
'folds.';
COMMENT ON COLUMN cerebro.leaderboard.group_number IS
'Number of the group on whose rows the model is trained and evaluated; NULL: all rows.';
COMMENT ON COLUMN cerebro.leaderboard.group_value IS
'Values of that group; of several columns, a JSON array. Only the owner of the run sees them.';
COMMENT ON COLUMN cerebro.leaderboard.validation_rmse IS
'If the loss is the mean squared error, its square root on the validation rows: the usual size of an error, in the units '
'of the target (of several targets, of all together). With the objective val_loss it is the root of objective_value, else '
'of validation_loss.';
COMMENT ON COLUMN cerebro.leaderboard.model_name IS
'The name of the model table without its schema and without quotes, as most people write it.';
COMMENT ON COLUMN cerebro.leaderboard.stopped_by IS
'Who stopped the model: the name of the search policy, rule, request or budget; NULL: it was not stopped.';

CREATE OR REPLACE VIEW cerebro.parameters WITH (security_barrier) AS
SELECT c.run, pg_get_userbyid(c.owner) AS owner, c.configuration, p.parameter,
       -- Other numbers are no double precision.
       CASE WHEN jsonb_typeof(p.value) = 'number'
            THEN CASE WHEN abs((p.value #>> '{}')::numeric) < 1e-290 THEN 0.0
                      WHEN abs((p.value #>> '{}')::numeric) < 1e290 THEN (p.value #>> '{}')::double precision
                 END
       END AS value,
       p.value #>> '{}' AS text
  FROM cerebro_internal._visible_configuration c
 CROSS JOIN LATERAL jsonb_each(c.parameters) AS p (parameter, value);
COMMENT ON VIEW cerebro.parameters IS
'The parameters of each configuration, one per row: for charts of a loss against a parameter. The leaderboard has them as '
'one document.';
COMMENT ON COLUMN cerebro.parameters.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.parameters.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.parameters.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.parameters.parameter IS
'Name of the parameter: a key of parameters in cerebro.leaderboard, such as learning_rate.';
COMMENT ON COLUMN cerebro.parameters.value IS 'Value of the parameter; NULL: it is not a number.';
COMMENT ON COLUMN cerebro.parameters.text IS 'Value of the parameter as text; a list or an object as JSON.';

CREATE OR REPLACE VIEW cerebro.cross_validation WITH (security_barrier) AS
SELECT b.run,
       min(b.rank) AS rank,
       b.configuration,
       b.architecture,
       b.parameters,
       b.objective,
       min(b.objective_value) FILTER (WHERE b.fold IS NULL) AS mean,
       min(b.spread) AS spread,
       min(b.objective_value) FILTER (WHERE b.fold IS NOT NULL) AS smallest,
       max(b.objective_value) FILTER (WHERE b.fold IS NOT NULL) AS largest,
       count(b.fold)::integer AS folds,
       count(b.objective_value) FILTER (WHERE b.fold IS NOT NULL AND b.status <> 'failed') AS folds_done,
       min(b.epochs_done) FILTER (WHERE b.fold IS NOT NULL) AS epochs_done,
       min(b.model) FILTER (WHERE b.fold IS NULL) AS model,
       b.chosen,
       b.owner,
       b.group_number,
       b.group_value
  FROM cerebro.leaderboard b
 WHERE b.parent IS NULL
 GROUP BY b.run, b.owner, b.configuration, b.architecture, b.parameters, b.objective, b.chosen, b.group_number, b.group_value
HAVING count(b.fold) > 0;
COMMENT ON VIEW cerebro.cross_validation IS
'The configurations of runs with folds: how good each is over the folds. Rank 1 is the best configuration. In runs with '
'groups, each configuration has a row for all rows and one for each group.';
COMMENT ON COLUMN cerebro.cross_validation.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.cross_validation.rank IS
'Rank within the run, or within the group, by mean. Configurations without a mean come last.';
COMMENT ON COLUMN cerebro.cross_validation.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.cross_validation.architecture IS
'Name of the architecture: its kind or the name that it was added by. An architecture without a name has its number.';
COMMENT ON COLUMN cerebro.cross_validation.parameters IS
'All other parameters of the configuration with the keys of cerebro.fit (JSON): those of the architecture that were given, '
'and those of training, with the defaults that were filled in.';
COMMENT ON COLUMN cerebro.cross_validation.objective IS
'Name of the metric that says which configuration is best: the option objective, else val_loss.';
COMMENT ON COLUMN cerebro.cross_validation.mean IS
'Mean of the objective over the folds, each fold counted once; NULL: not every fold has a value.';
COMMENT ON COLUMN cerebro.cross_validation.spread IS
'Standard deviation (of a sample) of the objective over the folds; NULL as mean.';
COMMENT ON COLUMN cerebro.cross_validation.smallest IS 'Smallest value of the objective on a fold.';
COMMENT ON COLUMN cerebro.cross_validation.largest IS 'Largest value of the objective on a fold.';
COMMENT ON COLUMN cerebro.cross_validation.folds IS
'Number of folds; of a group, of those that have rows of the group.';
COMMENT ON COLUMN cerebro.cross_validation.folds_done IS
'Number of folds whose model has a value of the objective and has not failed.';
COMMENT ON COLUMN cerebro.cross_validation.epochs_done IS 'Number of epochs that the model of each fold has completed.';
COMMENT ON COLUMN cerebro.cross_validation.model IS
'Number of the model of the configuration that is trained on all rows, or on all rows of the group.';
COMMENT ON COLUMN cerebro.cross_validation.chosen IS
'Point of the search space that the configuration was made from (JSON); NULL: the configuration was listed.';
COMMENT ON COLUMN cerebro.cross_validation.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.cross_validation.group_number IS
'Number of the group on whose rows the models are trained and evaluated; NULL: all rows.';
COMMENT ON COLUMN cerebro.cross_validation.group_value IS
'Values of that group; of several columns, a JSON array. Only the owner of the run sees them.';

CREATE OR REPLACE VIEW cerebro.groups WITH (security_barrier) AS
WITH judge AS (
    -- The models that say how good the best configuration is on all rows: that on all rows, or those of its folds.
    SELECT run, owner, model, best AS configuration, best_epoch
      FROM (SELECT run, owner, model, configuration, rank, fold, parent, count(fold) OVER of_run AS folds,
                   max(CASE WHEN rank = 1 THEN configuration END) OVER of_run AS best,
                   -- Models of folds are compared after the epoch that is best in their mean.
                   COALESCE(max(CASE WHEN fold IS NULL AND parent IS NULL THEN best_epoch END)
                                OVER (PARTITION BY run, owner, configuration),
                            best_epoch) AS best_epoch
              FROM cerebro_internal._leaderboard
             WHERE group_number IS NULL
            WINDOW of_run AS (PARTITION BY run, owner)) b
     WHERE CASE WHEN folds = 0 THEN rank = 1 ELSE fold > 0 AND parent IS NULL AND configuration = best END
), whole AS (
    -- Their evaluations: those of the epoch whose state the model tables get.
    SELECT run, owner, model, configuration, of_groups
      FROM (SELECT run, owner, model, configuration, of_groups, epoch,
                   CASE WHEN keep = 'best' AND best_epoch IS NOT NULL THEN best_epoch
                        ELSE max(epoch) OVER (PARTITION BY run, owner, model)
                   END AS wanted
              FROM (SELECT run, owner, model, epoch, of_groups, max(configuration) OVER of_model AS configuration,
                           max(best_epoch) OVER of_model AS best_epoch,
                           max(keep) OVER (PARTITION BY run, owner) AS keep
                      FROM (SELECT run, owner, model, epoch, of_groups, NULL::integer AS configuration,
                                   NULL::integer AS best_epoch, NULL::text AS keep
                              FROM cerebro_internal._visible_evaluation
                             WHERE of_groups IS NOT NULL AND dataset = 'validation'
                             UNION ALL
                            SELECT run, owner, model, NULL, NULL, configuration, best_epoch, NULL FROM judge
                             UNION ALL
                            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, keep FROM cerebro_internal._plan) u
                    WINDOW of_model AS (PARTITION BY run, owner, model)) w
             WHERE configuration IS NOT NULL) e
     WHERE epoch = wanted
), figure AS (
    SELECT run, owner, model, configuration, (g.figures ->> 0)::double precision::integer AS group_number,
           (g.figures ->> 1)::double precision AS rows, (g.figures ->> 2)::double precision AS loss,
           (g.figures ->> 3)::double precision AS value, (g.figures ->> 4)::double precision AS total,
           (g.figures ->> 5)::double precision AS counted
      FROM whole
     CROSS JOIN LATERAL jsonb_array_elements(of_groups) AS g (figures)
), judged AS (
    -- A group on several segments: losses are means over rows, but not all metrics are.
    SELECT run, owner, group_number, configuration, sum(loss * rows) / NULLIF(sum(rows), 0) AS loss,
           CASE WHEN count(*) = 1 THEN max(value)
                WHEN count(total) = count(*) THEN sum(total) / NULLIF(sum(counted), 0)
           END AS value
      FROM figure
     GROUP BY run, owner, group_number, configuration, model
), fact AS (
    SELECT run, owner, group_number, NULL::integer AS model, group_rows AS rows, validation_rows,
           cardinality(visits) AS segments, NULL::text AS group_value, NULL::integer AS configuration,
           NULL::text AS architecture, NULL::text AS status, NULL::integer AS epochs_done, NULL::text AS objective,
           NULL::double precision AS objective_value, NULL::double precision AS validation_loss,
           NULL::double precision AS training_loss, NULL::integer AS whole, NULL::double precision AS whole_loss,
           NULL::double precision AS whole_metric, NULL::text AS direction, fold, NULL::bigint AS judges
      FROM cerebro_internal._visible_model
     WHERE group_number IS NOT NULL
     UNION ALL
    SELECT run, owner, group_number, model, NULL, NULL, NULL,
           group_value, configuration, architecture, status, epochs_done, objective, objective_value, validation_loss,
           training_loss, NULL, NULL, NULL, NULL, NULL, NULL
      FROM cerebro_internal._leaderboard
     WHERE group_number IS NOT NULL AND rank = 1
     UNION ALL
    SELECT run, owner, group_number, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           configuration, avg(loss), CASE WHEN count(value) = count(*) THEN avg(value) END, NULL, NULL, count(*)
      FROM judged
     GROUP BY run, owner, group_number, configuration
     UNION ALL
    SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           NULL, direction, NULL, NULL
      FROM cerebro_internal._plan
), grouped AS (
    SELECT run, owner, group_number, max(group_value) AS group_value, max(rows) AS rows,
           max(validation_rows) AS validation_rows, max(segments) AS segments, max(model) AS model,
           max(configuration) AS configuration, max(architecture) AS architecture, max(status) AS status,
           max(epochs_done) AS epochs_done, max(objective) AS objective, max(objective_value) AS objective_value,
           max(validation_loss) AS validation_loss, max(training_loss) AS training_loss, max(whole) AS whole,
           -- With folds, a mean over some of them says nothing.
           CASE WHEN max(judges) >= count(DISTINCT fold) THEN max(whole_loss) END AS whole_loss,
           CASE WHEN max(judges) >= count(DISTINCT fold) THEN max(whole_metric) END AS whole_metric,
           max(max(direction)) OVER (PARTITION BY run, owner) AS direction
      FROM fact
     GROUP BY run, owner, group_number
), compared AS (
    SELECT grouped.*,
           CASE WHEN objective = 'val_loss' THEN whole_loss WHEN left(objective, 4) = 'val_' THEN whole_metric END AS whole_value
      FROM grouped
)
SELECT run, group_number, group_value, rows, validation_rows, segments, model, configuration, architecture, status,
       epochs_done, objective, objective_value, validation_loss, training_loss, pg_get_userbyid(owner) AS owner,
       whole AS all_rows_configuration, whole_value AS all_rows_objective_value, whole_loss AS all_rows_validation_loss,
       CASE WHEN left(objective, 4) = 'val_' AND direction = 'max' THEN objective_value < whole_value
            WHEN left(objective, 4) = 'val_' THEN objective_value > whole_value
            ELSE validation_loss > whole_loss
       END AS worse_than_all_rows
  FROM compared
 WHERE num_nonnulls(group_number, configuration) = 2;
COMMENT ON VIEW cerebro.groups IS
'The groups of runs on rows with group_by: the best model of each group. Groups without a model of their own are in the '
'table MODEL_groups only.';
COMMENT ON COLUMN cerebro.groups.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.groups.group_number IS 'Number of the group, from 1, in the order of the values.';
COMMENT ON COLUMN cerebro.groups.group_value IS
'Values of the group; of several columns, a JSON array. Only the owner of the run sees them.';
COMMENT ON COLUMN cerebro.groups.rows IS 'Number of rows of the group that train its models.';
COMMENT ON COLUMN cerebro.groups.validation_rows IS
'Number of rows of the group for validation; NULL: the run has no validation table. With folds, each row of the group is one '
'(0: all are in one fold).';
COMMENT ON COLUMN cerebro.groups.segments IS
'Number of segments that have training rows of the group. Its models hop if there are several.';
COMMENT ON COLUMN cerebro.groups.model IS 'Number of the best model of the group within the run: the one of rank 1.';
COMMENT ON COLUMN cerebro.groups.configuration IS 'Number of that model''s configuration.';
COMMENT ON COLUMN cerebro.groups.architecture IS
'Name of that model''s architecture: its kind or the name that it was added by.';
COMMENT ON COLUMN cerebro.groups.status IS 'Status of that model, as in cerebro.leaderboard.';
COMMENT ON COLUMN cerebro.groups.epochs_done IS 'Number of epochs that that model has completed.';
COMMENT ON COLUMN cerebro.groups.objective IS 'Name of the metric that says which model of the group is best.';
COMMENT ON COLUMN cerebro.groups.objective_value IS 'Value of the objective, as in cerebro.leaderboard.';
COMMENT ON COLUMN cerebro.groups.validation_loss IS
'Latest validation loss of that model, on the rows of the group.';
COMMENT ON COLUMN cerebro.groups.training_loss IS
'Training loss of that model in its latest epoch, measured while training.';
COMMENT ON COLUMN cerebro.groups.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.groups.all_rows_configuration IS
'Number of the configuration that is best on all rows: its model on all rows is compared with the model of the group. NULL: '
'it was not evaluated on rows of the group.';
COMMENT ON COLUMN cerebro.groups.all_rows_objective_value IS
'Value of the objective of that model on the rows for validation of the group, after the epoch whose state the model tables '
'get; NULL: the objective is not measured on rows for validation, or the group is on several segments and its metric is no '
'mean over rows, such as auc. With folds, the mean over the folds: the model that is trained on the rows of all groups in the '
'other folds is evaluated on the rows of the group in each fold.';
COMMENT ON COLUMN cerebro.groups.all_rows_validation_loss IS
'Loss of that model on the rows for validation of the group, after the same epoch; with folds, the mean over the folds.';
COMMENT ON COLUMN cerebro.groups.worse_than_all_rows IS
'Whether the best model of the group is worse on the rows for validation of the group than the best model on all rows: by '
'the objective, or by the validation loss if the objective is measured while training. NULL: one of the values is not known.';

CREATE OR REPLACE VIEW cerebro.metrics WITH (security_barrier) AS
WITH figures AS (
    (SELECT DISTINCT ON (run, owner, model, epoch) run, owner, model, epoch, 'training'::text AS dataset, metrics
       FROM cerebro_internal._visible_hop
      ORDER BY run, owner, model, epoch, hop DESC)
     UNION ALL
    (SELECT DISTINCT ON (run, owner, model, epoch, dataset) run, owner, model, epoch,
            CASE dataset WHEN 'training' THEN 'training, after' ELSE dataset END, metrics
       FROM cerebro_internal._visible_evaluation
      WHERE metrics <> '{}'  -- they are with the part that was evaluated last, and are those of all parts
      ORDER BY run, owner, model, epoch, dataset, part)
), numbers AS NOT MATERIALIZED (
    -- What is no number here becomes NULL.
    SELECT run, owner, f.model, f.epoch, f.dataset, named.metric, jsonb_typeof(named.value) = 'array' AS listed,
           COALESCE(single.label, (single.place - 1)::text) AS label,
           CASE WHEN jsonb_typeof(single.value) = 'number'
                THEN CASE WHEN abs((single.value #>> '{}')::numeric) < 1e-290 THEN 0.0
                          WHEN abs((single.value #>> '{}')::numeric) < 1e290
                          THEN (single.value #>> '{}')::double precision
                     END
           END AS value
      FROM figures f
      -- The labels of the classes; monitors see no class values. With the layout itself in the lists' condition,
      -- Greenplum would move it with each value.
      FULL JOIN (SELECT run, owner, seed,
                        CASE WHEN owner = (SELECT quote_ident(current_user)::regrole)
                                  AND layout #> '{outputs,1}' IS NULL
                                  AND jsonb_typeof(layout #> '{outputs,0,preparation,labels}') = 'array'
                             THEN layout #> '{outputs,0,preparation,labels}'
                        END AS labels
                   FROM cerebro_internal._visible_run) r USING (run, owner)
     CROSS JOIN LATERAL jsonb_each(f.metrics) AS named (metric, value)
     CROSS JOIN LATERAL ROWS FROM (
               jsonb_array_elements(CASE jsonb_typeof(named.value)
                                         WHEN 'array' THEN named.value
                                         ELSE jsonb_build_array(named.value)
                                    END),
               jsonb_array_elements_text(
                   CASE WHEN named.metric ~ '^(f1|fbeta)_score' AND jsonb_typeof(named.value) = 'array'
                        THEN r.labels
                   END)
           ) WITH ORDINALITY AS single (value, label, place)
     WHERE single.value IS NOT NULL  -- there may be more labels
       AND num_nonnulls(r.seed) = 1
), told AS (
    -- The mean of a list, and besides each number of it.
    SELECT run, owner, model, epoch, dataset, metric, NULL AS label,
           CASE WHEN count(value) = count(*) THEN avg(value) END AS value
      FROM numbers
     GROUP BY run, owner, model, epoch, dataset, metric
     UNION ALL
    SELECT run, owner, model, epoch, dataset, metric, label, value FROM numbers WHERE listed
     UNION ALL
    SELECT run, owner, model, epoch, 'training', 'loss', NULL, training_loss FROM cerebro_internal._learning_curve
     UNION ALL
    SELECT run, owner, model, epoch, 'validation', 'loss', NULL, validation_loss
      FROM cerebro_internal._learning_curve
     WHERE validation_loss IS NOT NULL
     UNION ALL
    SELECT run, owner, e.model, e.epoch, 'training, after', 'loss', NULL, e.loss
      FROM (SELECT run, owner, model, epoch, sum(loss * rows) / NULLIF(sum(rows), 0) AS loss, sum(rows) AS rows
              FROM cerebro_internal._visible_evaluation
             WHERE dataset = 'training'
             GROUP BY run, owner, model, epoch) e
      FULL JOIN cerebro_internal._visible_run r USING (run, owner)
     WHERE CASE WHEN e.rows >= r.rows_per_epoch THEN true END  -- all parts
)
SELECT run, model, m.configuration, t.epoch, t.dataset,
       CASE WHEN t.label IS NULL THEN t.metric ELSE format('%s[%s]', t.metric, t.label) END AS metric,
       t.value,
       pg_get_userbyid(owner) AS owner,
       m.group_number,
       CASE WHEN owner = (SELECT quote_ident(current_user)::regrole) THEN m.group_value END AS group_value
  FROM told t
  FULL JOIN cerebro_internal._visible_model m USING (run, owner, model)
 WHERE num_nonnulls(t.epoch, m.configuration) = 2;
COMMENT ON VIEW cerebro.metrics IS
'The loss and all metrics of each model after each epoch, one row each.';
COMMENT ON COLUMN cerebro.metrics.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.metrics.model IS 'Number of the model within the run, from 1.';
COMMENT ON COLUMN cerebro.metrics.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.metrics.epoch IS 'Number of the epoch, from 1.';
COMMENT ON COLUMN cerebro.metrics.dataset IS
'training (measured over the epoch''s rows while training), validation (measured after the epoch, on all parts of the '
'validation table, or on the rows of the fold or group), or in runs of MADlib''s functions training, after (measured after the epoch, on the '
'training table).';
COMMENT ON COLUMN cerebro.metrics.metric IS
'loss, or the name of the metric as Keras reports it; of a model with several outputs the output''s name comes first. A '
'metric with several values has a row with their mean, and a row for each: f1_score[setosa] is the F1 score of a class, '
'by its label (in runs of your own) or number, and precision[0] the precision at the first threshold.';
COMMENT ON COLUMN cerebro.metrics.value IS 'The value; NULL if it is not a finite number.';
COMMENT ON COLUMN cerebro.metrics.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.metrics.group_number IS
'Number of the group on whose rows the model is trained and evaluated; NULL: all rows.';
COMMENT ON COLUMN cerebro.metrics.group_value IS
'Values of that group; of several columns, a JSON array. Only the owner of the run sees them.';

-- sql/api/24_progress.sql
-- The view on how far runs are.  The head of 20_runs.sql says which rules hold for views.

CREATE OR REPLACE VIEW cerebro.run_progress WITH (security_barrier) AS
WITH ending AS (
    -- The models, and the decisions to stop them. Those before a model went on hold no longer.
    SELECT run, owner, model, known, visits, epoch, hop,
           decision_id > COALESCE(max(went_on) OVER (PARTITION BY run, owner, model), 0) AS holds
      FROM (SELECT run, owner, model, true AS known, cardinality(visits) AS visits, NULL::integer AS epoch,
                   NULL::bigint AS hop, NULL::bigint AS decision_id, NULL::bigint AS went_on
              FROM cerebro_internal._visible_model
             UNION ALL
            SELECT run, owner, model, NULL, NULL, epoch, (detail ->> 'hop')::bigint,
                   CASE decision WHEN 'stop' THEN decision_id END, CASE decision WHEN 'go on' THEN decision_id END
              FROM cerebro_internal._visible_decision
             WHERE decision IN ('stop', 'go on') AND model IS NOT NULL) u
), ended AS (
    SELECT run, owner, model, max(visits) AS visits,
           min(epoch) FILTER (WHERE holds) AS epoch, max(hop) FILTER (WHERE holds) AS hop
      FROM ending
     GROUP BY run, owner, model
    HAVING bool_or(known)  -- users can write rows about models that do not exist
), fact AS (
    SELECT run, owner, 'run' AS kind, NULL::timestamptz AS at, NULL::bigint AS rows_done, NULL::bigint AS rows_total,
           segments, epochs AS epoch, NULL::integer AS visits, NULL::bigint AS hop, NULL::double precision AS seconds_left,
           NULL::integer AS configuration, NULL::text AS status, NULL::bigint AS rank,
           NULL::double precision AS loss, NULL::double precision AS metric, NULL::text AS objective,
           NULL::double precision AS value
      FROM cerebro_internal._plan
     UNION ALL
    -- A run of a day has 86,400 of these.
    SELECT run, owner, 'beat', h.at, h.rows_done, h.rows_total, NULL, NULL, NULL, NULL, h.seconds_left,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL
      FROM (SELECT run, owner, max(at) AS at FROM cerebro_internal._visible_heartbeat GROUP BY run, owner) l
      FULL JOIN cerebro_internal._visible_heartbeat h USING (run, owner)
     WHERE CASE WHEN h.at >= l.at - interval '30 seconds' THEN true END
     UNION ALL
    SELECT run, owner, 'visit', NULL, rows, NULL, NULL, NULL, NULL, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL
      FROM cerebro_internal._visible_hop
     UNION ALL
    SELECT run, owner, 'model', NULL, NULL, NULL, NULL, epoch, visits, hop, NULL, NULL, NULL, NULL, NULL,
           NULL, NULL, NULL
      FROM ended
     UNION ALL
    SELECT run, owner, 'rank', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, configuration, status,
           CASE WHEN group_number IS NULL THEN rank END,
           COALESCE(validation_loss, training_loss), COALESCE(validation_metric, training_metric), objective,
           objective_value
      FROM cerebro_internal._leaderboard
), timed AS (
    SELECT f.*,
           max(at) FILTER (WHERE kind = 'beat') OVER of_run AS seen_at,
           max(segments) FILTER (WHERE kind = 'run') OVER of_run AS run_segments,
           max(epoch) FILTER (WHERE kind = 'run') OVER of_run AS run_epochs
      FROM fact f
    WINDOW of_run AS (PARTITION BY run, owner)
), told AS (
    SELECT run, owner, max(seen_at) AS seen_at,
           max(rows_done) FILTER (WHERE kind = 'beat' AND at = seen_at) AS rows_done,
           max(rows_total) FILTER (WHERE kind = 'beat' AND at = seen_at) AS rows_total,
           -- The speed over the last 30 seconds, or since the start of a run that is younger.
           (max(rows_done) FILTER (WHERE kind = 'beat' AND at >= seen_at - interval '30 seconds')
            - min(rows_done) FILTER (WHERE kind = 'beat' AND at >= seen_at - interval '30 seconds'))
               / NULLIF(extract(epoch FROM seen_at - min(at) FILTER (WHERE kind = 'beat'
                                                                      AND at >= seen_at - interval '30 seconds')
                                )::double precision, 0) AS rows_per_second,
           -- A stopped model has no visits after its decision, which may have come within an epoch.
           LEAST(COALESCE(sum(COALESCE(hop, LEAST(run_epochs, epoch)::numeric * COALESCE(visits, run_segments)))
                              FILTER (WHERE kind = 'model'), 0), 1e18)::bigint AS hops_total,
           count(*) FILTER (WHERE kind = 'visit') AS hops_done,
           COALESCE(sum(rows_done) FILTER (WHERE kind = 'visit'), 0) AS rows_visited,
           max(seconds_left) FILTER (WHERE kind = 'beat' AND at = seen_at) AS seconds_left,
           count(*) FILTER (WHERE status IN ('finished', 'stopped')) AS finished,
           count(*) FILTER (WHERE status = 'failed') AS failed,
           min(configuration) FILTER (WHERE rank = 1 AND status <> 'waiting') AS best_configuration,
           min(loss) FILTER (WHERE rank = 1) AS best_loss,
           min(metric) FILTER (WHERE rank = 1) AS best_metric,
           min(objective) AS objective,
           min(value) FILTER (WHERE rank = 1) AS best_value
      FROM timed
     GROUP BY run, owner, seen_at
    HAVING bool_or(kind = 'run')  -- users can write rows about runs that do not exist
)
SELECT run,
       r.run_name,
       r.status,
       -- A heartbeat counts the rows of visits under way, too, but there is one per second.
       CASE WHEN r.status IN ('finishing', 'finished') THEN 100.0
            ELSE COALESCE(round((100.0 * LEAST(GREATEST(t.rows_done, t.rows_visited), t.rows_total)
                                 / NULLIF(t.rows_total, 0))::numeric, 1), 0.0)
       END::double precision AS percent,
       t.hops_done,
       t.hops_total,
       t.finished AS configurations_finished,
       t.failed AS configurations_failed,
       r.configurations,
       CASE WHEN r.status = 'running' THEN t.rows_per_second END AS rows_per_second,
       CASE WHEN r.status = 'running' THEN t.seconds_left END AS seconds_left,
       extract(epoch FROM COALESCE(r.ended_at, CASE WHEN r.status = 'running' THEN clock_timestamp() ELSE t.seen_at END)
                          - r.started_at)::double precision AS seconds_elapsed,
       t.best_configuration,
       t.best_loss,
       t.best_metric,
       t.seen_at,
       pg_get_userbyid(owner) AS owner,
       r.message,
       t.objective,
       t.best_value
  FROM told t
  FULL JOIN cerebro_internal._runs r USING (run, owner)
 WHERE num_nonnulls(t.hops_done, r.status) = 2;
COMMENT ON VIEW cerebro.run_progress IS
'How far each run is, how fast it trains, and when it will end. Updated about once per second while a run is '
'driven.';
COMMENT ON COLUMN cerebro.run_progress.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.run_progress.run_name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.run_progress.status IS 'Status of the run, as in cerebro.runs.';
COMMENT ON COLUMN cerebro.run_progress.percent IS
'Share of the rows of the whole run that have been trained on, in percent (0 to 100).';
COMMENT ON COLUMN cerebro.run_progress.hops_done IS
'Number of committed visits (a visit trains one model on one segment). An average of a model''s replicas counts as '
'one.';
COMMENT ON COLUMN cerebro.run_progress.hops_total IS
'Number of visits of all models in all epochs, and of averages of replicas. A stopped model counts only up to the '
'epoch it was stopped after.';
COMMENT ON COLUMN cerebro.run_progress.configurations_finished IS
'Number of models that need no more training: finished or stopped.';
COMMENT ON COLUMN cerebro.run_progress.configurations_failed IS 'Number of models that failed.';
COMMENT ON COLUMN cerebro.run_progress.configurations IS
'Number of configurations of the run so far: a search and users add some while it trains.';
COMMENT ON COLUMN cerebro.run_progress.rows_per_second IS
'Rows trained per second over the last 30 seconds, all segments together; NULL unless the run is running.';
COMMENT ON COLUMN cerebro.run_progress.seconds_left IS
'Estimated seconds until the run ends, by the pace of its visits, its method and its budget. NULL unless the run is '
'running, and until the pace of a visit is known.';
COMMENT ON COLUMN cerebro.run_progress.seconds_elapsed IS
'Seconds from the start of the run to its end, or to now while it is running.';
COMMENT ON COLUMN cerebro.run_progress.best_configuration IS
'Configuration of the model that ranks first on the leaderboard; NULL before the first committed visit.';
COMMENT ON COLUMN cerebro.run_progress.best_loss IS
'Loss of that model: validation loss if there is one, else training loss.';
COMMENT ON COLUMN cerebro.run_progress.best_metric IS
'Metric of that model: validation metric if there is one, else training metric.';
COMMENT ON COLUMN cerebro.run_progress.seen_at IS 'When the run last reported its progress.';
COMMENT ON COLUMN cerebro.run_progress.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.run_progress.message IS 'As in cerebro.runs.';
COMMENT ON COLUMN cerebro.run_progress.objective IS 'Name of the run''s objective, as in cerebro.leaderboard.';
COMMENT ON COLUMN cerebro.run_progress.best_value IS
'Value of the objective of the model that ranks first: objective_value in cerebro.leaderboard.';

-- sql/api/25_decisions.sql
-- The views on what was decided about runs, and on what people asked.  The head of 20_runs.sql says which rules hold
-- for views.

CREATE OR REPLACE VIEW cerebro.decisions WITH (security_barrier) AS
SELECT run, d.decision_id, d.at, d.decision, model, m.configuration, d.epoch, d.policy AS decided_by,
       -- Texts of errors, and of the query stop_when, may contain what rows contain: a monitor does not see them. Whoever
       -- has made a request sees why it was refused.
       CASE WHEN owner = (SELECT quote_ident(current_user)::regrole) OR d.by = current_user
                 OR (d.decision <> 'refuse' AND d.policy <> 'rule')
            THEN d.reason
       END AS reason,
       -- Users may write rows of their own: whatever is no number of a model is left out.
       NULLIF(btrim(jsonb_path_query_array(
                        d.detail, '$.added[*].model ? (@.type() == "number" && @ > 0 && @ <= 2147483647)')::text, '[]'), '')
           AS added,
       d.request AS request_id, d.by AS requested_by, pg_get_userbyid(owner) AS owner
  -- Before its decisions comes the request itself.
  FROM (SELECT run, owner, model, decision_id, at, decision, epoch, policy, reason, detail, request,
               first_value(by) OVER (PARTITION BY run, owner, request ORDER BY decision_id NULLS FIRST) AS by
          FROM (SELECT run, owner, model, decision_id, at, decision, epoch, policy, reason, detail, request,
                       NULL::name AS by
                  FROM cerebro_internal._visible_decision
                 UNION ALL
                SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, request_id, by
                  FROM cerebro_internal._visible_request) u) d
  FULL JOIN cerebro_internal._visible_model m USING (run, owner, model)
 WHERE num_nonnulls(d.decision_id) = 1;
COMMENT ON VIEW cerebro.decisions IS
'Each decision about a run or one of its models: what was decided, when, by whom, why, and which models it added.';
COMMENT ON COLUMN cerebro.decisions.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.decisions.decision_id IS 'Number of the decision; later decisions have larger numbers.';
COMMENT ON COLUMN cerebro.decisions.at IS 'When it was decided.';
COMMENT ON COLUMN cerebro.decisions.decision IS
'continue (the model trains on), stop, go on (a model that was stopped trains on), add (new models begin), extend (the '
'run gets more epochs), budget (the run gets another budget) or refuse (a request cannot be carried out; reason says '
'why).';
COMMENT ON COLUMN cerebro.decisions.model IS
'Number of the model within the run, from 1; NULL: the decision concerns the whole run.';
COMMENT ON COLUMN cerebro.decisions.configuration IS
'Number of the model''s configuration in its run.';
COMMENT ON COLUMN cerebro.decisions.epoch IS
'Number of epochs that the model had completed; NULL: the decision concerns the whole run.';
COMMENT ON COLUMN cerebro.decisions.decided_by IS
'The name of the search policy, or rule (the option stop_when), request (a person) or budget (the budget was spent).';
COMMENT ON COLUMN cerebro.decisions.reason IS
'Why it was decided. Of a rule (the option stop_when) visible to the owner only, and of a refusal to the owner and to '
'whoever made the request, because such texts may contain values.';
COMMENT ON COLUMN cerebro.decisions.added IS 'Numbers of the models that the decision added; NULL: none.';
COMMENT ON COLUMN cerebro.decisions.request_id IS
'The request that the decision answers, as in cerebro.requests; NULL: none.';
COMMENT ON COLUMN cerebro.decisions.requested_by IS 'The user who made the request; NULL: nobody.';
COMMENT ON COLUMN cerebro.decisions.owner IS 'The user who owns the run.';

CREATE OR REPLACE VIEW cerebro.requests WITH (security_barrier) AS
SELECT run, r.request_id, r.at, r.by,
       CASE WHEN r.action = 'add' AND r.detail #>> '{new,parent}' IS NOT NULL THEN 'clone' ELSE r.action END AS action,
       CASE WHEN num_nonnulls(m.configuration) = 1 THEN model END AS model, m.configuration,
       CASE r.action
            WHEN 'add' THEN r.detail ->> 'parameters'
            WHEN 'extend' THEN (r.detail ->> 'epochs') || ' epochs'
            WHEN 'budget' THEN r.detail::text
       END AS parameters,
       r.reason,
       CASE WHEN r.decision IS NULL THEN 'waiting' WHEN r.decision = 'refuse' THEN 'refused' ELSE 'done' END AS status,
       r.answered_at,
       CASE WHEN r.decision = 'refuse'
                 -- As in cerebro.decisions.
                 AND (owner = (SELECT quote_ident(current_user)::regrole) OR r.by = current_user)
            THEN r.answer
       END AS refusal,
       r.decision_id, pg_get_userbyid(owner) AS owner
  -- After its decisions comes the request itself, so the first one of all is the decision that answers it.
  FROM (SELECT run, owner, request_id, at, by, action, reason, detail,
               COALESCE(detail ->> 'model', detail #>> '{new,parent}')::integer AS model,
               first_value(decision_id) OVER answers AS decision_id, first_value(decision) OVER answers AS decision,
               first_value(answered_at) OVER answers AS answered_at, first_value(answer) OVER answers AS answer
          FROM (SELECT run, owner, request_id, at, by, action, reason, detail,
                       NULL::bigint AS decision_id, NULL::text AS decision, NULL::timestamptz AS answered_at,
                       NULL::text AS answer
                  FROM cerebro_internal._visible_request
                 UNION ALL
                SELECT run, owner, request, NULL, NULL, NULL, NULL, NULL, decision_id, decision, at, reason
                  FROM cerebro_internal._visible_decision
                 WHERE request IS NOT NULL) u
        WINDOW answers AS (PARTITION BY run, owner, request_id ORDER BY decision_id)) r
  FULL JOIN cerebro_internal._visible_model m USING (run, owner, model)
 WHERE num_nonnulls(r.action) = 1;
COMMENT ON VIEW cerebro.requests IS
'Each request that a user made with cerebro.stop_model, go_on, clone_model, add_configuration, extend or set_budget, and '
'its result.';
COMMENT ON COLUMN cerebro.requests.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.requests.request_id IS 'Number of the request; later requests have larger numbers.';
COMMENT ON COLUMN cerebro.requests.at IS 'When the request was made.';
COMMENT ON COLUMN cerebro.requests.by IS 'The user who made the request.';
COMMENT ON COLUMN cerebro.requests.action IS 'stop, go on, clone, add, extend or budget.';
COMMENT ON COLUMN cerebro.requests.model IS
'The model that is to stop, to go on or to be cloned; NULL for other requests.';
COMMENT ON COLUMN cerebro.requests.configuration IS 'Configuration of that model.';
COMMENT ON COLUMN cerebro.requests.parameters IS
'As the user gave them: the parameters of the new configuration (of a clone, those that change), the new number of '
'epochs, or the new budget.';
COMMENT ON COLUMN cerebro.requests.reason IS 'The reason that the user gave.';
COMMENT ON COLUMN cerebro.requests.status IS
'waiting, done or refused. A request about a model in training waits for the end of its epoch. Requests about a run '
'that no session drives wait for cerebro.resume(run).';
COMMENT ON COLUMN cerebro.requests.answered_at IS 'When it was done or refused; NULL while it waits.';
COMMENT ON COLUMN cerebro.requests.refusal IS
'Why it was refused, for the owner and for whoever made the request; NULL if it was not.';
COMMENT ON COLUMN cerebro.requests.decision_id IS
'The decision that answers it, as in cerebro.decisions; NULL while it waits.';
COMMENT ON COLUMN cerebro.requests.owner IS 'The user who owns the run.';

-- sql/api/26_segments.sql
-- The views on what segments do.  The head of 20_runs.sql says which rules hold for views.

CREATE OR REPLACE VIEW cerebro_internal._hop_timeline AS
SELECT u.run, u.owner, u.segment, u.activity, u.configuration, u.epoch, u.hop, u.dataset, u.part,
       u.started_at, u.finished_at, u.seconds, u.rows, u.loss, u.metric,
       u.seconds_reading, u.seconds_state_in, u.seconds_training, u.seconds_state_out, u.seconds_building,
       u.seconds_behind, u.worker_pid, u.trainer_pid, u.engine, u.model, u.seconds_features
  FROM (SELECT t.run, t.owner, t.segment, t.activity, t.epoch, t.hop, t.dataset, t.part, t.started_at, t.finished_at,
               extract(epoch FROM t.finished_at - t.started_at)::double precision AS seconds,
               t.rows, t.loss, t.metric,
               COALESCE((t.stages ->> 'data')::double precision, 0) AS seconds_reading,
               COALESCE((t.stages ->> 'load')::double precision, 0) AS seconds_state_in,
               COALESCE((t.stages ->> t.activity)::double precision, 0) AS seconds_training,
               COALESCE((t.stages ->> 'save')::double precision, 0) AS seconds_state_out,
               COALESCE((t.stages ->> 'build')::double precision, 0) AS seconds_building,
               COALESCE((t.stages ->> 'behind')::double precision, 0) AS seconds_behind,
               COALESCE((t.stages ->> 'features')::double precision, 0) AS seconds_features,
               t.worker_pid, t.trainer_pid, t.model,
               max(t.configuration) OVER (PARTITION BY t.run, t.owner, t.model) AS configuration,
               substr(max(t.engine) OVER (PARTITION BY t.run, t.owner, t.model), 21) AS engine
          FROM (SELECT h.run, h.owner, h.model, CASE h.kind WHEN 'average' THEN h.kind ELSE 'train' END AS activity,
                       h.segment, h.epoch, h.hop, NULL AS dataset, NULL::integer AS part,
                       h.started_at, h.finished_at, h.rows, h.loss, h.metric, h.seconds AS stages,
                       h.worker_pid, h.trainer_pid, NULL::integer AS configuration, NULL AS engine
                  FROM cerebro_internal._visible_hop h
                 UNION ALL
                SELECT e.run, e.owner, e.model, 'evaluate', e.segment, e.epoch, NULL, e.dataset,
                       e.part, e.started_at, e.finished_at, e.rows, e.loss, e.metric,
                       e.seconds, e.worker_pid, NULL, NULL, NULL
                  FROM cerebro_internal._visible_evaluation e
                 UNION ALL
                SELECT m.run, m.owner, m.model, NULL, NULL, NULL, NULL, NULL,
                       NULL, NULL, NULL, NULL, NULL, NULL,
                       NULL, NULL, NULL, m.configuration, NULL
                  FROM cerebro_internal._visible_model m
                 UNION ALL
                SELECT b.run, b.owner, b.model, NULL, NULL, NULL, NULL, NULL,
                       NULL, NULL, NULL, NULL, NULL, NULL,
                       NULL, NULL, NULL, NULL,
                       -- A model that went on with another engine has a second event.
                       lpad(b.event_id::text, 20, '0') || (b.detail ->> 'engine')
                  FROM cerebro_internal._visible_event b
                 WHERE b.model IS NOT NULL AND b.event = 'built') t) u
 WHERE u.activity IS NOT NULL
       AND u.configuration IS NOT NULL;  -- users can write rows about models that do not exist
COMMENT ON VIEW cerebro_internal._hop_timeline IS
'What the current user may see of what segments did, with the numbers of the owners. The other views read it; users '
'cannot.';

CREATE OR REPLACE VIEW cerebro.hop_timeline WITH (security_barrier) AS
SELECT run, pg_get_userbyid(owner) AS owner, segment, activity, configuration, epoch, hop, dataset, part, started_at,
       finished_at, seconds, rows, loss, metric AS first_metric, seconds_reading, seconds_state_in, seconds_training,
       seconds_state_out, seconds_building, seconds_behind, worker_pid, trainer_pid, engine, model, seconds_features
  FROM cerebro_internal._hop_timeline;
COMMENT ON VIEW cerebro.hop_timeline IS
'What each segment did and when: one row per committed visit or evaluation, with its duration in parts. The visits '
'of a fusion group begin together; the parts of the group''s duration are divided equally among them.';
COMMENT ON COLUMN cerebro.hop_timeline.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.hop_timeline.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.hop_timeline.segment IS 'Segment of the run, from 0.';
COMMENT ON COLUMN cerebro.hop_timeline.activity IS
'train (a visit), evaluate, or average (of the states of a model''s replicas, in runs of madlib_keras_fit).';
COMMENT ON COLUMN cerebro.hop_timeline.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.hop_timeline.epoch IS 'Epoch of the model, from 1.';
COMMENT ON COLUMN cerebro.hop_timeline.hop IS
'Number of the visit, or of the average, within the model, from 1; NULL for evaluations.';
COMMENT ON COLUMN cerebro.hop_timeline.dataset IS
'Data set that was evaluated: training or validation; NULL for visits.';
COMMENT ON COLUMN cerebro.hop_timeline.part IS 'Part of the data set that was evaluated, from 0; NULL for visits.';
COMMENT ON COLUMN cerebro.hop_timeline.started_at IS 'When the visit or evaluation started.';
COMMENT ON COLUMN cerebro.hop_timeline.finished_at IS 'When the visit or evaluation was recorded, its state stored.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds IS 'Seconds from started_at to finished_at.';
COMMENT ON COLUMN cerebro.hop_timeline.rows IS 'Number of rows trained on or evaluated.';
COMMENT ON COLUMN cerebro.hop_timeline.loss IS 'Mean loss over these rows.';
COMMENT ON COLUMN cerebro.hop_timeline.first_metric IS
'First metric over the rows of the epoch so far; of an evaluation over all parts, at the part that was evaluated last.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_reading IS 'Seconds spent on reading rows into the row cache.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_state_in IS 'Seconds spent on fetching and loading the model state.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_training IS 'Seconds of computation: training, or evaluating.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_state_out IS 'Seconds spent on saving and storing the model state.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_building IS 'Seconds spent on building and compiling the model.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_behind IS
'Seconds in which the state was stored while the trainer already worked on the next unit, or was free for it. These '
'seconds may overlap with that unit.';
COMMENT ON COLUMN cerebro.hop_timeline.worker_pid IS 'Process id of the worker session.';
COMMENT ON COLUMN cerebro.hop_timeline.trainer_pid IS 'Process id of the trainer; NULL for evaluations.';
COMMENT ON COLUMN cerebro.hop_timeline.engine IS 'Engine that trains the model: tensorflow, jax or torch.';
COMMENT ON COLUMN cerebro.hop_timeline.model IS 'Number of the model within the run, from 1.';
COMMENT ON COLUMN cerebro.hop_timeline.seconds_features IS
'Seconds spent on computing the features of frozen layers (option reuse).';

CREATE OR REPLACE VIEW cerebro.segments_now WITH (security_barrier) AS
WITH visit AS (
    SELECT run, owner, model, hop, segment, max(started_at) AS started_at, max(finished_at) AS finished_at
      FROM (SELECT run, owner, model, hop, segment, started_at, NULL::timestamptz AS finished_at
              FROM cerebro_internal._visible_attempt
             UNION ALL
            SELECT run, owner, model, hop, segment, NULL, finished_at
              FROM cerebro_internal._visible_hop) u
     GROUP BY run, owner, model, hop, segment
    HAVING max(started_at) IS NOT NULL
), latest AS (
    SELECT DISTINCT ON (run, owner, segment) run, owner, model, hop, segment, started_at, finished_at
      FROM visit
     ORDER BY run, owner, segment, started_at DESC, finished_at IS NOT NULL, model
)
SELECT run, l.segment, m.configuration,
       (l.hop - 1) / COALESCE(cardinality(m.visits), l.segments) + 1 AS epoch,
       l.hop,
       CASE WHEN l.finished_at IS NOT NULL OR l.status = 'running'
            THEN extract(epoch FROM COALESCE(l.finished_at, clock_timestamp()) - l.started_at)::double precision
       END AS seconds,
       l.finished_at IS NOT NULL AS done,
       pg_get_userbyid(owner) AS owner,
       model
  -- No WITH, which would keep a condition on the run from the rows: cerebro_internal._runs asks for sessions and locks.
  FROM (SELECT run, owner, model, hop, segment, started_at, finished_at,
               max(segments) OVER of_run AS segments, max(status) OVER of_run AS status
          FROM (SELECT run, owner, model, hop, segment, started_at, finished_at, NULL::integer AS segments,
                       NULL::text AS status
                  FROM latest
                 UNION ALL
                SELECT run, owner, NULL, NULL, NULL, NULL, NULL, segments, status
                  FROM cerebro_internal._runs) u
        WINDOW of_run AS (PARTITION BY run, owner)) l
  FULL JOIN cerebro_internal._visible_model m USING (run, owner, model)
 WHERE num_nonnulls(l.hop, l.status, m.configuration) = 3;
COMMENT ON VIEW cerebro.segments_now IS
'The latest visit that each segment of each run has started. If several models train in one order, together or one '
'after the other, the first of them stands for all. A visit of several segments at the same time (option parallel) '
'stands at the one that commits it.';
COMMENT ON COLUMN cerebro.segments_now.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.segments_now.segment IS 'Segment of the run, from 0.';
COMMENT ON COLUMN cerebro.segments_now.configuration IS 'Number of the configuration in its run.';
COMMENT ON COLUMN cerebro.segments_now.epoch IS 'Epoch of the model, from 1.';
COMMENT ON COLUMN cerebro.segments_now.hop IS 'Number of the visit within the model, from 1.';
COMMENT ON COLUMN cerebro.segments_now.seconds IS
'Duration of the visit in seconds, so far if it is still under way; NULL if the visit was broken off.';
COMMENT ON COLUMN cerebro.segments_now.done IS 'True if the visit is committed.';
COMMENT ON COLUMN cerebro.segments_now.owner IS 'The user who owns the run.';
COMMENT ON COLUMN cerebro.segments_now.model IS 'Number of the model within the run, from 1.';

CREATE OR REPLACE VIEW cerebro.run_time WITH (security_barrier) AS
WITH spent AS (
    SELECT run, owner,
           sum(seconds - seconds_behind) AS busy,
           sum(seconds_training) FILTER (WHERE activity = 'train') AS training,
           sum(seconds_training) FILTER (WHERE activity = 'evaluate') AS validation,
           sum(seconds_reading) AS reading,
           sum(seconds_building) AS building,
           sum(seconds_state_in) AS state_in,
           sum(seconds_state_out) AS state_out,
           sum(seconds_features) AS features,
           min(started_at) AS first_unit,
           max(finished_at) AS last_unit,
           min(begun) AS begun,
           max(segments) AS segments
      FROM (SELECT run, owner, activity, seconds, seconds_behind, seconds_training, seconds_reading, seconds_building,
                   seconds_state_in, seconds_state_out, seconds_features, started_at, finished_at,
                   NULL::timestamptz AS begun, NULL::integer AS segments
              FROM cerebro_internal._hop_timeline
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, at, NULL
              FROM cerebro_internal._visible_event
             WHERE model IS NULL AND event = 'started'
             UNION ALL
            SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, segments
              FROM cerebro_internal._visible_run) fact
     GROUP BY run, owner
    HAVING count(activity) > 0 AND max(segments) > 0
), whole AS (
    SELECT s.*,
           extract(epoch FROM s.last_unit - s.first_unit)::double precision * s.segments AS available,
           GREATEST(extract(epoch FROM s.first_unit - s.begun)::double precision, 0) * s.segments AS starting
      FROM spent s
), parts AS (
    SELECT w.run, w.owner, w.available + w.starting AS total, part.*
      FROM whole w
     CROSS JOIN LATERAL (VALUES
           (1, 'training',        w.training),
           (2, 'validation',      COALESCE(w.validation, 0)),
           (3, 'reading data',    w.reading),
           (4, 'building models', w.building),
           (5, 'state load',      w.state_in),
           (6, 'state emit',      w.state_out),
           (7, 'bookkeeping',     w.busy - w.training - COALESCE(w.validation, 0) - w.reading - w.building
                                         - w.state_in - w.state_out - w.features),
           (8, 'waiting',         w.available - w.busy),
           (9, 'starting',        w.starting),
           (10, 'features',       w.features)) AS part (position, activity, seconds)
     WHERE part.position < 10 OR part.seconds > 0
)
SELECT run, position, activity, seconds, seconds / NULLIF(total, 0) AS share, pg_get_userbyid(owner) AS owner
  FROM parts;
COMMENT ON VIEW cerebro.run_time IS
'How the segments of a run spent their time: one row per activity, summed over all segments.';
COMMENT ON COLUMN cerebro.run_time.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.run_time.position IS 'Position of the activity in the list, from 1, for sorting.';
COMMENT ON COLUMN cerebro.run_time.activity IS
'training, validation, reading data, building models, state load (fetching and loading states), state emit (saving '
'and storing states), bookkeeping (the rest of a unit), waiting (between units), starting (before the first unit) '
'or, if some were computed, features (of frozen layers; see the option reuse).';
COMMENT ON COLUMN cerebro.run_time.seconds IS 'Seconds, summed over the segments.';
COMMENT ON COLUMN cerebro.run_time.share IS 'Share of the run''s total segment time, from 0 to 1.';
COMMENT ON COLUMN cerebro.run_time.owner IS 'The user who owns the run.';

-- sql/api/30_packing.sql
-- Packing: a table becomes buffers of rows, spread over the segments.  docs/architecture.md describes the format.

-- The order in which a scan returns the rows affects the packed table. Without parallel workers, and without
-- synchronized scans (joining a scan that another session has begun), the order is the same each time.
CREATE OR REPLACE FUNCTION cerebro.pack_plain(
    source_table text,
    output_table text,
    target text,
    inputs text,
    buffer_size integer DEFAULT NULL,
    divide_by real DEFAULT 1.0,
    classes integer[] DEFAULT NULL,
    segments integer DEFAULT NULL,
    distribution_rules text DEFAULT NULL,
    seed bigint DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.pack_plain(plpy, source_table=source_table, output_table=output_table, target=target, inputs=inputs, buffer_size=buffer_size, divide_by=divide_by, classes=classes, segments=segments, distribution_rules=distribution_rules, seed=seed)
$py$;
COMMENT ON FUNCTION cerebro.pack_plain(text, text, text, text, integer, real, integer[], integer, text, bigint) IS
'Packs columns as they are: a table or view whose columns are numbers, arrays of numbers and labels already.
output_table receives the rows, shuffled, in buffers that are spread over the segments; OUTPUT_TABLE_summary describes
them. cerebro.pack also takes columns of other types, and splits the rows.

- target: columns to predict, separated by commas. Text, integers, booleans, dates and the like are class
  labels and become one-hot vectors. real, double precision and numeric are regression targets. Arrays are stored as
  they are (integers as int16, others as float32).
- inputs: input columns, separated by commas. Each array of numbers is one input of the model. All plain
  number columns together are one input named features. Arrays of smallint, integer or boolean stay integers and are
  divided by divide_by when they are read. All other inputs become float32 and are divided when they are packed.
- buffer_size: rows per buffer. NULL chooses it from the size of the rows.
- divide_by: the inputs are divided by it.
- classes: number of classes per column of target, where the model has room for more classes than the table
  contains. NULL: the number of classes in the table.
- segments: number of segments. NULL: the setting cerebro.segments, else one per GPU, else one per
  processor; on PostgreSQL a table gets at most one segment per 500 rows. Without an argument, it is at most what
  cerebro.set_limits(max_segments) allows the user.
- distribution_rules: on Greenplum, the segments to use: all_segments, gpu_segments (segments on hosts with GPUs), or
  the name of a table whose column dbid lists segments. Ignored on PostgreSQL.
- seed: the same seed and the same rows give the same packed table, whatever the order of the rows in the source and
  whether on PostgreSQL or Greenplum. NULL draws a seed, which the summary records.';

CREATE OR REPLACE FUNCTION cerebro.pack_like(
    source_table text,
    output_table text,
    target text,
    inputs text,
    packed_table text,
    buffer_size integer DEFAULT NULL,
    distribution_rules text DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.pack_like(plpy, source_table=source_table, output_table=output_table, target=target, inputs=inputs, packed_table=packed_table, buffer_size=buffer_size, distribution_rules=distribution_rules)
$py$;
COMMENT ON FUNCTION cerebro.pack_like(text, text, text, text, text, integer, text) IS
'Packs other rows as a packed table was packed, for validation: the same preparation, the same classes, the same number
of segments. The columns may have other names, but must have the same
shapes, and every class label must occur in packed_table. On PostgreSQL the rows keep their order if they have
one.

- packed_table: the packed table with the rows for training.
- inputs: NULL if cerebro.pack has packed packed_table. The inputs are then the columns that have the
  names of the training columns, and are prepared as these were.';

-- sql/api/31_pack.sql
-- Packing a table as it is: names, dates, gaps and texts become numbers. docs/prepare.md describes what becomes what.

CREATE OR REPLACE FUNCTION cerebro.pack(
    source_table text,
    output_table text,
    target text,
    inputs text DEFAULT NULL,
    prepare json DEFAULT NULL,
    validation double precision DEFAULT NULL,
    validation_table text DEFAULT NULL,
    split_by text DEFAULT NULL,
    split_at text DEFAULT NULL,
    stratify boolean DEFAULT false,
    buffer_size integer DEFAULT NULL,
    segments integer DEFAULT NULL,
    distribution_rules text DEFAULT NULL,
    seed bigint DEFAULT NULL,
    sequence json DEFAULT NULL,
    weights text DEFAULT NULL,
    class_weight text DEFAULT NULL,
    folds integer DEFAULT NULL,
    group_by text DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.pack(plpy, source_table=source_table, output_table=output_table, target=target, inputs=inputs, prepare=prepare, validation=validation, validation_table=validation_table, split_by=split_by, split_at=split_at, stratify=stratify, buffer_size=buffer_size, segments=segments, distribution_rules=distribution_rules, seed=seed, sequence=sequence, weights=weights, class_weight=class_weight, folds=folds, group_by=group_by)
$py$;
COMMENT ON FUNCTION cerebro.pack(text, text, text, text, json, double precision, text, text, text, boolean, integer, integer, text, bigint, json, text, text, integer, text) IS
'Packs a table or view with columns of nearly any type for training. output_table receives the rows for training,
OUTPUT_TABLE_validation those for validation. OUTPUT_TABLE_summary and OUTPUT_TABLE_validation_summary describe them.
Each column becomes an input by its type and its values, which docs/prepare.md explains and cerebro.prepared_columns
shows. Predictions prepare rows in the same way.

- target: the columns to predict, separated by commas. real, double precision and numeric are numbers to predict, and so
  are integers with many different values. Other columns are class labels.
- inputs: the input columns, separated by commas. NULL: all others. Keys, columns that number the rows and columns with
  one value are ignored, with a notice.
- prepare: what columns become, by name or by type, for instance {"zip": "category", "date": "ignore"}. A column of type
  bytea with pixels needs the shape of an image: {"photo": {"shape": [64, 64, 3]}}.
- validation: the share of the rows for validation, chosen by a hash of the key. A row stays on its side when other
  rows are added. Windows are divided by their subject or their time (docs/prepare.md). 0: none. NULL: 0.2, or none if
  there are folds or a validation_table.
- validation_table: a table with the rows for validation, instead of a share.
- split_by: a column, such as patient. All rows with the same value are on the same side.
- split_at: a column, such as a time; the rows with its largest values are for validation.
- stratify: true takes the same share of the rows of each class for validation.
- buffer_size, segments, distribution_rules, seed: as in cerebro.pack_plain.
- sequence: makes windows of consecutive rows, for instance {"by": "subject", "order": "ts", "length": 100, "step": 50}.
  No window has rows of two subjects. Its target is that of its last row, or the most frequent class with
  "target": "majority". With "horizon": 7 it is that of the row seven rows after its last row. Without split_by and
  split_at, all windows of a subject are on the same side; with a horizon, the latest rows are for validation.
- weights: a column with the weight of each row in training.
- class_weight: balanced gives all classes the same weight in training.
- folds: for cross-validation, the number of folds that the rows are divided into, by the same hash. A fit then trains one
  model of each configuration for each fold, on the rows of all other folds, and one model on all rows. split_by keeps
  all rows with the same value in one fold; stratify gives each fold the same share of each class. With group_by, each
  group has these models, too, and rows in all folds, or in as many as it has rows.
- group_by: columns, separated by commas. Rows with the same values are a group, which lies on one segment unless it has
  more rows than a segment''s share. A fit then trains one model of each configuration for each group, and one on all
  rows. With a sequence, the columns are among those of its "by".';

-- The settings are those of cerebro.pack, so that values have the same texts.
CREATE OR REPLACE FUNCTION cerebro.append(
    packed_table text,
    source_table text,
    divide boolean DEFAULT true
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.append(plpy, packed_table=packed_table, source_table=source_table, divide=divide)
$py$;
COMMENT ON FUNCTION cerebro.append(text, text, boolean) IS
'Adds rows that arrived later to a packed table, and to PACKED_TABLE_validation. Only the new rows are prepared, with the
means, categories and quantiles of the packed rows; a notice names columns whose values have drifted.

- packed_table: a table of yours that cerebro.pack, cerebro.train or another function has packed. Rows that are added
  twice are in it twice. Runs that have begun go on with the rows that they began with.
- source_table: a table or view with the new rows alone. It has the columns of the packed rows, with the same names.
- divide: true divides the rows between training and validation by the rule of the packed rows. false adds all of them to
  those for training.';

-- The settings are those of cerebro.pack.
CREATE OR REPLACE FUNCTION cerebro_internal._text_in_utc(anyelement) RETURNS text
LANGUAGE sql STABLE STRICT PARALLEL SAFE SET timezone = 'UTC' AS $sql$
SELECT $1::text
$sql$;
COMMENT ON FUNCTION cerebro_internal._text_in_utc(anyelement) IS
'The text of an array, a range or a row, whatever the time zone of the session is.';

CREATE OR REPLACE FUNCTION cerebro_internal._packed_rows(
    also_in text,
    source_table text,
    output_table text,
    target text,
    inputs text,
    prepare json,
    validation double precision,
    validation_table text,
    split_by text,
    split_at text,
    stratify boolean,
    buffer_size integer,
    segments integer,
    distribution_rules text,
    seed bigint,
    sequence json,
    weights text,
    class_weight text,
    folds integer,
    group_by text
) RETURNS text
LANGUAGE plpython3u
SET synchronize_seqscans = off SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.packed_rows(plpy, also_in=also_in, source_table=source_table, output_table=output_table, target=target, inputs=inputs, prepare=prepare, validation=validation, validation_table=validation_table, split_by=split_by, split_at=split_at, stratify=stratify, buffer_size=buffer_size, segments=segments, distribution_rules=distribution_rules, seed=seed, sequence=sequence, weights=weights, class_weight=class_weight, folds=folds, group_by=group_by)
$py$;
COMMENT ON FUNCTION cerebro_internal._packed_rows(text, text, text, text, text, json, double precision, text, text, text, boolean, integer, integer, text, bigint, json, text, text, integer, text) IS
'As cerebro.pack, for cerebro.train, search and fit: returns the name of a packed table of the same rows if the user has
one in the schema of output_table or in also_in, and packs otherwise. If also_in is NULL, only output_table counts.';

CREATE OR REPLACE FUNCTION cerebro.prepared_columns(packed_table text)
RETURNS TABLE (variable text, is_target boolean, column_name text, column_type text, prepared_as text, start integer,
               width integer, parameters jsonb)
LANGUAGE plpython3u STABLE AS $py$
@cerebro@
return api.prepared_columns(plpy, packed_table=packed_table)
$py$;
COMMENT ON FUNCTION cerebro.prepared_columns(text) IS
'Returns what the columns of a packed table have become: a row for each column. It also takes the table of trained
models.

- variable: the input or output of the model that the column belongs to; start (from 1) and width say which of its elements.
- prepared_as: number, date, category, words, or another way to pack the column.
- parameters: what packing has found in the rows, for instance mean and deviation, or the values that have codes.';

CREATE OR REPLACE FUNCTION cerebro.architecture(kind text, packed_table text, parameters jsonb DEFAULT NULL) RETURNS json
LANGUAGE plpython3u STABLE AS $py$
@cerebro@
return api.architecture(plpy, kind=kind, packed_table=packed_table, parameters=parameters)
$py$;
COMMENT ON FUNCTION cerebro.architecture(text, text, jsonb) IS
'Returns an architecture that fits the inputs and the target of a packed table: JSON of Keras, for
cerebro.add_architecture. docs/train.md says what is in it.

- kind: mlp, resnet or transformer for every table; lstm and conv1d for windows, texts and arrays of one or two dimensions;
  cnn for images.
- parameters: a JSON object, for instance {"units": 64}. Each kind has its own, which docs/train.md lists. A text such as
  "$units" is left in its place, to be filled in later; layers, blocks, linear, embedding, bins and group_statistics must be
  numbers.';

-- A function, not a part of the query: PostgreSQL runs no query with a subquery over a row's words on several processors.
CREATE OR REPLACE FUNCTION cerebro_internal._word_ids(value text, length integer, ids integer) RETURNS integer[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    -- Otherwise the variables would have the collation of the column: words would end elsewhere with "C", and
    -- nondeterministic collations can neither replace nor match.
    -- Of no text more than this is read, because the functions below hear no cancel.
    lowered text COLLATE "default" := pg_catalog.lower(pg_catalog.left(value, 1000000) COLLATE "default");
    -- Most texts have no letters beyond ASCII and few punctuation characters. Dividing such a text at its spaces takes a
    -- tenth of the time that the regular expression takes. One expression takes less time than several statements.
    spaced text COLLATE "default" :=
        pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(
        pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(
        pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(
        lowered, '.', ' '), ',', ' '), '-', ' '), '''', ' '), '"', ' '), ':', ' '), '!', ' '), '?', ' '), '/', ' '),
        '(', ' '), ')', ' '), ';', ' ');
    word text COLLATE "C";
    codes integer[] := '{}';
BEGIN
    IF COALESCE(length NOT BETWEEN 1 AND 10000 OR ids NOT BETWEEN 2 AND 1000000, true) THEN
        RAISE EXCEPTION 'length must be from 1 to 10000, and ids from 2 to 1000000, not % and %', length, ids
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Empty words and those beyond the last one are left out before the loop: each statement in it takes as long as a hash.
    FOREACH word IN ARRAY (pg_catalog.array_remove(
        CASE WHEN value IS NULL THEN '{}'
             WHEN spaced COLLATE "C" ~ '^[a-z0-9 ]*$' THEN pg_catalog.string_to_array(spaced, ' ')
             ELSE pg_catalog.regexp_split_to_array(lowered, '[[:space:][:punct:]]+') END, ''))[1 : length]
    LOOP
        codes := codes || (1 + (pg_catalog.hashtextextended(word, 0) % (ids - 1) + ids - 1) % (ids - 1))::integer;
    END LOOP;
    RETURN codes || pg_catalog.array_fill(0, ARRAY[length - pg_catalog.cardinality(codes)]);
END
$$;
COMMENT ON FUNCTION cerebro_internal._word_ids(text, integer, integer) IS
'The ids of a text''s first words, each from 1 to ids - 1 by a hash, and then 0 up to length. Words are in lower case and end
at spaces and punctuation. The first 1,000,000 characters of a text are read.';

-- sql/api/34_propagate.sql
-- Propagated features of graphs. docs/experts.md describes them.

-- Without parallel workers: PostgreSQL takes minutes to merge the pairs of nodes that each worker has found.
CREATE OR REPLACE FUNCTION cerebro.propagate(
    source_table text,
    edges_table text,
    output_table text,
    target text DEFAULT NULL,
    columns text DEFAULT NULL,
    hops integer DEFAULT 2,
    normalization text DEFAULT 'symmetric',
    key text DEFAULT 'id',
    edge_source text DEFAULT 'source',
    edge_target text DEFAULT 'target',
    edge_weight text DEFAULT NULL,
    undirected boolean DEFAULT true,
    self_loops boolean DEFAULT true,
    append boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.propagate(plpy, source_table=source_table, edges_table=edges_table, output_table=output_table, target=target, columns=columns, hops=hops, normalization=normalization, key=key, edge_source=edge_source, edge_target=edge_target, edge_weight=edge_weight, undirected=undirected, self_loops=self_loops, append=append)
$py$;
COMMENT ON FUNCTION cerebro.propagate(text, text, text, text, text, integer, text, text, text, text, text, boolean, boolean, boolean) IS
'Gives each node of a graph its neighbours'' values as columns, for cerebro.pack, train and fit. output_table receives all
columns of source_table, and for each propagated column x the columns x_hop_1, x_hop_2 and so on: hop 1 is a weighted sum
of the neighbours'' x, hop 2 one of their x_hop_1. OUTPUT_TABLE_summary has the arguments, OUTPUT_TABLE_neighbours what
append needs. It returns the number of rows written.

- source_table: the nodes, a row for each.
- edges_table: a row for each edge. An edge must not name a node that source_table does not have.
- target: the columns to predict, separated by commas. They are not propagated, but copied.
- columns: the columns to propagate, separated by commas: numbers, and arrays of numbers of one length. NULL: all columns of
  real, double precision and numeric, and arrays of numbers, but key and target.
- hops: from 1 to 10.
- normalization: row divides the weight of an edge by the sum of the weights of all edges into the same node, so that values are
  means. symmetric divides it by the square roots of that sum and of the sum at the edge''s other end.
- key: the column of source_table that identifies nodes. It becomes the primary key of output_table.
- edge_source, edge_target: the columns of edges_table with the keys of an edge''s two nodes.
- edge_weight: a column of edges_table with weights from 0 on. Weights of the same pair are added. NULL: all pairs weigh 1,
  also those that are listed several times.
- undirected: true lets values pass in both directions of an edge. false: only from edge_source to edge_target.
- self_loops: true gives each node that has no edge to itself one with the weight 1, so that its own value counts.
- append: true brings a table up to date that the same call has made: it writes the rows of new nodes, computes again those
  within hops of nodes and edges that have changed, and removes those of nodes that are gone. The result equals a new table.';

-- sql/api/36_architectures.sql
-- Architectures by name, for the configurations of the three verbs.

CREATE OR REPLACE VIEW cerebro.architectures WITH (security_barrier = true) AS
SELECT name, pg_get_userbyid(owner) AS owner, parameters AS parameter_names,
       COALESCE(octet_length(weights), (SELECT sum(octet_length(w.payload))::bigint
                                          FROM cerebro.added_weights w
                                         WHERE w.owner = a.owner AND w.name = a.name)) / 4 AS weights,
       description, added_at
  FROM cerebro.added_architecture a
 WHERE owner = (SELECT quote_ident(current_user)::regrole) AND NOT dropped;
COMMENT ON VIEW cerebro.architectures IS 'The architectures that you have added with cerebro.add_architecture().';
COMMENT ON COLUMN cerebro.architectures.name IS 'Name of the architecture, as configurations and spaces refer to it.';
COMMENT ON COLUMN cerebro.architectures.owner IS 'The user who added it: you.';
COMMENT ON COLUMN cerebro.architectures.parameter_names IS
'The parameters of the architecture, which configurations give values.';
COMMENT ON COLUMN cerebro.architectures.weights IS
'How many weights training starts from. NULL: it starts from random weights.';
COMMENT ON COLUMN cerebro.architectures.description IS 'Description given with the architecture.';
COMMENT ON COLUMN cerebro.architectures.added_at IS 'When the architecture was added.';

CREATE OR REPLACE FUNCTION cerebro.add_architecture(
    name            text,
    architecture    json,
    initial_weights bytea DEFAULT NULL,
    description     text  DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.add_architecture(plpy, name=name, architecture=architecture, initial_weights=initial_weights, description=description)
$py$;
COMMENT ON FUNCTION cerebro.add_architecture(text, json, bytea, text) IS
'Adds an architecture by a name, which the configurations of cerebro.fit and the spaces of cerebro.search and cerebro.train
can then name. Each user has names of their own. Architectures with layers that can execute code (Lambda and others) are
refused.

- architecture: what model.to_json() returns in Keras 2 or Keras 3. It can have parameters: "units": "$width" stands for
  a value, and in the list of layers of a Sequential model {"repeat": "$depth", "layers": [...]} stands for layers that
  are repeated. A configuration gives them values: {"architecture": "name", "width": 64, "depth": 2}.
- initial_weights: the arrays of model.get_weights(), flattened and concatenated, as float32. Models start from
  them. NULL: training starts from random weights. A statement with weights as text can have about 250 MB of them.
  The method add_architecture of the Python client sends weights of any size.';

CREATE OR REPLACE FUNCTION cerebro_internal._drop_architecture(gone text, whose name) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    -- Here the caller is not known any more, but only the owner can have written the row that says dropped.
    DELETE FROM cerebro.added_weights
     WHERE name = gone AND owner = quote_ident(whose)::regrole
       AND EXISTS (SELECT FROM cerebro.added_architecture d
                    WHERE d.name = gone AND d.owner = quote_ident(whose)::regrole AND d.dropped);
    DELETE FROM cerebro.added_architecture
     WHERE name = gone AND owner = quote_ident(whose)::regrole
       AND EXISTS (SELECT FROM cerebro.added_architecture d
                    WHERE d.name = gone AND d.owner = quote_ident(whose)::regrole AND d.dropped);
$$;
COMMENT ON FUNCTION cerebro_internal._drop_architecture(text, name) IS
'Deletes an architecture whose owner has recorded that it is dropped. Called by cerebro.drop_architecture().';

CREATE OR REPLACE FUNCTION cerebro.drop_architecture(name text) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF $1 IS NULL OR NOT EXISTS (SELECT FROM cerebro.architectures a WHERE a.name = $1) THEN
        RAISE EXCEPTION 'cerebro.drop_architecture: you have added no architecture %', COALESCE(quote_literal(left($1, 80)), 'NULL')
              USING ERRCODE = 'undefined_object', HINT = 'SELECT name FROM cerebro.architectures lists yours.';
    END IF;
    INSERT INTO cerebro.added_architecture (name, dropped) VALUES ($1, true);
    PERFORM cerebro_internal._drop_architecture($1, current_user);
END
$$;
COMMENT ON FUNCTION cerebro.drop_architecture(text) IS
'Removes an architecture that you have added. Runs that were made with it keep what they need of it.';

-- sql/api/40_training.sql
-- Runs: training a list of configurations by model hopping, and managing the runs.

CREATE OR REPLACE FUNCTION cerebro.fit(
    source_table text,
    model_table text,
    configurations text,
    target text DEFAULT NULL,
    epochs integer DEFAULT NULL,
    budget text DEFAULT NULL,
    inputs text DEFAULT NULL,
    prepare json DEFAULT NULL,
    weights text DEFAULT NULL,
    class_weight text DEFAULT NULL,
    sequence json DEFAULT NULL,
    validation double precision DEFAULT NULL,
    validation_table text DEFAULT NULL,
    split_by text DEFAULT NULL,
    split_at text DEFAULT NULL,
    stratify boolean DEFAULT NULL,
    folds integer DEFAULT NULL,
    segments integer DEFAULT NULL,
    packed_table text DEFAULT NULL,
    objective text DEFAULT NULL,
    direction text DEFAULT NULL,
    stop_when text DEFAULT NULL,
    evaluate_every integer DEFAULT NULL,
    use_gpus boolean DEFAULT false,
    warm_start boolean DEFAULT false,
    run_name text DEFAULT NULL,
    description text DEFAULT NULL,
    options jsonb DEFAULT NULL,
    wait boolean DEFAULT true,
    dry_run boolean DEFAULT false,
    group_by text DEFAULT NULL,
    replace boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.fit(plpy, source_table=source_table, model_table=model_table, configurations=configurations, target=target, epochs=epochs, budget=budget, inputs=inputs, prepare=prepare, weights=weights, class_weight=class_weight, sequence=sequence, validation=validation, validation_table=validation_table, split_by=split_by, split_at=split_at, stratify=stratify, folds=folds, segments=segments, packed_table=packed_table, objective=objective, direction=direction, stop_when=stop_when, evaluate_every=evaluate_every, use_gpus=use_gpus, warm_start=warm_start, run_name=run_name, description=description, options=options, wait=wait, dry_run=dry_run, group_by=group_by, replace=replace)
$py$;
COMMENT ON FUNCTION cerebro.fit(text, text, text, text, integer, text, text, json, text, text, json, double precision, text, text, text, boolean, integer, integer, text, text, text, text, integer, boolean, boolean, text, text, jsonb, boolean, boolean, text, boolean) IS
'Trains a list of configurations by model hopping, and returns the number of the run. In each epoch every model visits
every segment once, and its whole training state moves with it.

The trained models are in model_table, their losses and metrics in model_table_info, the arguments of the run in
model_table_summary. Models too large for one value have their weights in model_table_weights. From another session,
SELECT * FROM cerebro.run_progress shows how far the run is.

- source_table: a table, a view or a foreign table, which is packed as cerebro.train says; or a packed table. With a
  packed table, the arguments from target to packed_table stay NULL; the rows for validation are in validation_table, or
  in the table with the ending _validation.
- configurations: JSON, such as [{"learning_rate": 0.01}, {"architecture": "resnet", "units": 64}]; or a query whose
  columns are the keys; or the name of a table whose columns are the keys. The keys are architecture (a kind such as mlp,
  the name of an architecture of cerebro.add_architecture, or JSON of Keras), the parameters of the architecture,
  frozen (how many layers at the beginning keep their weights, or the name of the last one), loss, metrics, optimizer, the
  arguments of the optimizer, batch_size, passes (over the rows of a segment in one visit) and other fit parameters of
  Keras. What is left out follows from the rows, as in cerebro.train. A model selection table of MADlib''s form is taken,
  too.
- target: the columns to predict, separated by commas.
- inputs, prepare, weights, class_weight, sequence, validation_table, split_by, split_at, folds, segments: as in cerebro.pack.
- group_by: as in cerebro.pack. The run trains one model of each configuration for each group, and one on all rows.
  cerebro.predict picks the model of each row''s group.
- validation, stratify, packed_table: as in cerebro.train.
- epochs: how often the run goes over all rows. NULL: 27 times, or as often as the budget probably allows.
- evaluate_every: number of epochs between two evaluations. NULL: the models are evaluated after the last epoch only, and
  after every epoch if the objective is measured on the validation table.
- objective, direction: the metric that says which model is best, such as val_accuracy, and min or max.
- budget: when to end: an interval such as 2 hours, or JSON with seconds, unit_hours, hops or configurations. An interval
  counts from the start of the call, but training has at least a tenth of it; JSON counts from the start of the run. Visits
  that have begun are completed. With an interval, at least one model completes an epoch.
- stop_when: a query that stops models, such as $$SELECT configuration, ''no better than chance'' FROM cerebro.learning_curve
  WHERE run = $1 AND epoch >= 3 AND training_loss > 1.1$$. $1 is the number of the run.
- use_gpus: true trains on GPUs.
- warm_start: true starts from the models that an earlier run has left in model_table; the new models replace them.
- replace: true allows that model_table is a model of yours. The old model stays until the new one is complete. Other
  tables are never replaced, and privileges on the old tables have to be granted again.
- run_name, description: texts that the views show with the run.
- wait: false returns as soon as the rows are packed and the run has begun. The run continues in a session of its own, also
  after you have disconnected. cerebro.wait(run) waits for its end, cerebro.cancel(run) ends it.
- dry_run: true shows what would be done, makes nothing, and returns NULL.
- options: a JSON object; docs/reference/options.md describes each option. The options are
  seed (a number from which all random choices of the run follow),
  deterministic (true: the same seed gives the same models, bit for bit),
  engine (tensorflow, jax, torch or auto),
  precision (float32, mixed_bfloat16 or mixed_float16),
  nan (stop: a model whose loss is not finite fails; keep: it goes on),
  threads (processor threads per segment),
  cache_mb (maximum megabytes of rows cached in memory per segment),
  reuse (none, auto or all: whether what frozen layers give is computed once and kept),
  features_mb (maximum megabytes of that per segment),
  features_type (float32 or float16: the numbers in which that is kept),
  shard (auto, never or a number: into how many shards models are cut that are larger than a trainer''s memory),
  memory_mb (megabytes that the trainer of each segment may use),
  fuse (whether similar models train together in one pass; jax only),
  read_ahead (whether segments fetch the next state while they train),
  synchronous_commit (whether the commit of a visit waits for the disk),
  hang_after (seconds without progress after which a trainer is ended),
  objective (as the argument),
  direction (as the argument),
  budget (as the argument, but only a JSON object),
  stop_when (as the argument),
  keep (best: the state of each model''s best epoch is kept, and the model tables get it),
  execution (session: the run trains in your own session, and commits nothing in between),
  method (which stops unpromising models early: docs/train.md),
  parallel (hopping, or gradients: all segments train a model at the same time, by adding up their gradients),
  least_group_rows (with group_by: least number of training rows of a group with models of its own),
  groups_start (with group_by: random or all rows: the weights that models of groups start with),
  new_groups (with group_by: error or all rows: what predicts rows of groups that had no training row) and
  replay (number of an earlier run whose options, seed and order of visits are used again).';

CREATE OR REPLACE FUNCTION cerebro.madlib_fit_multiple_model(
    source_table              text,
    model_output_table        text,
    model_selection_table     text,
    num_iterations            integer,
    use_gpus                  boolean DEFAULT false,
    validation_table          text    DEFAULT NULL,
    metrics_compute_frequency integer DEFAULT NULL,
    warm_start                boolean DEFAULT false,
    name                      text    DEFAULT NULL,
    description               text    DEFAULT NULL,
    use_caching               boolean DEFAULT true,
    options                   jsonb   DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.fit_multiple_model(plpy, source_table=source_table, model_output_table=model_output_table, model_selection_table=model_selection_table, num_iterations=num_iterations, use_gpus=use_gpus, validation_table=validation_table, metrics_compute_frequency=metrics_compute_frequency, warm_start=warm_start, name=name, description=description, use_caching=use_caching, options=options)
$py$;
COMMENT ON FUNCTION cerebro.madlib_fit_multiple_model(text, text, text, integer, boolean, text, integer, boolean, text, text, boolean, jsonb) IS
'cerebro.fit with the name, the arguments and the tables of MADlib, for a packed table: model_output_table is model_table,
model_selection_table lists the configurations, num_iterations is epochs and metrics_compute_frequency is evaluate_every.
use_caching has no effect, because trainers always cache their rows.';

CREATE OR REPLACE FUNCTION cerebro.resume(
    run          bigint,
    epochs       integer DEFAULT NULL,
    retry_failed boolean DEFAULT false,
    wait         boolean DEFAULT true
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.resume(plpy, run=run, epochs=epochs, retry_failed=retry_failed, wait=wait)
$py$;
COMMENT ON FUNCTION cerebro.resume(bigint, integer, boolean, boolean) IS
'Continues a run that failed, was cancelled or was interrupted, and returns its number. Committed visits are not
repeated, and the models become what they would have become without the interruption.

- epochs: a new total number of epochs, larger than the planned one. It extends the run, also a finished one.
- retry_failed: true gives failed models another chance.
- wait: false returns at once; a session of its own continues the run.';

CREATE OR REPLACE FUNCTION cerebro_internal._drive(run bigint, epochs integer, retry_failed boolean) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.drive(plpy, run=run, epochs=epochs, retry_failed=retry_failed)
$py$;
COMMENT ON FUNCTION cerebro_internal._drive(bigint, integer, boolean) IS
'Drives a run for which nobody waits. The session that a call with wait => false opens calls it.';

CREATE OR REPLACE FUNCTION cerebro.wait(run bigint, timeout double precision DEFAULT NULL) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.wait(plpy, run=run, timeout=timeout)
$py$;
COMMENT ON FUNCTION cerebro.wait(bigint, double precision) IS
'Waits until a run has ended and has made its model tables. Returns the status of the run. A warning
says if the run is finished but its models are in no table, and which call makes it.

- timeout: maximum time to wait, in seconds. NULL: no limit.';

CREATE OR REPLACE FUNCTION cerebro.cancel(run bigint, owner name DEFAULT NULL) RETURNS boolean
LANGUAGE plpython3u AS $py$
@cerebro@
return api.cancel(plpy, run=run, owner=owner)
$py$;
COMMENT ON FUNCTION cerebro.cancel(bigint, name) IS
'Ends a run within about a second, whichever session drives it or is to begin it. Returns true if the run will be
cancelled, and false if there is nothing to cancel: no session drives the run, or all its models are trained.
cerebro.resume(run) can continue it later. Users can cancel their own runs, members of cerebro_admin any run.

- owner: the user whose run it is. NULL: the caller if it has a run of this number, else whoever has. An administrator
  has to say it if several users have a run of this number.';

CREATE OR REPLACE FUNCTION cerebro_internal._to_forget(run bigint, owner name) RETURNS name
LANGUAGE plpython3u AS $py$
@cerebro@
return api.to_forget(plpy, run=run, owner=owner)
$py$;
COMMENT ON FUNCTION cerebro_internal._to_forget(bigint, name) IS
'Locks a run that cerebro.forget() may remove, and returns its owner; raises an error for any other run.';

-- The rows are changed here and not in Python, where each statement is a subtransaction: Greenplum 7.0.0 sometimes takes
-- those for aborted in another session that reads the same rows while they are committed, and the rows come back.
CREATE OR REPLACE FUNCTION cerebro.forget(run bigint, owner name DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    whose name := cerebro_internal._to_forget($1, $2);
BEGIN
    IF whose = current_user THEN
        INSERT INTO cerebro.event (run, event, detail) VALUES ($1, 'forgotten', '{}');
        PERFORM cerebro_internal._forget_own($1, whose);
    ELSE
        PERFORM cerebro_internal._forget($1, whose);
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro.forget(bigint, name) IS
'Deletes the log and the model states of a run, and its packed rows in the schema cerebro_data if no other run was trained
on them. The run cannot be resumed or extended any more. Its model tables stay.
Users can forget their own runs, members of cerebro_admin any run. If somebody has made other objects of a state table,
for instance a view, the table stays without its rows, and a warning names the objects and their owners. Packed rows on
which other objects depend stay as they are, with a warning, too.

- owner: as in cerebro.cancel.';

CREATE OR REPLACE FUNCTION cerebro.materialize(
    run bigint, model_table text, which text DEFAULT NULL, fold integer DEFAULT NULL, replace boolean DEFAULT false)
RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off
AS $py$
@cerebro@
return api.materialize_run(plpy, run=run, model_table=model_table, which=which, fold=fold, replace=replace)
$py$;
COMMENT ON FUNCTION cerebro.materialize(bigint, text, text, integer, boolean) IS
'Makes the model tables of a run from its states on record. The run need not have finished. cerebro.runs says in the
column message if a finished run has none: its session ended too early, or its caller rolled back.

- which: best (the states of the best epochs, of a run with the option keep => best) or last (the latest states). NULL:
  best if the run keeps best states, else last. The columns which and epoch of the _info table say which state each model
  has.
- fold: of a run with folds, the models that are evaluated on this fold, and trained on all others. NULL: the models on
  all rows.
- replace: true replaces a model of yours that has this name. Other tables are never replaced.';

-- sql/api/41_search.sql
-- Search: runs whose configurations are proposed from a space while the run goes on.

CREATE OR REPLACE FUNCTION cerebro.search(
    source_table text,
    model_table text,
    space jsonb,
    target text DEFAULT NULL,
    budget text DEFAULT NULL,
    inputs text DEFAULT NULL,
    prepare json DEFAULT NULL,
    weights text DEFAULT NULL,
    class_weight text DEFAULT NULL,
    sequence json DEFAULT NULL,
    validation double precision DEFAULT NULL,
    validation_table text DEFAULT NULL,
    split_by text DEFAULT NULL,
    split_at text DEFAULT NULL,
    stratify boolean DEFAULT NULL,
    folds integer DEFAULT NULL,
    segments integer DEFAULT NULL,
    packed_table text DEFAULT NULL,
    architectures jsonb DEFAULT NULL,
    method text DEFAULT NULL,
    epochs integer DEFAULT NULL,
    max_configurations integer DEFAULT NULL,
    at_once integer DEFAULT NULL,
    start_from text DEFAULT NULL,
    objective text DEFAULT NULL,
    direction text DEFAULT NULL,
    stop_when text DEFAULT NULL,
    evaluate_every integer DEFAULT NULL,
    use_gpus boolean DEFAULT false,
    run_name text DEFAULT NULL,
    description text DEFAULT NULL,
    options jsonb DEFAULT NULL,
    wait boolean DEFAULT true,
    dry_run boolean DEFAULT false,
    group_by text DEFAULT NULL,
    replace boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.search_space(plpy, source_table=source_table, model_table=model_table, space=space, target=target, budget=budget, inputs=inputs, prepare=prepare, weights=weights, class_weight=class_weight, sequence=sequence, validation=validation, validation_table=validation_table, split_by=split_by, split_at=split_at, stratify=stratify, folds=folds, segments=segments, packed_table=packed_table, architectures=architectures, method=method, epochs=epochs, max_configurations=max_configurations, at_once=at_once, start_from=start_from, objective=objective, direction=direction, stop_when=stop_when, evaluate_every=evaluate_every, use_gpus=use_gpus, run_name=run_name, description=description, options=options, wait=wait, dry_run=dry_run, group_by=group_by, replace=replace)
$py$;
COMMENT ON FUNCTION cerebro.search(text, text, jsonb, text, text, text, json, text, text, json, double precision, text, text, text, boolean, integer, integer, text, jsonb, text, integer, integer, integer, text, text, text, text, integer, boolean, text, text, jsonb, boolean, boolean, text, boolean) IS
'Searches a space of configurations for the best model, and returns the number of the run. The method proposes
configurations while others train, and stops unpromising ones early. docs/train.md describes spaces and
methods. The models, their metrics and the views are those of cerebro.fit; cerebro.leaderboard shows the point of the
space of each model in its column chosen.

- space: a JSON object with the keys of a configuration of cerebro.fit. Each has a value or a dimension, for instance
  {"architecture": ["mlp", "resnet"], "units": {"choice": [64, 128]}, "optimizer": {"choice": ["Adam", "SGD"]},
  "learning_rate": {"log_uniform": [0.0001, 0.1]}}. A parameter of architectures applies to those that have it.
- architectures: as the key architecture of the space; or an object with the parameters of each kind, as in cerebro.train.
- method: the name of a method, or JSON with its parameters: {"name": "asha", "reduction": 4, "sampler": "tpe"}.
  docs/train.md describes the methods; an unknown name gets an error that lists them. NULL: asha.
- epochs: number of epochs of a model that is never stopped. NULL: as in cerebro.train.
- max_configurations: how many configurations are tried in all; of pbt, how many train at once. NULL: all points of a
  grid, or as many as the budget allows.
- at_once: how many models train or wait for a segment. NULL: twice the number of segments. If points are random
  or a grid and there is no budget: four times, and 16 times if segments have up to 5,000 rows each.
- start_from: past starts tpe from the results of your earlier runs on the same table, or on a table of the same shape.
  A NOTICE says which runs.
- evaluate_every: number of epochs between two evaluations. NULL: every epoch if there are rows for validation.
- group_by: as in cerebro.fit. The method compares models of one group, and stops them for this group alone. Which
  configurations are tried follows from the models on all rows.
- the other arguments: as in cerebro.fit.';

-- sql/api/42_steering.sql
-- Steering a run from any session.  Each function writes a row into cerebro.request, which the session that drives the
-- run reads once a second.

CREATE OR REPLACE FUNCTION cerebro_internal._rule(query text, run bigint) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    found record;
BEGIN
    -- A loop takes one statement, which has rows.
    FOR found IN EXECUTE query USING run LOOP
        RETURN NEXT pg_catalog.row_to_json(found)::text;
    END LOOP;
END
$$;
COMMENT ON FUNCTION cerebro_internal._rule(text, bigint) IS
'Runs the query of the option stop_when on a run, and returns its rows as JSON. The session that drives the run calls it in
another session of the same user.';

CREATE OR REPLACE FUNCTION cerebro.stop_model(
    run           bigint,
    configuration integer DEFAULT NULL,
    reason        text    DEFAULT NULL,
    model         integer DEFAULT NULL,
    owner         name    DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.stop_model(plpy, run=run, configuration=configuration, reason=reason, model=model, owner=owner)
$py$;
COMMENT ON FUNCTION cerebro.stop_model(bigint, integer, text, integer, name) IS
'Stops a model of a run at the end of its epoch, and returns the number of the request. The other models go on, and the
segments are free for them. cerebro.go_on() lets the model train on later.

The request takes effect when your transaction is committed. If no session drives the run, the request takes effect when
cerebro.resume(run) continues it. cerebro.requests shows what became of it. The same holds for cerebro.go_on,
cerebro.clone_model, cerebro.add_configuration, cerebro.extend and cerebro.set_budget.

- configuration: the configuration whose model is meant.
- reason: your reason, as a text. The views show it.
- model: the number of the model, if the configuration has several. cerebro.leaderboard shows both numbers.
- owner: as in cerebro.cancel. Users can steer their own runs, members of cerebro_admin any run.';

CREATE OR REPLACE FUNCTION cerebro.go_on(
    run           bigint,
    configuration integer DEFAULT NULL,
    reason        text    DEFAULT NULL,
    model         integer DEFAULT NULL,
    owner         name    DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.go_on(plpy, run=run, configuration=configuration, reason=reason, model=model, owner=owner)
$py$;
COMMENT ON FUNCTION cerebro.go_on(bigint, integer, text, integer, name) IS
'Lets a model of a run that was stopped train on from its last state, until its last epoch. Returns the number of the
request.

- configuration, reason, model, owner: as in cerebro.stop_model.';

CREATE OR REPLACE FUNCTION cerebro.clone_model(
    run           bigint,
    configuration integer DEFAULT NULL,
    changes       jsonb   DEFAULT NULL,
    reason        text    DEFAULT NULL,
    model         integer DEFAULT NULL,
    owner         name    DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.clone_model(plpy, run=run, configuration=configuration, changes=changes, reason=reason, model=model, owner=owner)
$py$;
COMMENT ON FUNCTION cerebro.clone_model(bigint, integer, jsonb, text, integer, name) IS
'Adds a model to a run that begins with the weights and the optimizer''s state of another model, its parent, and has
other parameters. The parent trains on. A parent that is training is copied at the end of its epoch. Returns the number
of the request.

- changes: a JSON object with the keys of a configuration, such as {"learning_rate": 0.001, "batch_size": 64}. Their
  values replace those of the parent. The architecture and the class of the
  optimizer stay. NULL: the clone has the parameters of its parent, but sees the rows in another order.
- configuration, reason, model, owner: as in cerebro.stop_model; configuration and model say which model is the parent.';

CREATE OR REPLACE FUNCTION cerebro.add_configuration(
    run        bigint,
    parameters jsonb,
    reason     text DEFAULT NULL,
    owner      name DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.add_configuration(plpy, run=run, parameters=parameters, reason=reason, owner=owner)
$py$;
COMMENT ON FUNCTION cerebro.add_configuration(bigint, jsonb, text, name) IS
'Adds a configuration to a run. Its model starts at epoch 0: from the weights of its architecture, if it was added with
weights (cerebro.add_architecture), otherwise from random weights. Returns the number of the request.

- parameters: a JSON object, as in the argument configurations of cerebro.fit, such as {"architecture": "mlp",
  "units": 64, "learning_rate": 0.01}. What is left out follows from the rows.
- reason, owner: as in cerebro.stop_model.';

CREATE OR REPLACE FUNCTION cerebro.extend(
    run    bigint,
    epochs integer,
    reason text DEFAULT NULL,
    owner  name DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.extend(plpy, run=run, epochs=epochs, reason=reason, owner=owner)
$py$;
COMMENT ON FUNCTION cerebro.extend(bigint, integer, text, name) IS
'Gives all models of a run more epochs, as cerebro.resume(run, epochs) does, also while the run goes on. Returns the
number of the request.

- epochs: the new total number of epochs, larger than the planned one.
- reason, owner: as in cerebro.stop_model.';

CREATE OR REPLACE FUNCTION cerebro.set_budget(
    run    bigint,
    budget text,
    reason text DEFAULT NULL,
    owner  name DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.set_budget(plpy, run=run, budget=budget, reason=reason, owner=owner)
$py$;
COMMENT ON FUNCTION cerebro.set_budget(bigint, text, text, name) IS
'Replaces the budget of a run. When its budget is spent, a run begins no visit and finishes. What the run has used so
far counts. Returns the number of the request.

- budget: an interval such as 2 hours, or a JSON object with limits: seconds, unit_hours (hours of work of one segment),
  hops and configurations, such as {"unit_hours": 2}. {}: no limit.
- reason, owner: as in cerebro.stop_model.';

-- sql/api/43_train.sql
-- From a table to a trained model in one call.

CREATE OR REPLACE FUNCTION cerebro.train(
    source_table text,
    model_table text,
    target text DEFAULT NULL,
    budget text DEFAULT '10 minutes',
    inputs text DEFAULT NULL,
    prepare json DEFAULT NULL,
    weights text DEFAULT NULL,
    class_weight text DEFAULT NULL,
    sequence json DEFAULT NULL,
    validation double precision DEFAULT NULL,
    validation_table text DEFAULT NULL,
    split_by text DEFAULT NULL,
    split_at text DEFAULT NULL,
    stratify boolean DEFAULT NULL,
    folds integer DEFAULT NULL,
    segments integer DEFAULT NULL,
    packed_table text DEFAULT NULL,
    architectures jsonb DEFAULT NULL,
    space jsonb DEFAULT NULL,
    method text DEFAULT NULL,
    epochs integer DEFAULT NULL,
    max_configurations integer DEFAULT NULL,
    at_once integer DEFAULT NULL,
    start_from text DEFAULT NULL,
    objective text DEFAULT NULL,
    direction text DEFAULT NULL,
    stop_when text DEFAULT NULL,
    evaluate_every integer DEFAULT NULL,
    use_gpus boolean DEFAULT false,
    run_name text DEFAULT NULL,
    description text DEFAULT NULL,
    options jsonb DEFAULT NULL,
    wait boolean DEFAULT true,
    dry_run boolean DEFAULT false,
    group_by text DEFAULT NULL,
    replace boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.train(plpy, source_table=source_table, model_table=model_table, target=target, budget=budget, inputs=inputs, prepare=prepare, weights=weights, class_weight=class_weight, sequence=sequence, validation=validation, validation_table=validation_table, split_by=split_by, split_at=split_at, stratify=stratify, folds=folds, segments=segments, packed_table=packed_table, architectures=architectures, space=space, method=method, epochs=epochs, max_configurations=max_configurations, at_once=at_once, start_from=start_from, objective=objective, direction=direction, stop_when=stop_when, evaluate_every=evaluate_every, use_gpus=use_gpus, run_name=run_name, description=description, options=options, wait=wait, dry_run=dry_run, group_by=group_by, replace=replace)
$py$;
COMMENT ON FUNCTION cerebro.train(text, text, text, text, text, json, text, text, json, double precision, text, text, text, boolean, integer, integer, text, jsonb, jsonb, text, integer, integer, integer, text, text, text, text, integer, boolean, text, text, jsonb, boolean, boolean, text, boolean) IS
'Trains a model on a table with columns of nearly any type, and returns the number of the run. It packs the table,
chooses architectures and a search space for the target, searches until the budget is used, and keeps the best epoch of
each model. The models are in model_table, which cerebro.predict takes. The best model is calibrated on the rows for
validation, as by cerebro.calibrate. Notices say what was decided; an argument overrides each decision. docs/train.md says
how the decisions are made.

- source_table: a table, a view or a foreign table, which is packed unless an earlier call has packed the same rows with
  the same arguments; or a packed table.
- target: the columns to predict, separated by commas.
- inputs, prepare, weights, class_weight, sequence, validation_table, split_by, split_at, segments: as in cerebro.pack.
- validation: the share of the rows for validation. NULL: a fifth of the rows, and at most 200,000 rows or windows.
- stratify: as in cerebro.pack. NULL: true if the target has few classes and the table at most 100,000 rows.
  With a sequence, NULL is false.
- folds: chooses the configuration by cross-validation with so many folds, as in cerebro.pack, instead of rows for
  validation. The models in the table are trained on all rows; cerebro.cross_validation shows mean and spread.
- group_by: as in cerebro.search. The best model is not calibrated then.
- packed_table: the name of the packed table, which stays until you drop it. NULL: that of an earlier call with the same
  rows, or a new table in the schema cerebro_data, which is dropped with the last model that was trained on it.
- architectures: a list of architectures, such as ["mlp"], or an object with the parameters of each kind, as in
  cerebro.architecture. A parameter "$units" is one of the space.
- space: as in cerebro.search. Each entry replaces the planned one of that name.
- method, max_configurations, at_once, start_from, evaluate_every: as in cerebro.search.
- epochs: number of epochs of a model that is never stopped. NULL: follows from the number of rows and the budget.
- budget: how long the call may take, for instance 2 hours; or limits as in cerebro.fit. It counts
  from the start of the call, but training has at least a tenth of it. Visits that have begun are completed, and at least one
  model completes an epoch. NULL: no limit.
- options: as in cerebro.fit; keep is best, unless it says otherwise.
- the other arguments: as in cerebro.fit.';

-- sql/api/50_serving.sql
-- Evaluating trained models and predicting with them.

-- Rows travel to the trainer, and predictions back, in chunks of bytes. A SQL function that handles single array elements
-- takes longer than the prediction itself.

CREATE OR REPLACE FUNCTION cerebro_internal._predict(rows bigint, variables bytea[]) RETURNS cerebro_internal._prediction[]
LANGUAGE plpython3u AS $py$
@cerebro@
return api.predict_chunk(plpy, rows=rows, variables=variables)
$py$;
COMMENT ON FUNCTION cerebro_internal._predict(bigint, bytea[]) IS
'The predictions of this session''s model for a chunk of rows. variables: per input, the bytes of the arrays of all rows,
concatenated.';

-- PostgreSQL stores an array and a bytea value alike: a length, then the bytes. So byteasend, which copies a bytea value,
-- also copies an array.
CREATE OR REPLACE FUNCTION cerebro_internal._array_bytes(anyarray) RETURNS bytea
LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'byteasend';
COMMENT ON FUNCTION cerebro_internal._array_bytes(anyarray) IS
'The bytes of an array as PostgreSQL stores it: its header and its elements.';

CREATE OR REPLACE FUNCTION cerebro_internal._bytes_array(bytea) RETURNS real[]
LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'byteasend';
COMMENT ON FUNCTION cerebro_internal._bytes_array(bytea) IS
'The reverse of _array_bytes for real[]. The server does not check the bytes, so no role may call this function '
'directly.';

CREATE OR REPLACE FUNCTION cerebro_internal._bytes_smallints(bytea) RETURNS smallint[]
LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'byteasend';
COMMENT ON FUNCTION cerebro_internal._bytes_smallints(bytea) IS
'As _bytes_array, for smallint[].';

CREATE OR REPLACE FUNCTION cerebro_internal._reals(numbers bytea) RETURNS real[]
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $plpgsql$
BEGIN  -- in PL/pgSQL, which keeps the plan for the next query of the session
    RETURN CASE WHEN octet_length($1) % 4 = 0 THEN
        -- the header of a real[] with that many elements, and then the numbers
        cerebro_internal._bytes_array(
            substring(cerebro_internal._array_bytes(array_fill(0::real, ARRAY[octet_length($1) / 4])) FOR 20) || $1)
        END;
END
$plpgsql$;
COMMENT ON FUNCTION cerebro_internal._reals(bytea) IS
'Converts numbers of four bytes each (float32, in the byte order of the machine) to an array.';

CREATE OR REPLACE FUNCTION cerebro_internal._smallints(numbers bytea) RETURNS smallint[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $sql$
SELECT CASE WHEN octet_length($1) % 2 = 0 THEN
       cerebro_internal._bytes_smallints(
           substring(cerebro_internal._array_bytes(array_fill(0::smallint, ARRAY[octet_length($1) / 2])) FOR 20) || $1)
       END
$sql$;
COMMENT ON FUNCTION cerebro_internal._smallints(bytea) IS
'As _reals, for numbers of two bytes each.';

-- One row for each chunk of rows, so that the rows themselves are made by the server and not by Python.
CREATE OR REPLACE FUNCTION cerebro_internal._predict_rows(
    model_table text, query text, key text, configuration integer, top integer, coverage double precision,
    calibrated boolean, thresholds boolean, probability_of text, times boolean
)
RETURNS TABLE (ids text[], outputs jsonb, answers cerebro_internal._prediction[])
LANGUAGE plpython3u AS $py$
@cerebro@
return api.predict_rows(plpy, model_table=model_table, query=query, key=key, configuration=configuration, top=top, coverage=coverage, calibrated=calibrated, thresholds=thresholds, probability_of=probability_of, times=times)
$py$;
COMMENT ON FUNCTION cerebro_internal._predict_rows(text, text, text, integer, integer, double precision, boolean, boolean, text, boolean) IS
'The predictions for the rows of a query: a row for each chunk of them.';

CREATE OR REPLACE FUNCTION cerebro.predict(
    model_table   text,
    query         text,
    key           text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    top           integer DEFAULT 1,
    coverage      double precision DEFAULT NULL,
    calibrated    boolean DEFAULT NULL,
    thresholds    boolean DEFAULT false,
    probability_of text   DEFAULT NULL
) RETURNS TABLE (key_value text, target text, value double precision, class text, probability double precision,
                 rank integer, lower double precision, upper double precision, forecast_for text)
LANGUAGE sql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $sql$
SELECT CASE WHEN o.timed THEN (p.id::text[])[1] ELSE p.id END, o.name,
       CASE WHEN o.labels IS NULL THEN p.number::double precision END, o.labels[1 + p.class::integer],
       CASE WHEN o.labels IS NOT NULL THEN p.number::double precision END, a.rank,
       p.number::double precision - o.halves[1 + width_bucket(p.number::double precision, o.edges)],
       p.number::double precision + o.halves[1 + width_bucket(p.number::double precision, o.edges)],
       CASE WHEN o.timed THEN (p.id::text[])[2] END
  FROM cerebro_internal._predict_rows($1, $2, $3, $4, $5, $6, $7, $8, $9, true) s
 CROSS JOIN LATERAL unnest(s.answers) AS a
 CROSS JOIN LATERAL jsonb_to_recordset(s.outputs) AS o (output integer, name text, labels text[],
                                                        edges double precision[], halves double precision[],
                                                        wanted text[], most integer, timed boolean)
 CROSS JOIN LATERAL ROWS FROM (unnest(s.ids), unnest(cerebro_internal._reals(a.classes)), unnest(cerebro_internal._reals(a.numbers)))
       AS p (id, class, number)
 WHERE o.output = a.output
   AND CASE WHEN o.wanted IS NOT NULL THEN array_position(o.wanted, o.labels[1 + p.class::integer]) IS NOT NULL
            ELSE (a.rank > o.most) IS NOT TRUE END
$sql$;
COMMENT ON FUNCTION cerebro.predict(text, text, text, integer, integer, double precision, boolean, boolean, text) IS
'Returns the predictions of a trained model for the rows of a query, in the caller''s session. It writes no table: it
works in read-only transactions, and sees rows that the caller has not committed. The inputs are the columns of the
query with the names of the training columns; they are prepared as in training.

- model_table: the table of trained models.
- query: a query that returns the rows, for instance SELECT * FROM new_rows; or the name of a table: all its rows.
- key: the column that key_value returns, as text. NULL: a column that the model does not use, whose values differ in
  all rows; if there is none, the number of the row. A notice names it, unless it is the first column.
- configuration: the number of the configuration whose model predicts. NULL: the best one by the objective of
  the run; without an objective, the one with the lowest loss, on the validation table if there was one.
- top: how many classes of each row, the most probable first.
- coverage: the part of all values that lie from lower to upper, for instance 0.9. NULL: no intervals.
- calibrated: true returns calibrated probabilities, false those of the model. NULL: calibrated ones where cerebro.calibrate,
  as cerebro.train calls it, has found that this lowers the log loss of rows that the calibration has not seen.
- thresholds: true decides the class by the thresholds that are kept with the model: class and rank can differ from those by
  probability alone. The probabilities are calibrated.
- probability_of: a class, or several separated by commas: returns these classes with their probabilities in each row,
  instead of the most probable class. *: all classes.

coverage, calibrated and thresholds need what cerebro.calibrate has kept with the model. A number to predict is in value.
A class is in class, with its probability. A forecast has the key of the last row that it reads in key_value, and in
forecast_for, as text, the time that it is for: so many steps after the last row as the horizon says. A step is the most
frequent distance of two rows. NULL: the type of the column has no such late value.';

CREATE OR REPLACE FUNCTION cerebro.predict_into(
    model_table   text,
    source_table  text,
    output_table  text,
    key           text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    top           integer DEFAULT 1,
    coverage      double precision DEFAULT NULL,
    calibrated    boolean DEFAULT NULL,
    thresholds    boolean DEFAULT false,
    probability_of text   DEFAULT NULL,
    keep          text    DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.predict_into(plpy, model_table=model_table, source_table=source_table, output_table=output_table, key=key, configuration=configuration, top=top, coverage=coverage, calibrated=calibrated, thresholds=thresholds, probability_of=probability_of, keep=keep)
$py$;
COMMENT ON FUNCTION cerebro.predict_into(text, text, text, text, integer, integer, double precision, boolean, boolean, text, text) IS
'Predicts all rows of a table or view, and writes the predictions into a new table: a row for each row, with the key and
the predictions in columns of their own types. Returns the number of predicted rows (or windows). The inputs are the
columns with the names of the training columns; they are prepared as in training. On PostgreSQL, a table or materialized
view of more than 4 MB is predicted on all segments at the same time; all else is predicted in your own session. On
Greenplum, only what other sessions cannot see is predicted in your own session. Models of groups predict in your own
session, each row by the model of its group.

- model_table: the table of trained models.
- source_table: the table or view with the rows.
- output_table: the new table. It has the columns of the key, the columns of keep, and a column predicted_TARGET. A class
  has the type of the target, and its probability is in probability. A number is double precision, with lower and upper if
  coverage is given. The time that a forecast is for is in forecast_for. If the model has several targets, the names of
  the columns of probabilities and intervals begin with that of the target.
- key: the column that tells the rows apart. NULL: the columns of the primary key or of another unique index; else
  a column that the model does not use, whose values differ in the first 1,000 rows.
- keep: further columns of the rows for the new table, separated by commas. *: all columns. Of a window, those of the last
  row.
- probability_of: a class, or several separated by commas: the probability of each is in a column probability_CLASS. *: all
  classes.
- top: how many of the most probable classes the table has for each row, one row for each; the column rank numbers them.
- configuration, coverage, calibrated, thresholds: as in cerebro.predict.';

CREATE OR REPLACE FUNCTION cerebro.create_predictor(
    model_table text, function_name text, configuration integer DEFAULT NULL, replace boolean DEFAULT false,
    thresholds boolean DEFAULT false
) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.create_predictor(plpy, model_table=model_table, function_name=function_name, configuration=configuration, replace=replace, thresholds=thresholds)
$py$;
COMMENT ON FUNCTION cerebro.create_predictor(text, text, integer, boolean, boolean) IS
'Creates a SQL function that predicts one row: its arguments are the input columns of a trained model, its result is the
number or the class. Returns how to call it. Each call predicts on its own; for many rows use cerebro.predict.

If the model reads windows, the function predicts one window. Each argument is an array with the values of its rows, in
their order.

If the model table has models of groups, the columns that tell the groups apart are the first arguments.

While a transaction replaces the model table, the function waits for it. Afterwards it predicts with the new table.

- model_table: the table of trained models.
- function_name: of the new function, with or without a schema. A call may leave out input columns, which are then NULL,
  but not the arrays of a window.
- configuration: the number of the configuration whose model predicts. NULL: the best one by the objective of
  the run; without an objective, the one with the lowest loss, on the validation table if there was one. The function
  chooses it in each call.
- replace: true replaces a function of that name that cerebro.create_predictor has made.
- thresholds: true decides the class by the thresholds that cerebro.calibrate has kept.';

CREATE OR REPLACE FUNCTION cerebro.calibrate(
    model_table   text,
    query         text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    decide_by     text    DEFAULT 'f1',
    seconds       double precision DEFAULT NULL
) RETURNS TABLE (target text, measure text, before double precision, after double precision)
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.calibrate(plpy, model_table=model_table, query=query, target=target, configuration=configuration, decide_by=decide_by, seconds=seconds)
$py$;
COMMENT ON FUNCTION cerebro.calibrate(text, text, text, integer, text, double precision) IS
'Learns from rows that did not train a model how far its predictions can be trusted, and keeps that with the model, in the
column calibration of the table model_table_info. Then cerebro.predict gives intervals, calibrated probabilities and classes
by thresholds on request. Returns what it has found: for each measure the value on these rows before and after. A second
call replaces what the first one has kept of a target. Only the owner of the model table can call it.

- A number: quantiles of the errors (split conformal prediction). Half of 400 or more rows say how large the errors are for
  small and for large predictions. interval_width: the mean width of the intervals of a level.
- A class: one temperature for all probabilities, which leaves their order as it is, and thresholds of the classes.
  log_loss, the same cross-validated, ece (the expected calibration error), mean f1 and balanced_accuracy say what they change.
- model_table: the table of trained models.
- query: a query that returns rows with the inputs and the target, or the name of a table, which may be packed. NULL: the
  rows that the run took for validation. They have chosen the best model and the best epoch, so its errors on them are
  slightly too small.
- target: the column to calibrate for. NULL: all targets.
- configuration: as in cerebro.predict.
- decide_by: what the thresholds make as large as possible: f1 (the mean of F1 over the classes) or balanced_accuracy (the
  mean of the recall). Or a JSON object that says what it costs to miss a row of a class, for instance {"bad": 10}; 1 for the
  others. NULL: none.
- seconds: the time for it. When half of it is over, no further packed rows are predicted, and of the predictions as many
  are used as there is time for, but at least 1,000. cerebro.train gives what is left of its budget. NULL: all rows.';

CREATE OR REPLACE FUNCTION cerebro._require_window(length integer, given integer[]) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT length = ALL (given) OR pg_catalog.array_position(given, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'the model reads windows of % rows, and the arrays have % elements', length,
                        pg_catalog.array_to_string(given, ', ', '0')
              USING ERRCODE = 'invalid_parameter_value', HINT = 'Each array has the values of all rows, in their order.';
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION cerebro._require_window(integer, integer[]) IS
'True if all these lengths of arrays are that of a window; else an error.';

CREATE OR REPLACE FUNCTION cerebro.ensemble(
    model_table text, output_table text, members integer DEFAULT 8, all_join boolean DEFAULT false,
    seconds double precision DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.ensemble(plpy, model_table=model_table, output_table=output_table, members=members, all_join=all_join, seconds=seconds)
$py$;
COMMENT ON FUNCTION cerebro.ensemble(text, text, integer, boolean, double precision) IS
'Makes one model of the best models of a run. Its predictions are the means of their predictions. Of a model and the
copies that go on from it, only the best one can join. All of the best models join, or all but the worst ones. The
exception: a search looks for the mean of some of them that predicts the validation rows of the run best. If its loss is
smaller by more than a standard error, only these join. If the run has another objective than this loss, the mean is taken
only if its objective on the validation rows is better than that of the best model. So the ensemble may be one model. The
tables output_table, output_table_info and output_table_summary are as those of cerebro.fit, with one model, configuration 1.

- model_table: the table of trained models. They need functional architectures, as cerebro.architecture makes them.
- output_table: the table to be made. NULL adds the ensemble to model_table, as its next configuration, if it has more than
  one member and is not there yet. Only the owner of the table can do that. This is what cerebro.train does.
- members: how many members there are at most.
- all_join: true makes the mean of so many of the best models, by the objective of the run. So does a run without
  validation rows, or of another role.
- seconds: when this time is over, no further model is compared with those that were. NULL: all are compared.';

-- sql/api/52_judging.sql
-- How good a trained model is, as plain rows: the predictions for the rows of a query beside the values that they have.
--
-- What cerebro_internal._judging returns goes through a variable: on Greenplum, the arguments of cerebro.predict cannot come from
-- another table of the query.

CREATE OR REPLACE FUNCTION cerebro_internal._judging(
    function text, model_table text, query text, target text, key text, wanted text, configuration integer,
    bins integer DEFAULT 1, coverage double precision DEFAULT NULL, calibrated boolean DEFAULT NULL,
    thresholds boolean DEFAULT false
) RETURNS TABLE (rows_query text, row_key text, of_target text, class text, null_is_class boolean, classes integer)
LANGUAGE plpython3u AS $py$
@cerebro@
return api.judging(plpy, function=function, model_table=model_table, query=query, target=target, key=key, wanted=wanted, configuration=configuration, bins=bins, coverage=coverage, calibrated=calibrated, thresholds=thresholds)
$py$;
COMMENT ON FUNCTION cerebro_internal._judging(text, text, text, text, text, text, integer, integer, double precision, boolean, boolean) IS
'What the functions that judge a model give to cerebro.predict. Each row_key of rows_query is an array in JSON: the key of the
row and the value that the target has. classes: how many the target has; NULL: it is a number.';

CREATE OR REPLACE FUNCTION cerebro.evaluate(
    model_table   text,
    query         text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    coverage      double precision DEFAULT NULL,
    calibrated    boolean DEFAULT NULL,
    thresholds    boolean DEFAULT false
) RETURNS TABLE (metric text, value double precision, baseline double precision)
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.evaluate(plpy, model_table=model_table, query=query, target=target, configuration=configuration, coverage=coverage, calibrated=calibrated, thresholds=thresholds)
$py$;
COMMENT ON FUNCTION cerebro.evaluate(text, text, text, integer, double precision, boolean, boolean) IS
'Returns how good a trained model is: a row for each metric, with what an answer gets that is the same for every row. It writes
no table.

- query: as in cerebro.confusion_matrix. NULL: the rows for validation that the run of the model kept, if it is a run of yours.
  These rows chose the best model, so it is slightly worse on new rows. More than 50,000 rows (of many classes, 500,000
  probabilities) are judged by a random sample, which is the same in each call.
- Of a class: accuracy, log_loss (probabilities below 1e-7 count as 1e-7), f1, auc, balanced_accuracy (the mean of the
  recall over the actual classes) and ece. With two classes, f1 and auc are those of the second class; with more, the means
  over the classes that occur (each class against all others). ece, the expected calibration error, is the mean distance
  between the probability of the predicted class and how often it is right, in ten bins of this probability.
- Of a number: rmse, mse, mae, mape (as a part of 1, over the rows whose target is not 0) and r2. With the argument coverage
  also coverage, the part of the rows whose target is in its interval, and interval_width, the mean width.
- rows: how many rows were compared. Rows whose target is NULL are left out, unless NULL is a class of the model. A class
  that training did not have counts as a wrong prediction with the probability 0.
- baseline: what the simplest answer gets. Of a number it is the mean of these rows, of a class the most frequent class of these
  rows. The log_loss is that of the frequencies of the classes as probabilities. NULL: the metric has no baseline.
- A metric is NULL if these rows do not define it, for instance auc if they have one class only.
- coverage, calibrated, thresholds: as in cerebro.predict; the metrics are those of such predictions.
- model_table, target, configuration: as in cerebro.confusion_matrix. A window is compared with the
  target that packing gives it: that of its last row, or the majority.';

CREATE OR REPLACE FUNCTION cerebro_internal._validation_sample(model_table text, configuration integer) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.validation_sample(plpy, model_table=model_table, configuration=configuration)
$py$;
COMMENT ON FUNCTION cerebro_internal._validation_sample(text, integer) IS
'What the page about a model shows of the rows for validation of its run, as JSON: for each target the predicted and the
actual values of at most 50,000 rows, and some rows as examples, with the values of their columns.';

CREATE OR REPLACE FUNCTION cerebro_internal._validation_explained(
    model_table text, configuration integer, numbers integer[]
) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.validation_explained(plpy, model_table=model_table, configuration=configuration, numbers=numbers)
$py$;
COMMENT ON FUNCTION cerebro_internal._validation_explained(text, integer, integer[]) IS
'What the page about a model shows of its examples, as JSON: by target and number of the row, what the columns add to the
prediction, compared with other rows for validation.';

CREATE OR REPLACE FUNCTION cerebro.confusion_matrix(
    model_table   text,
    query         text,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    thresholds    boolean DEFAULT false
) RETURNS TABLE (actual text, predicted text, count bigint, share double precision)
LANGUAGE plpgsql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $$
#variable_conflict use_column
DECLARE
    judged record;
BEGIN
    SELECT * INTO judged FROM cerebro_internal._judging('cerebro.confusion_matrix', $1, $2, $3, NULL, 'class', $4,
                                               thresholds => $5);
    RETURN QUERY
    SELECT g.actual, g.predicted, g.n, g.n / sum(g.n) OVER (PARTITION BY g.actual)::double precision
      FROM (SELECT p.key_value::json ->> 1 AS actual, p.class AS predicted, count(*) AS n
              FROM cerebro.predict($1, judged.rows_query, judged.row_key, $4, thresholds => $5) p
             WHERE p.target = judged.of_target
             GROUP BY 1, 2) g
     ORDER BY 1, 2;
END
$$;
COMMENT ON FUNCTION cerebro.confusion_matrix(text, text, text, integer, boolean) IS
'Returns how many rows of each class a trained model predicts as which class. share is the part of the rows of the actual
class. Values of the target are read in the type that it had in training, so that 0 is the class 0.0 of a numeric. A value
that no class has is shown as text.

- model_table: the table of trained models.
- query: a query that returns rows with the inputs and the target, for instance SELECT * FROM new_rows; or the name of a
  table: all its rows.
- target: the column that is judged. NULL: the only target of the model.
- configuration, thresholds: as in cerebro.predict.';

CREATE OR REPLACE FUNCTION cerebro.class_metrics(
    model_table   text,
    query         text,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    thresholds    boolean DEFAULT false
) RETURNS TABLE (class text, "precision" double precision, recall double precision, f1 double precision, rows bigint,
                 predicted bigint)
LANGUAGE plpgsql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $$
#variable_conflict use_column
DECLARE
    judged record;
BEGIN
    SELECT * INTO judged FROM cerebro_internal._judging('cerebro.class_metrics', $1, $2, $3, NULL, 'class', $4, thresholds => $5);
    RETURN QUERY
    SELECT c.class, c.hits / nullif(c.predicted, 0)::double precision, c.hits / nullif(c.n, 0)::double precision,
           2 * c.hits / (c.n + c.predicted)::double precision, c.n, c.predicted
      FROM (SELECT v.class, sum(v.hits)::bigint AS hits, sum(v.n)::bigint AS n, sum(v.predicted)::bigint AS predicted
              FROM (SELECT p.key_value::json ->> 1 AS actual, p.class, count(*) AS n
                      FROM cerebro.predict($1, judged.rows_query, judged.row_key, $4, thresholds => $5) p
                     WHERE p.target = judged.of_target
                     GROUP BY 1, 2) g
             CROSS JOIN LATERAL (VALUES
                 (g.actual, CASE WHEN g.actual IS NOT DISTINCT FROM g.class THEN g.n ELSE 0 END, g.n, 0),
                 (g.class, 0, 0, g.n)) AS v (class, hits, n, predicted)
             WHERE g.actual IS NOT NULL OR judged.null_is_class
             GROUP BY 1) c
     ORDER BY 1;
END
$$;
COMMENT ON FUNCTION cerebro.class_metrics(text, text, text, integer, boolean) IS
'Returns for each class of the rows of a query how good a trained model is: the precision (which part of the rows predicted as
the class has it), the recall (which part of the rows with the class is predicted as it), F1, how many rows have the class,
and as how many it is predicted. Rows whose target is NULL are left out, unless NULL is a class of the model.

- model_table, query, target, configuration, thresholds: as in cerebro.confusion_matrix.';

CREATE OR REPLACE FUNCTION cerebro_internal._scored(
    function text, model_table text, query text, class text, target text, configuration integer, bins integer DEFAULT 1,
    calibrated boolean DEFAULT NULL
) RETURNS TABLE (positive integer, probability double precision)
LANGUAGE plpgsql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $$
#variable_conflict use_column
DECLARE
    judged record;
BEGIN
    SELECT * INTO judged FROM cerebro_internal._judging($1, $2, $3, $5, NULL, concat_ws(' ', 'one', $4), $6, $7,
                                               calibrated => $8);
    RETURN QUERY
    SELECT ((p.key_value::json ->> 1) IS NOT DISTINCT FROM judged.class)::integer, p.probability
      FROM cerebro.predict($2, judged.rows_query, judged.row_key, $6, 1000000, calibrated => $8) p
     WHERE p.target = judged.of_target AND p.class IS NOT DISTINCT FROM judged.class
       AND ((p.key_value::json ->> 1) IS NOT NULL OR judged.null_is_class);
END
$$;
COMMENT ON FUNCTION cerebro_internal._scored(text, text, text, text, text, integer, integer, boolean) IS
'The probability of a class for each row of a query, and whether the row has the class (1 or 0).';

CREATE OR REPLACE FUNCTION cerebro.roc_curve(
    model_table   text,
    query         text,
    class         text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL
) RETURNS TABLE (threshold double precision, true_positive_rate double precision, false_positive_rate double precision)
LANGUAGE sql AS $sql$
SELECT g.probability, sum(g.positives) OVER higher / nullif(sum(g.positives) OVER (), 0)::double precision,
       sum(g.n - g.positives) OVER higher / nullif(sum(g.n - g.positives) OVER (), 0)::double precision
  FROM (SELECT s.probability, sum(s.positive) AS positives, count(*) AS n
          FROM cerebro_internal._scored('cerebro.roc_curve', $1, $2, $3, $4, $5) s GROUP BY 1) g
WINDOW higher AS (ORDER BY g.probability DESC)
 ORDER BY 1 DESC
$sql$;
COMMENT ON FUNCTION cerebro.roc_curve(text, text, text, text, integer) IS
'Returns the ROC curve of a class: for each threshold, which part of the rows with the class, and of those without it,
has at least this probability. Rates are NULL if there are no such rows. Rows whose target is NULL are left out, unless
NULL is a class of the model.

- class: the class, as text. NULL: the second one of a target with two classes.
- model_table, query, target, configuration: as in cerebro.confusion_matrix.';

CREATE OR REPLACE FUNCTION cerebro.precision_recall(
    model_table   text,
    query         text,
    class         text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL
) RETURNS TABLE (threshold double precision, "precision" double precision, recall double precision, f1 double precision)
LANGUAGE sql AS $sql$
SELECT c.probability, c.found / c.n, c.found / nullif(c.positives, 0), 2 * c.found / nullif(c.n + c.positives, 0)
  FROM (SELECT g.probability, sum(g.positives) OVER higher::double precision AS found, sum(g.n) OVER higher AS n,
               sum(g.positives) OVER () AS positives
          FROM (SELECT s.probability, sum(s.positive) AS positives, count(*) AS n
                  FROM cerebro_internal._scored('cerebro.precision_recall', $1, $2, $3, $4, $5) s GROUP BY 1) g
        WINDOW higher AS (ORDER BY g.probability DESC)) c
 ORDER BY 1 DESC
$sql$;
COMMENT ON FUNCTION cerebro.precision_recall(text, text, text, text, integer) IS
'Returns for each threshold of a class''s probability the precision (which part of the rows at or above it has the class),
the recall (which part of the rows with the class is at or above it), and F1.

- model_table, query, class, target, configuration: as in cerebro.roc_curve.';

CREATE OR REPLACE FUNCTION cerebro.calibration(
    model_table   text,
    query         text,
    class         text    DEFAULT NULL,
    bins          integer DEFAULT 10,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    calibrated    boolean DEFAULT NULL
) RETURNS TABLE (bin integer, predicted double precision, actual double precision, count bigint)
LANGUAGE sql AS $sql$
SELECT b.bin, avg(b.probability), avg(b.positive)::double precision, count(*)
  FROM (SELECT LEAST(floor(s.probability * $4), $4 - 1)::integer + 1 AS bin, s.probability, s.positive
          FROM cerebro_internal._scored('cerebro.calibration', $1, $2, $3, $5, $6, $4, $7) s) b
 GROUP BY 1
 ORDER BY 1
$sql$;
COMMENT ON FUNCTION cerebro.calibration(text, text, text, integer, text, integer, boolean) IS
'Returns, for bins of the probability of a class, the mean probability and the part of the rows that have the class. They
are equal if the probabilities are right. Bins without rows are left out.

- bins: how many bins from 0 to 1.
- calibrated: as in cerebro.predict.
- model_table, query, class, target, configuration: as in cerebro.roc_curve.';

CREATE OR REPLACE FUNCTION cerebro.residuals(
    model_table   text,
    query         text,
    key           text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL
) RETURNS TABLE (key_value text, actual double precision, predicted double precision, residual double precision)
LANGUAGE plpgsql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $$
#variable_conflict use_column
DECLARE
    judged record;
BEGIN
    SELECT * INTO judged FROM cerebro_internal._judging('cerebro.residuals', $1, $2, $4, $3, 'number', $5);
    RETURN QUERY
    SELECT p.key_value::json ->> 0, (p.key_value::json ->> 1)::double precision, p.value,
           (p.key_value::json ->> 1)::double precision - p.value
      FROM cerebro.predict($1, judged.rows_query, judged.row_key, $5) p
     WHERE p.target = judged.of_target;
END
$$;
COMMENT ON FUNCTION cerebro.residuals(text, text, text, text, integer) IS
'Returns for each row of a query the number that the target has, the number that a trained model predicts, and the
difference: actual - predicted.

- key: the column that key_value returns, as text. NULL: the number of the row.
- model_table, query, target, configuration: as in cerebro.confusion_matrix.';

CREATE OR REPLACE FUNCTION cerebro.mistakes(
    model_table   text,
    query         text,
    key           text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    thresholds    boolean DEFAULT false
) RETURNS TABLE (key_value text, actual text, predicted text, probability double precision)
LANGUAGE plpgsql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $$
#variable_conflict use_column
DECLARE
    judged record;
BEGIN
    SELECT * INTO judged FROM cerebro_internal._judging('cerebro.mistakes', $1, $2, $4, $3, 'class', $5, thresholds => $6);
    RETURN QUERY
    SELECT p.key_value::json ->> 0, p.key_value::json ->> 1, p.class, p.probability
      FROM cerebro.predict($1, judged.rows_query, judged.row_key, $5, thresholds => $6) p
     WHERE p.target = judged.of_target AND (p.key_value::json ->> 1) IS DISTINCT FROM p.class
       AND ((p.key_value::json ->> 1) IS NOT NULL OR judged.null_is_class)
     ORDER BY p.probability DESC, 1;
END
$$;
COMMENT ON FUNCTION cerebro.mistakes(text, text, text, text, integer, boolean) IS
'Returns the rows of a query whose class a trained model predicts wrongly, those first of which the model is surest. Rows
whose target is NULL are left out, unless NULL is a class of the model. probability: that of the predicted class. Models of
windows whose target is that of the majority are refused: no single row has it.

- key: the column that key_value returns, as text. NULL: the number of the row.
- model_table, query, target, configuration, thresholds: as in cerebro.confusion_matrix.';

CREATE OR REPLACE FUNCTION cerebro.importance(
    model_table   text,
    query         text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    repeats       integer DEFAULT 1
) RETURNS TABLE (column_name text, importance double precision, loss double precision, loss_before double precision)
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.importance(plpy, model_table=model_table, query=query, target=target, configuration=configuration, repeats=repeats)
$py$;
COMMENT ON FUNCTION cerebro.importance(text, text, text, integer, integer) IS
'Returns how much a trained model needs each input column, the most important first: by how much its loss grows if the
values of the column are shuffled among the rows.

- query: a query that returns rows with the inputs and the target, or the name of a packed table that cerebro.pack,
  cerebro.pack_plain or cerebro.pack_like has made. NULL: the rows for validation that the run of the model kept, if it is
  a run of yours; they are the rows of a packed table. The rows of a query are predicted in this session, once
  for each column and shuffle; the loss is the mean squared error of a number, and the mean cross-entropy of a class. The
  rows of a packed table are evaluated on their segments, and values are shuffled among the rows of a segment. The loss
  is that of madlib.madlib_keras_evaluate. All numbers that a column became are shuffled together, an array as a whole, and of
  a window the values of all its rows. The shuffles are the same in each call.
- target: as in cerebro.confusion_matrix. With a packed table, NULL takes the loss of all targets.
- repeats: over how many random shuffles of each column the loss is averaged, from 1 to 1000.
- model_table, configuration: as in cerebro.confusion_matrix.';

CREATE OR REPLACE FUNCTION cerebro_internal._explained(
    model_table text, query text, key text, target text, wanted text, configuration integer, background text
)
RETURNS TABLE (key_value text, target text, class text, column_name text, value text, contribution double precision,
               base double precision, prediction double precision)
LANGUAGE plpython3u AS $py$
@cerebro@
return api.explained(plpy, model_table=model_table, query=query, key=key, target=target, wanted=wanted, configuration=configuration, background=background)
$py$;
COMMENT ON FUNCTION cerebro_internal._explained(text, text, text, text, text, integer, text) IS
'What cerebro.explain returns. wanted: its argument class.';

CREATE OR REPLACE FUNCTION cerebro.explain(
    model_table   text,
    query         text,
    key           text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    class         text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    background    text    DEFAULT NULL
) RETURNS TABLE (key_value text, target text, class text, column_name text, value text, contribution double precision,
                 base double precision, prediction double precision)
LANGUAGE sql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $sql$
SELECT e.key_value, e.target, e.class, e.column_name, e.value, e.contribution, e.base, e.prediction
  FROM cerebro_internal._explained($1, $2, $3, $4, $5, $6, $7) e
$sql$;
COMMENT ON FUNCTION cerebro.explain(text, text, text, text, text, integer, text) IS
'Explains predictions: returns for each row of a query, and each input column, what the column''s value adds to the
prediction. base is the mean prediction of other rows, the background. The contributions of all columns of a row add up
to prediction - base. They are Shapley values: a contribution is the mean change of the prediction when the column changes
from the value of a background row to that of the row, over all orders in which the columns may change.

With at most 10 columns, the contributions in few rows are exact. In many rows their error is at most 0.02 as a rule; of a
number, 0.02 of the standard deviation of its predictions. With more columns they are estimates; the fewer rows a call
explains, the more exact they are. Two calls return the same numbers.

What is explained is the number, or the probability of a class as cerebro.predict returns it. An
array, an image, or the values of a column in all rows of a window count as one column. value is NULL if it takes more
than 400 bytes as stored. Models of groups explain each row by the model of its group.

- model_table, configuration: as in cerebro.predict.
- query: a query that returns the rows, for instance SELECT * FROM new_rows LIMIT 100; or the name of a table. Each row is
  predicted hundreds or thousands of times.
- key: the column that key_value returns, as text. NULL: a unique key, or else a column that the model does not use, whose
  values differ in the first 1,000 rows; if there is none, the number of the row.
- target: the target whose predictions are explained. NULL: all targets.
- class: the class whose probability is explained. NULL: of each row the predicted class.
- background: a query that returns the background, at most 1,024 rows; or the name of a table. More of them take longer.
  NULL: 16 of 512 rows for validation, whose predictions are spread as those of the 512. If these rows cannot be read, or
  the run had none, 16 of the first 512 rows of the query, which must not all be equal; a notice says so.';

-- sql/api/53_drift.sql
-- Whether the rows of today are still like those that a model was trained on.

CREATE OR REPLACE FUNCTION cerebro.drift(model_table text, query text)
RETURNS TABLE (column_name text, is_target boolean, psi double precision, psi_by_chance double precision,
               jensen_shannon double precision, nulls double precision, nulls_in_training double precision, rows bigint,
               largest_change text)
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.drift_rows(plpy, model_table=model_table, query=query)
$py$;
COMMENT ON FUNCTION cerebro.drift(text, text) IS
'Returns how far the rows of a query are from those that a model was trained on: a row for each column, the most different
one first. The rows are counted in bins where they are; no row leaves the database or is predicted. Packing keeps the bins:
ten parts of equal size of a number or date, the 20 most frequent values of a category, and NULL. Columns of texts that
become words, and arrays, are left out.

- model_table: a model table, a registered model such as ''churn@production'', or a table that cerebro.pack has made.
- query: a query that returns the input columns, for instance SELECT * FROM new_rows; or the name of a table: all its rows.
  If they have the target, that is compared, too.
- psi: the population stability index, the sum of (q - p) ln(q / p) over the bins, with the shares p of the training rows
  and q of these rows. Usual limits: below 0.1 little has changed, above 0.25 much has.
- psi_by_chance: about the psi that so few rows would have if nothing had changed. A psi that is not well above it says nothing.
- jensen_shannon: the Jensen-Shannon divergence in bits, from 0 (equal shares) to 1 (no bin has rows of both).
- nulls, nulls_in_training: the shares of the rows that are NULL.
- rows: how many rows the query returned.
- largest_change: the bin that adds most to psi, with its shares.';

-- sql/api/54_models.sql
-- The trained models of the database, as a list, and what is not about single runs or models.
--
-- The list is computed from the catalog and from what the tables themselves say, so it also has ensembles, tables of other
-- users, and tables that were renamed or restored. Whoever reads it has not chosen these tables, so none of them may run
-- another user's code, wait or fail:
-- * Only tables of the current user and of superusers are read. An owner can give a table an index or a statistic, and
--   change it between any check and the reading. Of other tables the list says what the log says.
-- * No lock is waited for, and each is released at once by an exception: thousands of tables would not fit into the table
--   of locks.
-- * What is read has a bound.

-- Members of the role that owns a table do not count: each of them can make it run code with the rights of the others.
-- The owner of a schema can rename it, and then a name in it is that of another table.
CREATE OR REPLACE FUNCTION cerebro_internal._run_no_strangers_code(tables oid[]) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH trusted AS (
        SELECT oid FROM pg_roles WHERE rolsuper OR rolname = current_user
    ), trusted_with_schemas AS (
        SELECT oid FROM trusted
         UNION ALL
        SELECT o.oid FROM pg_roles o, pg_database d
         WHERE o.rolname = 'pg_database_owner' AND d.datname = current_database() AND d.datdba IN (SELECT oid FROM trusted)
    )
    SELECT count(*) = cardinality($1)
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = ANY ($1) AND c.relkind = 'r' AND c.relowner IN (SELECT oid FROM trusted)
       AND n.nspowner IN (SELECT oid FROM trusted_with_schemas)
       -- Else this transaction may see owners of the past.
       AND (current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable')
            OR c.xmax::text = '0' AND n.xmax::text = '0')
$$;
COMMENT ON FUNCTION cerebro_internal._run_no_strangers_code(oid[]) IS
'Whether these tables and their schemas belong to the current user or to superusers, as far as the transaction can know.';

CREATE OR REPLACE FUNCTION cerebro_internal._models() RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found     record;
    own       boolean;
    said      jsonb;
    best      jsonb;
    bytes     bigint;
BEGIN
    FOR found IN
        -- What the columns are called: in plain tables, and in those of MADlib, where a table of one model has no number.
        WITH form (required, number, validation_loss, training_loss, run_name, target, target_type, target_text, began,
                   began_type) AS (
            VALUES ('{configuration,weights,architecture}'::text[], 'configuration', 'validation_loss', 'training_loss',
                    'run_name', 'target', 'text', 's.target', 'started_at', 'timestamptz'),
                   ('{model_weights,model_arch}', 'mst_key', 'validation_loss_final', 'training_loss_final', 'name',
                    'dependent_varname', 'text[]', 'array_to_string(s.dependent_varname, '', '')', 'start_training_time',
                    'timestamp')
        ), model AS (
            SELECT DISTINCT ON (m.oid) m.oid, m.relnamespace, m.relname, m.relowner,
                   format('%I.%I', n.nspname, m.relname) AS named, f.*
              FROM form f JOIN pg_class m
                ON f.required <@ (SELECT array_agg(a.attname::text) FROM pg_attribute a
                                   WHERE a.attrelid = m.oid AND a.attname = ANY (f.required) AND NOT a.attisdropped)
              JOIN pg_namespace n ON n.oid = m.relnamespace
             WHERE m.relkind = 'r' AND (m.relpersistence <> 't' OR n.oid = pg_my_temp_schema())
               AND n.nspname <> 'cerebro_registry'  -- cerebro.registered_versions has these
               AND has_table_privilege(m.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE')
             ORDER BY m.oid, f.number
        ), beside AS (
            SELECT m.oid AS model, c.oid, e.ending
              FROM model m CROSS JOIN (VALUES ('_summary'), ('_info'), ('_weights'), ('_groups')) AS e (ending)
              JOIN pg_class c ON c.relname = (m.relname || e.ending)::name AND c.relnamespace = m.relnamespace
             WHERE c.relkind = 'r' AND octet_length(m.relname || e.ending) < 64
               AND (e.ending <> '_groups'
                    OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'group_key'))
        ), several AS (
            SELECT m.*, m.relowner AS owner, b.summary, b.info, b.tables || m.oid AS tables
              FROM model m
              JOIN (SELECT model, max(oid) FILTER (WHERE ending = '_summary') AS summary,
                           max(oid) FILTER (WHERE ending = '_info') AS info, array_agg(oid) AS tables
                      FROM beside GROUP BY model) b ON b.model = m.oid
        )
        SELECT s.oid::bigint AS oid, s.named, s.owner::bigint AS owner, s.tables,
               s.oid::regclass AS model, s.summary::regclass AS summary, s.info::regclass AS info,
               (SELECT string_agg(v.value || ' AS ' || v.name, ', ')
                  FROM (VALUES ('run', 'run', 'bigint', 's.run'),
                               ('name', s.run_name, 'text', format('left(s.%I, 1000)', s.run_name)),
                               ('objective', 'objective', 'text', 'left(s.objective, 1000)'),
                               ('direction', 'direction', 'text', 'left(s.direction, 10)'),
                               ('began', s.began, s.began_type, format('CASE WHEN s.%1$I BETWEEN ''2000-01-01'' '
                                'AND ''3000-01-01'' THEN s.%1$I END', s.began)),
                               ('validation_loss', s.validation_loss, 'double precision', format('s.%I', s.validation_loss)),
                               ('training_loss', s.training_loss, 'double precision', format('s.%I', s.training_loss)),
                               ('target', s.target, s.target_type, format('CASE WHEN pg_column_size(s.%I) <= 10000 '
                                'THEN left(%s, 1000) END', s.target, s.target_text)),
                               ('rows', 'layout', 'jsonb', 'CASE WHEN pg_column_size(s.layout) <= 1000000 '
                                'THEN CASE jsonb_typeof(s.layout -> ''rows'') WHEN ''number'' '
                                'THEN LEAST(GREATEST((s.layout ->> ''rows'')::numeric, 0), 1e15)::bigint END END'))
                       AS v (name, "column", type, value)
                  JOIN pg_attribute a ON a.attname = v."column" AND a.atttypid = v.type::regtype
                 WHERE a.attrelid = s.summary AND NOT a.attisdropped) AS says,
               (SELECT string_agg(CASE WHEN a.attname IS NULL THEN 'NULL::' || v.type ELSE v.value END
                                  || ' AS ' || v.name, ', ')
                  FROM (VALUES ('objective_value', 'objective_value', 'double precision', 'i.objective_value'),
                               ('validation_loss', s.validation_loss, 'double precision', 'i.' || s.validation_loss),
                               ('training_loss', s.training_loss, 'double precision', 'i.' || s.training_loss),
                               ('made_of', 'reason', 'text', 'left(i.reason, 1000)'),
                               ('quality', 'quality', 'jsonb', 'CASE WHEN pg_column_size(i.quality) <= 1000000 '
                                'THEN i.quality END')) AS v (name, "column", type, value)
                  LEFT JOIN pg_attribute a ON a.attname = v."column" AND a.atttypid = v.type::regtype
                                          AND a.attrelid = s.info AND NOT a.attisdropped) AS figures,
               (SELECT count(*) = 2 FROM pg_attribute a
                 WHERE a.attrelid IN (s.oid, s.info) AND a.attname = s.number AND a.atttypid = 'integer'::regtype
                   AND NOT a.attisdropped) AS is_keyed,
               s.number
          FROM several s
         WHERE s.summary IS NOT NULL
    LOOP
        said := NULL;
        best := NULL;
        bytes := NULL;
        own := cerebro_internal._run_no_strangers_code(found.tables);
        BEGIN
            IF own AND found.says IS NOT NULL THEN
                EXECUTE format('LOCK TABLE %s IN ACCESS SHARE MODE NOWAIT',
                               (SELECT string_agg('ONLY ' || t::regclass, ', ') FROM unnest(found.tables) AS t));
                -- From here on the tables keep their owners and their names.
                IF NOT cerebro_internal._run_no_strangers_code(found.tables) THEN
                    RAISE EXCEPTION SQLSTATE 'CE000';
                END IF;
                EXECUTE format('SELECT to_jsonb(t) FROM (SELECT %s FROM ONLY %s s LIMIT 1) t', found.says, found.summary)
                   INTO said;
                IF found.is_keyed THEN
                    -- The last part is the model that cerebro.predict takes (best_keys in models/trained.py).
                    EXECUTE format(
                        'WITH r AS (SELECT %1$I AS chosen, %2$s FROM ONLY %3$s m JOIN ONLY %4$s i USING (%1$I) LIMIT 100000)'
                        ' SELECT to_jsonb(a) || COALESCE(to_jsonb(c), ''{}'') FROM (SELECT count(*) AS configurations,'
                        ' COALESCE(%5$s(r.objective_value), min(r.validation_loss), min(r.training_loss)) AS value'
                        ' FROM r) a LEFT JOIN (SELECT r.chosen, left(r.quality ->> ''says'', 4000) AS quality,'
                        ' CASE WHEN r.training_loss IS NULL THEN r.made_of END AS made_of FROM r'
                        ' ORDER BY r.training_loss IS NULL AND r.%6$s IS NOT NULL DESC, r.objective_value %7$s NULLS LAST,'
                        ' r.validation_loss NULLS LAST, r.training_loss NULLS LAST, r.chosen LIMIT 1) c ON true',
                        found.number, found.figures, found.model, found.info,
                        CASE WHEN said ->> 'direction' = 'max' THEN 'max' ELSE 'min' END,
                        CASE WHEN said ->> 'direction' IS NULL THEN 'validation_loss' ELSE 'objective_value' END,
                        CASE WHEN said ->> 'direction' = 'max' THEN 'DESC' ELSE 'ASC' END)
                       INTO best;
                ELSE
                    best := jsonb_build_object('configurations', 1, 'value', COALESCE(
                        NULLIF(said -> 'validation_loss', 'null'), said -> 'training_loss'));
                END IF;
                bytes := (SELECT sum(pg_total_relation_size(t)) FROM unnest(found.tables) AS t);
            END IF;
            RAISE EXCEPTION SQLSTATE 'CE000';
        EXCEPTION WHEN OTHERS THEN
            NULL; -- the locks are released
        END;
        RETURN NEXT jsonb_build_object(
            'model_table', found.named, 'owner', found.owner, 'run', said -> 'run', 'run_name', said -> 'name',
            'target', said -> 'target', 'objective', said -> 'objective', 'best_value', best -> 'value',
            'rows', said -> 'rows', 'configurations', best -> 'configurations', 'began', said -> 'began',
            'bytes', bytes, 'own', own, 'chosen', best -> 'chosen', 'made_of', best -> 'made_of',
            'quality', best -> 'quality')::text;
    END LOOP;
END
$$;
COMMENT ON FUNCTION cerebro_internal._models() IS
'The model tables that the current user may read, as JSON. One column and no more: on Greenplum the function runs before '
'the query that calls it.';

CREATE OR REPLACE VIEW cerebro.models WITH (security_barrier) AS
SELECT t.j ->> 'model_table' AS model_table, t.j ->> 'target' AS target,
       COALESCE((t.j ->> 'run')::bigint, logged.run) AS run,
       COALESCE(t.j ->> 'run_name', logged.name) AS run_name,
       COALESCE(t.j ->> 'objective', logged.objective) AS objective,
       (t.j ->> 'best_value')::double precision AS best_value,
       COALESCE((t.j ->> 'rows')::bigint, logged.rows_per_epoch) AS rows,
       COALESCE((t.j ->> 'configurations')::integer, logged.configurations) AS configurations,
       COALESCE(r.created_at, (t.j ->> 'began')::timestamptz, logged.created_at) AS created_at,
       (t.j ->> 'bytes')::bigint AS bytes,
       pg_get_userbyid((t.j ->> 'owner')::oid) AS owner,
       (t.j ->> 'chosen')::integer AS chosen_configuration,
       t.j ->> 'made_of' AS made_of,
       t.j ->> 'quality' AS quality,
       COALESCE(replace(substring((t.j ->> 'model_table') FROM '"((?:[^"]|"")*)"$'), '""', '"'), substring((t.j ->> 'model_table') FROM '[^.]*$')) AS model_name
  FROM (SELECT line::json AS j FROM (SELECT m AS line FROM cerebro_internal._models() m OFFSET 0) l) t
  LEFT JOIN cerebro_internal._visible_run r ON r.run = (t.j ->> 'run')::bigint AND r.owner::oid = (t.j ->> 'owner')::oid
  LEFT JOIN (SELECT DISTINCT ON (owner, model_table) owner::oid AS owner, model_table, run, left(name, 1000) AS name,
                    left(options ->> 'objective', 1000) AS objective, rows_per_epoch,
                    NULLIF(configurations, 0) AS configurations, created_at
               FROM cerebro_internal._visible_run
              ORDER BY owner, model_table, run DESC) logged
         ON t.j ->> 'own' = 'false' AND logged.owner = (t.j ->> 'owner')::oid
            AND logged.model_table = t.j ->> 'model_table';
COMMENT ON VIEW cerebro.models IS
'The tables of trained models that the current user may read. Only tables of the current user and of superusers are read, in '
'schemas of theirs. Of the tables of others the view has what the log says of the latest run with this model table, for members of '
'cerebro_monitor; for others all columns but model_table and owner are NULL. They are also NULL where a table is in '
'exclusive use, is not as cerebro_db makes it, or has changed since a REPEATABLE READ transaction began.';
COMMENT ON COLUMN cerebro.models.model_table IS 'The model table, with its schema: what cerebro.predict takes.';
COMMENT ON COLUMN cerebro.models.target IS 'The columns that the models predict, with commas.';
COMMENT ON COLUMN cerebro.models.run IS 'Number of the run that trained the models, of the owner of the table.';
COMMENT ON COLUMN cerebro.models.run_name IS 'Name that the user gave the run.';
COMMENT ON COLUMN cerebro.models.objective IS
'Metric that the run optimised, for instance val_accuracy. A loss if the run has no objective.';
COMMENT ON COLUMN cerebro.models.best_value IS
'The best value of the objective that a model in the table has, or else the least loss (on the validation table if there '
'was one). NULL of an ensemble, which was not evaluated.';
COMMENT ON COLUMN cerebro.models.rows IS 'Number of rows (or windows) that the models were trained on.';
COMMENT ON COLUMN cerebro.models.configurations IS 'Number of models in the table.';
COMMENT ON COLUMN cerebro.models.created_at IS
'When the run was created. Of a run that the current user may not see: when it began to train.';
COMMENT ON COLUMN cerebro.models.bytes IS 'Size of the model table and of the tables beside it, in bytes.';
COMMENT ON COLUMN cerebro.models.owner IS 'The user who owns the table.';
COMMENT ON COLUMN cerebro.models.chosen_configuration IS
'The configuration that cerebro.predict takes if none is named: the ensemble, or else the best one.';
COMMENT ON COLUMN cerebro.models.made_of IS
'Of an ensemble: the configurations whose predictions it is the mean of. NULL: it is no ensemble.';
COMMENT ON COLUMN cerebro.models.quality IS
'How good chosen_configuration was on the rows of its calibration, which for cerebro.train are the rows for validation, beside '
'an answer that is the same for every row. NULL: it is not calibrated.';
COMMENT ON COLUMN cerebro.models.model_name IS
'The name of the model table without its schema and without quotes, as most people write it.';

CREATE OR REPLACE FUNCTION cerebro.drop_model(model_table text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.drop_model(plpy, model_table=model_table)
$py$;
COMMENT ON FUNCTION cerebro.drop_model(text) IS
'Drops a table of trained models with the tables beside it (_summary, _info, _weights, _groups). Packed rows in the schema
cerebro_data go, too, unless another model of yours, a registered version of yours or an unfinished run needs them.
Architectures and the run stay: cerebro.materialize makes the tables again, until cerebro.forget deletes the run.
Functions that cerebro.create_predictor made for it fail from then on.

- model_table: a table of yours that cerebro.models lists. If one of its tables is gone, the others are dropped. A view or
  function that depends on one of them is an error that names it.';

CREATE OR REPLACE FUNCTION cerebro.version() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT extversion FROM pg_extension WHERE extname = 'cerebro_db'
$$;
COMMENT ON FUNCTION cerebro.version() IS
'The version of cerebro_db in this database, for instance 0.1.0.';

-- sql/api/55_custom_functions.sql
-- Custom losses and metrics.  The table is in sql/schema/50_custom_functions.sql.

CREATE OR REPLACE VIEW cerebro.custom_functions AS
SELECT name, version, kind, description, registered_by AS added_by, registered_at AS added_at, sha256, source
  FROM (SELECT DISTINCT ON (name) * FROM cerebro.custom_function ORDER BY name, version DESC) newest
 WHERE source IS NOT NULL;
COMMENT ON VIEW cerebro.custom_functions IS
'The custom losses and metrics that compile parameters can name, for instance loss=''name''. A new run uses the version '
'that is listed here.';
COMMENT ON COLUMN cerebro.custom_functions.name IS 'Name of the function, as compile parameters refer to it.';
COMMENT ON COLUMN cerebro.custom_functions.version IS 'Newest version, from 1.';
COMMENT ON COLUMN cerebro.custom_functions.kind IS 'loss, metric or both.';
COMMENT ON COLUMN cerebro.custom_functions.description IS 'Description that the administrator gave.';
COMMENT ON COLUMN cerebro.custom_functions.added_by IS 'The administrator who added this version.';
COMMENT ON COLUMN cerebro.custom_functions.added_at IS 'When this version was added.';
COMMENT ON COLUMN cerebro.custom_functions.sha256 IS 'SHA-256 checksum of the source, in hexadecimal.';
COMMENT ON COLUMN cerebro.custom_functions.source IS 'Python source of the function.';

CREATE OR REPLACE FUNCTION cerebro.add_custom_function(name text, source text, kind text, description text DEFAULT NULL)
RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.add_custom_function(plpy, name=name, source=source, kind=kind, description=description)
$py$;
COMMENT ON FUNCTION cerebro.add_custom_function(text, text, text, text) IS
'Registers a custom loss or metric from its Python source, or a new version of it, and returns the version. For
cerebro_admin. THE SOURCE RUNS WITH THE RIGHTS OF THE SERVER''S OPERATING-SYSTEM ACCOUNT, in the trainers of all users
who name the function. Registration checks the syntax and executes nothing. A run keeps the version that it started
with.

- source: one function, def NAME(y_true, y_pred). It can use keras, and keras.ops as ops.
- kind: loss, metric or both.';

CREATE OR REPLACE FUNCTION cerebro.drop_custom_function(name text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.drop_custom_function(plpy, name=name)
$py$;
COMMENT ON FUNCTION cerebro.drop_custom_function(text) IS
'Retires a custom loss or metric. New runs cannot name it. Existing runs and models keep the version that they use. For
cerebro_admin.';

-- sql/api/56_registry.sql
-- The registry: versions of models by a name that users share (schema/75_registry.sql).

-- What each user sees follows from rights to the model: they are one's own, those of a role that one is a member of, or
-- those of an administrator.
-- What the history says now.
CREATE OR REPLACE VIEW cerebro_internal._alias_now AS
SELECT DISTINCT ON (model, alias) model, alias, version, at, by, reason
  FROM cerebro.registry_event WHERE event = 'alias' ORDER BY model, alias, id DESC;
COMMENT ON VIEW cerebro_internal._alias_now IS 'The last event of each alias. Without a version, it was removed.';
CREATE OR REPLACE VIEW cerebro_internal._right_now AS
SELECT * FROM (SELECT DISTINCT ON (model, role, "right") model, role, "right", event, at, by
                 FROM cerebro.registry_event WHERE event IN ('shared', 'unshared')
                ORDER BY model, role, "right", id DESC) e
 WHERE event = 'shared';
COMMENT ON VIEW cerebro_internal._right_now IS 'The rights that were given and not taken back.';

CREATE OR REPLACE VIEW cerebro_internal._my_registered WITH (security_barrier = true) AS
SELECT m.name AS registered_model, m.owner, m.description, m.registered_at, own.owns, own.manages,
       own.owns OR given.may_read AS may_read, own.manages OR given.may_move AS may_move, own.owns OR given.may_use AS may_use
  FROM cerebro.registered_model m
 CROSS JOIN LATERAL (SELECT pg_has_role(m.owner, 'USAGE') AS owns,
                            pg_has_role(m.owner, 'USAGE') OR pg_has_role('cerebro_admin', 'USAGE') AS manages) own
 CROSS JOIN LATERAL (
       SELECT COALESCE(bool_or(s."right" = 'read'), false) AS may_read,
              COALESCE(bool_or(s."right" = 'alias'), false) AS may_move,
              COALESCE(bool_or(s."right" IN ('use', 'read')), false) AS may_use, count(*) > 0 AS has_some
         FROM cerebro_internal._right_now s
        WHERE s.model = m.name AND pg_has_role(s.role, 'USAGE')) given
 WHERE own.manages OR given.has_some;

COMMENT ON VIEW cerebro_internal._my_registered IS
'The registered models to which the current user has a right, and what each right allows.';

CREATE OR REPLACE VIEW cerebro.registered_versions WITH (security_barrier = true) AS
SELECT m.registered_model, r.version,
       (SELECT string_agg(a.alias, ', ' ORDER BY a.alias)
          FROM cerebro_internal._alias_now a WHERE a.model = r.model AND a.version = r.version) AS aliases,
       r.at AS registered_at, r.by::name AS registered_by, r.reason,
       r.details ->> 'target' AS target, r.details ->> 'objective' AS objective,
       (r.details ->> 'objective_value')::double precision AS objective_value,
       (r.details ->> 'validation_loss')::double precision AS validation_loss,
       (r.details ->> 'training_loss')::double precision AS training_loss,
       r.details ->> 'model_table' AS model_table, (r.details ->> 'configuration')::integer AS configuration,
       (r.details ->> 'epoch')::integer AS epoch, (r.details ->> 'run')::bigint AS run, r.details ->> 'run_name' AS run_name,
       r.details ->> 'source_table' AS source_table, r.details ->> 'packed_table' AS packed_table,
       (r.details ->> 'rows')::bigint AS rows, (r.details ->> 'started_at')::timestamptz AS started_at,
       (r.details ->> 'ended_at')::timestamptz AS ended_at, r.details ->> 'cerebro_version' AS cerebro_version,
       (r.details ->> 'bytes')::bigint AS bytes, r.details ->> 'sha256' AS sha256,
       r.details ->> 'group_by' AS group_by, (r.details ->> 'groups')::integer AS groups, r.details ->> 'group_key' AS group_key,
       u.at AS unregistered_at, m.may_use, m.may_read, r.details ->> 'quality' AS quality
  FROM cerebro_internal._my_registered m
  JOIN cerebro.registry_event r ON r.model = m.registered_model AND r.event = 'registered'
  LEFT JOIN cerebro.registry_event u ON u.model = r.model AND u.version = r.version AND u.event = 'unregistered';
COMMENT ON VIEW cerebro.registered_versions IS
'The versions of the registered models to which you have a right, with what each was trained on. A version that has left the '
'registry stays in this list.';
COMMENT ON COLUMN cerebro.registered_versions.registered_model IS 'Name of the registered model.';
COMMENT ON COLUMN cerebro.registered_versions.version IS
'Number of the version. Where a model is named, it is called MODEL@VERSION, for instance churn@3.';
COMMENT ON COLUMN cerebro.registered_versions.aliases IS 'The aliases that name this version now, with commas.';
COMMENT ON COLUMN cerebro.registered_versions.registered_at IS 'When the version was registered.';
COMMENT ON COLUMN cerebro.registered_versions.registered_by IS 'The user who registered it.';
COMMENT ON COLUMN cerebro.registered_versions.reason IS 'Reason given to cerebro.register().';
COMMENT ON COLUMN cerebro.registered_versions.target IS 'The columns that the model predicts, with commas.';
COMMENT ON COLUMN cerebro.registered_versions.objective IS 'Metric that the run optimised.';
COMMENT ON COLUMN cerebro.registered_versions.objective_value IS 'Value of the objective. NULL: the run had none.';
COMMENT ON COLUMN cerebro.registered_versions.validation_loss IS
'Loss on the validation rows. NULL: the run had none.';
COMMENT ON COLUMN cerebro.registered_versions.training_loss IS 'Loss on the training rows.';
COMMENT ON COLUMN cerebro.registered_versions.model_table IS 'The model table that the version was copied from.';
COMMENT ON COLUMN cerebro.registered_versions.configuration IS 'The number of its configuration in that table and in the run.';
COMMENT ON COLUMN cerebro.registered_versions.epoch IS 'The epoch of the run whose weights it has.';
COMMENT ON COLUMN cerebro.registered_versions.run IS 'Number of the run that trained it, of the user who registered it.';
COMMENT ON COLUMN cerebro.registered_versions.run_name IS 'Name of that run.';
COMMENT ON COLUMN cerebro.registered_versions.source_table IS 'The table whose rows it was trained on.';
COMMENT ON COLUMN cerebro.registered_versions.packed_table IS 'The packed table that the run trained on.';
COMMENT ON COLUMN cerebro.registered_versions.rows IS
'Number of rows (or windows) in that packed table. Of the model of one group: those of the group.';
COMMENT ON COLUMN cerebro.registered_versions.started_at IS 'When the run began to train.';
COMMENT ON COLUMN cerebro.registered_versions.ended_at IS 'When the run ended.';
COMMENT ON COLUMN cerebro.registered_versions.cerebro_version IS 'The version of cerebro_db that trained it.';
COMMENT ON COLUMN cerebro.registered_versions.bytes IS 'Size of all weights of the version.';
COMMENT ON COLUMN cerebro.registered_versions.sha256 IS
'SHA-256 of the weights: those of the model on all rows, and then those of the models of groups by their numbers.';
COMMENT ON COLUMN cerebro.registered_versions.group_by IS
'The columns that tell the groups apart, with commas. NULL: the version has no models of groups.';
COMMENT ON COLUMN cerebro.registered_versions.groups IS
'Number of groups with a model of their own in the version. NULL: it has no models of groups.';
COMMENT ON COLUMN cerebro.registered_versions.group_key IS
'Of a version that is the model of one group: the values of the group, as a JSON array.';
COMMENT ON COLUMN cerebro.registered_versions.unregistered_at IS
'When the version left the registry. NULL: it is there.';
COMMENT ON COLUMN cerebro.registered_versions.may_use IS 'Whether you may predict with it.';
COMMENT ON COLUMN cerebro.registered_versions.may_read IS 'Whether you may read its weights.';
COMMENT ON COLUMN cerebro.registered_versions.quality IS
'How good it was on the rows of its calibration, beside an answer that is the same for every row. NULL: it was not calibrated.';

CREATE OR REPLACE VIEW cerebro.registered_aliases WITH (security_barrier = true) AS
SELECT m.registered_model, a.alias, a.version, a.at AS set_at, a.by::name AS set_by, a.reason
  FROM cerebro_internal._my_registered m
  JOIN cerebro_internal._alias_now a ON a.model = m.registered_model
 WHERE a.version IS NOT NULL;
COMMENT ON VIEW cerebro.registered_aliases IS 'The aliases of registered models, such as production.';
COMMENT ON COLUMN cerebro.registered_aliases.registered_model IS 'Name of the registered model.';
COMMENT ON COLUMN cerebro.registered_aliases.alias IS
'Name of the alias. Where a model is named, the version is called MODEL@ALIAS, for instance churn@production.';
COMMENT ON COLUMN cerebro.registered_aliases.version IS 'The version that it names now.';
COMMENT ON COLUMN cerebro.registered_aliases.set_at IS 'Since when it names this version.';
COMMENT ON COLUMN cerebro.registered_aliases.set_by IS 'The user who set it.';
COMMENT ON COLUMN cerebro.registered_aliases.reason IS 'Reason given to cerebro.set_alias() or cerebro.roll_back().';

CREATE OR REPLACE VIEW cerebro.registered_models WITH (security_barrier = true) AS
SELECT m.registered_model, pg_get_userbyid(m.owner) AS owner, m.description, m.registered_at,
       (SELECT count(*) FROM cerebro.registered_versions v
         WHERE v.registered_model = m.registered_model AND v.unregistered_at IS NULL) AS versions,
       (SELECT max(v.version) FROM cerebro.registered_versions v
         WHERE v.registered_model = m.registered_model AND v.unregistered_at IS NULL) AS latest,
       (SELECT string_agg(a.alias || '@' || a.version, ', ' ORDER BY a.alias) FROM cerebro.registered_aliases a
         WHERE a.registered_model = m.registered_model) AS aliases,
       m.may_use, m.may_read, m.may_move, m.owns
  FROM cerebro_internal._my_registered m;
COMMENT ON VIEW cerebro.registered_models IS 'The registered models to which you have a right.';
COMMENT ON COLUMN cerebro.registered_models.registered_model IS 'Name of the registered model.';
COMMENT ON COLUMN cerebro.registered_models.owner IS 'The user whose model it is.';
COMMENT ON COLUMN cerebro.registered_models.description IS 'Description given to cerebro.register() with the first version.';
COMMENT ON COLUMN cerebro.registered_models.registered_at IS 'When the first version was registered.';
COMMENT ON COLUMN cerebro.registered_models.versions IS 'Number of versions that are there.';
COMMENT ON COLUMN cerebro.registered_models.latest IS 'The highest of them, which is called MODEL@latest.';
COMMENT ON COLUMN cerebro.registered_models.aliases IS 'Each alias with the version that it names, with commas.';
COMMENT ON COLUMN cerebro.registered_models.may_use IS 'Whether you may predict with it.';
COMMENT ON COLUMN cerebro.registered_models.may_read IS 'Whether you may read its weights.';
COMMENT ON COLUMN cerebro.registered_models.may_move IS 'Whether you may move its aliases.';
COMMENT ON COLUMN cerebro.registered_models.owns IS 'Whether you may register versions and share the model.';

CREATE OR REPLACE VIEW cerebro.registered_rights WITH (security_barrier = true) AS
SELECT m.registered_model, pg_get_userbyid(s.role)::text AS role, s."right", s.at AS shared_at, s.by::name AS shared_by
  FROM cerebro_internal._my_registered m
  JOIN cerebro_internal._right_now s ON s.model = m.registered_model
 WHERE EXISTS (SELECT FROM pg_roles r WHERE r.oid = s.role);
COMMENT ON VIEW cerebro.registered_rights IS
'The rights to registered models that cerebro.share() has given. The owner of a model has all rights.';
COMMENT ON COLUMN cerebro.registered_rights.registered_model IS 'Name of the registered model.';
COMMENT ON COLUMN cerebro.registered_rights.role IS 'The role, whose members have the right, too.';
COMMENT ON COLUMN cerebro.registered_rights."right" IS
'use: predict with the model. read: also read its weights. alias: move its aliases.';
COMMENT ON COLUMN cerebro.registered_rights.shared_at IS 'When the right was given.';
COMMENT ON COLUMN cerebro.registered_rights.shared_by IS 'The user who gave it.';

CREATE OR REPLACE VIEW cerebro.registry_history WITH (security_barrier = true) AS
SELECT m.registered_model, e.id, e.at, e.by::name AS by, e.event, e.version, e.alias, pg_get_userbyid(e.role)::text AS role,
       e."right", e.reason
  FROM cerebro_internal._my_registered m
  JOIN cerebro.registry_event e ON e.model = m.registered_model;
COMMENT ON VIEW cerebro.registry_history IS
'Who did what with the registered models to which you have a right. Nothing is ever removed from it.';
COMMENT ON COLUMN cerebro.registry_history.registered_model IS 'Name of the registered model.';
COMMENT ON COLUMN cerebro.registry_history.id IS 'Number of the event; later events have higher numbers.';
COMMENT ON COLUMN cerebro.registry_history.at IS 'When it was.';
COMMENT ON COLUMN cerebro.registry_history.by IS 'The user who did it.';
COMMENT ON COLUMN cerebro.registry_history.event IS
'registered, unregistered, alias (an alias was set; without a version, removed), shared, or unshared.';
COMMENT ON COLUMN cerebro.registry_history.version IS 'Number of the version.';
COMMENT ON COLUMN cerebro.registry_history.alias IS 'Name of the alias.';
COMMENT ON COLUMN cerebro.registry_history.role IS 'The role that was given a right, or lost it.';
COMMENT ON COLUMN cerebro.registry_history."right" IS 'The right: use, read or alias.';
COMMENT ON COLUMN cerebro.registry_history.reason IS 'Reason that the user gave.';

-- Without subqueries that refer to another table: of their parameters, Greenplum 7 sends the segments some that nobody has
-- set, and crashes now and then.
CREATE OR REPLACE FUNCTION cerebro_internal._registered(reference text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT '"cerebro_registry"."' || v.registered_model || '@' || v.version || '"'
  FROM cerebro.registered_versions v
  LEFT JOIN cerebro.registered_aliases a
         ON a.registered_model = v.registered_model AND a.version = v.version
            AND a.alias = split_part(lower(btrim(reference)), '@', 2)
 WHERE v.registered_model = split_part(lower(btrim(reference)), '@', 1) AND v.unregistered_at IS NULL
   AND reference !~ '@.*@'
   AND (v.version::text = ltrim(split_part(lower(btrim(reference)), '@', 2), '0') OR a.version IS NOT NULL
        OR split_part(lower(btrim(reference)), '@', 2) = 'latest')
 ORDER BY v.version DESC
 LIMIT 1
$$;
COMMENT ON FUNCTION cerebro_internal._registered(text) IS
'The model table of a registered model. NULL: there is none to which the caller has a right.';

-- It runs what a function of ours has prepared in the memory of this session; a call from SQL finds nothing prepared.
CREATE OR REPLACE FUNCTION cerebro_internal._as_registry() RETURNS void
LANGUAGE plpython3u SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $py$
@cerebro@
return api.run_step(plpy)
$py$;
ALTER FUNCTION cerebro_internal._as_registry() OWNER TO cerebro_registry;
COMMENT ON FUNCTION cerebro_internal._as_registry() IS
'A step of cerebro.register() and other functions of the registry that needs the rights of its role.';

CREATE OR REPLACE FUNCTION cerebro.registered_table(reference text) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.registered_table(plpy, reference=reference)
$py$;
COMMENT ON FUNCTION cerebro.registered_table(text) IS
'Returns the model table of a registered model, with its schema.

- reference: MODEL@ALIAS, MODEL@VERSION or MODEL@latest.';

CREATE OR REPLACE FUNCTION cerebro.register(
    registered_model    text,
    model_table   text,
    configuration integer DEFAULT NULL,
    alias         text    DEFAULT NULL,
    description   text    DEFAULT NULL,
    reason        text    DEFAULT NULL,
    group_value   text    DEFAULT NULL
) RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.register(plpy, registered_model=registered_model, model_table=model_table, configuration=configuration, alias=alias, description=description, reason=reason, group_value=group_value)
$py$;
COMMENT ON FUNCTION cerebro.register(text, text, integer, text, text, text, text) IS
'Adds a version of a registered model and returns its number. The version is a copy, which nobody can change, and which stays
when the model table or its run is dropped. Functions that predict, judge or export take MODEL@ALIAS, MODEL@VERSION and
MODEL@latest wherever they take a model table. Of a table with models of groups, the version has the model on all rows and
the model of each group with which cerebro.predict predicts.

- registered_model: 1 to 40 lower-case letters, digits and underscores. A new name becomes yours; versions of a name can be added
  by its owner and by members of that role.
- model_table: the table of trained models, or another registered model.
- configuration: the number of the configuration. NULL: the best one, as cerebro.predict chooses it.
- alias: an alias that names this version from now on, for instance production.
- description: of the model, for a new name.
- reason: stands in cerebro.registry_history.
- group_value: a group_value or a group_key of the table MODEL_groups. The version is the model of this group alone, without
  groups. NULL: all models that predict.';

CREATE OR REPLACE FUNCTION cerebro.set_alias(
    registered_model text, alias text, version integer, reason text DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.set_alias(plpy, registered_model=registered_model, alias=alias, version=version, reason=reason)
$py$;
COMMENT ON FUNCTION cerebro.set_alias(text, text, integer, text) IS
'Lets an alias name a version of a registered model. Calls that name the model by the alias use this version as soon as the
transaction has committed. The owner of the model may do that, cerebro_admin, and who has the right alias.

- registered_model: the registered model.
- alias: 1 to 40 lower-case letters, digits and underscores, for instance production.
- version: the version that it names from now on. NULL removes the alias.
- reason: stands in cerebro.registry_history.';

CREATE OR REPLACE FUNCTION cerebro.roll_back(registered_model text, alias text, reason text DEFAULT NULL) RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.roll_back(plpy, registered_model=registered_model, alias=alias, reason=reason)
$py$;
COMMENT ON FUNCTION cerebro.roll_back(text, text, text) IS
'Lets an alias name the version that it named before, and returns its number. A second call goes back to the
newer one.

- registered_model: the registered model.
- alias: its alias.
- reason: stands in cerebro.registry_history.';

CREATE OR REPLACE FUNCTION cerebro.unregister(registered_model text, version integer, reason text DEFAULT NULL) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.unregister(plpy, registered_model=registered_model, version=version, reason=reason)
$py$;
COMMENT ON FUNCTION cerebro.unregister(text, integer, text) IS
'Removes the tables of a version from the registry. Its number is never used again, and its history stays. A version that an
alias names is an error. Packed rows that you have not named go with it, as with cerebro.drop_model.

- registered_model: the registered model, which must be yours; cerebro_admin may name any.
- version: the number of the version.
- reason: stands in cerebro.registry_history.';

CREATE OR REPLACE FUNCTION cerebro.share(registered_model text, role text, "right" text DEFAULT 'use') RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.share(plpy, registered_model=registered_model, role=role, right=right)
$py$;
COMMENT ON FUNCTION cerebro.share(text, text, text) IS
'Gives a role a right to all versions of a registered model, those to come, too.

- registered_model: the registered model, which must be yours.
- role: the role. Members of it have the right, too; cerebro_user stands for all users of cerebro_db.
- right: use allows to predict with the model and to judge it, without reading its weights. read allows to read the weights,
  too, for instance to export it. alias allows to move the aliases, such as production.';

CREATE OR REPLACE FUNCTION cerebro.unshare(registered_model text, role text, "right" text DEFAULT 'use') RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.unshare(plpy, registered_model=registered_model, role=role, right=right)
$py$;
COMMENT ON FUNCTION cerebro.unshare(text, text, text) IS
'Takes a right from a role that cerebro.share has given it. The arguments are those of cerebro.share.';

-- sql/api/57_retraining.sql
-- Next month: the registered configuration on new rows, promoted only if it wins.

CREATE OR REPLACE FUNCTION cerebro.retrain(
    registered_model text,
    alias            text    DEFAULT 'production',
    source_table     text    DEFAULT NULL,
    query            text    DEFAULT NULL,
    metric           text    DEFAULT NULL,
    margin           double precision DEFAULT 0,
    epochs           integer DEFAULT NULL,
    use_gpus         boolean DEFAULT false,
    if_unchanged     boolean DEFAULT false,
    wait             boolean DEFAULT true,
    validation_table text    DEFAULT NULL,
    budget           text    DEFAULT NULL,
    standard_errors  double precision DEFAULT 1
) RETURNS TABLE (run bigint, version integer, metric text, before double precision, after double precision,
                 promoted boolean)
LANGUAGE plpython3u
SET synchronize_seqscans = off SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.retrain(plpy, registered_model=registered_model, alias=alias, source_table=source_table, query=query, metric=metric, margin=margin, epochs=epochs, use_gpus=use_gpus, if_unchanged=if_unchanged, wait=wait, validation_table=validation_table, budget=budget, standard_errors=standard_errors)
$py$;
COMMENT ON FUNCTION cerebro.retrain(text, text, text, text, text, double precision, integer, boolean, boolean, boolean, text, text, double precision) IS
'Trains the configuration of a registered model on the rows that its table has now, and compares the new model with the
version that the alias names, on the same rows. It registers the new model as a version, and moves the alias to it if it is
better. It returns one row, or none if there was nothing to do: the rows are those of the version or of the last call, or
another session retrains the same model. So a scheduler can call it as often as it likes.

- registered_model, alias: the version to retrain, for instance ''churn'' and ''production''.
- source_table: the rows to train on. NULL: the table that you named when you trained the version. If another role trained
  it, if it was imported, or if the call named packed rows, say which table. The rows are packed with the arguments of that
  time, but with the means, categories and quantiles of today.
- query: the rows for the comparison, with the inputs and the target: a query, or the name of a table. NULL: the rows of
  source_table that are for validation. A hash of the key chooses them, so those of the old rows did not train the old
  model, either; docs/production.md#retrain-in-one-call names the exceptions.
- metric: a metric of cerebro.evaluate. NULL: that of the objective of the version''s run; else log_loss or rmse.
- margin: how much better the new model must be in this metric.
- epochs: NULL: as many as the best state of the version was trained for.
- use_gpus: as in cerebro.fit.
- if_unchanged: true trains although the rows have not changed.
- wait: false returns as soon as the run is on record, and only its number; another session does the rest.
- validation_table: a table with the rows for validation. NULL: the one that you named when you trained the version, or, if
  it had none, a part of source_table. As for source_table, you name it if another role trained the version.
- budget: how long the new model may be trained, for instance ''10 minutes'', as in cerebro.fit. NULL: without epochs, the
  budget of the version''s run.
- standard_errors: the new model must be better by more than so many standard errors of the difference. 0: margin alone
  decides.

A version that is an ensemble gets a new ensemble: its members are trained one by one, and cerebro.ensemble chooses among them.

before and after are the metric of the old and the new model. cerebro.registry_history has the same, in the reason of each
event. The model table and the packed tables of the call are dropped at its end.';

-- sql/api/58_optuna.sql
-- Runs in the shape of Optuna's storage (its schema version 12), so that optuna-dashboard shows them as they go on.  The
-- views read those of the schema cerebro, which say who sees which rows, and nothing can be written through them. A run is a
-- study; its models on all rows are the trials.

CREATE OR REPLACE VIEW cerebro_internal._optuna_study AS
SELECT DISTINCT ON (run) r.run, r.owner, r.run_name, r.status, r.source_table, r.model_table, r.started_at, r.ended_at,
       r.ended, b.objective,
       -- Others than the owner do not see the options, but the order of the leaderboard.
       COALESCE(p.options ->> 'direction',
                CASE WHEN b.objective !~ 'loss$' AND b.best > b.worst THEN 'max' ELSE 'min' END) AS direction
  FROM cerebro.runs r
  JOIN (SELECT run, owner, max(objective) AS objective,
               (array_agg(objective_value ORDER BY rank) FILTER (WHERE objective_value IS NOT NULL))[1] AS best,
               (array_agg(objective_value ORDER BY rank DESC) FILTER (WHERE objective_value IS NOT NULL))[1] AS worst
          FROM cerebro.leaderboard
         WHERE fold IS NULL AND group_number IS NULL
         GROUP BY run, owner) b USING (run, owner)
  LEFT JOIN cerebro.run_plan p USING (run, owner)
 WHERE run BETWEEN 1 AND 1e12::bigint  -- the numbers of trials are made of it
 ORDER BY run, r.owner <> current_user, r.owner;
COMMENT ON VIEW cerebro_internal._optuna_study IS
'The runs that have models. Of runs of several users with one number, one''s own.';

CREATE OR REPLACE VIEW cerebro_internal._optuna_trial AS
SELECT run, owner, b.model, b.configuration, b.architecture, b.objective_value, b.engine, b.reason, s.direction, s.objective,
       s.started_at, s.ended_at, run * 1000000 + b.model AS trial_id,
       row_number() OVER (PARTITION BY run, owner ORDER BY b.model) - 1 AS number,
       CASE WHEN b.status = 'failed' THEN 'FAIL'
            WHEN b.status = 'stopped' THEN 'PRUNED'
            WHEN b.status = 'finished' OR s.ended
            THEN CASE WHEN abs(b.objective_value) < 1e300 THEN 'COMPLETE' ELSE 'FAIL' END
            WHEN b.status = 'waiting' THEN 'WAITING'
            ELSE 'RUNNING'
       END AS state
  FROM cerebro.leaderboard b
  JOIN cerebro_internal._optuna_study s USING (run, owner)
 WHERE b.fold IS NULL AND b.group_number IS NULL;
COMMENT ON VIEW cerebro_internal._optuna_trial IS 'The models on all rows of each run, with their state in Optuna''s words.';

CREATE OR REPLACE VIEW cerebro_internal._optuna_parameter AS
WITH given AS (
    SELECT t.run, t.owner, t.trial_id, t.model, p.parameter, p.value, left(p.text, 500) AS text
      FROM cerebro_internal._optuna_trial t
      JOIN (SELECT run, owner, configuration, parameter, value, text FROM cerebro.parameters
             UNION ALL
            SELECT DISTINCT run, owner, configuration, 'architecture', NULL::double precision, architecture
              FROM cerebro.leaderboard) p
        ON p.run = t.run AND p.owner = t.owner AND p.configuration = t.configuration
     WHERE p.text IS NOT NULL
), range AS (
    SELECT run, owner, parameter, min(value) AS low, max(value) AS high, count(value) = count(*) AS is_number,
           count(DISTINCT text) AS different, jsonb_agg(DISTINCT text) AS choices,
           bool_and(value = floor(value) AND text !~ '[.eE]') AS is_whole
      FROM given
     GROUP BY run, owner, parameter
)
SELECT g.trial_id, g.model, g.parameter,
       CASE WHEN r.is_number THEN g.value
            ELSE (SELECT c.place - 1 FROM jsonb_array_elements_text(r.choices) WITH ORDINALITY AS c (text, place)
                   WHERE c.text = g.text)
       END::double precision AS value,
       CASE WHEN NOT r.is_number
            THEN jsonb_build_object('name', 'CategoricalDistribution', 'attributes', jsonb_build_object('choices', r.choices))
            WHEN r.is_whole
            THEN jsonb_build_object('name', 'IntDistribution', 'attributes', jsonb_build_object(
                                        'log', false, 'step', 1, 'low', r.low::numeric, 'high', r.high::numeric))
            ELSE jsonb_build_object('name', 'FloatDistribution', 'attributes', jsonb_build_object(
                                        'step', NULL, 'low', r.low, 'high', r.high,
                                        'log', r.low > 0 AND r.high >= 100 * r.low))
       END AS distribution
  FROM given g
  JOIN range r USING (run, owner, parameter)
 WHERE r.different > 1
       AND (r.is_number OR r.different <= 100);  -- the list of the values stands in each row
COMMENT ON VIEW cerebro_internal._optuna_parameter IS
'The parameters that differ within a run, with the range or the list of their values as Optuna describes it. Texts with more '
'than 100 different values are left out.';

CREATE OR REPLACE VIEW cerebro_optuna.studies WITH (security_barrier) AS
SELECT run AS study_id, 'run ' || run || COALESCE(': ' || left(run_name, 400), '') AS study_name FROM cerebro_internal._optuna_study;
COMMENT ON VIEW cerebro_optuna.studies IS 'The runs that you may see, as studies of Optuna.';

CREATE OR REPLACE VIEW cerebro_optuna.study_directions WITH (security_barrier) AS
SELECT run AS study_direction_id, CASE direction WHEN 'max' THEN 'MAXIMIZE' ELSE 'MINIMIZE' END AS direction, run AS study_id,
       0 AS objective
  FROM cerebro_internal._optuna_study;
COMMENT ON VIEW cerebro_optuna.study_directions IS 'Whether the objective of a run is to be large or small.';

CREATE OR REPLACE VIEW cerebro_optuna.study_user_attributes WITH (security_barrier) AS
SELECT run * 10 + a.place AS study_user_attribute_id, run AS study_id, a.key, to_jsonb(a.value)::text AS value_json
  FROM cerebro_internal._optuna_study s
 CROSS JOIN LATERAL (VALUES (1, 'owner', s.owner::text), (2, 'status', s.status), (3, 'source_table', s.source_table),
                            (4, 'model_table', s.model_table)) AS a (place, key, value);
COMMENT ON VIEW cerebro_optuna.study_user_attributes IS 'Owner, status and tables of a run.';

CREATE OR REPLACE VIEW cerebro_optuna.study_system_attributes WITH (security_barrier) AS
SELECT run AS study_system_attribute_id, run AS study_id, 'study:metric_names' AS key,
       jsonb_build_array(left(objective, 400))::text AS value_json
  FROM cerebro_internal._optuna_study;
COMMENT ON VIEW cerebro_optuna.study_system_attributes IS 'The name of the objective of a run.';

CREATE OR REPLACE VIEW cerebro_optuna.trials WITH (security_barrier) AS
SELECT t.trial_id, t.number, t.run AS study_id, t.state, t.started_at AT TIME ZONE 'UTC' AS datetime_start,
       CASE WHEN t.state IN ('COMPLETE', 'PRUNED', 'FAIL')
            THEN COALESCE(c.ended_at, t.ended_at, t.started_at) AT TIME ZONE 'UTC'
       END AS datetime_complete
  FROM cerebro_internal._optuna_trial t
  LEFT JOIN (SELECT run, owner, model, max(trained_at) AS ended_at FROM cerebro.learning_curve GROUP BY run, owner, model) c
         ON c.run = t.run AND c.owner = t.owner AND c.model = t.model;
COMMENT ON VIEW cerebro_optuna.trials IS 'The models on all rows of a run, as trials of Optuna.';

CREATE OR REPLACE VIEW cerebro_optuna.trial_user_attributes WITH (security_barrier) AS
SELECT t.trial_id::numeric * 10 + a.place AS trial_user_attribute_id, t.trial_id, a.key, a.value::text AS value_json
  FROM cerebro_internal._optuna_trial t
 CROSS JOIN LATERAL (VALUES (1, 'model', to_jsonb(t.model)), (2, 'configuration', to_jsonb(t.configuration)),
                            (3, 'engine', to_jsonb(t.engine)), (4, 'reason', to_jsonb(t.reason))) AS a (place, key, value)
 WHERE a.value IS NOT NULL;
COMMENT ON VIEW cerebro_optuna.trial_user_attributes IS 'Number, configuration and engine of a model, and why it ended.';

CREATE OR REPLACE VIEW cerebro_optuna.trial_system_attributes WITH (security_barrier) AS
SELECT NULL::bigint AS trial_system_attribute_id, NULL::bigint AS trial_id, NULL::text AS key, NULL::text AS value_json
 WHERE false;
COMMENT ON VIEW cerebro_optuna.trial_system_attributes IS 'Has no rows.';

CREATE OR REPLACE VIEW cerebro_optuna.trial_params WITH (security_barrier) AS
SELECT trial_id::numeric * 1000 + row_number() OVER (PARTITION BY trial_id ORDER BY parameter) AS param_id, trial_id,
       left(parameter, 400) AS param_name, value AS param_value, distribution::text AS distribution_json
  FROM cerebro_internal._optuna_parameter;
COMMENT ON VIEW cerebro_optuna.trial_params IS 'The parameters of a model that differ within its run.';

CREATE OR REPLACE VIEW cerebro_optuna.trial_values WITH (security_barrier) AS
SELECT trial_id AS trial_value_id, trial_id, 0 AS objective, objective_value AS value, 'FINITE' AS value_type
  FROM cerebro_internal._optuna_trial
 WHERE state IN ('COMPLETE', 'PRUNED') AND abs(objective_value) < 1e300;
COMMENT ON VIEW cerebro_optuna.trial_values IS 'The value of the objective of a model that has ended.';

CREATE OR REPLACE VIEW cerebro_optuna.trial_intermediate_values WITH (security_barrier) AS
SELECT t.trial_id::numeric * 10000000000 + m.epoch AS trial_intermediate_value_id, t.trial_id, m.epoch AS step, m.value AS intermediate_value,
       'FINITE' AS intermediate_value_type
  FROM cerebro_internal._optuna_trial t
  JOIN cerebro.metrics m
    ON m.run = t.run AND m.owner = t.owner AND m.model = t.model
       AND m.dataset = CASE WHEN t.objective LIKE 'val|_%' ESCAPE '|' THEN 'validation'
                            WHEN t.objective LIKE 'train|_%' ESCAPE '|' THEN 'training, after'
                            ELSE 'training' END
       AND m.metric = regexp_replace(t.objective, '^(val|train)_', '')
 WHERE m.value IS NOT NULL;
COMMENT ON VIEW cerebro_optuna.trial_intermediate_values IS 'The value of the objective of a model after each epoch.';

CREATE OR REPLACE VIEW cerebro_optuna.trial_heartbeats WITH (security_barrier) AS
SELECT NULL::bigint AS trial_heartbeat_id, NULL::bigint AS trial_id, NULL::timestamp AS heartbeat WHERE false;
COMMENT ON VIEW cerebro_optuna.trial_heartbeats IS 'Has no rows.';

CREATE OR REPLACE VIEW cerebro_optuna.version_info WITH (security_barrier) AS
SELECT 1 AS version_info_id, 12 AS schema_version, '3.2.0' AS library_version;
COMMENT ON VIEW cerebro_optuna.version_info IS 'The version of Optuna''s storage that these views have.';

CREATE OR REPLACE VIEW cerebro_optuna.alembic_version WITH (security_barrier) AS SELECT 'v3.2.0.a' AS version_num;
COMMENT ON VIEW cerebro_optuna.alembic_version IS 'The revision of Optuna''s storage that these views have.';

REVOKE ALL ON ALL TABLES IN SCHEMA cerebro_optuna FROM PUBLIC;
GRANT SELECT ON ALL TABLES IN SCHEMA cerebro_optuna TO cerebro_user, cerebro_monitor;

-- sql/api/60_limits.sql
-- Limits on what a role may use of the server.  The table is in sql/schema/60_limits.sql.

-- On Greenplum, 80_greenplum.sql replaces this view.
-- To measure a table the server has to lock it. If a transaction has locked one exclusively (it may have dropped it), the
-- last known size stands in: else that transaction would hold up every new run of the owner.
CREATE OR REPLACE VIEW cerebro_internal._state_size AS
SELECT pg_catalog.pg_get_userbyid(c.relowner) AS owner,
       CASE WHEN l.relation IS NULL THEN pg_catalog.pg_total_relation_size(c.oid)
            ELSE c.relpages::bigint * current_setting('block_size')::bigint
       END AS bytes
  FROM pg_catalog.pg_class c
  LEFT JOIN (SELECT DISTINCT relation FROM pg_catalog.pg_locks
              WHERE locktype = 'relation' AND mode = 'AccessExclusiveLock' AND pid <> pg_catalog.pg_backend_pid()
                AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())) l
         ON l.relation = c.oid
 WHERE c.relkind = 'r' AND c.relnamespace = 'cerebro_state'::regnamespace;
COMMENT ON VIEW cerebro_internal._state_size IS
'The disk space of the state tables of all runs, in bytes per table, with its owner.';

-- Worker processes read this themselves, so that nobody who calls their functions by hand can leave the limit out. The
-- user of the session counts, too: SET ROLE to a group must not lift a limit.
-- (A function and no view: on Greenplum a segment may read this table, of which it has a copy, but no view.)
CREATE OR REPLACE FUNCTION cerebro_internal._trainer_limit(one name, other name) RETURNS integer
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT COALESCE(min(max_trainer_mb) FILTER (WHERE role::oid <> 0), min(max_trainer_mb))
              FROM cerebro.role_limit
             WHERE role::oid IN (0, quote_ident(one)::regrole::oid, quote_ident(other)::regrole::oid));
END
$$;
COMMENT ON FUNCTION cerebro_internal._trainer_limit(name, name) IS
'The megabytes of private memory that each trainer of the current user and of the user of the session may take; NULL: '
'no limit.';

-- On its own, because each prediction asks for waiting_seconds, and the view on the limits also counts what is used.
CREATE OR REPLACE VIEW cerebro_internal._own_limits AS
SELECT COALESCE(own.max_running_runs, everybody.max_running_runs) AS running_runs,
       COALESCE(own.max_segments, everybody.max_segments) AS segments,
       COALESCE(own.max_state_bytes, everybody.max_state_bytes) AS state_bytes,
       COALESCE(own.max_run_seconds, everybody.max_run_seconds) AS run_seconds,
       COALESCE(own.min_free_connections, everybody.min_free_connections,
                GREATEST(3, current_setting('max_connections')::integer / 10)) AS free_connections,
       COALESCE(own.max_waiting_seconds, everybody.max_waiting_seconds, 60) AS waiting_seconds,
       COALESCE(own.max_predictors, everybody.max_predictors, 8) AS predictors
  FROM (VALUES (1)) one
  LEFT JOIN cerebro.role_limit own ON own.role = quote_ident(current_user)::regrole
  LEFT JOIN cerebro.role_limit everybody ON everybody.role::oid = 0;
COMMENT ON VIEW cerebro_internal._own_limits IS
'The limits of the current role, in one row; NULL: no limit.';

-- A run is checked against the same figures that users see here.
CREATE OR REPLACE VIEW cerebro.limits WITH (security_barrier) AS
WITH mine AS (
    SELECT o.*, cerebro_internal._trainer_limit(current_user, session_user) AS trainer_mb FROM cerebro_internal._own_limits o
), running AS (
    -- Not what the log says: its rows are the user's.
    SELECT count(*) AS runs, COALESCE(sum(segments), 0) AS segments,
           max(extract(epoch FROM clock_timestamp() - since)) AS seconds
      FROM cerebro_internal._driven_runs()
     WHERE owner = (SELECT quote_ident(current_user)::regrole::oid)
)
SELECT l.name, l.allowed::bigint AS allowed, l.used::bigint AS used, l.about
  FROM mine, running,
       LATERAL (VALUES
           ('running_runs', mine.running_runs, running.runs, 'your runs that are running'),
           ('segments', mine.segments, running.segments,
            'segments of your running runs; each segment has a trainer process'),
           ('state_bytes', mine.state_bytes,
            -- A subquery that stands alone: Greenplum's _state_size cannot be joined.
            (SELECT COALESCE(sum(bytes), 0) FROM cerebro_internal._state_size WHERE owner = current_user),
            'bytes of disk space for the model states of all your runs'),
           ('run_seconds', mine.run_seconds, COALESCE(running.seconds, 0),
            'seconds that a run may take from its start or its last resume'),
           ('connections',
            current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
                - COALESCE(current_setting('reserved_connections', true)::integer, 0) - mine.free_connections,
            (SELECT sum(numbackends) FROM pg_catalog.pg_stat_database),
            'connections to the whole server; a run takes one connection per segment and one more'),
           ('waiting_seconds', mine.waiting_seconds, NULL::numeric,
            'seconds for which worker sessions stay open for the next call of your session; 0: they end with the call'),
           ('trainer_mb', mine.trainer_mb, NULL::numeric,
            'megabytes of private memory that each trainer process of yours may take, without a GPU'),
           ('predictors', mine.predictors, NULL::numeric,
            'trainers that stay for your later sessions after they have predicted rows; 0: none')
       ) AS l (name, allowed, used, about);
COMMENT ON VIEW cerebro.limits IS
'What you may use of the server, and what you use now.';
COMMENT ON COLUMN cerebro.limits.name IS
'Name of the limit: running_runs, segments, state_bytes, run_seconds, connections, waiting_seconds, trainer_mb or predictors.';
COMMENT ON COLUMN cerebro.limits.allowed IS 'The most that you may use, in the unit that about names; NULL: no limit.';
COMMENT ON COLUMN cerebro.limits.used IS 'What is used now, in the same unit; NULL: not measured.';
COMMENT ON COLUMN cerebro.limits.about IS 'What the limit counts, and its unit.';

CREATE OR REPLACE FUNCTION cerebro.set_limits(
    role                 text    DEFAULT NULL,
    max_running_runs     integer DEFAULT NULL,
    max_segments         integer DEFAULT NULL,
    max_state_bytes      bigint  DEFAULT NULL,
    max_run_seconds      integer DEFAULT NULL,
    min_free_connections integer DEFAULT NULL,
    max_waiting_seconds  integer DEFAULT NULL,
    max_trainer_mb       integer DEFAULT NULL,
    max_predictors       integer DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF COALESCE(role, '') <> '' AND NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
        RAISE EXCEPTION 'cerebro.set_limits: there is no role %', quote_literal(left(role, 80)) USING
            ERRCODE = 'undefined_object',
            HINT = 'The limits of all roles that have none of their own are set with NULL.';
    END IF;
    DELETE FROM cerebro.role_limit l WHERE l.role = COALESCE(quote_ident(NULLIF(set_limits.role, '')), '-')::regrole;
    INSERT INTO cerebro.role_limit
           (role, max_running_runs, max_segments, max_state_bytes, max_run_seconds, min_free_connections,
            max_waiting_seconds, max_trainer_mb, max_predictors)
    VALUES (COALESCE(quote_ident(NULLIF(set_limits.role, '')), '-')::regrole, set_limits.max_running_runs,
            set_limits.max_segments,
            set_limits.max_state_bytes, set_limits.max_run_seconds, set_limits.min_free_connections,
            set_limits.max_waiting_seconds, set_limits.max_trainer_mb, set_limits.max_predictors);
END
$$;
COMMENT ON FUNCTION cerebro.set_limits(text, integer, integer, bigint, integer, integer, integer, integer, integer) IS
'Sets all limits of a role, replacing the limits that the role had. For cerebro_admin. The limits bound what runs use;
PostgreSQL itself limits the role''s own sessions.

- role: NULL sets the limits of every role that has none of its own. In the other arguments NULL means no limit of the
  role''s own.
- max_running_runs: runs at the same time.
- max_segments: segments of all running runs together.
- max_state_bytes: disk space for model states, in bytes.
- max_run_seconds: duration of a run, in seconds. A run that takes longer is cancelled and can be resumed.
- min_free_connections: connections that stay free for other users. Default: a tenth of max_connections, at least 3.
- max_waiting_seconds: how long the worker sessions of a call stay open, with their memory, for the next call of the
  same session, in seconds. Default: 60. They end at once when other users lack connections or memory.
- max_trainer_mb: private memory of each trainer process, in megabytes. A model that needs more fails, or its trainer
  ends. A trainer needs about 600 MB before it builds a model. Trainers that use a GPU are not limited, because drivers
  reserve far more than they use.
- max_predictors: trainers that stay in memory after their sessions, so that later sessions of the role get predictions
  at once. Each stays for max_waiting_seconds without a row to predict. Default: 8. 0: none stays.';

CREATE OR REPLACE FUNCTION cerebro_internal._forget_own(forgotten bigint, whose name) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Here the caller is not known any more, but only the owner of a run can have written this event.
    IF EXISTS (SELECT FROM cerebro.event
                WHERE run = forgotten AND pg_get_userbyid(owner) = whose AND event = 'forgotten') THEN
        PERFORM cerebro_internal._forget(forgotten, whose);
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro_internal._forget_own(bigint, name) IS
'Deletes the log and the model states of a run whose owner has recorded that it is to be forgotten. Called by '
'cerebro.forget().';

-- Anybody who may use the schema can make things that depend on a table in it: a function's argument may have the type of
-- its rows. As DROP TABLE does, this leaves out what goes with the table: its indexes, rules, policies, triggers.
CREATE OR REPLACE FUNCTION cerebro_internal._dependants(state_table oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE gone (classid, objid) AS (
        SELECT 'pg_class'::regclass::oid, $1
         UNION
        SELECT d.classid, d.objid
          FROM gone g JOIN pg_depend d ON d.refclassid = g.classid AND d.refobjid = g.objid
         WHERE d.deptype IN ('a', 'i', 'P', 'S')
    ), kept AS (
        SELECT DISTINCT d.classid, d.objid
          FROM gone g JOIN pg_depend d ON d.refclassid = g.classid AND d.refobjid = g.objid
         WHERE d.deptype = 'n' AND NOT EXISTS (SELECT FROM gone o WHERE o.classid = d.classid AND o.objid = d.objid)
    )
    SELECT left(string_agg(DISTINCT regexp_replace(
               CASE WHEN w.oid IS NULL THEN pg_describe_object(k.classid, k.objid, 0)
                    ELSE pg_describe_object('pg_class'::regclass, w.ev_class, 0) END
               || COALESCE(' of ' || quote_ident(pg_get_userbyid(COALESCE(r.relowner, f.proowner, t.typowner))), ''),
               '[[:cntrl:]]', '?', 'g'), ', '), 2000)
      FROM kept k
      LEFT JOIN pg_rewrite w ON k.classid = 'pg_rewrite'::regclass AND w.oid = k.objid
      LEFT JOIN pg_constraint c ON k.classid = 'pg_constraint'::regclass AND c.oid = k.objid
      LEFT JOIN pg_policy p ON k.classid = 'pg_policy'::regclass AND p.oid = k.objid
      LEFT JOIN pg_attrdef a ON k.classid = 'pg_attrdef'::regclass AND a.oid = k.objid
      LEFT JOIN pg_class r ON r.oid = COALESCE(w.ev_class, c.conrelid, p.polrelid, a.adrelid,
                                               CASE WHEN k.classid = 'pg_class'::regclass THEN k.objid END)
      LEFT JOIN pg_proc f ON k.classid = 'pg_proc'::regclass AND f.oid = k.objid
      LEFT JOIN pg_type t ON k.classid = 'pg_type'::regclass AND t.oid = k.objid
$$;
COMMENT ON FUNCTION cerebro_internal._dependants(oid) IS
'The objects that keep a state table from being dropped, in words; NULL: none. For cerebro_internal._forget().';

CREATE OR REPLACE FUNCTION cerebro_internal._forget(forgotten bigint, whose name) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    until    constant timestamptz := clock_timestamp()
                                     + COALESCE(NULLIF(current_setting('lock_timeout')::interval, '0'), '1 minute');
    stored   text;
    packed   text;
    states   oid[];
    beside   oid[]; -- the tables of the packed rows
    state    record;
    holder   record;
    kept     text;
    named    text;
    others   text;
BEGIN
    -- A user can write any text into the column storage. So a table is dropped only if it belongs to the owner of the
    -- run and has the name of a state table.
    SELECT storage INTO stored
      FROM cerebro.run
     WHERE run = forgotten AND pg_get_userbyid(owner) = whose AND storage ~ '^run_[0-9a-f]{12}$';
    -- With it go packed rows that nobody has named, if no other run of the owner was trained on them.
    SELECT (parse_ident(packed_table))[2] INTO packed
      FROM cerebro.run r
     WHERE run = forgotten AND pg_get_userbyid(owner) = whose
           AND packed_table ~ '^cerebro_data[.]([a-z_][a-z0-9_$]*|"([^"]|"")+")$'
           AND packed_table ~ '_packed(_[0-9]+)?"?$' -- else the user may have named it
           AND NOT EXISTS (SELECT FROM cerebro.run o
                            WHERE o.packed_table = r.packed_table AND o.owner = r.owner AND o.run <> r.run);
    -- The catalogs have a query of their own, because joined with a table, Greenplum would read them in another process,
    -- and with the fault that docs/operate.md#in-the-callers-own-session describes.
    states := ARRAY(
        SELECT c.oid
          FROM pg_class c
          JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'cerebro_state'
         WHERE c.relkind IN ('r', 'p') AND pg_get_userbyid(c.relowner) = whose
           AND c.relname ~ ('^' || stored || '_(shared_[01]|(frozen|given)_[0-9a-f]{16}|[0-9]+_([01]|best|replica_[0-9]+))$')
         ORDER BY c.oid);
    beside := ARRAY(
        SELECT c.oid
          FROM pg_class c
          JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'cerebro_data'
         WHERE c.relkind IN ('r', 'p') AND pg_get_userbyid(c.relowner) = whose
           AND c.relname IN (packed, packed || '_summary', packed || '_validation', packed || '_validation_summary')
         ORDER BY c.oid);
    -- Whoever uses a state is waited for here, because an error of DROP could not name the session.
    LOOP
        PERFORM pg_stat_clear_snapshot();
        SELECT l.pid, a.usename::text AS role, l.relation::regclass AS held INTO holder
          FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
         WHERE l.relation = ANY (states || beside) AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
           AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND (l.pid IS NULL OR a.pid IS NOT NULL) -- else it is a process of a segment of Greenplum
         LIMIT 1;
        EXIT WHEN NOT FOUND;
        IF clock_timestamp() > until THEN
            RAISE EXCEPTION 'cerebro.forget: a state of run % is in use: % holds a lock on %', forgotten,
                  COALESCE(format('session %s of role %s', holder.pid,
                                  regexp_replace(quote_ident(holder.role), '[[:cntrl:]]', '?', 'g')), 'a prepared transaction'),
                  holder.held
            USING ERRCODE = 'lock_not_available', HINT = 'Try again when its transaction has ended. The setting '
                  'lock_timeout says how long to wait; without it, a minute.';
        END IF;
        PERFORM pg_sleep(0.05);
    END LOOP;
    FOR state IN
        SELECT s.oid::regclass AS name, cerebro_internal._dependants(s.oid) AS dependants,
               c.relkind = 'r' AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.confrelid = s.oid
                                                                             AND k.conrelid <> s.oid) AS can_be_emptied
          FROM unnest(states) AS s (oid) JOIN pg_class c ON c.oid = s.oid
    LOOP
        IF state.dependants IS NULL THEN
            EXECUTE format('DROP TABLE %s', state.name);
            CONTINUE;
        END IF;
        -- Nobody's objects are dropped unasked. The table stays, without its rows. None of its triggers may run here.
        IF state.can_be_emptied THEN
            EXECUTE format('ALTER TABLE ONLY %s DISABLE TRIGGER ALL', state.name);
            EXECUTE format('TRUNCATE ONLY %s', state.name);
        END IF;
        kept := concat_ws('; ', kept, format('%s%s (%s)', state.name, CASE WHEN NOT state.can_be_emptied THEN ' with its rows' END,
                                             state.dependants));
    END LOOP;
    -- Packed rows are of use together only, so all of their tables go or none.
    SELECT string_agg(b.oid::regclass::text, ', ' ORDER BY b.oid),
           string_agg(DISTINCT cerebro_internal._dependants(b.oid), ', ')
      INTO named, others
      FROM unnest(beside) AS b (oid);
    IF others IS NOT NULL THEN
        RAISE WARNING 'cerebro.forget: run % is forgotten, but its packed rows stay, because other objects depend on them: %',
              forgotten, left(others, 4000)
        USING HINT = format('They belong to %I, and no run needs them any more: %s.', whose, named);
    ELSIF named IS NOT NULL THEN
        EXECUTE format('DROP TABLE %s', named);
    END IF;
    FOREACH named IN ARRAY ARRAY['request', 'heartbeat', 'decision', 'objective', 'attempt', 'evaluation', 'hop', 'event',
                                 'model', 'configuration', 'architecture', 'run']
    LOOP
        EXECUTE format('DELETE FROM cerebro.%I WHERE run = $1 AND pg_get_userbyid(owner) = $2', named)
          USING forgotten, whose;
    END LOOP;
    IF kept IS NOT NULL THEN
        RAISE WARNING 'cerebro.forget: run % is forgotten, but tables of its states stay, because other objects depend on them: %',
              forgotten, left(kept, 4000)
        USING HINT = format('Tables without the words "with its rows" are empty. %I can drop a table when nothing depends'
                            ' on it any more.', whose);
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro_internal._forget(bigint, name) IS
'Deletes the log and the model states of any user''s run. cerebro.forget() calls it for a member of cerebro_admin.';

-- sql/api/65_madlib.sql
-- What the functions of the extension cerebro_db_madlib call, beside the functions that users of cerebro call, too.

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_usage(name text, message text) RETURNS text
LANGUAGE plpython3u STABLE AS $py$
@cerebro@
return api.madlib_usage(plpy, name=name, message=message)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_usage(text, text) IS
'The help of a function of MADlib''s: a summary, or for the message usage its arguments, or for example an example.';

CREATE OR REPLACE FUNCTION cerebro_internal._hyperband_schedule(schedule_table text, r integer, eta integer, skip_last integer)
RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.hyperband_schedule(plpy, schedule_table=schedule_table, r=r, eta=eta, skip_last=skip_last)
$py$;
COMMENT ON FUNCTION cerebro_internal._hyperband_schedule(text, integer, integer, integer) IS
'Writes the rounds of a Hyperband search into a new table: bracket s, round i, configurations n_i, iterations r_i.';

CREATE OR REPLACE FUNCTION cerebro_internal._train_test_split(
    source_table           text,
    output_table           text,
    train_proportion       double precision,
    test_proportion        double precision,
    grouping_cols          text,
    target_cols            text,
    with_replacement       boolean,
    separate_output_tables boolean
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.train_test_split(plpy, source_table=source_table, output_table=output_table, train_proportion=train_proportion, test_proportion=test_proportion, grouping_cols=grouping_cols, target_cols=target_cols, with_replacement=with_replacement, separate_output_tables=separate_output_tables)
$py$;
COMMENT ON FUNCTION cerebro_internal._train_test_split(text, text, double precision, double precision, text, text, boolean, boolean) IS
'Draws the rows of a training and of a test table from a table, in each group in the same proportion.';

CREATE OR REPLACE FUNCTION cerebro_internal._gpu_texts(source text) RETURNS text[]
LANGUAGE plpython3u AS $py$
@cerebro@
return api.gpu_texts(plpy, source=source)
$py$;
COMMENT ON FUNCTION cerebro_internal._gpu_texts(text) IS
'The GPUs of the host on which the function runs, described as TensorFlow or as nvidia-smi would (source).';

CREATE OR REPLACE FUNCTION cerebro_internal._gpu_configuration(output_table text, source text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.gpu_configuration(plpy, output_table=output_table, source=source)
$py$;
COMMENT ON FUNCTION cerebro_internal._gpu_configuration(text, text) IS
'Writes the GPUs of every host into a new table: hostname and gpu_descr.';

-- The query of the elements in their order becomes, dimension by dimension from the last, a query of arrays.
CREATE OR REPLACE FUNCTION cerebro_internal._array_product(x anyarray, k anyelement) RETURNS anyarray
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    query  text := 'SELECT e OPERATOR(pg_catalog.*) coalesce($2, e) AS v, n - 1 AS n'
                   ' FROM pg_catalog.unnest($1) WITH ORDINALITY AS u (e, n)';
    size   integer;
    result x%TYPE := x;
BEGIN
    IF pg_catalog.array_ndims(x) IS NULL THEN
        RETURN x;
    END IF;
    FOR place IN REVERSE pg_catalog.array_ndims(x)..1 LOOP
        size := pg_catalog.array_length(x, place);
        query := pg_catalog.format('SELECT pg_catalog.array_agg(v ORDER BY n) AS v, n / %s AS n FROM (%s) q'
                                   ' GROUP BY n / %s', size, query, size);
    END LOOP;
    EXECUTE 'SELECT v FROM (' || query || ') q' INTO result USING x, k;
    RETURN result;
END
$$;
COMMENT ON FUNCTION cerebro_internal._array_product(anyarray, anyelement) IS
'The array with each element multiplied by k, or by itself if k is NULL. The dimensions stay.';

-- The functions of the same names without _madlib_, as MADlib has them.

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_training_preprocessor_dl(
    source_table        text,
    output_table        text,
    dependent_varname   text,
    independent_varname text,
    buffer_size         integer,
    normalizing_const   real,
    num_classes         integer[],
    distribution_rules  text
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_training_preprocessor_dl(plpy, source_table=source_table, output_table=output_table, dependent_varname=dependent_varname, independent_varname=independent_varname, buffer_size=buffer_size, normalizing_const=normalizing_const, num_classes=num_classes, distribution_rules=distribution_rules)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_training_preprocessor_dl(text, text, text, text, integer, real, integer[], text) IS
'training_preprocessor_dl as MADlib has it: numbers to predict are classes, NULL is a class, inputs become float32.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_validation_preprocessor_dl(
    source_table                text,
    output_table                text,
    dependent_varname           text,
    independent_varname         text,
    training_preprocessor_table text,
    buffer_size                 integer,
    distribution_rules          text
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_validation_preprocessor_dl(plpy, source_table=source_table, output_table=output_table, dependent_varname=dependent_varname, independent_varname=independent_varname, training_preprocessor_table=training_preprocessor_table, buffer_size=buffer_size, distribution_rules=distribution_rules)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_validation_preprocessor_dl(text, text, text, text, text, integer, text) IS
'validation_preprocessor_dl as MADlib has it: labels may be NULL if some of the training table are, or vectors of as many '
'classes.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_load_keras_model(
    keras_model_arch_table text, model_arch json, model_weights bytea, name text, description text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_load_keras_model(plpy, keras_model_arch_table=keras_model_arch_table, model_arch=model_arch, model_weights=model_weights, name=name, description=description)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_load_keras_model(text, json, bytea, text, text) IS
'load_keras_model as MADlib has it: any JSON and any weights are stored, and checked when they are used.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_delete_keras_model(keras_model_arch_table text, model_id integer)
RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_delete_keras_model(plpy, keras_model_arch_table=keras_model_arch_table, model_id=model_id)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_delete_keras_model(text, integer) IS
'delete_keras_model as MADlib has it: drops the table with its last architecture.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_load_model_selection_table(
    model_arch_table      text,
    model_selection_table text,
    model_id_list         integer[],
    compile_params_list   text[],
    fit_params_list       text[],
    object_table          text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_load_model_selection_table(plpy, model_arch_table=model_arch_table, model_selection_table=model_selection_table, model_id_list=model_id_list, compile_params_list=compile_params_list, fit_params_list=fit_params_list, object_table=object_table)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_load_model_selection_table(text, text, integer[], text[], text[], text) IS
'load_model_selection_table as MADlib has it: fit parameters may have a callback TensorBoard, which has no effect.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_generate_model_configs(
    model_arch_table      text,
    model_selection_table text,
    model_id_list         integer[],
    compile_params_grid   text,
    fit_params_grid       text,
    search_type           text,
    num_configs           integer,
    random_state          integer,
    object_table          text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_generate_model_configs(plpy, model_arch_table=model_arch_table, model_selection_table=model_selection_table, model_id_list=model_id_list, compile_params_grid=compile_params_grid, fit_params_grid=fit_params_grid, search_type=search_type, num_configs=num_configs, random_state=random_state, object_table=object_table)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_generate_model_configs(text, text, integer[], text, text, text, integer, integer, text) IS
'generate_model_configs as MADlib has it: a selection table whose summary is gone gets a new one, and fit '
'parameters may have a callback TensorBoard, which has no effect.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_fit_multiple_model(
    source_table              text,
    model_output_table        text,
    model_selection_table     text,
    num_iterations            integer,
    use_gpus                  boolean DEFAULT false,
    validation_table          text    DEFAULT NULL,
    metrics_compute_frequency integer DEFAULT NULL,
    warm_start                boolean DEFAULT false,
    name                      text    DEFAULT NULL,
    description               text    DEFAULT NULL,
    use_caching               boolean DEFAULT true
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_fit_multiple_model(plpy, source_table=source_table, model_output_table=model_output_table, model_selection_table=model_selection_table, num_iterations=num_iterations, use_gpus=use_gpus, validation_table=validation_table, metrics_compute_frequency=metrics_compute_frequency, warm_start=warm_start, name=name, description=description, use_caching=use_caching)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_fit_multiple_model(text, text, text, integer, boolean, text, integer, boolean, text, text, boolean) IS
'madlib_fit_multiple_model as MADlib has it: the tables have the names of tables, losses and metrics as they were written.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_evaluate(
    model_table  text,
    test_table   text,
    output_table text,
    use_gpus     boolean DEFAULT false,
    mst_key      integer DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_keras_evaluate(plpy, model_table=model_table, test_table=test_table, output_table=output_table, use_gpus=use_gpus, mst_key=mst_key)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_evaluate(text, text, text, boolean, integer) IS
'Computes the loss and the metric of a trained model on a packed table, on all of its segments at the same time.
output_table receives one row.

- mst_key: the model to evaluate, where model_table contains several.';

-- Ids are on their way as texts, which have to be the very same values when they are read.
CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_predict(
    model_table         text,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           text    DEFAULT 'prob',
    use_gpus            boolean DEFAULT false,
    mst_key             integer DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict(plpy, model_table=model_table, test_table=test_table, id_col=id_col, independent_varname=independent_varname, output_table=output_table, pred_type=pred_type, use_gpus=use_gpus, mst_key=mst_key)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_predict(text, text, text, text, text, text, boolean, integer) IS
'Predicts with a trained model for the rows of a table or view, which need not be packed. output_table receives the
predictions with the values of id_col. A regression model writes one column estimated_<name> per dependent variable.

- independent_varname: the input columns, separated by commas. NULL, for a model trained on what cerebro.pack packed:
  the columns that have the names of the training columns. They are prepared as in training.
- pred_type: prob writes all classes of each row, with probability and rank. response writes the most probable class
  only.
- mst_key: the model to predict with, where model_table contains several.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_predict(
    model_table         text,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           integer,
    use_gpus            boolean DEFAULT false,
    mst_key             integer DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict(plpy, model_table=model_table, test_table=test_table, id_col=id_col, independent_varname=independent_varname, output_table=output_table, pred_type=pred_type, use_gpus=use_gpus, mst_key=mst_key)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_predict(text, text, text, text, text, integer, boolean, integer) IS
'As madlib_keras_predict with pred_type prob, but for each row only the pred_type most probable classes.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_predict(
    model_table         text,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           double precision,
    use_gpus            boolean DEFAULT false,
    mst_key             integer DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict(plpy, model_table=model_table, test_table=test_table, id_col=id_col, independent_varname=independent_varname, output_table=output_table, pred_type=pred_type, use_gpus=use_gpus, mst_key=mst_key)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_predict(text, text, text, text, text, double precision, boolean, integer) IS
'As madlib_keras_predict with pred_type prob, but only the classes whose probability is above pred_type (0.0 to 1.0).';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_predict_byom(
    model_arch_table    text,
    model_id            integer,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           text,
    use_gpus            boolean,
    class_values        text[],
    normalizing_const   double precision,
    dependent_count     integer
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict_byom(plpy, model_arch_table=model_arch_table, model_id=model_id, test_table=test_table, id_col=id_col, independent_varname=independent_varname, output_table=output_table, pred_type=pred_type, use_gpus=use_gpus, class_values=class_values, normalizing_const=normalizing_const, dependent_count=dependent_count)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_predict_byom(text, integer, text, text, text, text, text, boolean, text[], double precision, integer) IS
'Predicts with an architecture and weights of a table of architectures: madlib_keras_predict_byom.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_predict_byom(
    model_arch_table    text,
    model_id            integer,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           integer,
    use_gpus            boolean,
    class_values        text[],
    normalizing_const   double precision,
    dependent_count     integer
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict_byom(plpy, model_arch_table=model_arch_table, model_id=model_id, test_table=test_table, id_col=id_col, independent_varname=independent_varname, output_table=output_table, pred_type=pred_type, use_gpus=use_gpus, class_values=class_values, normalizing_const=normalizing_const, dependent_count=dependent_count)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_predict_byom(text, integer, text, text, text, text, integer, boolean, text[], double precision, integer) IS
'Predicts with an architecture and weights of a table of architectures: madlib_keras_predict_byom.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_predict_byom(
    model_arch_table    text,
    model_id            integer,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           double precision,
    use_gpus            boolean,
    class_values        text[],
    normalizing_const   double precision,
    dependent_count     integer
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict_byom(plpy, model_arch_table=model_arch_table, model_id=model_id, test_table=test_table, id_col=id_col, independent_varname=independent_varname, output_table=output_table, pred_type=pred_type, use_gpus=use_gpus, class_values=class_values, normalizing_const=normalizing_const, dependent_count=dependent_count)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_predict_byom(text, integer, text, text, text, text, double precision, boolean, text[], double precision, integer) IS
'Predicts with an architecture and weights of a table of architectures: madlib_keras_predict_byom.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_fit(
    source_table              text,
    model                     text,
    model_arch_table          text,
    model_id                  integer,
    compile_params            text,
    fit_params                text,
    num_iterations            integer,
    use_gpus                  boolean,
    validation_table          text,
    metrics_compute_frequency integer,
    warm_start                boolean,
    name                      text,
    description               text,
    object_table              text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_keras_fit(plpy, source_table=source_table, model=model, model_arch_table=model_arch_table, model_id=model_id, compile_params=compile_params, fit_params=fit_params, num_iterations=num_iterations, use_gpus=use_gpus, validation_table=validation_table, metrics_compute_frequency=metrics_compute_frequency, warm_start=warm_start, name=name, description=description, object_table=object_table)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_fit(text, text, text, integer, text, text, integer, boolean, text, integer, boolean, text, text, text) IS
'Trains one model, as a run with one configuration; its table has one row, and its summary the contents of MADlib''s.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_automl(
    source_table              text,
    model_output_table        text,
    model_arch_table          text,
    model_selection_table     text,
    model_id_list             integer[],
    compile_params_grid       text,
    fit_params_grid           text,
    automl_method             text,
    automl_params             text,
    random_state              integer,
    object_table              text,
    use_gpus                  boolean,
    validation_table          text,
    metrics_compute_frequency integer,
    name                      text,
    description               text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_keras_automl(plpy, source_table=source_table, model_output_table=model_output_table, model_arch_table=model_arch_table, model_selection_table=model_selection_table, model_id_list=model_id_list, compile_params_grid=compile_params_grid, fit_params_grid=fit_params_grid, automl_method=automl_method, automl_params=automl_params, random_state=random_state, object_table=object_table, use_gpus=use_gpus, validation_table=validation_table, metrics_compute_frequency=metrics_compute_frequency, name=name, description=description)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_automl(text, text, text, text, integer[], text, text, text, text, integer, text, boolean, text, integer, text, text) IS
'A search by MADlib''s Hyperband or hyperopt, as a run; its tables have the contents of MADlib''s, and the selection table has '
'the best configuration.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_object_table(name text, schema text) RETURNS text
LANGUAGE plpython3u STABLE AS $py$
@cerebro@
return api.madlib_object_table(plpy, name=name, schema=schema)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_object_table(text, text) IS
'The name of a table of custom functions, with this schema if it has none.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_load_custom_function(
    object_table text, object bytea, name text, description text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_load_custom_function(plpy, object_table=object_table, object=object, name=name, description=description)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_load_custom_function(text, bytea, text, text) IS
'Registers a custom function from its source text, and lists it in a table as MADlib has it. For cerebro_admin. Pickled '
'objects are refused.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_delete_custom_function(object_table text, id integer, name text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_delete_custom_function(plpy, object_table=object_table, id=id, name=name)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_delete_custom_function(text, integer, text) IS
'Retires the custom function with this id, or else this name, and deletes it from a table as MADlib has it. For '
'cerebro_admin.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_load_top_k_accuracy_function(object_table text, k integer) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_load_top_k_accuracy_function(plpy, object_table=object_table, k=k)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_load_top_k_accuracy_function(text, integer) IS
'Lists the metric top_<k>_accuracy, which is built in, in a table as MADlib has it.';

CREATE OR REPLACE FUNCTION cerebro.convert_madlib_table(table_name text, packed_table text DEFAULT NULL) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.convert_madlib_table(plpy, table_name=table_name, packed_table=packed_table)
$py$;
COMMENT ON FUNCTION cerebro.convert_madlib_table(text, text) IS
$doc$Makes a table that Apache MADlib has made usable here, and says what it did.

A packed table is copied, buffer by buffer as it is, into a table of the same name; MADlib's table gets the ending _madlib.
The summary of a model table (of madlib_keras_fit, madlib_keras_fit_multiple_model or madlib_keras_automl) gets further
columns; the weights stay as they are. Tables of architectures and model selection tables need no conversion.

- table_name: the table; its summary has the ending _summary.
- packed_table: for a model table, the packed table that the models were trained on. It must have been converted or packed
  here. For a packed table, NULL.

SELECT cerebro.convert_madlib_table('iris_train_packed');
SELECT cerebro.convert_madlib_table('iris_model', 'iris_train_packed');$doc$;

-- MADlib's functions for the bytes of packed tables. They copy bytes, because PL/Python would make an object of each number
-- and hear no cancel meanwhile.
CREATE OR REPLACE FUNCTION cerebro_internal._convert_array_to_bytea(var real[]) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN cerebro_internal._element_bytes(var, 'convert_array_to_bytea');
END
$$;
COMMENT ON FUNCTION cerebro_internal._convert_array_to_bytea(real[]) IS
'Converts an array to bytes: little-endian float32 values in C order.';

CREATE OR REPLACE FUNCTION cerebro_internal._convert_array_to_bytea(var smallint[]) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN cerebro_internal._element_bytes(var, 'convert_array_to_bytea');
END
$$;
COMMENT ON FUNCTION cerebro_internal._convert_array_to_bytea(smallint[]) IS
'Converts an array to bytes: little-endian int16 values in C order.';

-- Where the elements begin is in the second word of the array, which counts four bytes more; it is 0 for an array without
-- a map of NULLs, whose header is three words, then the size and the lower bound of each dimension.
CREATE OR REPLACE FUNCTION cerebro_internal._element_bytes(elements anyarray, function text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    bytes bytea := cerebro_internal._array_bytes(elements);
    start integer := 0;
BEGIN
    FOR place IN REVERSE 7..4 LOOP
        start := 256 * start + pg_catalog.get_byte(bytes, place);
    END LOOP;
    IF start = 0 THEN
        RETURN pg_catalog.substring(bytes, 13 + 8 * COALESCE(pg_catalog.array_ndims(elements), 0));
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.unnest(elements) AS u (e) WHERE e IS NULL) THEN
        RAISE EXCEPTION '%: an element is NULL.', function
            USING ERRCODE = 'null_value_not_allowed', HINT = 'coalesce() or array_remove() can help.';
    END IF;
    RETURN pg_catalog.substring(bytes, start - 3);
END
$$;
COMMENT ON FUNCTION cerebro_internal._element_bytes(anyarray, text) IS
'The bytes of an array''s elements, in the byte order of the machine. function: what an error names.';

CREATE OR REPLACE FUNCTION cerebro_internal._convert_bytea_to_real_array(var bytea) RETURNS real[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    PERFORM cerebro_internal._require_whole(var, 4);
    RETURN cerebro_internal._reals(var);
END
$$;
COMMENT ON FUNCTION cerebro_internal._convert_bytea_to_real_array(bytea) IS
'Converts little-endian float32 values to an array with one dimension.';

CREATE OR REPLACE FUNCTION cerebro_internal._convert_bytea_to_smallint_array(var bytea) RETURNS smallint[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    PERFORM cerebro_internal._require_whole(var, 2);
    RETURN cerebro_internal._smallints(var);
END
$$;
COMMENT ON FUNCTION cerebro_internal._convert_bytea_to_smallint_array(bytea) IS
'Converts little-endian int16 values to an array with one dimension.';

CREATE OR REPLACE FUNCTION cerebro_internal._require_whole(bytes bytea, size integer) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF COALESCE(size < 1, true) THEN
        RAISE EXCEPTION 'size must be at least 1, not %', size USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF pg_catalog.octet_length(bytes) % size <> 0 THEN
        RAISE EXCEPTION 'convert_bytea: % bytes are not a whole number of values of % bytes.',
                        pg_catalog.octet_length(bytes), size
            USING ERRCODE = 'data_exception', HINT = 'Convert the bytes of one variable of one buffer.';
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro_internal._require_whole(bytea, integer) IS
'Raises an error unless the bytes are a whole number of values of this size.';

-- sql/api/70_doctor.sql
-- Looking after the installation.

CREATE OR REPLACE FUNCTION cerebro.warm_up(engine text DEFAULT NULL) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.warm_up(plpy, engine=engine)
$py$;
COMMENT ON FUNCTION cerebro.warm_up(text) IS
'Has every server import a framework now, so that the next call starts its trainers in an instant, and returns at
once. Packing a table does the same, and so does a call that trains, on PostgreSQL. Frameworks that nobody uses are
dropped after half an hour, or after the seconds that keep_ready in install.json says.

- engine: tensorflow, jax or torch. NULL: the default engine, which is tensorflow if it is installed, and else jax.';

CREATE OR REPLACE FUNCTION cerebro.doctor(segments integer DEFAULT NULL)
RETURNS TABLE (component text, check_name text, status text, found text, advice text)
LANGUAGE plpython3u AS $py$
@cerebro@
return api.doctor(plpy, segments=segments)
$py$;
COMMENT ON FUNCTION cerebro.doctor(integer) IS
'Checks the installation, the roles, the worker logins, and a trainer on every segment. Returns one row per check:
status is ok, warning or problem, found says what was found, advice says what to do. Takes some seconds, because it
starts trainers.

- segments: number of segments to check. NULL: all segments.';

-- sql/api/80_greenplum.sql
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

    -- It runs queries of its own. In a query that joins its rows with a table, Greenplum would run it in a process that
    -- cannot; as an initial plan it runs before the query, in the caller's session. Greenplum 7.0.0 takes the columns of
    -- an initial plan for one another, or crashes, if the query does not use all of them in their order. So the function
    -- that has the body of predict has one column, and OFFSET keeps the planner from computing in its place.
    EXECUTE pg_catalog.format($sql$
        CREATE OR REPLACE FUNCTION cerebro_internal._predictions(
            model_table text, query text, key text, configuration integer, top integer, coverage double precision,
            calibrated boolean, thresholds boolean, probability_of text)
        RETURNS SETOF text EXECUTE ON INITPLAN
        LANGUAGE sql
        SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $f$
        SELECT pg_catalog.row_to_json(p)::text
          FROM (%s) p (key_value, target, value, class, probability, rank, lower, upper, forecast_for)
        $f$
    $sql$, (SELECT prosrc FROM pg_catalog.pg_proc
             WHERE oid = 'cerebro.predict(text, text, text, integer, integer, double precision, boolean, boolean, text)'::regprocedure));
    EXECUTE $sql$COMMENT ON FUNCTION cerebro_internal._predictions(text, text, text, integer, integer, double precision, boolean, boolean, text) IS
        'The predictions for the rows of a query, as JSON.'$sql$;
    -- STABLE and without settings, it becomes a part of the query that calls it.
    EXECUTE $sql$
        CREATE OR REPLACE FUNCTION cerebro.predict(
            model_table text, query text, key text DEFAULT NULL, configuration integer DEFAULT NULL,
            top integer DEFAULT 1, coverage double precision DEFAULT NULL, calibrated boolean DEFAULT NULL,
            thresholds boolean DEFAULT false, probability_of text DEFAULT NULL
        ) RETURNS TABLE (key_value text, target text, value double precision, class text, probability double precision,
                         rank integer, lower double precision, upper double precision, forecast_for text)
        LANGUAGE sql STABLE AS $f$
        SELECT j ->> 'key_value', j ->> 'target', (j ->> 'value')::double precision, j ->> 'class',
               (j ->> 'probability')::double precision, (j ->> 'rank')::integer,
               (j ->> 'lower')::double precision, (j ->> 'upper')::double precision, j ->> 'forecast_for'
          FROM (SELECT line::json AS j
                  FROM (SELECT p AS line FROM cerebro_internal._predictions($1, $2, $3, $4, $5, $6, $7, $8, $9) p OFFSET 0) l) r
        $f$
    $sql$;

    -- What judges a model has the same needs. Its body goes to a function of its own, whose rows another one returns as JSON.
    FOR judging IN
        SELECT p.proname AS name, pg_catalog.pg_get_functiondef(p.oid) AS definition,
               pg_catalog.pg_get_function_arguments(p.oid) AS declared,
               pg_catalog.pg_get_function_identity_arguments(p.oid) AS arguments,
               pg_catalog.pg_get_function_result(p.oid) AS result,
               (SELECT pg_catalog.string_agg('$' || n, ', ' ORDER BY n)
                  FROM pg_catalog.generate_series(1, p.pronargs) n) AS given,
               (SELECT pg_catalog.string_agg(pg_catalog.format('(j ->> %L)::%s', c.name, c.type::regtype), ', ' ORDER BY place)
                  FROM ROWS FROM (unnest(p.proargnames), unnest(p.proargmodes), unnest(p.proallargtypes))
                       WITH ORDINALITY AS c (name, mode, type, place)
                 WHERE c.mode = 't') AS columns
          FROM pg_catalog.pg_proc p
         WHERE p.pronamespace = 'cerebro'::regnamespace
           AND p.proname IN ('evaluate', 'confusion_matrix', 'class_metrics', 'roc_curve', 'precision_recall', 'calibration', 'residuals',
                             'mistakes', 'importance', 'explain', 'drift', 'prepared_columns')
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

-- sql/api/90_grants.sql
-- Who may use what.  PUBLIC has no rights. Functions that only the server itself calls are granted to no user.
-- tests/sql/rights/privileges.txt is the complete matrix; a test compares it with the database.

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA cerebro, cerebro_internal FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA cerebro, cerebro_internal FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA cerebro, cerebro_internal FROM PUBLIC;
REVOKE ALL ON TYPE cerebro_internal._chunk, cerebro_internal._prediction FROM PUBLIC;

-- Users insert and read rows about their own runs; row-level security keeps them from other rows. Nobody needs UPDATE,
-- and only cerebro_internal._forget() needs DELETE.
GRANT SELECT, INSERT
   ON cerebro.run, cerebro.architecture, cerebro.configuration, cerebro.model, cerebro.event, cerebro.attempt,
      cerebro.hop, cerebro.evaluation, cerebro.objective, cerebro.decision, cerebro.heartbeat, cerebro.request,
      cerebro.added_architecture, cerebro.added_weights
   TO cerebro_user;
GRANT USAGE ON SEQUENCE cerebro.run_id, cerebro.event_id, cerebro.decision_id, cerebro.request_id TO cerebro_user;
GRANT USAGE ON TYPE cerebro_internal._chunk, cerebro_internal._prediction TO cerebro_user;

GRANT SELECT
   ON cerebro.run_plan, cerebro.runs, cerebro.models, cerebro.learning_curve, cerebro.leaderboard, cerebro.parameters, cerebro.cross_validation, cerebro.groups, cerebro.metrics,
      cerebro.run_progress,
      cerebro.decisions, cerebro.requests, cerebro.hop_timeline, cerebro.segments_now, cerebro.run_time, cerebro.custom_functions, cerebro.custom_function
   TO cerebro_user, cerebro_monitor;
GRANT SELECT ON cerebro_internal._own_limits, cerebro.limits, cerebro.architectures TO cerebro_user;

-- The registry's own role writes its history, and nobody updates it: UPDATE of a description is for the lock on a model.
GRANT USAGE ON SCHEMA cerebro, cerebro_internal TO cerebro_registry;
GRANT SELECT, INSERT, UPDATE (description) ON cerebro.registered_model TO cerebro_registry;
GRANT SELECT, INSERT ON cerebro.registry_event TO cerebro_registry;
GRANT SELECT ON cerebro_internal._alias_now, cerebro_internal._right_now TO cerebro_registry;
GRANT USAGE ON SEQUENCE cerebro.registry_event_id TO cerebro_registry;
GRANT SELECT ON cerebro_internal._my_registered, cerebro.registered_models, cerebro.registered_versions,
      cerebro.registered_aliases, cerebro.registered_rights, cerebro.registry_history
   TO cerebro_user;

-- Administrators register functions and set limits. The database fills in registered_by, registered_at, set_by and
-- set_at, so these columns are not granted.
GRANT INSERT (name, version, kind, source, sha256, description) ON cerebro.custom_function TO cerebro_admin;
GRANT SELECT, DELETE ON cerebro.role_limit TO cerebro_admin;
GRANT INSERT (role, max_running_runs, max_segments, max_state_bytes, max_run_seconds, min_free_connections,
              max_waiting_seconds, max_trainer_mb, max_predictors)
   ON cerebro.role_limit TO cerebro_admin;

GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA cerebro, cerebro_internal TO cerebro_user;
REVOKE ALL ON FUNCTION cerebro_internal._enrol(oid, text), cerebro_internal._close_login(name),
                       cerebro_internal._note_run(name, bigint, integer), cerebro_internal._drop_worker_roles(),
                       cerebro_internal._setup_logins(), cerebro_internal._bytes_array(bytea),
                       cerebro_internal._bytes_smallints(bytea), cerebro_internal._dependants(oid)
  FROM cerebro_user;
GRANT EXECUTE ON FUNCTION cerebro_internal._enrol(oid, text), cerebro_internal._close_login(name),
                          cerebro_internal._note_run(name, bigint, integer)
   TO cerebro_enrol;
GRANT EXECUTE ON FUNCTION cerebro_internal._sessions(), cerebro_internal._models(),
                          cerebro_internal._run_no_strangers_code(oid[]), cerebro_internal._code_folder() TO cerebro_monitor;
GRANT EXECUTE ON FUNCTION cerebro_internal._code_folder() TO cerebro_registry;
REVOKE ALL ON FUNCTION cerebro.add_custom_function(text, text, text, text), cerebro.drop_custom_function(text),
                       cerebro_internal._forget(bigint, name),
                       cerebro.set_limits(text, integer, integer, bigint, integer, integer, integer, integer, integer)
  FROM cerebro_user;
GRANT EXECUTE ON FUNCTION cerebro.add_custom_function(text, text, text, text), cerebro.drop_custom_function(text),
                          cerebro_internal._forget(bigint, name),
                          cerebro.set_limits(text, integer, integer, bigint, integer, integer, integer, integer, integer)
   TO cerebro_admin;

-- The password is computed from a secret of the server, so repeating this keeps the login working.
SELECT cerebro_internal._setup_logins();

-- sql/api/92_bi.sql
-- The views of the schema cerebro_bi.  Each has the name, the columns, the comments and the readers of a view of the schema
-- cerebro, and no other types than those below: BI tools cannot group or filter by JSON and arrays, and some know no name.
-- Documents, arrays and names are texts here.
--
-- They are made from the catalog, so a new view needs nothing here. They read the views of the schema cerebro, which say
-- who sees which rows. A migration that drops a view of the schema cerebro drops this one before.

DO $bi$
DECLARE
    scalar CONSTANT regtype[] := ARRAY['smallint', 'integer', 'bigint', 'double precision', 'text', 'boolean', 'timestamptz'];
    shown  record;
    told   record;
    reader name;
BEGIN
    FOR shown IN
        SELECT c.oid, c.relname AS name, obj_description(c.oid, 'pg_class') AS comment,
               string_agg(format(CASE WHEN a.atttypid = ANY (scalar) THEN '%1$I'
                                      WHEN t.typcategory = 'A' THEN 'array_to_string(%1$I, '', '') AS %1$I'
                                      ELSE '%1$I::text AS %1$I' END, a.attname), ', ' ORDER BY a.attnum) AS columns
          FROM pg_class c
          JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
          JOIN pg_type t ON t.oid = a.atttypid
         WHERE c.relnamespace = 'cerebro'::regnamespace AND c.relkind = 'v'
         GROUP BY c.oid, c.relname
    LOOP
        EXECUTE format('CREATE OR REPLACE VIEW cerebro_bi.%1$I WITH (security_barrier) AS SELECT %2$s FROM cerebro.%1$I',
                       shown.name, shown.columns);
        EXECUTE format('COMMENT ON VIEW cerebro_bi.%I IS %L', shown.name, shown.comment);
        FOR told IN
            SELECT attname AS name, col_description(attrelid, attnum) AS comment
              FROM pg_attribute
             WHERE attrelid = shown.oid AND attnum > 0 AND NOT attisdropped
        LOOP
            EXECUTE format('COMMENT ON COLUMN cerebro_bi.%I.%I IS %L', shown.name, told.name, told.comment);
        END LOOP;
        EXECUTE format('REVOKE ALL ON cerebro_bi.%I FROM PUBLIC', shown.name);
        FOREACH reader IN ARRAY ARRAY['cerebro_user', 'cerebro_monitor']
        LOOP
            IF has_table_privilege(reader, shown.oid, 'SELECT') THEN
                EXECUTE format('GRANT SELECT ON cerebro_bi.%I TO %I', shown.name, reader);
            END IF;
        END LOOP;
    END LOOP;
END
$bi$;

-- sql/api/95_greenplum_calls.sql
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
-- bodies, look themselves whether they were called like that, and refuse it (database/entry.py).

DO $greenplum$
DECLARE
    direct      CONSTANT name[] := ARRAY['_worker_open', '_worker_close', '_data_in', '_state_in', '_state_out', '_work',
                                         '_predict', '_gpus', '_gpu_texts', '_warm_up', '_hold', '_as_registry'];
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
        return api.elsewhere(plpy, called=called, arguments=arguments, caller=caller)
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

