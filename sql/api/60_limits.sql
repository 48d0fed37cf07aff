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
COMMENT ON FUNCTION cerebro_internal._trainer_limit(@types@) IS
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
       COALESCE(own.max_predictors, everybody.max_predictors, 8) AS predictors,
       COALESCE(own.max_processors, everybody.max_processors) AS processors,
       COALESCE(own.processor_share, everybody.processor_share, 1) AS processor_share
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
            'trainers that stay for your later sessions after they have predicted rows; 0: none'),
           ('processors', mine.processors, NULL::numeric,
            'processors that the trainers of all your runs may keep busy while runs of others wait; further runs wait'),
           ('processor_share', mine.processor_share, NULL::numeric,
            'your share of the processors, compared with the shares of other owners of runs')
       ) AS l (name, allowed, used, about);
COMMENT ON VIEW cerebro.limits IS
'What you may use of the server, and what you use now.';
COMMENT ON COLUMN cerebro.limits.name IS
'Name of the limit: running_runs, segments, state_bytes, run_seconds, connections, waiting_seconds, trainer_mb, predictors,
processors or processor_share.';
COMMENT ON COLUMN cerebro.limits.allowed IS 'The most that you may use, in the unit that about names; NULL: no limit.';
COMMENT ON COLUMN cerebro.limits.used IS 'What is used now, in the same unit; NULL: not measured.';
COMMENT ON COLUMN cerebro.limits.about IS 'What the limit counts, and its unit.';

-- Nobody may read heartbeats of others, and this tells no more of them than the queue needs. A loop, because of a join the
-- planner might read all heartbeats.
CREATE OR REPLACE FUNCTION cerebro_internal._queue()
RETURNS TABLE (run bigint, owner text, began double precision, standing text, share integer, processors integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    driven record;
    latest constant timestamptz := clock_timestamp() - interval '10 seconds';
BEGIN
    FOR driven IN SELECT * FROM cerebro_internal._driven_runs() LOOP
        run := driven.run;
        owner := pg_get_userbyid(driven.owner);
        began := extract(epoch FROM driven.since);
        standing := (SELECT h.queue::text FROM cerebro.heartbeat h
                      WHERE h.run = driven.run AND h.owner::oid = driven.owner AND h.at > latest
                      ORDER BY h.at DESC LIMIT 1);
        SELECT COALESCE(max(l.processor_share) FILTER (WHERE l.role::oid <> 0), max(l.processor_share), 1),
               COALESCE(max(l.max_processors) FILTER (WHERE l.role::oid <> 0), max(l.max_processors))
          INTO share, processors
          FROM cerebro.role_limit l WHERE l.role::oid IN (0, driven.owner);
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION cerebro_internal._queue() IS
'The runs of all users that sessions drive now: what their drivers have said of them in the last ten seconds, and the '
'limits of their owners. The driver of a run asks, to share the processors with the others.';

-- On Greenplum, 80_greenplum.sql replaces this function.
CREATE OR REPLACE FUNCTION cerebro_internal._hosts() RETURNS integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT 1 $$;
COMMENT ON FUNCTION cerebro_internal._hosts() IS 'The number of hosts that have segments.';

CREATE OR REPLACE FUNCTION cerebro.set_limits(
    role                 text    DEFAULT NULL,
    max_running_runs     integer DEFAULT NULL,
    max_segments         integer DEFAULT NULL,
    max_state_bytes      bigint  DEFAULT NULL,
    max_run_seconds      integer DEFAULT NULL,
    min_free_connections integer DEFAULT NULL,
    max_waiting_seconds  integer DEFAULT NULL,
    max_trainer_mb       integer DEFAULT NULL,
    max_predictors       integer DEFAULT NULL,
    max_processors       integer DEFAULT NULL,
    processor_share      integer DEFAULT NULL
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
            max_waiting_seconds, max_trainer_mb, max_predictors, max_processors, processor_share)
    VALUES (COALESCE(quote_ident(NULLIF(set_limits.role, '')), '-')::regrole, set_limits.max_running_runs,
            set_limits.max_segments,
            set_limits.max_state_bytes, set_limits.max_run_seconds, set_limits.min_free_connections,
            set_limits.max_waiting_seconds, set_limits.max_trainer_mb, set_limits.max_predictors,
            set_limits.max_processors, set_limits.processor_share);
END
$$;
COMMENT ON FUNCTION cerebro.set_limits(@types@) IS
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
  at once. Each stays for max_waiting_seconds without a row to predict. Default: 8. 0: none stays.
- max_processors: processors that the trainers of all runs of the role keep busy at the same time. Further runs of the
  role wait. One trainer may always work.
- processor_share: while runs of several owners are under way, a role with the share 2 gets twice the processors of a
  role with the share 1. Default: 1.';

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
COMMENT ON FUNCTION cerebro_internal._forget_own(@types@) IS
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
COMMENT ON FUNCTION cerebro_internal._dependants(@types@) IS
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
COMMENT ON FUNCTION cerebro_internal._forget(@types@) IS
'Deletes the log and the model states of any user''s run. cerebro.forget() calls it for a member of cerebro_admin.';
