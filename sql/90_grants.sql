-- Who may call what.  Nothing is PUBLIC's; what only the server calls itself is nobody's.

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA cerebro FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA cerebro FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA cerebro FROM PUBLIC;
REVOKE ALL ON TYPE cerebro._chunk, cerebro._prediction FROM PUBLIC;
GRANT USAGE ON TYPE cerebro._chunk, cerebro._prediction TO cerebro_user;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA cerebro TO cerebro_user;
REVOKE ALL ON FUNCTION cerebro._enrol(name), cerebro._setup_logins(), cerebro._bytes_array(bytea) FROM cerebro_user;
GRANT EXECUTE ON FUNCTION cerebro._enrol(name) TO cerebro_enrol;
GRANT EXECUTE ON FUNCTION cerebro._sessions() TO cerebro_monitor;

-- An administrator's own.
REVOKE ALL ON FUNCTION cerebro.load_custom_function(text, text, text, text), cerebro.delete_custom_function(text),
                       cerebro.delete_custom_function(text, text), cerebro._forget(bigint, name),
                       cerebro.set_limits(text, integer, integer, bigint, integer, integer, integer)
  FROM cerebro_user;
GRANT EXECUTE ON FUNCTION cerebro.load_custom_function(text, text, text, text), cerebro.delete_custom_function(text),
                          cerebro.delete_custom_function(text, text), cerebro._forget(bigint, name),
                          cerebro.set_limits(text, integer, integer, bigint, integer, integer, integer)
   TO cerebro_admin;

SELECT cerebro._setup_logins();
