-- Custom losses and metrics.  The table is in sql/schema/50_custom_functions.sql.

CREATE OR REPLACE VIEW cerebro.custom_functions AS
SELECT name, version, kind, description, registered_by AS added_by, registered_at AS added_at, sha256, source
  FROM (SELECT DISTINCT ON (name) * FROM cerebro.custom_function ORDER BY name, version DESC) newest
 WHERE source IS NOT NULL;
COMMENT ON VIEW cerebro.custom_functions IS
'The custom losses and metrics that compile parameters can name, for instance loss=''name''. A new run uses the version '
'that is listed here.';
COMMENT ON COLUMN cerebro.custom_functions.name IS 'Name of the function, as compile parameters refer to it.';
COMMENT ON COLUMN cerebro.custom_functions.version IS 'Newest version, from 1.';
COMMENT ON COLUMN cerebro.custom_functions.kind IS 'loss, metric or both.';
COMMENT ON COLUMN cerebro.custom_functions.description IS 'Description that the administrator gave.';
COMMENT ON COLUMN cerebro.custom_functions.added_by IS 'The administrator who added this version.';
COMMENT ON COLUMN cerebro.custom_functions.added_at IS 'When this version was added.';
COMMENT ON COLUMN cerebro.custom_functions.sha256 IS 'SHA-256 checksum of the source, in hexadecimal.';
COMMENT ON COLUMN cerebro.custom_functions.source IS 'Python source of the function.';

CREATE OR REPLACE FUNCTION cerebro.add_custom_function(name text, source text, kind text, description text DEFAULT NULL)
RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.add_custom_function(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.add_custom_function(@types@) IS
'Registers a custom loss or metric from its Python source, or a new version of it, and returns the version. For
cerebro_admin. THE SOURCE RUNS WITH THE RIGHTS OF THE SERVER''S OPERATING-SYSTEM ACCOUNT, in the trainers of all users
who name the function. Registration checks the syntax and executes nothing. A run keeps the version that it started
with.

- source: one function, def NAME(y_true, y_pred). It can use keras, and keras.ops as ops.
- kind: loss, metric or both.';

CREATE OR REPLACE FUNCTION cerebro.drop_custom_function(name text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.drop_custom_function(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.drop_custom_function(@types@) IS
'Retires a custom loss or metric. New runs cannot name it. Existing runs and models keep the version that they use. For
cerebro_admin.';
