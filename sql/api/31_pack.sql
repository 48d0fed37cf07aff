-- Packing a table as it is: names, dates, gaps and texts become numbers. docs/prepare.md describes what becomes what.

CREATE OR REPLACE FUNCTION cerebro.pack(
    source_table text,
    output_table text,
    target text,
    inputs text DEFAULT NULL,
    prepare json DEFAULT NULL,
    validation double precision DEFAULT NULL,
    validation_table text DEFAULT NULL,
    split_by text DEFAULT NULL,
    split_at text DEFAULT NULL,
    stratify boolean DEFAULT false,
    buffer_size integer DEFAULT NULL,
    segments integer DEFAULT NULL,
    distribution_rules text DEFAULT NULL,
    seed bigint DEFAULT NULL,
    sequence json DEFAULT NULL,
    weights text DEFAULT NULL,
    class_weight text DEFAULT NULL,
    folds integer DEFAULT NULL,
    group_by text DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.pack(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.pack(
    text, text, text, text, json, double precision, text, text, text, boolean, integer, integer, text, bigint, json, text,
    text, integer, text) IS
'Packs a table or view with columns of nearly any type for training. output_table receives the rows for training,
OUTPUT_TABLE_validation those for validation. OUTPUT_TABLE_summary and OUTPUT_TABLE_validation_summary describe them.
Each column becomes an input by its type and its values, which docs/prepare.md explains and cerebro.prepared_columns
shows. Predictions prepare rows in the same way.

- target: the columns to predict, separated by commas. real, double precision and numeric are numbers to predict, and so
  are integers with many different values. Other columns are class labels.
- inputs: the input columns, separated by commas. NULL: all others. Keys, columns that number the rows and columns with
  one value are ignored, with a notice.
- prepare: what columns become, by name or by type, for instance {"zip": "category", "date": "ignore"}. A column of type
  bytea with pixels needs the shape of an image: {"photo": {"shape": [64, 64, 3]}}.
- validation: the share of the rows for validation, chosen by a hash of the key. A row stays on its side when other
  rows are added. Windows are divided by their subject or their time (docs/prepare.md). 0: none. NULL: 0.2, or none if
  there are folds or a validation_table.
- validation_table: a table with the rows for validation, instead of a share.
- split_by: a column, such as patient. All rows with the same value are on the same side.
- split_at: a column, such as a time; the rows with its largest values are for validation.
- stratify: true takes the same share of the rows of each class for validation.
- buffer_size, segments, distribution_rules, seed: as in cerebro.pack_plain.
- sequence: makes windows of consecutive rows, for instance {"by": "subject", "order": "ts", "length": 100, "step": 50}.
  No window has rows of two subjects. Its target is that of its last row, or the most frequent class with
  "target": "majority". With "horizon": 7 it is that of the row seven rows after its last row. Without split_by and split_at,
  all windows of a subject are on the same side; with a horizon, the latest rows are for validation.
- weights: a column with the weight of each row in training.
- class_weight: balanced gives all classes the same weight in training.
- folds: for cross-validation, the number of folds that the rows are divided into, by the same hash. A fit then trains one
  model of each configuration for each fold, on the rows of all other folds, and one model on all rows. split_by keeps
  all rows with the same value in one fold; stratify gives each fold the same share of each class. With group_by, each
  group has these models, too, and rows in all folds, or in as many as it has rows.
- group_by: columns, separated by commas. Rows with the same values are a group, which lies on one segment unless it has
  more rows than a segment''s share. A fit then trains one model of each configuration for each group, and one on all
  rows. With a sequence, the columns are among those of its "by".';

-- The settings are those of cerebro.pack, so that values have the same texts.
CREATE OR REPLACE FUNCTION cerebro.append(
    packed_table text,
    source_table text,
    divide boolean DEFAULT true
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.append(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.append(text, text, boolean) IS
'Adds rows that arrived later to a packed table, and to PACKED_TABLE_validation. Only the new rows are prepared, with the
means, categories and quantiles of the packed rows; a notice names columns whose values have drifted.

- packed_table: a table of yours that cerebro.pack, cerebro.train or another function has packed. Rows that are added
  twice are in it twice. Runs that have begun go on with the rows that they began with.
- source_table: a table or view with the new rows alone. It has the columns of the packed rows, with the same names.
- divide: true divides the rows between training and validation by the rule of the packed rows. false adds all of them to
  those for training.';

-- The settings are those of cerebro.pack.
CREATE OR REPLACE FUNCTION cerebro._text_in_utc(anyelement) RETURNS text
LANGUAGE sql STABLE STRICT PARALLEL SAFE SET timezone = 'UTC' AS $sql$
SELECT $1::text
$sql$;
COMMENT ON FUNCTION cerebro._text_in_utc(anyelement) IS
'The text of an array, a range or a row, whatever the time zone of the session is.';

CREATE OR REPLACE FUNCTION cerebro._packed_rows(
    same_name boolean,
    source_table text,
    output_table text,
    target text,
    inputs text,
    prepare json,
    validation double precision,
    validation_table text,
    split_by text,
    split_at text,
    stratify boolean,
    buffer_size integer,
    segments integer,
    distribution_rules text,
    seed bigint,
    sequence json,
    weights text,
    class_weight text,
    folds integer,
    group_by text
) RETURNS text
LANGUAGE plpython3u
SET synchronize_seqscans = off SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.packed_rows(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._packed_rows(
    boolean, text, text, text, text, json, double precision, text, text, text, boolean, integer, integer, text, bigint,
    json, text, text, integer, text) IS
'As cerebro.pack, for cerebro.train, search and fit: returns the name of a packed table of the same rows if the user has
one in the schema of output_table, and packs otherwise. same_name: the table can only be output_table.';

CREATE OR REPLACE FUNCTION cerebro.prepared_columns(packed_table text)
RETURNS TABLE (variable text, is_target boolean, column_name text, column_type text, prepared_as text, start integer,
               width integer, parameters jsonb)
LANGUAGE plpython3u STABLE AS $py$
@cerebro@
return api.prepared_columns(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.prepared_columns(text) IS
'Returns what the columns of a packed table have become: a row for each column. It also takes the table of trained
models.

- variable: the input or output of the model that the column belongs to; start (from 1) and width say which of its elements.
- prepared_as: number, date, category, words, or another way to pack the column.
- parameters: what packing has found in the rows, for instance mean and deviation, or the values that have codes.';

CREATE OR REPLACE FUNCTION cerebro.architecture(kind text, packed_table text, parameters jsonb DEFAULT NULL) RETURNS json
LANGUAGE plpython3u STABLE AS $py$
@cerebro@
return api.architecture(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.architecture(text, text, jsonb) IS
'Returns an architecture that fits the inputs and the target of a packed table: JSON of Keras, for
cerebro.add_architecture. docs/train.md says what is in it.

- kind: mlp, resnet or transformer for every table; lstm and conv1d for windows, texts and arrays of one or two dimensions;
  cnn for images.
- parameters: a JSON object, for instance {"units": 64}. Each kind has its own, which docs/train.md lists. A text such as
  "$units" is left in its place, to be filled in later; layers, blocks, linear, embedding, bins and group_statistics must be
  numbers.';

-- A function, not a part of the query: PostgreSQL runs no query with a subquery over a row's words on several processors.
CREATE OR REPLACE FUNCTION cerebro._word_ids(value text, length integer, ids integer) RETURNS integer[]
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
COMMENT ON FUNCTION cerebro._word_ids(text, integer, integer) IS
'The ids of a text''s first words, each from 1 to ids - 1 by a hash, and then 0 up to length. Words are in lower case and end
at spaces and punctuation. The first 1,000,000 characters of a text are read.';
