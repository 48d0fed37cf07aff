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
COMMENT ON FUNCTION cerebro_internal._enrol(@types@) IS
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
COMMENT ON FUNCTION cerebro_internal._close_login(@types@) IS
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
COMMENT ON FUNCTION cerebro_internal._note_run(@types@) IS
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
COMMENT ON FUNCTION cerebro_internal._close_cursor(@types@) IS
'Closes a cursor that our functions have opened in this session.';

-- What a worker session calls on its segment.  Each function acts for its caller, and can use only what belongs to the
-- session that calls it: no argument is a path or a credential.

CREATE OR REPLACE FUNCTION cerebro_internal._warm_up(engine text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.warm_up_here(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._warm_up(@types@) IS
'Has the server of this segment import an engine, and does not wait for that.';

CREATE OR REPLACE FUNCTION cerebro_internal._worker_open(settings jsonb) RETURNS jsonb
LANGUAGE plpython3u AS $py$
@cerebro@
return api.worker_open(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._worker_open(@types@) IS
'Starts the trainer of this session, or describes the one that is running.';

CREATE OR REPLACE FUNCTION cerebro_internal._data_in(handle text, variable text, payload bytea) RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.data_in(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._data_in(@types@) IS
'Adds one variable of one packed buffer to the row cache of this session.';

CREATE OR REPLACE FUNCTION cerebro_internal._state_in(state text, start bigint, payload bytea) RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.state_in(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._state_in(@types@) IS
'Adds one chunk to a model state that this session is receiving.';

CREATE OR REPLACE FUNCTION cerebro_internal._work(work text) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.work(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._work(@types@) IS
'Carries out one order of the driver, with the trainer of this session where the order is for it, and listens for a '
'cancel meanwhile.';

CREATE OR REPLACE FUNCTION cerebro_internal._state_out(visit integer, index integer) RETURNS SETOF cerebro_internal._chunk
LANGUAGE plpython3u AS $py$
@cerebro@
return api.state_out(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._state_out(@types@) IS
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
