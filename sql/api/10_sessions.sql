-- Worker sessions: how the server logs in to itself as one of its users, and what such a session calls on its segment.
-- docs/security.md describes the rights of each login.

CREATE OR REPLACE FUNCTION cerebro._enrol(owner name) RETURNS name
LANGUAGE plpython3u SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $py$
@cerebro@
return api.enrol(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._enrol(name) IS
'Creates or repairs the worker role of a user. The server calls it through the login cerebro_enrol.';

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
