-- Who may call what.  Nothing is PUBLIC's; what only the server calls itself is nobody's.

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA cerebro FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA cerebro FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA cerebro FROM PUBLIC;
REVOKE ALL ON TYPE cerebro._chunk, cerebro._prediction FROM PUBLIC;
GRANT USAGE ON TYPE cerebro._chunk, cerebro._prediction TO cerebro_user;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA cerebro TO cerebro_user;
REVOKE ALL ON FUNCTION cerebro._enrol(name), cerebro._setup_logins() FROM cerebro_user;
GRANT EXECUTE ON FUNCTION cerebro._enrol(name) TO cerebro_enrol;
GRANT EXECUTE ON FUNCTION cerebro._sessions() TO cerebro_monitor;

SELECT cerebro._setup_logins();
