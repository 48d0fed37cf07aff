-- Worker sessions: how the server logs in to itself as one of its users, and what such a session calls on its segment.
-- docs/security.md describes the rights of each login.

CREATE OR REPLACE FUNCTION cerebro._enrol(owner name, verifier text) RETURNS name
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known  record;
    worker name;
    other  record;
BEGIN
    IF COALESCE(verifier !~ '^SCRAM-SHA-256[$]', true) THEN
        RAISE EXCEPTION 'this is no SCRAM verifier' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- One login of a user at a time, from any database: two sessions that make or alter a role at once would fail. Nobody
    -- but the user and administrators can lock this row.
    SELECT oid, rolcanlogin AND COALESCE(rolvaliduntil > clock_timestamp(), true) AS may_log_in
      INTO known FROM pg_authid WHERE rolname = owner FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'role "%" does not exist', owner USING ERRCODE = 'undefined_object';
    END IF;
    worker := 'cerebro_w_' || known.oid;
    -- A login whose end is not committed yet has this lock (cerebro._close_login).
    PERFORM FROM pg_authid WHERE rolname = worker FOR UPDATE;
    IF NOT FOUND THEN
        EXECUTE format('CREATE ROLE %I', worker);
    END IF;
    IF NOT known.may_log_in THEN
        EXECUTE format('ALTER ROLE %I NOLOGIN PASSWORD NULL', worker);
        RETURN NULL;
    END IF;
    -- Whatever attributes, settings and memberships a role of this name had before, it now has exactly these.
    EXECUTE format('ALTER ROLE %I LOGIN INHERIT NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS'
                   ' CONNECTION LIMIT -1 VALID UNTIL %L PASSWORD %L',
                   worker, clock_timestamp() + interval '30 seconds', verifier);
    FOR other IN SELECT d.datname AS database
                   FROM pg_db_role_setting s
                   JOIN pg_roles w ON w.oid = s.setrole
                   LEFT JOIN pg_database d ON d.oid = s.setdatabase
                  WHERE w.rolname = worker
                    -- On Greenplum the role sets itself to begin as its user (sessions/logins.py).
                    AND NOT (s.setdatabase = 0 AND s.setconfig = ARRAY['role=' || owner])
    LOOP
        EXECUTE format('ALTER ROLE %I%s RESET ALL', worker,
                       COALESCE(' IN DATABASE ' || quote_ident(other.database), ''));
    END LOOP;
    FOR other IN SELECT wanted.role AS wanted, held.role AS held
                   FROM unnest(ARRAY[owner, 'cerebro_worker']) AS wanted (role)
                   FULL JOIN (SELECT g.rolname FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid
                                JOIN pg_roles w ON w.oid = m.member WHERE w.rolname = worker) AS held (role)
                     ON held.role = wanted.role
    LOOP
        IF other.wanted IS NULL THEN
            EXECUTE format('REVOKE %I FROM %I', other.held, worker);
        ELSIF other.held IS NULL THEN
            EXECUTE format('GRANT %I TO %I', other.wanted, worker);
        END IF;
    END LOOP;
    -- A member of the worker role could act as its user: a role that created the worker role beforehand, for instance.
    FOR other IN SELECT b.rolname AS borrower, g.rolname AS grantor
                   FROM pg_auth_members m JOIN pg_roles w ON w.oid = m.roleid JOIN pg_roles b ON b.oid = m.member
                   JOIN pg_roles g ON g.oid = m.grantor WHERE w.rolname = worker
    LOOP
        EXECUTE format('REVOKE %I FROM %I%s CASCADE', worker, other.borrower,
                       CASE WHEN current_setting('server_version_num')::integer >= 160000
                            THEN ' GRANTED BY ' || quote_ident(other.grantor) ELSE '' END);
    END LOOP;
    IF EXISTS (SELECT FROM pg_auth_members m JOIN pg_roles w ON w.oid = m.roleid WHERE w.rolname = worker) THEN
        RAISE EXCEPTION 'role "%" is granted to other roles, which could act as "%"', worker, owner
            USING ERRCODE = 'insufficient_privilege', HINT = format('A superuser can say: DROP ROLE %I;', worker);
    END IF;
    RETURN worker;
END
$$;
COMMENT ON FUNCTION cerebro._enrol(name, text) IS
'Creates or repairs the worker role of a user, gives it a password, and makes the password valid for 30 seconds. '
'NULL: the user may not log in itself, and its worker role may not either from now on. The server calls this through '
'the login cerebro_enrol.';

