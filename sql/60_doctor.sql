-- Is everything as it should be?

CREATE FUNCTION cerebro.doctor(segments integer DEFAULT NULL)
RETURNS TABLE (place text, check_name text, status text, found text, advice text)
LANGUAGE plpython3u AS $py$
@cerebro@
return api.doctor(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.doctor(integer) IS
'Looks at the installation, the roles, the worker logins, and at a trainer on every segment (or on so many), and says
what it found: status is ok, warning or problem, advice what to do. Starts trainers, so it takes some seconds.';
