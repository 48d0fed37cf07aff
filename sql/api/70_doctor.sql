-- Checking the installation.

CREATE OR REPLACE FUNCTION cerebro.doctor(segments integer DEFAULT NULL)
RETURNS TABLE (place text, check_name text, status text, found text, advice text)
LANGUAGE plpython3u AS $py$
@cerebro@
return api.doctor(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.doctor(integer) IS
'Checks the installation, the roles, the worker logins, and a trainer on every segment. Returns one row per check:
status is ok, warning or problem, found says what was found, advice says what to do. Takes some seconds, because it
starts trainers.

- segments: number of segments to check. NULL: all segments.';
