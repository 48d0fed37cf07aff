-- What a role may take of a server that it shares.

CREATE TABLE cerebro.role_limit (
    role                 name    NOT NULL PRIMARY KEY,
    max_running_runs     integer CHECK (max_running_runs >= 0),
    max_segments         integer CHECK (max_segments >= 0),
    max_state_bytes      bigint  CHECK (max_state_bytes >= 0),
    max_run_seconds      integer CHECK (max_run_seconds > 0),
    min_free_connections integer CHECK (min_free_connections >= 0),
    max_waiting_seconds  integer CHECK (max_waiting_seconds BETWEEN 0 AND 86400),
    set_by               name        NOT NULL DEFAULT current_user,
    set_at               timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE cerebro.role_limit IS
'Limits per role, set with cerebro.set_limits(); the role '''' stands for everybody, and for what a role''s own row leaves out.';
SELECT pg_catalog.pg_extension_config_dump('cerebro.role_limit', '');
GRANT SELECT, DELETE ON cerebro.role_limit TO cerebro_admin;
GRANT INSERT (role, max_running_runs, max_segments, max_state_bytes, max_run_seconds, min_free_connections,
              max_waiting_seconds)
   ON cerebro.role_limit TO cerebro_admin;

CREATE VIEW cerebro._state_size AS
SELECT pg_catalog.pg_get_userbyid(c.relowner) AS owner, pg_catalog.pg_total_relation_size(c.oid) AS bytes
  FROM pg_catalog.pg_class c
 WHERE c.relkind = 'r' AND c.relnamespace = 'cerebro_state'::regnamespace;
COMMENT ON VIEW cerebro._state_size IS 'What the model states of all runs take of the disk.';

-- The driver and people read the same figures.
CREATE VIEW cerebro.limits WITH (security_barrier) AS
WITH mine AS (
    SELECT COALESCE(own.max_running_runs, everybody.max_running_runs) AS running_runs,
           COALESCE(own.max_segments, everybody.max_segments) AS segments,
           COALESCE(own.max_state_bytes, everybody.max_state_bytes) AS state_bytes,
           COALESCE(own.max_run_seconds, everybody.max_run_seconds) AS run_seconds,
           COALESCE(own.min_free_connections, everybody.min_free_connections,
                    GREATEST(3, current_setting('max_connections')::integer / 10)) AS free_connections,
           COALESCE(own.max_waiting_seconds, everybody.max_waiting_seconds, 60) AS waiting_seconds
      FROM (VALUES (1)) one
      LEFT JOIN cerebro.role_limit own ON own.role = current_user
      LEFT JOIN cerebro.role_limit everybody ON everybody.role = ''
), running AS (
    SELECT count(*) AS runs, COALESCE(sum(segments), 0) AS segments,
           max(extract(epoch FROM clock_timestamp() - last.at)) AS seconds
      FROM cerebro.runs
     CROSS JOIN LATERAL (SELECT max(e.at) AS at FROM cerebro.event e
                          WHERE e.run = runs.run AND e.owner = runs.owner AND e.event = 'started') last
     WHERE runs.owner = current_user AND runs.status = 'running'
), states AS (
    SELECT COALESCE(sum(bytes), 0) AS bytes FROM cerebro._state_size WHERE owner = current_user
)
SELECT l.name, l.allowed::bigint AS allowed, l.used::bigint AS used, l.about
  FROM mine, running, states,
       LATERAL (VALUES
           ('running_runs', mine.running_runs, running.runs, 'your runs under way'),
           ('segments', mine.segments, running.segments, 'segments of your runs under way; each has a trainer'),
           ('state_bytes', mine.state_bytes, states.bytes, 'disk for the model states of all your runs'),
           ('run_seconds', mine.run_seconds, COALESCE(running.seconds, 0), 'how long a run of yours may take at a stretch'),
           ('connections',
            current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
                - COALESCE(current_setting('reserved_connections', true)::integer, 0) - mine.free_connections,
            (SELECT sum(numbackends) FROM pg_catalog.pg_stat_database),
            'connections of the whole server; a run takes one per segment and one more'),
           ('waiting_seconds', mine.waiting_seconds, NULL::numeric,
            'how long workers wait for the next call of their session; 0: not at all')
       ) AS l (name, allowed, used, about);
COMMENT ON VIEW cerebro.limits IS 'What you may take of the server (NULL: as much as there is), and what you take now.';
GRANT SELECT ON cerebro.limits TO cerebro_user;

CREATE FUNCTION cerebro.set_limits(
    role                 text    DEFAULT NULL,
    max_running_runs     integer DEFAULT NULL,
    max_segments         integer DEFAULT NULL,
    max_state_bytes      bigint  DEFAULT NULL,
    max_run_seconds      integer DEFAULT NULL,
    min_free_connections integer DEFAULT NULL,
    max_waiting_seconds  integer DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF COALESCE(role, '') <> '' AND NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
        RAISE EXCEPTION 'role "%" does not exist', role USING ERRCODE = 'undefined_object';
    END IF;
    DELETE FROM cerebro.role_limit l WHERE l.role = COALESCE(set_limits.role, '');
    INSERT INTO cerebro.role_limit
           (role, max_running_runs, max_segments, max_state_bytes, max_run_seconds, min_free_connections,
            max_waiting_seconds)
    VALUES (COALESCE(set_limits.role, ''), set_limits.max_running_runs, set_limits.max_segments,
            set_limits.max_state_bytes, set_limits.max_run_seconds, set_limits.min_free_connections,
            set_limits.max_waiting_seconds);
END
$$;
COMMENT ON FUNCTION cerebro.set_limits(text, integer, integer, bigint, integer, integer, integer) IS
'Sets all limits of a role, or of everybody (role NULL), in place of those it had; for cerebro_admin. NULL: none of its own.
max_run_seconds ends a run as cancelled: it can be resumed. min_free_connections (a tenth of max_connections if nobody says
otherwise) stay free for others. max_waiting_seconds (60 if nobody says otherwise) is how long the workers of a call wait,
with their memory and connections, for the next call of its session; they end at once when others lack either. Limits hold
for what runs take; a role''s own sessions are limited by PostgreSQL itself.';

CREATE FUNCTION cerebro._forget(forgotten bigint, whose name) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    leaf  name;
    named text;
BEGIN
    -- The row of a run is its owner's to write: only tables that are this owner's and look like states are dropped.
    FOR leaf IN
        SELECT c.relname
          FROM cerebro.run r
          JOIN pg_roles o ON o.rolname = r.owner
          JOIN pg_class c ON c.relowner = o.oid AND c.relkind IN ('r', 'p')
          JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'cerebro_state'
         WHERE r.run = forgotten AND r.owner = whose AND r.storage ~ '^run_[0-9a-f]{12}$'
           AND c.relname ~ ('^' || r.storage || '_[0-9]+_[01]$')
    LOOP
        EXECUTE format('DROP TABLE cerebro_state.%I', leaf);
    END LOOP;
    FOREACH named IN ARRAY ARRAY['heartbeat', 'attempt', 'evaluation', 'hop', 'event', 'configuration', 'architecture', 'run']
    LOOP
        EXECUTE format('DELETE FROM cerebro.%I WHERE run = $1 AND owner = $2', named) USING forgotten, whose;
    END LOOP;
END
$$;
COMMENT ON FUNCTION cerebro._forget(bigint, name) IS 'Removes the log and the model states of anybody''s run; cerebro.forget() calls it for an admin.';
