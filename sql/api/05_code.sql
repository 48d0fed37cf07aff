-- Where the Python code of the functions lies.

CREATE OR REPLACE FUNCTION cerebro_internal._code_folder() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    folder text := @code@;
BEGIN
    IF (pg_stat_file(folder || '/cerebro_plpy', true)).isdir IS NOT TRUE THEN
        RAISE EXCEPTION 'the code of cerebro_db is not there: this server has no folder %', folder
            USING ERRCODE = 'undefined_file',
                  HINT = 'Install cerebro_db for PostgreSQL ' || current_setting('server_version') || ': its package, or make '
                         || 'install with the pg_config of this server. pg_upgrade does not do it.';
    END IF;
    RETURN folder;
END
$$;
COMMENT ON FUNCTION cerebro_internal._code_folder() IS
'The folder of the Python code, of which every function in Python asks when a session calls the first one. It is found '
'in the share folder of the server that runs, because pg_upgrade takes the functions to another server.';
