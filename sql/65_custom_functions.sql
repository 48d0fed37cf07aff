-- Losses and metrics of one's own: source text that an administrator registers.

CREATE TABLE cerebro.custom_function (
    name          text        NOT NULL,
    version       integer     NOT NULL CHECK (version > 0),
    kind          text        NOT NULL CHECK (kind IN ('loss', 'metric')),
    source        text,       -- NULL: from this version on nobody may name it
    sha256        text,
    description   text,
    registered_by name        NOT NULL DEFAULT current_user,
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, version)
);
COMMENT ON TABLE cerebro.custom_function IS
'Custom losses and metrics, every version; rows are only ever added. The source is executed in trainer processes with the
rights of the server''s operating-system account, so whoever may add rows (cerebro_admin) is as powerful as that account.';
SELECT pg_catalog.pg_extension_config_dump('cerebro.custom_function', '');
GRANT SELECT ON cerebro.custom_function TO cerebro_user, cerebro_monitor;
-- Who registered what, and when, is not for the registrar to say.
GRANT INSERT (name, version, kind, source, sha256, description) ON cerebro.custom_function TO cerebro_admin;

CREATE VIEW cerebro.custom_functions AS
SELECT name, version, kind, description, registered_by, registered_at, sha256, source
  FROM (SELECT DISTINCT ON (name) * FROM cerebro.custom_function ORDER BY name, version DESC) newest
 WHERE source IS NOT NULL;
COMMENT ON VIEW cerebro.custom_functions IS
'The custom losses and metrics that compile parameters may name, in the version that a new run will use: loss=''name''.';
GRANT SELECT ON cerebro.custom_functions TO cerebro_user, cerebro_monitor;

CREATE FUNCTION cerebro.load_custom_function(name text, source text, kind text, description text DEFAULT NULL)
RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.load_custom_function(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.load_custom_function(text, text, text, text) IS
'Registers a loss or metric from its Python source, or a new version of it, and returns the version. For cerebro_admin:
THE SOURCE RUNS WITH THE RIGHTS OF THE SERVER''S OPERATING-SYSTEM ACCOUNT in the trainers of all users who name it.
source is one function, def NAME(y_true, y_pred), which finds keras and keras.ops as ops; kind is ''loss'' or ''metric''.
Here its syntax is checked and nothing is executed. Runs keep the version they were started with.';

CREATE FUNCTION cerebro.load_custom_function(object_table text, object bytea, name text, description text DEFAULT NULL)
RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.load_pickled_function(plpy)
$py$;
COMMENT ON FUNCTION cerebro.load_custom_function(text, bytea, text, text) IS
'MADlib''s signature. Pickled and dill objects are refused: to read one is to execute it. Register the source text instead.';

CREATE FUNCTION cerebro.delete_custom_function(name text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.delete_custom_function(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.delete_custom_function(text) IS
'Retires a custom loss or metric: new runs cannot name it; runs and models that do keep the version they have.';

CREATE FUNCTION cerebro.delete_custom_function(object_table text, name text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.delete_custom_function(plpy, args[1])
$py$;
COMMENT ON FUNCTION cerebro.delete_custom_function(text, text) IS 'The same, with MADlib''s arguments; object_table is ignored.';

CREATE FUNCTION cerebro.load_top_k_accuracy_function(object_table text, k integer) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.load_top_k_accuracy_function(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.load_top_k_accuracy_function(text, integer) IS
'For MADlib''s sake: metrics=[''top_<k>_accuracy''] needs no registering.';
