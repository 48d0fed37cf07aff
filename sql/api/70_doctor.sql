-- Looking after the installation.

CREATE OR REPLACE FUNCTION cerebro.warm_up(engine text DEFAULT NULL) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.warm_up(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.warm_up(@types@) IS
'Has every server import a framework now, so that the next call starts its trainers in an instant, and returns at
once. Packing a table does the same, and so does a call that trains, on PostgreSQL. Frameworks that nobody uses are
dropped after half an hour, or after the seconds that keep_ready in install.json says.

- engine: tensorflow, jax or torch. NULL: the default engine, which is tensorflow if it is installed, and else jax.';

CREATE OR REPLACE FUNCTION cerebro.doctor(segments integer DEFAULT NULL)
RETURNS TABLE (component text, check_name text, status text, found text, advice text)
LANGUAGE plpython3u AS $py$
@cerebro@
return api.doctor(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.doctor(@types@) IS
'Checks the installation, the roles, the worker logins, and a trainer on every segment. Returns one row per check:
status is ok, warning or problem, found says what was found, advice says what to do. Takes some seconds, because it
starts trainers.

- segments: number of segments to check. NULL: all segments.';
