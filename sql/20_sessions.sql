-- Worker sessions: how the server logs in to itself as one of its users.  See docs/security.md.

CREATE FUNCTION cerebro._enrol(owner name) RETURNS name
LANGUAGE plpython3u SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $py$
@cerebro@
return api.enrol(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._enrol(name) IS
    'Makes or mends the worker login of a user. Called by the server itself, through the login cerebro_enrol.';

CREATE FUNCTION cerebro._setup_logins() RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.setup_logins(plpy)
$py$;
COMMENT ON FUNCTION cerebro._setup_logins() IS
    'Gives the login cerebro_enrol its password. Run by CREATE EXTENSION; again by a superuser after a restore on another server.';

CREATE FUNCTION cerebro._sessions() RETURNS TABLE (pid integer, backend_start timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.pid, a.backend_start FROM pg_catalog.pg_stat_activity a WHERE a.backend_start IS NOT NULL
$$;
COMMENT ON FUNCTION cerebro._sessions() IS
    'The sessions that live. The process id alone does not name one, it may have been given to another; with its start it does.';

CREATE FUNCTION cerebro._dismiss_waiting() RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*) FILTER (WHERE pg_terminate_backend(a.pid))
      FROM pg_stat_activity a
     WHERE a.usename ~ '^cerebro_w_[0-9]+$' AND a.application_name = 'cerebro_db waiting' AND a.state = 'idle'
$$;
COMMENT ON FUNCTION cerebro._dismiss_waiting() IS
    'Ends the worker sessions that wait for another call, everybody''s: called where connections or memory are short.';

-- What a worker session calls on its segment.  They act for whoever calls them and reach nothing else:
-- paths and credentials never come in as arguments.

CREATE FUNCTION cerebro._worker_open(options jsonb) RETURNS jsonb
LANGUAGE plpython3u AS $py$
@cerebro@
return api.worker_open(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._worker_open(jsonb) IS 'Starts this session''s trainer, or tells about the one that runs.';

CREATE FUNCTION cerebro._data_in(handle text, variable text, payload bytea) RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.data_in(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._data_in(text, text, bytea) IS 'Takes one variable of one packed buffer into this session''s cache.';

CREATE FUNCTION cerebro._state_in(ticket text, start bigint, payload bytea) RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.state_in(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._state_in(text, bigint, bytea) IS 'Takes one chunk of a model state.';

CREATE FUNCTION cerebro._work(work text) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.work(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._work(text) IS 'Has this session''s trainer do one piece of work, and listens for cancel meanwhile.';

CREATE TYPE cerebro._chunk AS (start bigint, payload bytea);

CREATE FUNCTION cerebro._state_out(unit integer, member integer) RETURNS SETOF cerebro._chunk
LANGUAGE plpython3u AS $py$
@cerebro@
return api.state_out(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._state_out(integer, integer) IS
    'A model state that a training of this session left, in chunks; of those that trained together the one at that place, from 0 on.';

CREATE FUNCTION cerebro._worker_close() RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.worker_close(plpy)
$py$;
COMMENT ON FUNCTION cerebro._worker_close() IS 'Ends this session''s trainer and removes its files.';

CREATE FUNCTION cerebro._gpus() RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.gpus_here(plpy)
$py$;
COMMENT ON FUNCTION cerebro._gpus() IS 'How many GPUs the machine has on which this is evaluated: on Greenplum a segment''s.';
