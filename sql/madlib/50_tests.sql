-- Functions that MADlib's own test scripts call.

-- As in MADlib, a condition that is NULL does not fail: its test scripts compare elements that arrays do not have.
CREATE OR REPLACE FUNCTION @extschema@.assert(boolean, varchar) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT $1 THEN
        RAISE EXCEPTION 'Failed assertion: %', $2;
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION @extschema@.assert_guc_value(text, text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF pg_catalog.current_setting($1) OPERATOR(pg_catalog.<>) $2 THEN
        RAISE EXCEPTION 'Failed assertion: the setting % is %, not %', $1, pg_catalog.current_setting($1), $2;
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION @extschema@.trap_error(text) RETURNS integer
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE $1;
    RETURN 0;
EXCEPTION WHEN OTHERS THEN
    RETURN 1;
END
$$;

CREATE OR REPLACE FUNCTION @extschema@.test_error_msg(text, text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE $1;
    RETURN false;
EXCEPTION WHEN OTHERS THEN
    RETURN pg_catalog.strpos(SQLERRM, $2) OPERATOR(pg_catalog.>) 0;
END
$$;

CREATE OR REPLACE FUNCTION @extschema@.test_input_table(text) RETURNS boolean
LANGUAGE sql AS $$
SELECT @extschema@.test_error_msg($1, 'NULL/empty input table name')
$$;

CREATE OR REPLACE FUNCTION @extschema@.test_output_table(text) RETURNS boolean
LANGUAGE sql AS $$
SELECT @extschema@.test_error_msg($1, 'NULL/empty output table name')
$$;

CREATE OR REPLACE FUNCTION @extschema@.relative_error(double precision, double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE AS $$
SELECT CASE WHEN $2 = 0 THEN abs($1) ELSE abs($1 - $2) / abs($2) END
$$;

-- Of vectors, by their Euclidean norms.
CREATE OR REPLACE FUNCTION @extschema@.relative_error(double precision[], double precision[]) RETURNS double precision
LANGUAGE sql IMMUTABLE AS $$
SELECT CASE WHEN sum(v.known ^ 2) = 0 THEN sqrt(sum(v.found ^ 2))
            ELSE sqrt(sum((v.found - v.known) ^ 2)) / sqrt(sum(v.known ^ 2))
       END
  FROM unnest($1, $2) AS v (found, known)
$$;

CREATE OR REPLACE FUNCTION @extschema@.__to_char(anyelement) RETURNS text
LANGUAGE sql STABLE AS $$
SELECT $1::text
$$;

CREATE OR REPLACE FUNCTION @extschema@.is_table_unlogged(text) RETURNS boolean
LANGUAGE sql STABLE AS $$
SELECT relpersistence = 'u' FROM pg_catalog.pg_class WHERE oid = $1::regclass
$$;

-- The extension supports no PostgreSQL before 11, and no Greenplum before 7.0.0.
CREATE OR REPLACE FUNCTION @extschema@.is_ver_gp_640_700_or_pg_11() RETURNS boolean
LANGUAGE sql STABLE AS $$
SELECT pg_catalog.current_setting('gp_role', true) IS NULL
$$;
