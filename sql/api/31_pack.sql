-- Packing a table as it is: names, dates, gaps and texts become numbers. docs/prepare.md describes what becomes what.

CREATE OR REPLACE FUNCTION cerebro.pack(
@arguments@
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.pack(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.pack(@types@) IS
'Packs a table or view with columns of nearly any type for training. output_table receives the rows for training,
OUTPUT_TABLE_validation those for validation. OUTPUT_TABLE_summary and OUTPUT_TABLE_validation_summary describe them.
Each column becomes an input by its type and its values, which docs/prepare.md explains and cerebro.prepared_columns
shows. Predictions prepare rows in the same way.

@described@';

-- The settings are those of cerebro.pack, so that values have the same texts.
CREATE OR REPLACE FUNCTION cerebro.append(
    packed_table text,
    source_table text,
    divide boolean DEFAULT true,
    related text DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.append(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.append(@types@) IS
'Adds rows that arrived later to a packed table, and to PACKED_TABLE_validation. Only the new rows are prepared, with the
means, categories and quantiles of the packed rows; a notice names columns whose values have drifted.

- packed_table: a table of yours that cerebro.pack, cerebro.train or another function has packed. Rows that are added
  twice are in it twice. Runs that have begun go on with the rows that they began with.
- source_table: a table or view with the new rows alone. It has the columns of the packed rows, with the same names.
- divide: true divides the rows between training and validation by the rule of the packed rows. false adds all of them to
  those for training.
- related: the related tables that the packed rows read, by their paths, for instance {"orders": "shop.orders"}. NULL: those
  that you named, or that were followed, when you trained on the packed table.';

-- The settings are those of cerebro.pack.
CREATE OR REPLACE FUNCTION cerebro_internal._text_in_utc(anyelement) RETURNS text
LANGUAGE sql STABLE STRICT PARALLEL SAFE SET timezone = 'UTC' AS $sql$
SELECT $1::text
$sql$;
COMMENT ON FUNCTION cerebro_internal._text_in_utc(@types@) IS
'The text of an array, a range or a row, whatever the time zone of the session is.';

CREATE OR REPLACE FUNCTION cerebro_internal._known_time(value anyelement, column_name text) RETURNS anyelement
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
    IF value IS NULL THEN
        RAISE EXCEPTION 'the column ''%'' is NULL in a row, and it is not known which related rows were there then', column_name
              USING ERRCODE = 'null_value_not_allowed',
                    HINT = 'Leave the row out, or fill it in: statement_timestamp() is now.';
    END IF;
    RETURN value;
END
$$;
COMMENT ON FUNCTION cerebro_internal._known_time(@types@) IS
'The time of a row whose related rows are read; an error if it is NULL.';

CREATE OR REPLACE FUNCTION cerebro_internal._packed_rows(
    also_in text,
@arguments@
) RETURNS text
LANGUAGE plpython3u
SET synchronize_seqscans = off SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.packed_rows(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._packed_rows(@types@) IS
'As cerebro.pack, for cerebro.train, search and fit: returns the name of a packed table of the same rows if the user has
one in the schema of output_table or in also_in, and packs otherwise. If also_in is NULL, only output_table counts.';

CREATE OR REPLACE FUNCTION cerebro.prepared_columns(packed_table text)
RETURNS TABLE (variable text, is_target boolean, column_name text, column_type text, prepared_as text, start integer,
               width integer, parameters jsonb)
LANGUAGE plpython3u STABLE AS $py$
@cerebro@
return api.prepared_columns(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.prepared_columns(@types@) IS
'Returns what the columns of a packed table have become: a row for each column. It also takes the table of trained
models.

- variable: the input or output of the model that the column belongs to; start (from 1) and width say which of its elements.
- prepared_as: number, date, category, words, or another way to pack the column.
- parameters: what packing has found in the rows, for instance mean and deviation, or the values that have codes.';

CREATE OR REPLACE FUNCTION cerebro.architecture(kind text, packed_table text, parameters jsonb DEFAULT NULL) RETURNS json
LANGUAGE plpython3u STABLE AS $py$
@cerebro@
return api.architecture(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.architecture(@types@) IS
'Returns an architecture that fits the inputs and the target of a packed table: JSON of Keras, for
cerebro.add_architecture. docs/train.md says what is in it.

- kind: mlp, resnet, transformer or trees for every table; lstm and conv1d for windows, texts and arrays of one or two
  dimensions; cnn_lstm for windows; cnn for images.
- parameters: a JSON object, for instance {"units": 64}. Each kind has its own, which docs/train.md lists. A text such as
  "$units" is left in its place, to be filled in later; what decides which layers there are, such as layers
  and blocks, must be a number.';

-- A function, not a part of the query: PostgreSQL runs no query with a subquery over a row's words on several processors.
CREATE OR REPLACE FUNCTION cerebro_internal._word_ids(value text, length integer, ids integer) RETURNS integer[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    -- Otherwise the variables would have the collation of the column: words would end elsewhere with "C", and
    -- nondeterministic collations can neither replace nor match.
    -- Of no text more than this is read, because the functions below hear no cancel.
    lowered text COLLATE "default" := pg_catalog.lower(pg_catalog.left(value, 1000000) COLLATE "default");
    -- Most texts have no letters beyond ASCII and few punctuation characters. Dividing such a text at its spaces takes a
    -- tenth of the time that the regular expression takes. One expression takes less time than several statements.
    spaced text COLLATE "default" :=
        pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(
        pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(
        pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(
        lowered, '.', ' '), ',', ' '), '-', ' '), '''', ' '), '"', ' '), ':', ' '), '!', ' '), '?', ' '), '/', ' '),
        '(', ' '), ')', ' '), ';', ' ');
    word text COLLATE "C";
    codes integer[] := '{}';
BEGIN
    IF COALESCE(length NOT BETWEEN 1 AND 10000 OR ids NOT BETWEEN 2 AND 1000000, true) THEN
        RAISE EXCEPTION 'length must be from 1 to 10000, and ids from 2 to 1000000, not % and %', length, ids
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Empty words and those beyond the last one are left out before the loop: each statement in it takes as long as a hash.
    FOREACH word IN ARRAY (pg_catalog.array_remove(
        CASE WHEN value IS NULL THEN '{}'
             WHEN spaced COLLATE "C" ~ '^[a-z0-9 ]*$' THEN pg_catalog.string_to_array(spaced, ' ')
             ELSE pg_catalog.regexp_split_to_array(lowered, '[[:space:][:punct:]]+') END, ''))[1 : length]
    LOOP
        codes := codes || (1 + (pg_catalog.hashtextextended(word, 0) % (ids - 1) + ids - 1) % (ids - 1))::integer;
    END LOOP;
    RETURN codes || pg_catalog.array_fill(0, ARRAY[length - pg_catalog.cardinality(codes)]);
END
$$;
COMMENT ON FUNCTION cerebro_internal._word_ids(@types@) IS
'The ids of a text''s first words, each from 1 to ids - 1 by a hash, and then 0 up to length. Words are in lower case and end
at spaces and punctuation. The first 1,000,000 characters of a text are read.';

CREATE OR REPLACE FUNCTION cerebro_internal._word_pieces(value text, length integer, vocabulary bytea) RETURNS integer[]
LANGUAGE plpython3u IMMUTABLE AS $py$
@cerebro@
return api.word_pieces(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._word_pieces(@types@) IS
'The numbers of the pieces of a text''s first words in a vocabulary, a piece in each line, and then 0 up to length. Words are in
lower case and without accents.';