CREATE OR REPLACE FUNCTION cerebro._close_login(owner name) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    worker name := 'cerebro_w_' || (SELECT oid FROM pg_roles WHERE rolname = owner);
BEGIN
    PERFORM FROM pg_authid WHERE rolname = worker FOR UPDATE;
    IF FOUND THEN
        -- Not NOLOGIN: then the sessions of the role could start no parallel workers, nor processes on the segments of
        -- Greenplum.
        EXECUTE format('ALTER ROLE %I VALID UNTIL %L', worker, 'epoch');
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro._close_login(name) IS
'Ends the validity of the password of a user''s worker role. Sessions of the role go on.';

CREATE OR REPLACE FUNCTION cerebro._setup_logins() RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.setup_logins(plpy)
$py$;
COMMENT ON FUNCTION cerebro._setup_logins() IS
'Sets the password of the login cerebro_enrol. CREATE EXTENSION calls it. A superuser calls it again after a '
'restore on another server.';

CREATE OR REPLACE FUNCTION cerebro._sessions() RETURNS TABLE (pid integer, backend_start timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    -- Without this a transaction would go on seeing the sessions that there were when it looked first.
    SELECT pg_catalog.pg_stat_clear_snapshot();
    SELECT a.pid, a.backend_start FROM pg_catalog.pg_stat_activity a WHERE a.backend_start IS NOT NULL;
$$;
COMMENT ON FUNCTION cerebro._sessions() IS
'The sessions that are open now. A process id can be reused, so a session is identified by its process id and its '
'start time.';

CREATE OR REPLACE FUNCTION cerebro._dismiss_waiting() RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*) FILTER (WHERE pg_terminate_backend(a.pid))
      FROM pg_stat_activity a
     WHERE a.usename ~ '^cerebro_w_[0-9]+$' AND a.application_name = 'cerebro_db waiting' AND a.state = 'idle'
$$;
COMMENT ON FUNCTION cerebro._dismiss_waiting() IS
'Ends the idle worker sessions that all users keep for their next call, and returns their number. Called when '
'connections or memory are short.';

-- What a worker session calls on its segment.  Each function acts for its caller, and can use only what belongs to the
-- session that calls it: no argument is a path or a credential.

CREATE OR REPLACE FUNCTION cerebro._warm_up(engine text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.warm_up_here(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._warm_up(text) IS
'Has the server of this segment import an engine, and does not wait for that.';

CREATE OR REPLACE FUNCTION cerebro._worker_open(settings jsonb) RETURNS jsonb
LANGUAGE plpython3u AS $py$
@cerebro@
return api.worker_open(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._worker_open(jsonb) IS
'Starts the trainer of this session, or describes the one that is running.';

CREATE OR REPLACE FUNCTION cerebro._data_in(handle text, variable text, payload bytea) RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.data_in(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._data_in(text, text, bytea) IS
'Adds one variable of one packed buffer to the row cache of this session.';

CREATE OR REPLACE FUNCTION cerebro._state_in(state text, start bigint, payload bytea) RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.state_in(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._state_in(text, bigint, bytea) IS
'Adds one chunk to a model state that this session is receiving.';

CREATE OR REPLACE FUNCTION cerebro._work(work text) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.work(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._work(text) IS
'Carries out one order of the driver, with the trainer of this session where the order is for it, and listens for a '
'cancel meanwhile.';

CREATE OR REPLACE FUNCTION cerebro._state_out(visit integer, index integer) RETURNS SETOF cerebro._chunk
LANGUAGE plpython3u AS $py$
@cerebro@
return api.state_out(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._state_out(integer, integer) IS
'The model state that a visit in this session has left, in chunks. index: place of the model in the order, from 0, '
'counted over all groups.';

CREATE OR REPLACE FUNCTION cerebro._worker_close() RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.worker_close(plpy)
$py$;
COMMENT ON FUNCTION cerebro._worker_close() IS
'Ends the trainer of this session and removes its files.';

CREATE OR REPLACE FUNCTION cerebro._gpus() RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.gpus_here(plpy)
$py$;
COMMENT ON FUNCTION cerebro._gpus() IS
'The number of GPUs of the machine on which the function runs: on Greenplum, the machine of a segment.';
